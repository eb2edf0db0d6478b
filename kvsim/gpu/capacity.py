"""`plan_capacity`: from a model, a card and vLLM's flags to the lines that vLLM will print, and why."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.layers import pipeline_stages
from kvsim.gpu.layout import CacheLayout, cache_layout, kv_cache_layers
from kvsim.gpu.memory import KVCacheOptions, plan_kv_cache
from kvsim.gpu.memory_setup import MemorySetup
from kvsim.gpu.model import ModelSpec
from kvsim.gpu.prediction import MemoryPrediction, predict_memory
from kvsim.gpu.quantization import served_as
from kvsim.gpu.refusals import GIB, KVCacheTooSmallError, check_available, format_gib, too_long
from kvsim.gpu.releases import Release, batch_limits, release
from kvsim.gpu.startup import request_memory

_KEYS = "--gpu-memory-utilization"
_HIGHEST_UTILIZATION = 0.98  # beyond, what the driver itself needs is no longer free


@dataclass(frozen=True)
class WayOut:
    """One change that gives more room, and what it buys.

    fits: whether max_model_len then fits. longest: tokens of the longest request that does; 0 if none.
    """

    name: str
    flags: str
    fits: bool
    longest: int
    price: str


@dataclass(frozen=True)
class CapacityPlan:
    """What vLLM will print, the parts behind it, and an honest range.

    prediction: None where --kv-cache-memory-bytes gives the memory. available: bytes on one GPU.
    padding: share of the pool that layer groups of unequal size leave unused.
    num_gpu_blocks, kv_cache_size_tokens, max_concurrency: 0 where vLLM refuses to start.
    tokens_low, tokens_high: range of kv_cache_size_tokens that the prediction's measured error leaves.
    refusal: vLLM's words, or None. ways_out: filled for a refusal.
    """

    model: str
    gpu: str
    vllm_version: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    tensor_parallel_size: int
    gpu_memory_utilization: float
    prediction: MemoryPrediction | None
    available: int
    block_size: int
    block_bytes: int
    num_groups: int
    padding: float
    blocks_per_request: int
    num_gpu_blocks: int
    kv_cache_size_tokens: int
    max_concurrency: float
    tokens_low: int
    tokens_high: int
    lines: tuple[str, ...]
    refusal: str | None = None
    needed: int = 0
    longest: int = 0
    ways_out: tuple[WayOut, ...] = ()
    ignored: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON types; bytes and tokens are whole numbers."""
        facts = asdict(self)
        if self.prediction is not None:
            facts["prediction"]["available"] = self.prediction.available
        return facts


@dataclass(frozen=True)
class _Question:
    """One fully settled question, so that the ways out can change one thing at a time."""

    model: ModelSpec
    of: Release
    setup: MemorySetup
    options: KVCacheOptions
    given: int | None
    used_by_others: int
    mamba_mode: str
    spec_tokens: int
    mtp_layers: int
    observed: Mapping[str, int]

    def layout(self) -> CacheLayout:
        mode: Any = self.mamba_mode
        return cache_layout(
            self.model,
            self.options,
            self.of,
            mamba_mode=mode,
            spec_tokens=self.spec_tokens,
            mtp_layers=self.mtp_layers,
        )

    def prediction(self) -> MemoryPrediction:
        found = predict_memory(self.model, self.of, self.setup)
        if not self.observed:
            return found
        known = set(self.observed) >= {"weights", "activation", "non_torch"}
        error = found.error // 4 if known else found.error
        return replace(found, **dict(self.observed), error=error)  # type: ignore[arg-type]

    def available(self) -> int:
        return self.given if self.given is not None else self.prediction().available

    def fits(self, length: int) -> tuple[bool, int]:
        """Whether a request of that length fits, and the longest that does."""
        layout = self.layout()
        room = self.available() - (layout.block_bytes if self.of.rules.null_block_held_back else 0)
        longest = layout.longest(max(room, 0), length)
        return longest >= length, longest


