"""After a refusal: utilization, an fp8 cache and more GPUs, each with what it buys and what it costs."""

import math
from dataclasses import dataclass

from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.capacity_question import CapacityQuestion
from kvsim.gpu.config_refusals import allowed_length, config_refusal
from kvsim.gpu.refusals import GIB
from kvsim.gpu.releases import chunks_prefill, length_regimes

_HIGHEST_UTILIZATION = 0.98  # beyond, what the driver itself needs is no longer free
_MORE_RANKS = (2, 4, 8, 16)


@dataclass(frozen=True)
class WayOut:
    """One change that gives more room, and what it buys.

    flags: what to give vLLM; empty where this way ends at the card. fits: whether max_model_len then fits.
    longest: tokens of the longest request that does, at most max_model_len; 0 if none.
    """

    name: str
    flags: str
    fits: bool
    longest: int
    price: str


def ways_out(question: CapacityQuestion, length: int) -> tuple[WayOut, ...]:
    """The ways that help a server of that max_model_len; none that would make things worse.

    Where other processes hold too much, every way begins with a lower utilization.
    """
    if question.layout().blocks_decide:
        return (_more_blocks(question, length),)
    if config_refusal(question):
        return _allowed(question, length)
    before, prefix = at_free_utilization(question), ""
    if before is None:
        return ()
    if before is not question:
        prefix = f"--gpu-memory-utilization {before.setup.gpu_memory_utilization:g} "
    ways = [_utilization(question, length), _fp8(before, length, prefix)]
    ways.append(_tensor_parallel(before, length, prefix))
    return tuple(way for way in ways if way)


def _allowed(question: CapacityQuestion, length: int) -> tuple[WayOut, ...]:
    """After a refusal of lengths or batch limits: what makes the flags go together."""
    shorter = allowed_length(question)
    ways = []
    if 0 < shorter < length:
        price = "the longest that goes with the model's configuration and the other flags"
        flags = f"--max-model-len {shorter}"
        ways.append(WayOut("shorter requests", flags, *_served(question, shorter), price))
    allowing = question.with_flags(allow_long_max_model_len=True)
    if config_refusal(allowing) is None:
        price = "in the environment: positions that the model was not made for, with answers to match"
        ways.append(
            WayOut("permission", "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1", *_served(allowing, length), price)
        )
    else:
        whole = not chunks_prefill(question.release, question.model, length, question.flags)
        tokens = max(length if whole else 0, question.setup.max_num_seqs)
        wider = question.with_flags(max_num_batched_tokens=tokens)
        if config_refusal(wider) is None:
            price = "a larger profile run, and with it less for the cache"
            flags = f"--max-num-batched-tokens {tokens}"
            ways.append(WayOut("larger batches", flags, *_served(wider, length), price))
    return tuple(ways)


def longest_allowed(question: CapacityQuestion) -> int:
    """The longest max_model_len that the configuration and the memory allow; 0 if none."""
    length = allowed_length(question) if starts(question) else 0
    return fitting(question, length)[1] if length else 0


def _served(question: CapacityQuestion, length: int) -> tuple[bool, int]:
    """As `fitting`; a server that must lower its utilization first does not start as asked."""
    before = at_free_utilization(question) if length else None
    fits, longest = fitting(before, length) if before else (False, 0)
    return fits and before is question, longest


def starts(question: CapacityQuestion) -> bool:
    """Whether enough of the card is free at start (`request_memory`; checked from 0.9 on)."""
    setup = question.setup
    if not setup.total_bytes or question.release.v0 or question.release.minor < 9:
        return True
    free = setup.total_bytes - question.used_by_others
    return free >= math.ceil(setup.total_bytes * setup.gpu_memory_utilization)


def at_free_utilization(question: CapacityQuestion) -> CapacityQuestion | None:
    """The question itself if it starts; else with the highest utilization that does, None if none does."""
    if starts(question):
        return question
    lower = _floor(_free_share(question))
    return question.with_utilization(lower) if lower > 0 else None


def fitting(question: CapacityQuestion, length: int) -> tuple[bool, int]:
    """Whether a server of that max_model_len starts, and the longest up to it that does.

    Memory is predicted anew for a length that changes the batch limits, and with them the profile run.
    """
    full = question.with_length(length)
    best = _longest(full, length)
    if best < 1 or full.with_length(best).available() != full.available():
        ranges = length_regimes(question.release, length)
        best = next((found for low, high in ranges if (found := _last(question, low, high))), 0)
    return best >= length, best


def _longest(question: CapacityQuestion, length: int) -> int:
    return question.layout().longest(question.available(), length)


def _last(question: CapacityQuestion, low: int, high: int) -> int:
    """The longest of low..high that fits, where none fits beyond one that does not; 0 if none does."""

    def fits(length: int) -> bool:
        return _longest(question.with_length(length), length) >= length

    if not fits(low):
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _free_share(question: CapacityQuestion) -> float:
    return 1 - question.used_by_others / question.total


