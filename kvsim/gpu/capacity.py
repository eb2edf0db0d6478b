"""`plan_capacity`: from a model, a card and vLLM's flags to the lines that vLLM will print, and why."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kvsim.gpu.capacity_question import CapacityQuestion, settle
from kvsim.gpu.config_refusals import config_refusal
from kvsim.gpu.gpus import gpu_remark
from kvsim.gpu.memory_extras import MemoryExtra
from kvsim.gpu.model import ModelSpec
from kvsim.gpu.prediction import MemoryPrediction
from kvsim.gpu.refusals import KVCacheTooSmallError, cannot_fit, check_available, format_gib, too_long
from kvsim.gpu.releases import Release
from kvsim.gpu.staged_layout import StagedLayout
from kvsim.gpu.startup import NotEnoughFreeMemoryError, request_memory
from kvsim.gpu.ways_out import WayOut, at_free_utilization, fitting, longest_allowed, starts, ways_out

__all__ = ["CapacityPlan", "WayOut", "log_lines", "plan_capacity"]

_KEYS = "--gpu-memory-utilization"
_SWAP_GIB = 4  # default of --swap-space


@dataclass(frozen=True)
class CapacityPlan:
    """What vLLM will print, the parts behind it, and an honest range.

    prediction: None where --kv-cache-memory-bytes gives the memory. available: bytes on one GPU, which is
    prediction.available less the extras. block_bytes: of the poorest pipeline stage.
    padding: share of the pool that layer groups of unequal size leave unused.
    num_gpu_blocks, kv_cache_size_tokens, max_concurrency: 0 where vLLM refuses to start.
    estimated: whether the tokens rest on a predicted part. tokens_low, tokens_high: range of
    kv_cache_size_tokens that the prediction's measured error leaves; equal where nothing is estimated.
    observed: parts of the prediction that a log has shown. sources: where the parts come from that were not
    predicted for this server, in words. refusal: vLLM's words, or None.
    refused: "configuration" for flags that do not go together; or what was short, "free memory" at start,
    "memory" for the cache, or "length".
    needed, usable: bytes of a request of max_model_len and bytes that it may use, on the stage that is
    short; for "free memory" the bytes that vLLM asks for and those that are free.
    longest: tokens of the longest request that fits. ways_out: filled for a refusal.
    notes: what bears on memory and is not modelled.
    """

    model: str
    gpu: str
    vllm_version: str
    engine: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    gpu_memory_utilization: float
    prediction: MemoryPrediction | None
    extras: tuple[MemoryExtra, ...]
    available: int
    block_size: int
    block_bytes: int
    num_groups: int
    padding: float
    blocks_per_request: int
    num_gpu_blocks: int
    num_gpu_blocks_override: int | None
    kv_cache_size_tokens: int
    max_concurrency: float
    estimated: bool
    tokens_low: int
    tokens_high: int
    lines: tuple[str, ...]
    refusal: str | None = None
    refused: str | None = None
    needed: int = 0
    usable: int = 0
    longest: int = 0
    ways_out: tuple[WayOut, ...] = ()
    observed: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON types; bytes and tokens are whole numbers."""
        facts = asdict(self)
        if self.prediction is not None:
            facts["prediction"]["available"] = self.prediction.available
        return facts


def plan_capacity(
    model: str | Path | Mapping[str, Any] | ModelSpec,
    gpu: str | None = None,
    *,
    gpu_memory_gib: float | None = None,
    used_by_others_gib: float = 0.0,
    available_kv_cache_bytes: int | None = None,
    vllm_version: str = "0.33",
    engine: str = "",
    offline: bool = False,
    observed: Mapping[str, int] | None = None,
    ignored: tuple[str, ...] = (),
    **flags: Any,
) -> CapacityPlan:
    """Plan a server's KV cache before renting the card.

    model: catalog name, path to a config.json, its content, or a `ModelSpec`. gpu: catalog name, and/or
    gpu_memory_gib, the memory that the driver shows. used_by_others_gib: what other processes hold.
    available_kv_cache_bytes: take these bytes instead of predicting them.
    engine: "V0" or "V1" for releases that have both (0.6 to 0.10); empty for the release's usual one.
    offline: defaults of the LLM class and vllm bench instead of a server's.
    observed: bytes of parts that a log has shown (weights, activation, cuda_graphs, non_torch), which
    then replace the predicted ones; see `kvsim.gpu.profiles.read_profile`.
    flags: vLLM's, with underscores, see `kvsim.gpu.capacity_flags.FLAGS`: max_model_len, max_num_seqs,
    max_num_batched_tokens, gpu_memory_utilization, tensor_parallel_size, kv_cache_dtype, block_size, ...

    A server that would refuse to start comes back with `refusal` and `ways_out`.
    Raises KvsimError for a wrong input, one line that names it.
    """
    question = settle(
        model,
        gpu,
        gpu_memory_gib,
        used_by_others_gib,
        available_kv_cache_bytes,
        vllm_version,
        flags,
        engine=engine,
        offline=offline,
        observed=observed,
    )
    plan = _answer(question)
    remark = gpu_remark(gpu) if gpu is not None and gpu_memory_gib is None else None
    if "swap_space" in question.flags and not question.release.v0:
        ignored = (*ignored, f"--swap-space {question.flags['swap_space']:g}")  # only V0 swaps
    return replace(plan, ignored=ignored, notes=(*((remark,) if remark else ()), *plan.notes))