def plan_capacity(
    model: str | Path | Mapping[str, Any] | ModelSpec,
    gpu: str | None = None,
    *,
    gpu_memory_gib: float | None = None,
    used_by_others_gib: float = 0.0,
    available_kv_cache_bytes: int | None = None,
    vllm_version: str = "0.33",
    observed: Mapping[str, int] | None = None,
    ignored: tuple[str, ...] = (),
    **flags: Any,
) -> CapacityPlan:
    """Plan a server's KV cache before renting the card.

    model: catalog name, path to a config.json, its content, or a `ModelSpec`. gpu: catalog name, and/or
    gpu_memory_gib, the memory that the driver shows. used_by_others_gib: what other processes hold.
    available_kv_cache_bytes: take these bytes instead of predicting them.
    observed: bytes of parts that a log has shown (weights, activation, cuda_graphs, non_torch), which
    then replace the predicted ones; see `kvsim.gpu.log_reader.read_profile`.
    flags: vLLM's, with underscores: max_model_len, max_num_seqs, max_num_batched_tokens,
    gpu_memory_utilization, tensor_parallel_size, kv_cache_dtype, block_size, quantization, ...

    A server that would refuse to start comes back with `refusal` and `ways_out`.
    Raises KvsimError for a wrong input, one line that names it.
    """
    question = _question(
        model, gpu, gpu_memory_gib, used_by_others_gib, available_kv_cache_bytes, vllm_version, flags
    )
    return replace(_answer(replace(question, observed=observed or {})), ignored=ignored)


def _question(
    model: Any,
    gpu: str | None,
    memory_gib: float | None,
    others_gib: float,
    given: int | None,
    version: str,
    flags: Mapping[str, Any],
) -> _Question:
    flags = {key: value for key, value in flags.items() if value is not None}
    _check_names(flags)
    of = release(str(version))
    spec = _served(_read_model(model), of, flags)
    given = flags.get("kv_cache_memory_bytes", given)
    name, total = _card(gpu, memory_gib, given)
    length = flags.get("max_model_len", spec.max_position_embeddings)
    if not length:
        raise KvsimError("max_model_len: missing; give tokens, the model's own maximum is not known")
    limit = length if length > 0 else spec.max_position_embeddings or 1 << 20
    batched, seqs = batch_limits(
        of,
        total,
        name,
        spec,
        max_model_len=limit,
        max_num_seqs=_positive(flags, "max_num_seqs"),
        max_num_batched_tokens=flags.get("max_num_batched_tokens"),
    )
    options = KVCacheOptions(
        **{f.name: flags[f.name] for f in fields(KVCacheOptions) if f.name in flags}
        | {"max_num_batched_tokens": batched, "max_model_len": length}
    )
    _check_block_size(options.block_size)
    images, pixels = _images(flags)
    setup = MemorySetup(
        total_bytes=total,
        gpu_name=name,
        gpu_memory_utilization=flags.get("gpu_memory_utilization") or of.default_utilization,
        max_model_len=limit,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        tensor_parallel_size=options.tensor_parallel_size,
        pipeline_parallel_size=options.pipeline_parallel_size,
        enforce_eager=bool(flags.get("enforce_eager", False)),
        image_pixels=pixels,
        images_per_prompt=images,
    )
    mode = flags.get("mamba_cache_mode") or ("align" if of.minor >= 17 else "none")
    if not flags.get("enable_prefix_caching", True):
        mode = "none"
    if mode not in ("none", "align", "all"):
        raise KvsimError(f"mamba_cache_mode: {mode!r} is not known; one of none, align, all")
    drafts = flags.get("speculative_config") or {}
    spec_tokens = drafts.get("num_speculative_tokens", 0)
    if isinstance(spec_tokens, bool) or not isinstance(spec_tokens, int) or not 0 <= spec_tokens <= 1000:
        raise KvsimError(
            f"speculative_config: num_speculative_tokens is {str(spec_tokens)[:40]!r}, wanted 0 to 1000"
        )
    mtp = 1 if spec_tokens and "mtp" in str(drafts.get("method", "")).lower() else 0
    others = round(others_gib * GIB)
    return _Question(spec, of, setup, options, given, others, mode, spec_tokens, mtp, {})


