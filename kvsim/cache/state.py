"""Arrays that hold the state of a block pool and of a KV cache manager.

Compiled code and the Python classes share these arrays. Their fields carry vLLM's names, so
`blocks['ref_cnt'][b]` is what `KVCacheBlock.ref_cnt` is there. Followed version: vLLM 0.33.0
(`v1/core/block_pool.py`, `kv_cache_manager.py`, `v1/request.py`), with 0.16.0 behind flags.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NONE = -1  # no block, no row, no request
NULL_BLOCK = 0  # block 0 stands for "outside the attention window" and is never handed out

# Group kinds
FULL, SLIDING_WINDOW, CHUNKED_LOCAL = 0, 1, 2

# Retention interval of sliding-window groups
RETAIN_ALL = -2  # every block of every group is cached (vLLM 0.16)
RETAIN_DENSE = -1  # a tail before each aligned boundary (0.33 with None)

# What the log records
LOG_OFF, LOG_ON = 0, 1
LOG_EVICTED, LOG_REMOVED, LOG_STORED_RUN, LOG_STORED, LOG_STORED_PARTIAL, LOG_CLEARED = 1, 2, 3, 4, 5, 6
LOG_LOOKUP, LOG_PREEMPTED, LOG_FINISHED = 7, 8, 9

POOL_DTYPE = np.dtype(
    [
        ("num_gpu_blocks", "i8"),
        ("num_free_blocks", "i8"),
        ("num_cached_keys", "i8"),  # different hashes in the cache map
        ("bucket_mask", "i8"),
        ("spare", "i8"),  # first unused extra entry
        ("enable_caching", "i8"),
        ("unhashed_to_front", "i8"),  # freed blocks without a hash are reused first (0.33)
        ("log_level", "i8"),
        ("log_len", "i8"),
        ("log_lost", "i8"),
        ("num_allocated", "i8"),
        ("num_evicted", "i8"),
        ("num_cached", "i8"),
    ]
)

# One row per block, then two sentinels of the free queue, then spare cache-map entries. A block
# and its first cache-map entry share a row: the entry fields describe the hash it carries.
BLOCK_DTYPE = np.dtype(
    [
        ("hash_lo", "u8"),
        ("hash_hi", "u8"),
        ("ref_cnt", "i4"),
        ("prev_free_block", "i4"),
        ("next_free_block", "i4"),
        ("group_id", "i4"),
        ("hash_num_tokens", "i4"),  # tokens that the hash covers; 0: no hash
        ("block_id", "i4"),  # the block that this entry leads to
        ("extra", "i4"),  # next further entry of the same block
        ("older", "i4"),  # entries with the same key, oldest first
        ("newer", "i4"),
        ("newest", "i4"),  # kept by the oldest entry of a key
        ("bucket_prev", "i4"),  # chain of the oldest entries in one bucket
        ("bucket_next", "i4"),
    ]
)

LOG_DTYPE = np.dtype(
    [
        ("kind", "i4"),
        ("group_id", "i4"),
        ("request", "i8"),  # uid
        ("first", "i4"),
        ("last", "i4"),
        ("hash_lo", "u8"),
        ("hash_hi", "u8"),
    ]
)

KV_DTYPE = np.dtype(
    [
        ("max_model_len", "i8"),
        ("hash_block_size", "i8"),
        ("scheduler_block_size", "i8"),
        ("num_groups", "i8"),
        ("num_specs", "i8"),
        ("retention_interval", "i8"),
        ("watermark_blocks", "i8"),
        ("num_hash_lookahead_tokens", "i8"),
        ("drop_eagle_block", "i8"),
        ("num_free_rows", "i8"),
        # rules
        ("concatenated_hashes", "i8"),
        ("record_stats_at_lookup", "i8"),
        ("free_behind_processed", "i8"),
        ("align_cached_tokens", "i8"),
        ("partial_tail_entries", "i8"),
        ("eagle_margin", "i8"),
        ("detects_junction", "i8"),
        # prefix-cache statistics, tokens (requests: lookups or admissions, by release)
        ("requests", "i8"),
        ("queries", "i8"),
        ("hits", "i8"),
        ("preempted_requests", "i8"),
        ("preempted_queries", "i8"),
        ("preempted_hits", "i8"),
    ]
)

GROUP_DTYPE = np.dtype(
    [
        ("kind", "i4"),
        ("block_size", "i4"),
        ("window", "i4"),  # sliding window or chunk, tokens
        ("scale", "i4"),  # block_size // hash_block_size
        ("spec", "i4"),  # groups with one spec are looked up together
        ("max_admission_blocks", "i4"),
        ("use_eagle", "i4"),
        ("num_hit_blocks", "i4"),  # result of the latest lookup
    ]
)

# Request.status
FREE_SLOT, WAITING, PREEMPTED, RUNNING = 0, 1, 2, 3
FINISHED_STOPPED, FINISHED_LENGTH_CAPPED, FINISHED_ABORTED, FINISHED_ERROR = 4, 5, 6, 7
STATUS_NAMES = (
    "",
    "WAITING",
    "PREEMPTED",
    "RUNNING",
    "FINISHED_STOPPED",
    "FINISHED_LENGTH_CAPPED",
    "FINISHED_ABORTED",
    "FINISHED_ERROR",
)

REQUEST_DTYPE = np.dtype(
    [
        ("uid", "i8"),
        ("arrival_time", "f8"),
        ("priority", "i8"),
        ("hash_offset", "i8"),
        ("feature_offset", "i8"),
        ("accept_offset", "i8"),
        ("num_hash_blocks", "i4"),
        ("num_features", "i4"),
        ("accept_len", "i4"),
        ("status", "i4"),
        ("num_prompt_tokens", "i4"),
        ("num_tokens", "i4"),
        ("num_computed_tokens", "i4"),
        ("num_output_placeholders", "i4"),
        ("num_in_flight_tokens", "i4"),
        ("num_stale_output_tokens", "i4"),
        ("num_spec_tokens", "i4"),
        ("num_preemptions", "i4"),
        ("shared_prefix_boundary", "i4"),
        ("max_tokens", "i4"),
        ("stop_at", "i4"),  # the output (1-based) that is a stop token; 0: none
        ("lora", "i4"),
        ("row", "i4"),  # row of the block tables
        ("prev_waiting", "i4"),
        ("next_waiting", "i4"),
        ("is_prefill_chunk", "i4"),
        ("drop_stale_output", "i4"),
        ("discard_latest_output", "i4"),
        ("skip_reading_prefix_cache", "i4"),
        ("encoder_mismatch", "i4"),
        ("num_cached_tokens", "i4"),  # hit at first admission; -1 before
        ("num_recomputed_tokens", "i4"),  # computed tokens that preemptions threw away
        ("first_scheduled_time", "f8"),
        ("first_token_time", "f8"),
        ("last_token_time", "f8"),
        ("finish_time", "f8"),
    ]
)

ROW_DTYPE = np.dtype(
    [
        ("num_blocks", "i4"),
        ("num_cached_blocks", "i4"),  # -1: vLLM's num_cached_block has no entry yet
        ("num_new_blocks", "i4"),  # taken by the latest allocation
    ]
)


class PoolState(NamedTuple):
    """A block pool: scalars (1,), blocks and entries, hash buckets (power of two,), log."""

    scalars: NDArray[np.void]
    blocks: NDArray[np.void]
    buckets: NDArray[np.int32]
    log: NDArray[np.void]


class KVState(NamedTuple):
    """A KV cache manager over a pool.

    rows (max_num_seqs, num_groups); block_tables (max_num_seqs, num_groups, max_blocks);
    hit_blocks (num_groups, max_blocks): blocks found by the latest lookup;
    block_hashes (n, 2): 128-bit keys of all live requests, `hash_offset` says where.
    """

    pool: PoolState
    scalars: NDArray[np.void]
    groups: NDArray[np.void]
    requests: NDArray[np.void]
    rows: NDArray[np.void]
    free_rows: NDArray[np.int32]
    block_tables: NDArray[np.int32]
    hit_blocks: NDArray[np.int32]
    block_hashes: NDArray[np.uint64]
