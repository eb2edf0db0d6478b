"""Arrays that hold the state of a block pool and of a KV cache manager.

Compiled code and the Python classes share these arrays; they are few, because every compiled
function is handed all of them. Their fields carry vLLM's names, so
`blocks['ref_cnt'][b]` is what `KVCacheBlock.ref_cnt` is there. Followed version: vLLM 0.33.0
(`v1/core/block_pool.py`, `kv_cache_manager.py`, `v1/request.py`), with 0.16.0 behind flags.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Constants are np.int64: numba would compile a function anew for each plain literal it is given.
NONE = np.int64(-1)  # no block, no row, no request
ZERO = np.int64(0)
NULL_BLOCK = ZERO  # block 0 stands for "outside the attention window" and is never handed out
NO_HASH = np.uint64(0)

# Group kinds
FULL, SLIDING_WINDOW, CHUNKED_LOCAL = map(np.int64, range(3))

# Retention interval of sliding-window groups
RETAIN_ALL = np.int64(-2)  # every block of every group is cached (vLLM 0.16)
RETAIN_DENSE = np.int64(-1)  # a tail before each aligned boundary (0.33 with None)

# What the log records
LOG_EVICTED, LOG_REMOVED, LOG_STORED_RUN, LOG_STORED, LOG_STORED_PARTIAL = map(np.int64, range(1, 6))
LOG_CLEARED, LOG_LOOKUP, LOG_PREEMPTED, LOG_FINISHED, LOG_FIRST_TOKEN = map(np.int64, range(6, 11))


def log_of(*kinds: np.int64) -> int:
    """`logged_kinds` for a log of these kinds."""
    return sum(1 << int(kind) for kind in kinds)


LOG_OFF = log_of()
LOG_ON = log_of(*(np.int64(kind) for kind in range(int(LOG_EVICTED), int(LOG_FIRST_TOKEN))))

CACHE_DTYPE = np.dtype(
    [
        ("num_gpu_blocks", "i8"),
        ("num_free_blocks", "i8"),
        ("bucket_mask", "i8"),
        ("end_of_entries", "i8"),
        ("spare", "i8"),  # first unused extra entry
        ("enable_caching", "i8"),
        ("unhashed_to_front", "i8"),  # freed blocks without a hash are reused first (0.33)
        ("logged_kinds", "i8"),  # a bit for each kind
        ("log_len", "i8"),
        ("log_lost", "i8"),
        ("num_allocated", "i8"),
        ("num_evicted", "i8"),
        ("num_cached", "i8"),
        # KV cache manager: sizes
        ("max_model_len", "i8"),
        ("hash_block_size", "i8"),
        ("scheduler_block_size", "i8"),
        ("num_groups", "i8"),
        ("num_specs", "i8"),
        ("retention_interval", "i8"),
        ("watermark_blocks", "i8"),
        ("num_hash_lookahead_tokens", "i8"),
        ("drop_eagle_block", "i8"),
        ("first_free_row", "i8"),
        ("first_free_slot", "i8"),  # of the table of requests
        ("end_of_slots", "i8"),
        ("end_of_hashes", "i8"),
        # what the log notes beside each record
        ("step", "i8"),
        ("now", "f8"),
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

# 32-bit, since a lookup touches one row per block; everything else is 64-bit, so that compiled
# functions are compiled for one kind of integer only.
# One row per block, then two sentinels of the free queue. Apart from the hashes, so that a walk
# through the queue stays within the processor's cache.
BLOCK_DTYPE = np.dtype([("ref_cnt", "i4"), ("prev_free_block", "i4"), ("next_free_block", "i4")])

# Entries of the cache map. A block's first one has the block's number; then come spare ones.
ENTRY_DTYPE = np.dtype(
    [
        ("hash_lo", "u8"),
        ("hash_hi", "u8"),
        ("group_id", "i4"),
        ("hash_num_tokens", "i4"),  # tokens that the hash covers; 0: no hash
        ("block_id", "i4"),  # the block that this entry leads to
        ("extra", "i4"),  # next further entry of the same block
        ("older", "i4"),  # entries with the same key, oldest first; NONE while it has no key
        ("newer", "i4"),
        ("newest", "i4"),  # kept by the oldest of several entries
        ("next_in_bucket", "i4"),  # among the oldest entries of their keys
    ]
)

LOG_DTYPE = np.dtype(
    [
        ("kind", "i8"),
        ("group_id", "i8"),
        ("step", "i8"),  # number of the latest step with tokens, the one being scheduled included, 1-based
        ("time", "f8"),  # s
        ("request", "i8"),  # uid
        ("first", "i8"),
        ("last", "i8"),
        ("hash_lo", "u8"),
        ("hash_hi", "u8"),
    ]
)

GROUP_DTYPE = np.dtype(
    [
        ("kind", "i8"),
        ("block_size", "i8"),
        ("window", "i8"),  # sliding window or chunk, tokens
        ("scale", "i8"),  # block_size // hash_block_size
        ("spec", "i8"),  # groups with one spec are looked up together
        ("max_admission_blocks", "i8"),
        ("use_eagle", "i8"),
        ("num_hit_blocks", "i8"),  # result of the latest lookup
    ]
)

# Request.status
FREE_SLOT, WAITING, PREEMPTED, RUNNING = map(np.int64, range(4))
FINISHED_STOPPED, FINISHED_LENGTH_CAPPED, FINISHED_ABORTED, FINISHED_ERROR = map(np.int64, range(4, 8))
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

# Why a request waits (`engine.scheduler`)
REASONS = (
    "no_room",
    "preemption",
    "queue_head",
    "sequence_limit",
    "token_budget",
    "encoder_budget",
    "lora_limit",
    "output_in_flight",
)
NUM_REASONS = len(REASONS)

REQUEST_DTYPE = np.dtype(
    [
        ("uid", "i8"),
        ("arrival_time", "f8"),
        ("queued_time", "f8"),  # when the engine sees it; the API server takes its time
        ("think_time", "f8"),  # s from its end to its session's next request; inf: none follows
        ("priority", "i8"),
        ("hash_offset", "i8"),
        ("feature_offset", "i8"),
        ("num_hash_blocks", "i8"),
        ("num_hashes", "i8"),  # with the coarser groups' keys (0.16) that follow
        ("num_features", "i8"),
        ("accept_len", "i8"),  # acceptance pattern behind the features
        ("status", "i8"),
        ("num_prompt_tokens", "i8"),
        ("num_tokens", "i8"),
        ("num_computed_tokens", "i8"),
        ("num_output_placeholders", "i8"),
        ("num_in_flight_tokens", "i8"),
        ("num_stale_output_tokens", "i8"),
        ("num_spec_tokens", "i8"),
        ("num_preemptions", "i8"),
        ("shared_prefix_boundary", "i8"),
        ("max_tokens", "i8"),
        ("stop_at", "i8"),  # the output (1-based) that is a stop token; 0: none
        ("lora", "i8"),
        ("row", "i8"),  # row of the block tables
        # While a request stays below all three, its next tokens change nothing in the pool.
        ("slots_held", "i8"),  # tokens that have slots in every group
        ("next_full_block", "i8"),  # tokens at which a block is full and may be cached
        ("next_block_behind", "i8"),  # tokens at which a block falls behind a window
        ("prev_waiting", "i8"),
        ("next_waiting", "i8"),
        ("is_prefill_chunk", "i8"),
        ("drop_stale_output", "i8"),
        ("discard_latest_output", "i8"),
        ("skip_reading_prefix_cache", "i8"),
        ("encoder_mismatch", "i8"),
        ("num_cached_tokens", "i8"),  # hit at first admission; -1 before
        ("num_preempted_blocks", "i8"),  # blocks that preemptions took away
        ("num_lost_tokens", "i8"),  # computed tokens that preemptions threw away
        ("num_recomputed_tokens", "i8"),  # tokens computed once more because of that
        ("most_computed_tokens", "i8"),  # before preemptions
        ("waiting_reason", "i8"),  # why the latest scan of the queue passed it over
        ("waiting_steps", "i8", (NUM_REASONS,)),  # steps spent waiting, by reason
        ("first_scheduled_time", "f8"),
        ("first_token_time", "f8"),
        ("last_token_time", "f8"),
        ("finish_time", "f8"),
    ]
)

ROW_DTYPE = np.dtype(
    [
        ("num_blocks", "i8"),
        ("num_cached_blocks", "i8"),  # -1: vLLM's num_cached_block has no entry yet
        ("next_free_row", "i8"),
    ]
)


class PoolState(NamedTuple):
    """A block pool: scalars (1,), blocks, log.

    entries and buckets (a power of two,): the cache map, see `kvsim.cache.block_map`.
    """

    scalars: NDArray[np.void]
    blocks: NDArray[np.void]
    entries: NDArray[np.void]
    buckets: NDArray[np.int32]
    log: NDArray[np.void]


class KVState(NamedTuple):
    """A KV cache manager over a pool.

    rows (max_num_seqs, num_groups); block_tables (max_num_seqs + 1, num_groups, max_blocks), whose
    last row holds the blocks that the latest lookup found; block_hashes (n, 2): 128-bit keys of
    all live requests, `hash_offset` says where.
    """

    pool: PoolState
    groups: NDArray[np.void]
    requests: NDArray[np.void]
    rows: NDArray[np.void]
    block_tables: NDArray[np.int32]
    block_hashes: NDArray[np.uint64]


HITS = -1  # the row of `block_tables` with the result of the latest lookup