_OTHER_FLAGS = {
    "max_num_seqs",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "quantization",
    "dtype",
    "enforce_eager",
    "limit_mm_per_prompt",
    "mm_processor_kwargs",
    "speculative_config",
    "skip_mm_profiling",
    "language_model_only",
    "mamba_cache_mode",
    "enable_prefix_caching",
}


_OBJECT: tuple[Any, str] = (Mapping, "an object with keys")
_TEXT: tuple[Any, str] = (str, "a name")
_SWITCH: tuple[Any, str] = (bool, "true or false")
_KINDS: dict[str, tuple[Any, str]] = {
    "limit_mm_per_prompt": _OBJECT,
    "mm_processor_kwargs": _OBJECT,
    "speculative_config": _OBJECT,
    "gpu_memory_utilization": (int | float, "a number"),
    "kv_cache_dtype": _TEXT,
    "kv_cache_layout": _TEXT,
    "quantization": _TEXT,
    "dtype": _TEXT,
    "mamba_cache_mode": _TEXT,
    "enforce_eager": _SWITCH,
    "skip_mm_profiling": _SWITCH,
    "language_model_only": _SWITCH,
    "enable_prefix_caching": _SWITCH,
    "async_scheduling": _SWITCH,
    "disable_hybrid_kv_cache_manager": _SWITCH,
    "max_model_len_must_fit": _SWITCH,
}


def _check_names(flags: Mapping[str, Any]) -> None:
    known = _OTHER_FLAGS | {f.name for f in fields(KVCacheOptions)}
    for key in flags:
        if key not in known:
            raise KvsimError(
                f"{key}: not a flag that bears on capacity; known are {', '.join(sorted(known))}"
            )
    for key, value in flags.items():
        kind, wanted = _KINDS.get(key, (int, "a whole number"))
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise KvsimError(f"{key}: {str(value)[:40]!r} is not {wanted}")
    share = flags.get("gpu_memory_utilization", 1)
    if not 0 < share <= 1:
        raise KvsimError(f"gpu_memory_utilization: {share!r} is not above 0 and at most 1")
    for key in ("kv_cache_memory_bytes", "max_num_seqs"):
        _positive(flags, key)
    if flags.get("max_num_seqs", 1) > 1 << 20:
        raise KvsimError(f"max_num_seqs: {flags['max_num_seqs']} is more than {1 << 20:,}")


def _positive(flags: Mapping[str, Any], key: str) -> int | None:
    value = flags.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise KvsimError(f"{key}: {value!r} is not a whole number above 0")
    return value


def _read_model(model: Any) -> ModelSpec:
    if isinstance(model, ModelSpec):
        return model
    return ModelSpec.from_config(model) if isinstance(model, Mapping) else catalog.model(model)


def _served(model: ModelSpec, of: Release, flags: Mapping[str, Any]) -> ModelSpec:
    quantization = flags.get("quantization")
    return served_as(model, "0.33" if of.minor >= 21 else "0.16", quantization, flags.get("dtype") or "auto")


def _card(gpu: str | None, memory_gib: float | None, given: int | None) -> tuple[str, int]:
    if memory_gib is not None and not 0 < memory_gib < 1e6:
        raise KvsimError(f"gpu_memory_gib: {memory_gib!r} is not above 0")
    spec = catalog.gpu(gpu) if gpu is not None else None
    if spec is None and memory_gib is None:
        if given is None:
            raise KvsimError("gpu: missing; give a name of kvsim gpus, or gpu_memory_gib")
        return "a GPU", 0
    total = round(memory_gib * GIB) if memory_gib is not None else spec.memory_bytes if spec else 0
    return spec.name if spec else f"a {memory_gib:g} GiB GPU", total


def _check_block_size(block_size: int) -> None:
    if block_size % 16:
        raise KvsimError(
            f"block_size: {block_size} is not a multiple of 16, which vLLM's CUDA attention backends need; "
            "give 16, 32, 64 or 128"
        )


