"""After a refusal: utilization, an fp8 cache and more GPUs, each with what it buys and what it costs."""

import math
from dataclasses import dataclass

from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.capacity_question import CapacityQuestion
from kvsim.gpu.refusals import GIB

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
    before, prefix = at_free_utilization(question), ""
    if before is None:
        return ()
    if before is not question:
        prefix = f"--gpu-memory-utilization {before.setup.gpu_memory_utilization:g} "
    ways = [_utilization(question, length), _fp8(before, length, prefix)]
    ways.append(_tensor_parallel(before, length, prefix))
    return tuple(way for way in ways if way)


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
    """Whether a request of that length fits, and the longest up to it that does."""
    longest = question.layout().longest(question.available(), length)
    return longest >= length, longest


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
        size = (wanted - highest) * question.total / GIB
        beyond = f"; {length:,} tokens would need {wanted:.2f}, {size:.2f} GiB more than there is"
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


def _fp8(question: CapacityQuestion, length: int, prefix: str) -> WayOut | None:
    if question.options.kv_cache_dtype.startswith("fp8"):
        return None
    try:
        fits, longest = fitting(question.with_kv_dtype("fp8"), length)
    except KvsimError:
        return None
    if longest < fitting(question, length)[1]:
        return None
    price = "half the bytes a token, at 8-bit precision"
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