def _floor(share: float) -> float:
    return math.floor(share * 100 + 1e-9) / 100


def _more_blocks(question: CapacityQuestion, length: int) -> WayOut:
    """Where --num-gpu-blocks-override alone decides, nothing else helps."""
    layout = question.layout()
    size = max(stage.block_bytes for stage in layout.stages)
    needed = layout.bytes_for(length)
    blocks = max(-(-(needed) // stage.block_bytes) for stage in layout.stages)
    price = f"{blocks * size / GIB:.2f} GiB of KV cache"
    fits = True
    if question.total:
        fits = blocks * size <= question.available()
        price += f", {max(question.available(), 0) / GIB:.2f} GiB are left for it"
    longest = length if fits else fitting(question, length)[1]
    return WayOut("more blocks", f"--num-gpu-blocks-override {blocks}", fits, longest, price)


def _utilization(question: CapacityQuestion, length: int) -> WayOut | None:
    """The smallest utilization, in steps of 0.01, that is enough; else the highest that the card allows."""
    if question.given is not None or not question.total:
        return None
    now = question.setup.gpu_memory_utilization
    missing = question.layout().bytes_for(length) - question.available()
    wanted = math.ceil((now + missing / question.total) * 100 - 1e-9) / 100
    highest = min(_HIGHEST_UTILIZATION, _floor(_free_share(question)))
    beyond = ""
    if wanted > highest:
        cards = "this card" if _gpus(question) == 1 else "these cards"
        beyond = f"; {length:,} tokens are impossible on {cards}, {_lacking(question, wanted, highest)}"
    if highest <= now and starts(question):
        _, longest = fitting(question, length)
        return WayOut("utilization", "", False, longest, f"{now:g} is the most that this card allows{beyond}")
    value = min(wanted, highest)
    fits, longest = fitting(question.with_utilization(value), length)
    while not fits and value < highest:
        value = round(value + 0.01, 2)
        fits, longest = fitting(question.with_utilization(value), length)
    more = (value - now) * question.total / GIB
    left = (_free_share(question) - value) * question.total / GIB
    price = f"{more:+.2f} GiB for vLLM, {left:.2f} GiB of the card left free{beyond}"
    return WayOut("utilization", f"--gpu-memory-utilization {value:g}", fits, longest, price)


def _gpus(question: CapacityQuestion) -> int:
    return question.options.tensor_parallel_size * question.options.pipeline_parallel_size


def _lacking(question: CapacityQuestion, wanted: float, highest: float) -> str:
    """What stands in the way of a utilization beyond the highest that can be asked for."""
    size = (wanted - highest) * question.total / GIB
    if question.used_by_others and highest < _HIGHEST_UTILIZATION:
        return f"{size:.2f} GiB short beside the {question.used_by_others / GIB:.2f} GiB of other processes"
    if wanted > 1:
        return f"{size:.2f} GiB short"
    return f"{size:.2f} GiB more than the driver leaves"


def _fp8(question: CapacityQuestion, length: int, prefix: str) -> WayOut | None:
    if question.options.kv_cache_dtype.startswith("fp8"):
        return None
    try:
        fits, longest = fitting(question.with_kv_dtype("fp8"), length)
    except KvsimError:
        return None
    if longest < fitting(question, length)[1]:
        return None
    before, after = (each.layout().bytes_for(length) for each in (question, question.with_kv_dtype("fp8")))
    price = f"8-bit precision; a request of {length:,} tokens takes {after / before:.0%} of the bytes"
    if _lacks_fp8(question.setup.gpu_name):
        price += "; this card has no fp8 units and converts on the fly"
    return WayOut("fp8 KV cache", f"{prefix}--kv-cache-dtype fp8", fits, longest, price)


def _lacks_fp8(gpu_name: str) -> bool:
    try:
        return catalog.gpu(gpu_name).fp8_flops is None
    except KvsimError:
        return False


def _tensor_parallel(question: CapacityQuestion, length: int, prefix: str) -> WayOut | None:
    """The fewest ranks that are enough; else the number that gives the longest request."""
    if question.given is not None:
        return None
    now = question.options.tensor_parallel_size
    best: WayOut | None = None
    longest_so_far = fitting(question, length)[1]
    for factor in _MORE_RANKS:
        ranks = now * factor
        try:
            fits, longest = fitting(question.with_ranks(ranks), length)
        except KvsimError:
            continue
        if fits or longest > longest_so_far:
            stages = question.options.pipeline_parallel_size
            price = f"{ranks * stages} GPUs instead of {now * stages}"
            flags = f"{prefix}--tensor-parallel-size {ranks}"
            best, longest_so_far = WayOut("tensor parallel", flags, fits, longest, price), longest
        if fits:
            break
    return best
