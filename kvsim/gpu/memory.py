"""From bytes to blocks to tokens, exactly as vLLM plans its KV cache.

Sources: `get_kv_cache_configs` and its helpers in vLLM 0.33.0 (`v1/core/kv_cache_planning.py`,
`v1/core/kv_cache_utils.py`) and 0.16.0 (`v1/core/kv_cache_utils.py`); for the memory request at
start-up `request_memory` (`v1/worker/utils.py`) and `determine_available_memory`
(`v1/worker/gpu_worker.py`). What differs between the two comes from `kvsim.rules`.

Usual way in::

    plan = plan_for_model(model, available_bytes, KVCacheOptions(max_model_len=8192), "0.33")
    plan.num_gpu_blocks, plan.kv_cache_size_tokens, plan.max_concurrency
    print("\\n".join(plan.log_lines()))

`model` is a `ModelSpec` or a mapping with a config.json's keys (``num_hidden_layers``,
``num_key_value_heads``, ``head_dim``, ``dtype``, ``kv_lora_rank``, ``qk_rope_head_dim``,
``sliding_window``, ``layer_types`` ...). A plan that vLLM would refuse raises `KVCacheTooSmallError`:
`vllm_message` is vLLM's text, and further fields hold what was needed, what was there and the longest
length that fits. `kvsim.gpu.cases` wraps this for files of public cases.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu.kv_cache_groups import KVCacheGroup, Layers, bytes_per_block, kv_cache_groups
from kvsim.gpu.kv_cache_spec import KVCacheSpec, RequestLimits
from kvsim.gpu.layers import kv_cache_layers, pipeline_stages
from kvsim.gpu.model import ModelSpec
from kvsim.gpu.refusals import (
    KVCacheTooSmallError,
    cannot_fit,
    check_available,
    format_gib,
    memory_keys,
    too_long,
)
from kvsim.rules import VllmRules, rules_for

__all__ = ["KVCacheOptions", "KVCachePlan", "KVCacheTooSmallError", "plan_for_model", "plan_kv_cache"]

MAX_GPU_BLOCKS = 100_000_000  # terabytes of KV cache on one GPU; a row of each is held in memory

_SIZES = (
    "block_size",
    "max_num_batched_tokens",
    "num_gpu_blocks_override",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "decode_context_parallel_size",
)


@dataclass(frozen=True)
class KVCacheOptions:
    """vLLM's flags that bear on the KV cache plan, under vLLM's names.

    max_model_len: tokens; None = the model's own maximum, -1 = the longest that fits.
    max_model_len_must_fit: refuse, as vLLM does, a pool that cannot hold one request of that length.
    kv_cache_layout: 0.33 only; "LBNHC" is what the common CUDA backends resolve to.
    """

    block_size: int = 16
    max_model_len: int | None = None
    max_num_batched_tokens: int = 2048
    async_scheduling: bool = True
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    kv_cache_dtype: str = "auto"
    num_gpu_blocks_override: int | None = None
    disable_hybrid_kv_cache_manager: bool = False
    max_model_len_must_fit: bool = True
    kv_cache_layout: str = "LBNHC"

    def __post_init__(self) -> None:
        for key in _SIZES:
            value = getattr(self, key)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise KvsimError(f"{key}: {value!r} is not a whole number above 0")
        length = self.max_model_len
        if length is not None and (
            isinstance(length, bool) or not isinstance(length, int) or length < -1 or not length
        ):
            raise KvsimError(
                f"max_model_len: {length!r} is neither a whole number above 0 nor -1 (automatic)"
            )

    def request_limits(self, rules: VllmRules, max_model_len: int) -> RequestLimits:
        """0.33 counts every batch in flight: one per pipeline stage, one more when scheduling overlaps."""
        batches = 1
        if rules.window_cap_counts_in_flight:
            batches = self.pipeline_parallel_size + (1 if self.async_scheduling else 0)
        in_flight = batches * self.max_num_batched_tokens
        return RequestLimits(max_model_len, in_flight, self.decode_context_parallel_size)


@dataclass(frozen=True)
class KVCachePlan:
    """What vLLM settles on at start-up.

    groups: of the whole model. stage_groups: each pipeline stage's part of them.
    available_bytes, bytes_per_block: per pipeline stage.
    num_gpu_blocks: of the poorest stage; the null block included.
    kv_cache_size_tokens, max_concurrency: as printed ("GPU KV cache size", "Maximum concurrency").
    max_model_len: tokens, after automatic fitting.
    """

    groups: tuple[KVCacheGroup, ...]
    stage_groups: tuple[tuple[KVCacheGroup, ...], ...]
    available_bytes: tuple[int, ...]
    bytes_per_block: tuple[int, ...]
    num_gpu_blocks: int
    kv_cache_size_tokens: int
    max_concurrency: float
    max_model_len: int
    block_size: int
    limits: RequestLimits
    rules: VllmRules

    @property
    def blocks_per_request(self) -> int:
        """Blocks of one request of max_model_len tokens."""
        return _blocks_per_request(self.groups, self.limits)

    @property
    def kv_groups(self) -> tuple[tuple[str, int, int | None], ...]:
        """(kind, block size, window) of every group, as the scheduler manages it; MLA is full attention."""
        specs = (group.spec for group in self.groups)
        return tuple(
            ("full", s.block_size, None) if s.kind in ("full", "mla") else (s.kind, s.block_size, s.window)
            for s in specs
        )

    @property
    def bytes_per_token(self) -> int:
        """KV bytes that one token adds on the first stage's GPU while all its layers keep it."""
        return sum(spec.bytes_per_token for group in self.stage_groups[0] for _, spec in group.layers)

    @property
    def scheduler_block_size(self) -> int:
        """Tokens that a scheduler step rounds to: least common multiple of the groups' blocks."""
        return math.lcm(*(g.spec.block_size for g in self.groups)) * self.limits.dcp

    @property
    def hash_block_size(self) -> int:
        """Tokens per block hash: greatest common divisor of the groups' blocks."""
        return math.gcd(*(g.spec.block_size for g in self.groups)) * self.limits.dcp

    def log_lines(self) -> tuple[str, ...]:
        """The capacity lines of vLLM's start-up log."""
        size = f"GPU KV cache size: {self.kv_cache_size_tokens:,} tokens"
        most = (
            f"Maximum concurrency for {self.max_model_len:,} tokens per request: {self.max_concurrency:.2f}x"
        )
        available = f"Available KV cache memory: {format_gib(self.available_bytes[0])} GiB"
        if self.rules.printed_size_from_concurrency:
            return available, f"{size}, {most}"
        return available, size, most

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every layer's KV tensor on the first stage, see `kv_cache_shape`."""
        layers = (layer for group in self.stage_groups[0] for layer in group.layers)
        return {name: kv_cache_shape(spec, self.num_gpu_blocks, self.rules) for name, spec in layers}