@dataclass(frozen=True)
class _Start:
    """How a start ends: the pool, or the refusal."""

    length: int
    blocks: int = 0
    tokens: int = 0
    concurrency: float = 0.0
    refusal: str | None = None
    refused: str | None = None


def _answer(question: CapacityQuestion) -> CapacityPlan:
    setup, of = question.setup, question.release
    layout, prediction, available = question.layout(), question.prediction(), question.available()
    start = _started(question, layout, available)
    blocks_given = question.options.num_gpu_blocks_override
    spread = prediction.error if prediction and blocks_given is None else 0
    low, high = (_pool(layout, max(available + side, 0), start.length).tokens for side in (-spread, spread))
    plan = CapacityPlan(
        model=question.model.name,
        gpu=setup.gpu_name,
        vllm_version=of.name,
        engine="V0" if of.v0 else "V1",
        max_model_len=start.length,
        max_num_seqs=setup.max_num_seqs,
        max_num_batched_tokens=setup.max_num_batched_tokens,
        tensor_parallel_size=setup.tensor_parallel_size,
        pipeline_parallel_size=setup.pipeline_parallel_size,
        gpu_memory_utilization=setup.gpu_memory_utilization,
        prediction=prediction,
        extras=question.extras(),
        available=available,
        block_size=layout.whole.block_size,
        block_bytes=max(stage.block_bytes for stage in layout.stages),
        num_groups=layout.whole.num_groups,
        padding=layout.whole.padding,
        blocks_per_request=layout.whole.blocks_per_request(start.length),
        num_gpu_blocks=start.blocks,
        num_gpu_blocks_override=blocks_given,
        kv_cache_size_tokens=start.tokens,
        max_concurrency=start.concurrency,
        estimated=spread > 0,
        tokens_low=low,
        tokens_high=high,
        lines=() if start.refusal else _lines(question, available, start),
        refusal=start.refusal,
        observed=tuple(question.observed) if prediction else (),
        sources=dict.fromkeys(question.observed, "observed, as given") if prediction else {},
        notes=(*question.notes(), *_beyond_the_card(question, layout, available)),
    )
    _, needed, usable = layout.need(available, start.length)
    plan = replace(plan, refused=start.refused, needed=needed, usable=usable)
    if start.refusal is None:
        return plan
    if start.refused == "free memory":
        requested = math.ceil(setup.total_bytes * setup.gpu_memory_utilization)
        plan = replace(plan, needed=requested, usable=setup.total_bytes - question.used_by_others)
    if start.refused == "configuration":
        longest = longest_allowed(question)
    else:
        before = at_free_utilization(question)
        longest = fitting(before, start.length)[1] if before else 0
    return replace(plan, longest=longest, ways_out=ways_out(question, start.length))


def _started(question: CapacityQuestion, layout: StagedLayout, available: int) -> _Start:
    """vLLM's start-up as far as the KV cache: the free check, the length check, the pool."""
    length = question.setup.max_model_len
    refusal = config_refusal(question)
    if refusal is not None:
        return _Start(length, refusal=refusal, refused="configuration")
    try:
        _check_free(question)
        _check_some(question, layout, available)
        if question.options.max_model_len == -1:
            longest = layout.longest(available, length)
            if longest < 1:
                raise cannot_fit(_KEYS)
            length = longest
        elif question.options.max_model_len_must_fit:
            _check_fit(question, layout, available, length)
    except NotEnoughFreeMemoryError as refusal:
        text = str(refusal).replace("on device (", f"on device{question.words.device} (", 1)
        return _Start(length, refusal=text, refused="free memory")
    except KVCacheTooSmallError as refusal:
        kind = "length" if refusal.needed_bytes else "memory"
        return _Start(length, refusal=refusal.vllm_message, refused=kind)
    return _pool(layout, available, length)