def _images(flags: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Images per prompt (None: no limit) and the processor's limit of an image's area."""
    if flags.get("language_model_only") or flags.get("skip_mm_profiling"):
        return 0, None
    limit: Any = (flags.get("limit_mm_per_prompt") or {}).get("image")
    limit = limit.get("count") if isinstance(limit, Mapping) else limit
    kwargs = flags.get("mm_processor_kwargs") or {}
    size = kwargs.get("size")
    pixels = kwargs.get("max_pixels") or (size.get("longest_edge") if isinstance(size, Mapping) else None)
    for key, value in (("limit_mm_per_prompt", limit), ("mm_processor_kwargs: max_pixels", pixels)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise KvsimError(f"{key}: {str(value)[:40]!r} is not a whole number")
    return limit, pixels or None


# ---- the answer ----


def _answer(question: _Question) -> CapacityPlan:
    setup, of = question.setup, question.of
    layout = question.layout()
    prediction = question.prediction() if question.given is None else None
    available = question.available()
    length = setup.max_model_len
    refusal: KvsimError | None = None
    blocks, tokens, most = 0, 0, 0.0
    try:
        if setup.total_bytes:
            free = setup.total_bytes - question.used_by_others
            request_memory(setup.total_bytes, free, setup.gpu_memory_utilization)
        if question.options.max_model_len == -1:
            length = _longest_or_refuse(question, layout, available, length)
        blocks, tokens, most = _tokens(question, layout, available, length)
        _check_fit(question, layout, available, length)
    except KvsimError as error:
        if not isinstance(error, KVCacheTooSmallError) and not hasattr(error, "requested_bytes"):
            raise
        refusal, blocks, tokens, most = error, 0, 0, 0.0
    spread = prediction.error if prediction else 0
    low, high = (_tokens(question, layout, max(available + side, 0), length)[1] for side in (-spread, spread))
    plan = CapacityPlan(
        model=question.model.name,
        gpu=setup.gpu_name,
        vllm_version=of.name,
        max_model_len=length,
        max_num_seqs=setup.max_num_seqs,
        max_num_batched_tokens=setup.max_num_batched_tokens,
        tensor_parallel_size=setup.tensor_parallel_size,
        gpu_memory_utilization=setup.gpu_memory_utilization,
        prediction=prediction,
        available=available,
        block_size=layout.block_size,
        block_bytes=layout.block_bytes,
        num_groups=layout.num_groups,
        padding=layout.padding,
        blocks_per_request=layout.blocks_per_request(length),
        num_gpu_blocks=blocks,
        kv_cache_size_tokens=tokens,
        max_concurrency=most,
        tokens_low=low,
        tokens_high=high,
        lines=log_lines(of, available, tokens, length, most) if refusal is None else (),
    )
    if refusal is None:
        return plan
    longest = question.fits(length)[1]
    return replace(
        plan,
        refusal=getattr(refusal, "vllm_message", None) or str(refusal),
        needed=layout.needed_bytes(length),
        longest=longest,
        ways_out=ways_out(question, length),
    )


def log_lines(of: Release, available: int, tokens: int, length: int, most: float) -> tuple[str, ...]:
    """The capacity lines of that release's start-up log."""
    room = f"Available KV cache memory: {format_gib(available)} GiB"
    size = f"GPU KV cache size: {tokens:,} tokens"
    concurrency = f"Maximum concurrency for {length:,} tokens per request: {most:.2f}x"
    if of.minor >= 21:
        return room, f"{size}, {concurrency}"
    return room, size, concurrency


def _tokens(question: _Question, layout: CacheLayout, available: int, length: int) -> tuple[int, int, float]:
    """Blocks, printed tokens and concurrency."""
    override = question.options.num_gpu_blocks_override
    blocks = override or layout.blocks(available)
    planned = _staged(question, available, length)
    if planned is not None:
        return planned
    return blocks, layout.printed_tokens(blocks, length), layout.concurrency(blocks, length)


def _staged(question: _Question, available: int, length: int) -> tuple[int, int, float] | None:
    """The same over pipeline stages, where there are several."""
    stages = question.options.pipeline_parallel_size
    if stages == 1:
        return None
    model, options = question.model, question.options
    workers = pipeline_stages(kv_cache_layers(model, options), model.num_hidden_layers, stages)
    free = replace(options, max_model_len=length, max_model_len_must_fit=False)
    plan = plan_kv_cache(workers, [available] * stages, free, question.of.rules)
    return plan.num_gpu_blocks, plan.kv_cache_size_tokens, plan.max_concurrency


def _check_fit(question: _Question, layout: CacheLayout, available: int, length: int) -> None:
    rules = question.of.rules
    room = available - (layout.block_bytes if rules.null_block_held_back else 0)
    check_available(room, rules, _KEYS)
    stages = question.options.pipeline_parallel_size
    needed = layout.needed_bytes(length) // stages
    if question.options.num_gpu_blocks_override is None and needed > room:
        longest = layout.longest(room * stages, length)
        raise too_long(rules, length, needed, room, longest, _KEYS)


def _longest_or_refuse(question: _Question, layout: CacheLayout, available: int, limit: int) -> int:
    rules = question.of.rules
    room = available - (layout.block_bytes if rules.null_block_held_back else 0)
    check_available(room, rules, _KEYS)
    longest = layout.longest(room, limit)
    if longest < 1:
        check_available(0, rules, _KEYS)
    return longest


# ---- ways out ----


def ways_out(question: _Question, length: int) -> tuple[WayOut, ...]:
    """Utilization, fp8 KV cache and tensor parallel, each with the price in what it buys."""
    if question.given is not None:
        return tuple(way for way in (_fp8(question, length),) if way)
    ways = (_utilization(question, length), _fp8(question, length), _tensor_parallel(question, length))
    return tuple(way for way in ways if way)


def _utilization(question: _Question, length: int) -> WayOut | None:
    setup = question.setup
    layout = question.layout()
    blocks = layout.needed_bytes(length) + (
        layout.block_bytes if question.of.rules.null_block_held_back else 0
    )
    missing = blocks - question.available()
    wanted = math.ceil((setup.gpu_memory_utilization + missing / setup.total_bytes) * 100) / 100
    free = 1 - question.used_by_others / setup.total_bytes
    highest = min(_HIGHEST_UTILIZATION, math.floor(free * 100) / 100)
    value = min(wanted, highest)
    if value <= setup.gpu_memory_utilization and wanted > highest and question.used_by_others:
        value = highest
    changed = replace(question, setup=replace(setup, gpu_memory_utilization=value))
    fits, longest = changed.fits(length)
    more = (value - setup.gpu_memory_utilization) * setup.total_bytes / GIB
    price = (
        f"{more:+.2f} GiB for vLLM, {(free - value) * setup.total_bytes / GIB:.2f} GiB of the card left free"
    )
    return WayOut("utilization", f"--gpu-memory-utilization {value:g}", fits, longest, price)


def _fp8(question: _Question, length: int) -> WayOut | None:
    if question.options.kv_cache_dtype.startswith("fp8"):
        return None
    changed = replace(question, options=replace(question.options, kv_cache_dtype="fp8"))
    try:
        fits, longest = changed.fits(length)
    except KvsimError:
        return None
    return WayOut(
        "fp8 KV cache", "--kv-cache-dtype fp8", fits, longest, "half the bytes a token, 8-bit precision"
    )


def _tensor_parallel(question: _Question, length: int) -> WayOut | None:
    best: WayOut | None = None
    for factor in (2, 4, 8):
        ranks = question.options.tensor_parallel_size * factor
        changed = replace(
            question,
            observed={},
            options=replace(question.options, tensor_parallel_size=ranks),
            setup=replace(question.setup, tensor_parallel_size=ranks),
        )
        try:
            fits, longest = changed.fits(length)
        except KvsimError:
            continue
        price = f"{ranks} GPUs instead of {question.options.tensor_parallel_size}"
        best = WayOut("tensor parallel", f"--tensor-parallel-size {ranks}", fits, longest, price)
        if fits:
            return best
    return best