def kv_cache_shape(spec: KVCacheSpec, num_blocks: int, rules: VllmRules) -> tuple[int, ...]:
    """Shape of one layer's KV tensor, in elements.

    0.16 (FlashAttention): (2, blocks, block size, KV heads, head size), MLA (blocks, block size, latent).
    0.33: the logical (blocks, KV heads, block size, K and V together) of `kv_cache_interface.py`.
    """
    tokens = spec.block_size
    if not rules.kv_tensor_has_kv_axis:
        return (
            num_blocks,
            spec.num_kv_heads,
            tokens,
            spec.bytes_per_token // spec.num_kv_heads // spec.dtype_bytes,
        )
    if spec.kind == "mla":
        return num_blocks, tokens, spec.head_size
    return 2, num_blocks, tokens, spec.num_kv_heads, spec.head_size


def plan_for_model(
    model: ModelSpec | Mapping[str, Any],
    available_bytes: int | Sequence[int],
    options: KVCacheOptions | None = None,
    version: str = "0.33",
    stages: Sequence[int] | None = None,
) -> KVCachePlan:
    """Plan the KV cache of one model.

    available_bytes: for the KV cache on one GPU; one number, or one per pipeline stage.
    stages: layers per pipeline stage, else vLLM's own split into pipeline_parallel_size parts.
    Raises KVCacheTooSmallError where vLLM refuses to start, KvsimError for a wrong or unmodelled input.
    """
    options = options or KVCacheOptions()
    model = model if isinstance(model, ModelSpec) else ModelSpec.from_config(model)
    if model.encoder is not None:
        raise KvsimError(
            f"model: {model.name} is an encoder-decoder model, which the engine does not simulate"
        )
    if stages is not None:
        options = replace(options, pipeline_parallel_size=len(stages))
    layers = kv_cache_layers(model, options)
    workers = pipeline_stages(layers, model.num_hidden_layers, options.pipeline_parallel_size, stages)
    room = [available_bytes] * len(workers) if isinstance(available_bytes, int) else list(available_bytes)
    rules = rules_for(version)
    return plan_kv_cache(workers, room, options, rules, model.usual_length(rules.minor))


def plan_kv_cache(
    workers: Sequence[Layers],
    available_bytes: Sequence[int],
    options: KVCacheOptions,
    rules: VllmRules,
    model_max_len: int | None = None,
) -> KVCachePlan:
    """Plan from the layers of each pipeline stage (name -> spec, names unique over all stages).

    model_max_len: the model's own maximum, used where max_model_len is None or -1.
    """
    if len(workers) != len(available_bytes):
        raise KvsimError(
            f"available bytes: {len(available_bytes)} numbers for {len(workers)} pipeline stages"
        )
    layers = {name: spec for worker in workers for name, spec in worker.items()}
    groups = kv_cache_groups(
        layers,
        rules,
        layout=options.kv_cache_layout,
        disable_hybrid=options.disable_hybrid_kv_cache_manager,
    )
    stage_groups = tuple(tuple(group.on_worker(worker) for group in groups) for worker in workers)
    planner = _Planner(groups, stage_groups, tuple(available_bytes), options, rules)
    return planner.plan(_wanted_len(options.max_model_len, model_max_len))