def _check_free(question: CapacityQuestion) -> None:
    if not starts(question):
        setup = question.setup
        free = setup.total_bytes - question.used_by_others
        request_memory(setup.total_bytes, free, setup.gpu_memory_utilization)


def _check_some(question: CapacityQuestion, layout: StagedLayout, available: int) -> None:
    room = min(room for _, room in layout.checked(available))
    check_available(room, question.release.rules, _KEYS, question.words)


def _check_fit(question: CapacityQuestion, layout: StagedLayout, available: int, length: int) -> None:
    short, needed, room = layout.need(available, length)
    if needed > room:
        rules, longest = question.release.rules, short.longest(max(room, 0), length)
        raise too_long(rules, length, needed, room, longest, _KEYS, question.words)


def _pool(layout: StagedLayout, available: int, length: int) -> _Start:
    blocks = layout.blocks(available)
    tokens = layout.whole.printed_tokens(blocks, length)
    return _Start(length, blocks, tokens, layout.whole.concurrency(blocks, length))


def _beyond_the_card(question: CapacityQuestion, layout: StagedLayout, available: int) -> tuple[str, ...]:
    """vLLM does not check --num-gpu-blocks-override against the card; the allocation would fail."""
    blocks = layout.blocks_override
    size = (blocks or 0) * max(stage.block_bytes for stage in layout.stages)
    if blocks is None or question.given is not None or size <= available:
        return ()
    return (
        f"num_gpu_blocks_override: {blocks:,} blocks take {format_gib(size)} GiB, more than the "
        f"{format_gib(available)} GiB that are left; vLLM would run out of memory",
    )


def _lines(question: CapacityQuestion, available: int, start: _Start) -> tuple[str, ...]:
    of = question.release
    swap = math.floor(question.flags.get("swap_space", _SWAP_GIB) * 2**30)
    cpu = swap // max(stage.block_bytes for stage in question.layout().stages)
    lines = log_lines(
        of, available, start.tokens, start.length, start.concurrency, blocks=start.blocks, cpu_blocks=cpu
    )
    if "kv_cache_memory_bytes" not in question.flags or of.v0 or of.minor < 10:
        return lines
    reserved = f"reserved {format_gib(available)} GiB memory for KV Cache as specified by"
    return (f"{reserved} kv_cache_memory_bytes config and skipped memory profiling.", *lines[1:])


def log_lines(
    of: Release,
    available: int,
    tokens: int,
    length: int,
    most: float,
    *,
    blocks: int = 0,
    cpu_blocks: int = 0,
) -> tuple[str, ...]:
    """The capacity lines of that release's start-up log (texts of the wheels 0.6.6 to 0.33.0).

    V0 and V1 to 0.7 print blocks, V1 prints the memory from 0.9 on; one line for tokens and requests
    from 0.28 on. cpu_blocks: --swap-space by the bytes of a block (`determine_num_available_blocks` of V0).
    """
    if of.v0 or of.minor < 8:
        rest = f"the rest of the memory reserved for KV Cache is {available / 2**30:.2f}GiB."
        cpu = f", # CPU blocks: {cpu_blocks}" if of.v0 else ""
        counted = f"# {'cuda' if of.v0 and of.minor >= 7 else 'GPU'} blocks: {blocks}{cpu}"
        concurrency = f"Maximum concurrency for {length} tokens per request: {most:.2f}x"
        return (rest, counted, concurrency) if of.v0 else (counted, concurrency)
    room = f"Available KV cache memory: {format_gib(available)} GiB"
    if of.minor < 14:
        room = f"Available KV cache memory: {available / 2**30:.2f} GiB"
    size = f"GPU KV cache size: {tokens:,} tokens"
    concurrency = f"Maximum concurrency for {length:,} tokens per request: {most:.2f}x"
    if of.minor >= 28:
        return room, f"{size}, {concurrency}"
    return (room, size, concurrency) if of.minor >= 9 else (size, concurrency)
