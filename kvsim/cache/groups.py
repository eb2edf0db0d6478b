"""Cache groups: which attention kinds share the pool, and the arrays of a manager over them."""

import math
from dataclasses import dataclass

import numpy as np

from kvsim.cache.block_pool import make_pool
from kvsim.cache.state import (
    CHUNKED_LOCAL,
    FULL,
    GROUP_DTYPE,
    NONE,
    REQUEST_DTYPE,
    RETAIN_ALL,
    RETAIN_DENSE,
    ROW_DTYPE,
    SLIDING_WINDOW,
    KVState,
)
from kvsim.errors import KvsimError
from kvsim.rules import VllmRules

GROUP_KINDS = {"full": FULL, "sliding_window": SLIDING_WINDOW, "chunked_local": CHUNKED_LOCAL}


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers with one cache spec.

    kind: "full", "sliding_window" or "chunked_local". block_size: tokens per block, None for the
    engine's. window: tokens of the sliding window or of a chunk; None for full attention.
    """

    kind: str = "full"
    block_size: int | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in GROUP_KINDS:
            raise KvsimError(f"kv_groups: kind {self.kind!r} is not one of {', '.join(GROUP_KINDS)}")
        if (self.kind == "full") != (self.window is None):
            verb = "has no" if self.window else "needs a"
            raise KvsimError(f"kv_groups: a {self.kind} group {verb} window")
        if self.window is not None and self.window < 1:
            raise KvsimError(f"kv_groups: window must be at least 1 token, not {self.window}")


@dataclass(frozen=True, slots=True)
class KVCacheConfig:
    """Everything that a KV cache manager must be told. Sizes in tokens or blocks.

    num_gpu_blocks counts the null block. max_in_flight_tokens: batches in flight x tokens of a
    batch. retention_interval: None keeps window blocks densely, 0 only where a prompt can resume.
    log_capacity, kv_events: see `kvsim.engine.config.EngineConfig`.
    """

    num_gpu_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    rules: VllmRules
    groups: tuple[KVGroup, ...] = (KVGroup(),)
    max_in_flight_tokens: int = 0
    enable_prefix_caching: bool = True
    use_eagle_block_drop: bool = False
    num_hash_lookahead_tokens: int = 0
    retention_interval: int | None = 0
    watermark: float = 0.0
    log_capacity: int = 0
    kv_events: bool = True

    @property
    def group_block_sizes(self) -> tuple[int, ...]:
        return tuple(group.block_size or self.block_size for group in self.groups)

    @property
    def scheduler_block_size(self) -> int:
        """Hits are multiples of this: the least common multiple over the groups."""
        return math.lcm(*self.group_block_sizes)

    @property
    def hash_block_size(self) -> int:
        """Granularity of block hashes: the greatest common divisor (0.33), the smallest size (0.16)."""
        sizes = self.group_block_sizes
        return min(sizes) if self.rules.concatenated_coarse_hashes else math.gcd(*sizes)

    @property
    def coarse_scales(self) -> tuple[int, ...]:
        """Hash blocks per block, for the groups with coarser blocks."""
        scales = (size // self.hash_block_size for size in self.group_block_sizes)
        return tuple(scale for scale in scales if scale > 1)

    def max_admission_blocks(self, group: KVGroup, block_size: int) -> int:
        """Most blocks that one request can hold in a group whose blocks are recycled (NONE: no cap)."""
        if group.window is None:
            return int(NONE)
        reach = group.window + self.max_in_flight_tokens
        if group.kind == "sliding_window":
            return -(-min(reach - 1, self.max_model_len) // block_size) + 1
        return -(-min(reach, self.max_model_len) // block_size)

    def specs(self) -> tuple[int, ...]:
        """Spec number of each group: equal specs share one, full attention is numbered first."""
        keys = [
            (group.kind, size, group.window)
            for group, size in zip(self.groups, self.group_block_sizes, strict=True)
        ]
        order = sorted(dict.fromkeys(keys), key=lambda key: key[0] != "full")
        return tuple(order.index(key) for key in keys)


def _group_rows(config: KVCacheConfig) -> np.ndarray:
    rows = np.zeros(len(config.groups), GROUP_DTYPE)
    for g, (group, size) in enumerate(zip(config.groups, config.group_block_sizes, strict=True)):
        rows["kind"][g] = GROUP_KINDS[group.kind]
        rows["block_size"][g] = size
        rows["window"][g] = group.window or 0
        rows["scale"][g] = size // config.hash_block_size
        rows["max_admission_blocks"][g] = config.max_admission_blocks(group, size)
    rows["spec"] = config.specs()
    rows["use_eagle"] = config.use_eagle_block_drop
    return rows


def _retention(config: KVCacheConfig) -> int:
    if not config.rules.sparse_window_retention:
        return int(RETAIN_ALL)
    return int(RETAIN_DENSE) if config.retention_interval is None else config.retention_interval


def _check(config: KVCacheConfig) -> None:
    interval, size = config.retention_interval, config.scheduler_block_size
    if interval is not None and (interval < 0 or interval % size):
        raise KvsimError(
            f"prefix_cache_retention_interval must be a multiple of {size} (or 0), not {interval}"
        )
    if any(block % config.hash_block_size for block in config.group_block_sizes):
        raise KvsimError(
            f"kv_groups: block sizes {config.group_block_sizes} are not multiples of the smallest"
        )
    local = config.enable_prefix_caching and any(g.kind == "chunked_local" for g in config.groups)
    if local and (len(set(config.group_block_sizes)) > 1 or config.use_eagle_block_drop):
        raise KvsimError("kv_groups: chunked_local needs equal block sizes and no draft head")


def make_kv_state(config: KVCacheConfig, capacity: int = 64) -> KVState:
    """Arrays of a manager; `capacity` requests at first. Raises KvsimError for sizes that cannot be."""
    _check(config)
    rules, groups = config.rules, _group_rows(config)
    pool = make_pool(
        config.num_gpu_blocks,
        config.enable_prefix_caching,
        vllm_version=rules.version,
        log_capacity=config.log_capacity,
        extra_entries=rules.aligned_hybrid_caching and bool(config.coarse_scales),
    )
    scalars = pool.scalars
    scalars["max_model_len"] = config.max_model_len
    scalars["hash_block_size"] = config.hash_block_size
    scalars["scheduler_block_size"] = config.scheduler_block_size
    scalars["num_groups"] = len(groups)
    scalars["num_specs"] = groups["spec"].max() + 1
    scalars["retention_interval"] = _retention(config)
    scalars["watermark_blocks"] = int(config.watermark * config.num_gpu_blocks) if rules.watermark else 0
    scalars["num_hash_lookahead_tokens"] = config.num_hash_lookahead_tokens
    scalars["drop_eagle_block"] = config.use_eagle_block_drop
    scalars["concatenated_hashes"] = rules.concatenated_coarse_hashes
    scalars["record_stats_at_lookup"] = not rules.stats_at_admission
    scalars["free_behind_processed"] = rules.frees_behind_processed_tokens
    scalars["align_cached_tokens"] = rules.aligned_hybrid_caching
    scalars["partial_tail_entries"] = rules.aligned_hybrid_caching
    scalars["eagle_margin"] = rules.aligned_hybrid_caching
    scalars["detects_junction"] = rules.sparse_window_retention
    max_blocks = max(-(-config.max_model_len // size) for size in config.group_block_sizes) + 1
    rows = np.zeros((config.max_num_seqs, len(groups)), ROW_DTYPE)
    rows["next_free_row"][:, 0] = np.arange(1, config.max_num_seqs + 1)
    scalars["first_free_slot"] = NONE
    return KVState(
        pool=pool,
        groups=groups,
        requests=np.zeros(capacity, REQUEST_DTYPE),
        rows=rows,
        block_tables=np.zeros((config.max_num_seqs + 1, len(groups), max_blocks), np.int32),
        block_hashes=np.zeros((1024, 2), np.uint64),
    )