def _wanted_len(max_model_len: int | None, model_max_len: int | None) -> int:
    if max_model_len is not None and max_model_len > 0:
        return max_model_len
    if not model_max_len:
        raise KvsimError("max_model_len: missing; give tokens, the model's own maximum is not known")
    return model_max_len


def _blocks_per_request(groups: Sequence[KVCacheGroup], limits: RequestLimits) -> int:
    return sum(group.spec.blocks_per_request(limits) for group in groups)


@dataclass(frozen=True)
class _Planner:
    groups: tuple[KVCacheGroup, ...]
    stage_groups: tuple[tuple[KVCacheGroup, ...], ...]
    available: tuple[int, ...]
    options: KVCacheOptions
    rules: VllmRules

    def plan(self, max_model_len: int) -> KVCachePlan:
        if self.options.max_model_len == -1:
            max_model_len = self.longest_fit(max_model_len)
        if self.options.max_model_len_must_fit:
            for groups, room in self.checked():
                self.check(groups, room, max_model_len)
        limits = self.options.request_limits(self.rules, max_model_len)
        blocks = self.held(min(self.blocks(i) for i in range(len(self.available))))
        concurrency = blocks / _blocks_per_request(self.groups, limits)
        return KVCachePlan(
            groups=self.groups,
            stage_groups=self.stage_groups,
            available_bytes=self.available,
            bytes_per_block=tuple(bytes_per_block(groups) for groups in self.stage_groups),
            num_gpu_blocks=blocks,
            kv_cache_size_tokens=self.printed_tokens(blocks, concurrency, max_model_len),
            max_concurrency=concurrency,
            max_model_len=max_model_len,
            block_size=self.options.block_size,
            limits=limits,
            rules=self.rules,
        )

    def divisor(self, stage: int) -> int:
        """Bytes of one block on a stage (0.16 counts all stages' layers where heads are unequal)."""
        whole = self.groups[0].uniform_type and not self.rules.uniform_groups_projected
        return bytes_per_block(self.groups if whole else self.stage_groups[stage])

    def blocks(self, stage: int) -> int:
        return self.options.num_gpu_blocks_override or max(self.available[stage], 0) // self.divisor(stage)

    def held(self, blocks: int) -> int:
        """The blocks themselves, refused if that is beyond any machine."""
        if blocks > MAX_GPU_BLOCKS:
            keys = memory_keys(overridden=self.options.num_gpu_blocks_override is not None)
            raise KvsimError(f"engine: {blocks:,} KV blocks are more than {MAX_GPU_BLOCKS:,}; lower {keys}")
        return blocks

    def checked(self) -> list[tuple[tuple[KVCacheGroup, ...], int]]:
        """The (groups, bytes) pairs that must hold one request: every stage (0.33), or the poorest (0.16)."""
        if self.rules.fit_check_first_group_only:
            return [(self.groups, min(self.available))]
        return [(groups, self.usable(i)) for i, groups in enumerate(self.stage_groups)]

    def usable(self, stage: int) -> int:
        size, override = self.divisor(stage), self.options.num_gpu_blocks_override
        room = override * size if override and self.rules.override_before_fit_check else self.available[stage]
        return room - (size if self.rules.null_block_held_back else 0)

    def needed(self, groups: tuple[KVCacheGroup, ...], max_model_len: int) -> int:
        """Bytes of one request of that length; 0.16 looks at the first group alone."""
        limits = self.options.request_limits(self.rules, max_model_len)
        counted = groups[:1] if self.rules.fit_check_first_group_only else groups
        return bytes_per_block(groups) * _blocks_per_request(counted, limits)

    def fit(self, groups: tuple[KVCacheGroup, ...], room: int, limit: int) -> int:
        """Longest length up to limit that fits, 0 if none; bisection like vLLM's."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.needed(groups, middle) <= room
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def longest_fit(self, limit: int) -> int:
        length = min(self.fit(groups, room, limit) for groups, room in self.checked())
        if length <= 0:
            raise cannot_fit(self.memory_keys)
        return length

    def check(self, groups: tuple[KVCacheGroup, ...], room: int, max_model_len: int) -> None:
        check_available(room, self.rules, self.memory_keys)
        needed = self.needed(groups, max_model_len)
        if needed > room:
            longest = self.fit(groups, room, max_model_len)
            raise too_long(self.rules, max_model_len, needed, room, longest, self.memory_keys)

    @property
    def memory_keys(self) -> str:
        override = self.options.num_gpu_blocks_override is not None
        return memory_keys(overridden=override and self.rules.override_before_fit_check)

    def printed_tokens(self, blocks: int, concurrency: float, max_model_len: int) -> int:
        if self.rules.printed_size_from_concurrency:
            return int(concurrency * max_model_len)
        smallest = min(group.spec.block_size for group in self.groups)
        return blocks // len(self.groups) * smallest * self.options.decode_context_parallel_size
