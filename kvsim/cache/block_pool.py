"""The block pool: free queue, reference counts and the map from block hash to blocks.

Followed: vLLM 0.33.0 `v1/core/block_pool.py` and `FreeKVCacheBlockQueue` of
`v1/core/kv_cache_utils.py`. Not reproduced: reuse watchers, several pools.

A block hash is 128 bits here: the first 16 bytes of vLLM's digest, or kvsim's own chain.
"""

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.state import (
    BLOCK_DTYPE,
    CACHE_DTYPE,
    LOG_CLEARED,
    LOG_DTYPE,
    LOG_EVICTED,
    LOG_OFF,
    LOG_ON,
    LOG_REMOVED,
    NO_HASH,
    NONE,
    NULL_BLOCK,
    ZERO,
    PoolState,
)
from kvsim.compiled import compiled, compiled_part
from kvsim.errors import KvsimError
from kvsim.rules import rules_for

_GROUP_MIX = np.uint64(0x9E3779B97F4A7C15)
_EXTRA_ENTRIES = 4  # spare cache-map entries per block, for partial tail entries


# ---------------------------------------------------------------- log


@compiled_part
def log(pool, kind, group_id, request, first, last, hash_lo, hash_hi):
    """Append one record; what does not fit is counted, and the owner of the log raises."""
    p = pool.scalars
    if p["log_level"][0] == LOG_OFF:
        return
    n = p["log_len"][0]
    if n == len(pool.log):
        p["log_lost"][0] += 1
        return
    pool.log["kind"][n] = kind
    pool.log["group_id"][n] = group_id
    pool.log["request"][n] = request
    pool.log["first"][n] = first
    pool.log["last"][n] = last
    pool.log["hash_lo"][n] = hash_lo
    pool.log["hash_hi"][n] = hash_hi
    p["log_len"][0] = n + 1


# ---------------------------------------------------------------- free queue


@compiled_part
def _link(blocks, left, right):
    blocks["next_free_block"][left] = right
    blocks["prev_free_block"][right] = left


@compiled_part
def remove_free(pool, block):
    """Take a block out of the middle of the free queue."""
    blocks = pool.blocks
    _link(blocks, np.int64(blocks["prev_free_block"][block]), np.int64(blocks["next_free_block"][block]))
    pool.scalars["num_free_blocks"][0] -= 1


@compiled_part
def insert_free(pool, after, block):
    """Put a block into the free queue behind `after` (a block or the head sentinel)."""
    blocks = pool.blocks
    _link(blocks, block, np.int64(blocks["next_free_block"][after]))
    _link(blocks, after, block)
    pool.scalars["num_free_blocks"][0] += 1


@compiled_part
def append_free(pool, block):
    tail = pool.scalars["num_gpu_blocks"][0] + 1
    insert_free(pool, np.int64(pool.blocks["prev_free_block"][tail]), block)


# ---------------------------------------------------------------- hash -> blocks


@compiled_part
def _bucket(pool, hash_lo, group_id):
    mixed = hash_lo ^ (np.uint64(group_id) * _GROUP_MIX)
    return np.int64(mixed & np.uint64(pool.scalars["bucket_mask"][0]))


@compiled_part
def find_entry(pool, hash_lo, hash_hi, group_id):
    """The oldest entry under a key, or NONE."""
    blocks = pool.blocks
    e = np.int64(blocks["bucket"][_bucket(pool, hash_lo, group_id)])
    while e != NONE:
        if (
            blocks["hash_lo"][e] == hash_lo
            and blocks["hash_hi"][e] == hash_hi
            and blocks["group_id"][e] == group_id
        ):
            return e
        e = np.int64(blocks["bucket_next"][e])
    return e


@compiled_part
def get_cached_block(pool, hash_lo, hash_hi, group_id):
    """The block that has held this content longest, or NONE."""
    e = find_entry(pool, hash_lo, hash_hi, group_id)
    return e if e == NONE else np.int64(pool.blocks["block_id"][e])


@compiled_part
def _insert_entry(pool, e, block, hash_lo, hash_hi, group_id, num_tokens):
    blocks = pool.blocks
    blocks["block_id"][e] = block
    blocks["hash_lo"][e] = hash_lo
    blocks["hash_hi"][e] = hash_hi
    blocks["group_id"][e] = group_id
    blocks["hash_num_tokens"][e] = num_tokens
    blocks["newer"][e] = NONE
    oldest = find_entry(pool, hash_lo, hash_hi, group_id)
    if oldest != NONE:  # the same content again: kept beside the older block, never merged
        newest = blocks["newest"][oldest]
        blocks["newer"][newest] = e
        blocks["older"][e] = newest
        blocks["newest"][oldest] = e
        return
    at = _bucket(pool, hash_lo, group_id)
    following = pool.blocks["bucket"][at]
    blocks["older"][e] = NONE
    blocks["newest"][e] = e
    blocks["bucket_prev"][e] = NONE
    blocks["bucket_next"][e] = following
    if following != NONE:
        blocks["bucket_prev"][following] = e
    pool.blocks["bucket"][at] = e
    pool.scalars["num_cached_keys"][0] += 1


@compiled_part
def _replace_in_bucket(pool, e, by):
    """Put entry `by` (or nothing) in the place of `e` in its bucket chain."""
    blocks = pool.blocks
    before, after = blocks["bucket_prev"][e], blocks["bucket_next"][e]
    left = after if by == NONE else by
    right = before if by == NONE else by
    if by != NONE:
        blocks["bucket_prev"][by] = before
        blocks["bucket_next"][by] = after
    if before == NONE:
        group_id = np.int64(blocks["group_id"][e])
        pool.blocks["bucket"][_bucket(pool, blocks["hash_lo"][e], group_id)] = left
    else:
        blocks["bucket_next"][before] = left
    if after != NONE:
        blocks["bucket_prev"][after] = right


@compiled_part
def _remove_entry(pool, e):
    blocks = pool.blocks
    group_id, lo, hi = np.int64(blocks["group_id"][e]), blocks["hash_lo"][e], blocks["hash_hi"][e]
    older, newer = np.int64(blocks["older"][e]), np.int64(blocks["newer"][e])
    if older == NONE:
        if newer != NONE:
            blocks["newest"][newer] = blocks["newest"][e]
            blocks["older"][newer] = NONE
        else:
            pool.scalars["num_cached_keys"][0] -= 1
        _replace_in_bucket(pool, e, newer)
    else:
        blocks["newer"][older] = newer
        if newer != NONE:
            blocks["older"][newer] = older
        else:
            blocks["newest"][find_entry(pool, lo, hi, group_id)] = older
    log(pool, LOG_REMOVED, group_id, ZERO, ZERO, ZERO, lo, hi)
    blocks["hash_num_tokens"][e] = 0


@compiled_part
def has_hash(pool, block):
    return pool.blocks["hash_num_tokens"][block] > 0


@compiled_part
def carries_key(pool, block, hash_lo, hash_hi, group_id):
    """Whether one of the block's own entries has this key."""
    blocks = pool.blocks
    if not has_hash(pool, block):
        return False
    e = np.int64(block)
    while e != NONE:
        if (
            blocks["hash_lo"][e] == hash_lo
            and blocks["hash_hi"][e] == hash_hi
            and blocks["group_id"][e] == group_id
        ):
            return True
        e = np.int64(blocks["extra"][e])
    return False


@compiled_part
def insert_block_hash(pool, block, hash_lo, hash_hi, group_id, num_tokens):
    """Make a block reachable under a key: its first one, or a further one."""
    if carries_key(pool, block, hash_lo, hash_hi, group_id):
        return
    if not has_hash(pool, block):
        pool.blocks["extra"][block] = NONE
        _insert_entry(pool, block, block, hash_lo, hash_hi, group_id, num_tokens)
        pool.scalars["num_cached"][0] += 1
        return
    e = pool.scalars["spare"][0]
    if e == NONE:
        return  # as many further keys as there is room for; they are never hit without Mamba groups
    pool.scalars["spare"][0] = pool.blocks["extra"][e]
    _insert_entry(pool, e, block, hash_lo, hash_hi, group_id, num_tokens)
    last = np.int64(block)
    while pool.blocks["extra"][last] != NONE:
        last = np.int64(pool.blocks["extra"][last])
    pool.blocks["extra"][e] = NONE
    pool.blocks["extra"][last] = e


@compiled_part
def remove_cached_block_hashes(pool, block):
    """Drop every key of a block; true if it had any."""
    if not has_hash(pool, block):
        return False
    blocks = pool.blocks
    log(pool, LOG_EVICTED, ZERO, ZERO, block, ZERO, NO_HASH, NO_HASH)
    pool.scalars["num_evicted"][0] += 1
    _remove_entry(pool, block)
    e = np.int64(blocks["extra"][block])
    blocks["extra"][block] = NONE
    while e != NONE:
        following = np.int64(blocks["extra"][e])
        _remove_entry(pool, e)
        blocks["extra"][e] = pool.scalars["spare"][0]
        pool.scalars["spare"][0] = e
        e = following
    return True


# ---------------------------------------------------------------- allocate, touch, free


@compiled_part
def get_new_block(pool):
    """Pop the head of the free queue, evict what it had cached, own it once."""
    head = pool.scalars["num_gpu_blocks"][0]
    block = np.int64(pool.blocks["next_free_block"][head])
    remove_free(pool, block)
    if pool.scalars["enable_caching"][0]:
        remove_cached_block_hashes(pool, block)
    pool.blocks["ref_cnt"][block] = 1
    pool.scalars["num_allocated"][0] += 1
    return block


@compiled_part
def touch(pool, block):
    """One more owner; a block that nobody owned leaves the free queue."""
    if block == NULL_BLOCK:
        return
    if pool.blocks["ref_cnt"][block] == 0:
        remove_free(pool, block)
    pool.blocks["ref_cnt"][block] += 1


@compiled_part
def free_blocks_reversed(pool, table, first, last):
    """Give back table[last - 1], table[last - 2], ..., table[first].

    Blocks that nobody owns any more join the tail of the free queue in that order; with
    `unhashed_to_front` those without a hash go, in that order, to its front instead.
    """
    blocks = pool.blocks
    front = pool.scalars["num_gpu_blocks"][0]
    split = pool.scalars["unhashed_to_front"][0] != 0
    caching = pool.scalars["enable_caching"][0] != 0
    for i in range(last - 1, first - 1, -1):
        block = np.int64(table[i])
        if block == NULL_BLOCK:
            continue
        blocks["ref_cnt"][block] -= 1
        if blocks["ref_cnt"][block] != 0:
            continue
        if split and not (caching and has_hash(pool, block)):
            insert_free(pool, front, block)
            front = block
        else:
            append_free(pool, block)


@compiled
def reset_prefix_cache(pool):
    """Forget all hashes; refused (false) while any block but the null block is in use."""
    p = pool.scalars
    n = p["num_gpu_blocks"][0]
    if n - p["num_free_blocks"][0] != 1:
        return False
    for block in range(n):
        pool.blocks["hash_num_tokens"][block] = 0
        pool.blocks["extra"][block] = NONE
    init_entries(pool)
    log(pool, LOG_CLEARED, ZERO, ZERO, ZERO, ZERO, NO_HASH, NO_HASH)
    return True


@compiled_part
def init_entries(pool):
    n = pool.scalars["num_gpu_blocks"][0]
    pool.blocks["bucket"][:] = NONE
    pool.scalars["num_cached_keys"][0] = 0
    first, end = n + 2, pool.scalars["end_of_entries"][0]
    pool.scalars["spare"][0] = first if first < end else NONE
    for e in range(first, end):
        pool.blocks["extra"][e] = e + 1 if e + 1 < end else NONE


@compiled
def init_pool(pool):
    """All blocks free in the order of their ids, then block 0 taken as the null block."""
    n = pool.scalars["num_gpu_blocks"][0]
    _link(pool.blocks, n, n + 1)
    pool.scalars["num_free_blocks"][0] = 0
    for block in range(n):
        pool.blocks["block_id"][block] = block
        pool.blocks["extra"][block] = NONE
        append_free(pool, block)
    remove_free(pool, NULL_BLOCK)
    init_entries(pool)


def make_pool(
    num_gpu_blocks: int,
    enable_caching: bool = True,
    *,
    vllm_version: str = "0.33",
    log_capacity: int = 0,
    extra_entries: bool = False,
) -> PoolState:
    """Arrays of a pool of `num_gpu_blocks` blocks, the null block included.

    extra_entries: room for several keys per block (full-attention groups with blocks coarser
    than the hash granularity). Raises KvsimError for a pool without a usable block.
    """
    if num_gpu_blocks < 2:
        raise KvsimError(
            f"num_gpu_blocks is {num_gpu_blocks}: at least 2 are needed (block 0 is the null block)"
        )
    entries = num_gpu_blocks + 2 + (_EXTRA_ENTRIES * num_gpu_blocks if extra_entries else 0)
    num_buckets = 1 << (num_gpu_blocks - 1).bit_length()
    pool = PoolState(
        scalars=np.zeros(1, CACHE_DTYPE),
        blocks=np.zeros(max(entries, num_buckets), BLOCK_DTYPE),
        log=np.zeros(log_capacity, LOG_DTYPE),
    )
    scalars = pool.scalars
    scalars["num_gpu_blocks"] = num_gpu_blocks
    scalars["bucket_mask"] = num_buckets - 1
    scalars["end_of_entries"] = entries
    scalars["enable_caching"] = enable_caching
    scalars["unhashed_to_front"] = rules_for(vllm_version).unhashed_blocks_freed_to_front
    scalars["log_level"] = LOG_ON if log_capacity else LOG_OFF
    init_pool(pool)
    return pool


# Entries from Python, compiled only where they are used.


@compiled
def _get_new_block(pool):
    return get_new_block(pool)


@compiled
def _touch(pool, block):
    touch(pool, block)


@compiled
def _free_blocks_reversed(pool, table, first, last):
    free_blocks_reversed(pool, table, first, last)


@compiled
def _insert_block_hash(pool, block, hash_lo, hash_hi, group_id, num_tokens):
    insert_block_hash(pool, block, hash_lo, hash_hi, group_id, num_tokens)


@compiled
def _get_cached_block(pool, hash_lo, hash_hi, group_id):
    return get_cached_block(pool, hash_lo, hash_hi, group_id)


class BlockPool:
    """A pool for people: the compiled functions under vLLM's method names.

    Block hashes are 16-byte values, e.g. the first 16 bytes of a vLLM digest.
    """

    def __init__(self, num_gpu_blocks: int, enable_caching: bool = True, *, vllm_version: str = "0.33"):
        self.state = make_pool(num_gpu_blocks, enable_caching, vllm_version=vllm_version)

    @property
    def num_gpu_blocks(self) -> int:
        return int(self.state.scalars["num_gpu_blocks"][0])

    def get_num_free_blocks(self) -> int:
        return int(self.state.scalars["num_free_blocks"][0])

    def get_usage(self) -> float:
        """Share of the usable blocks (the null block is none) that live requests hold, 0..1."""
        return 1.0 - self.get_num_free_blocks() / (self.num_gpu_blocks - 1)

    def free_queue(self) -> list[int]:
        """Free block ids in the order in which they will be handed out."""
        return free_queue(self.state)

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        """Raises KvsimError if fewer blocks are free."""
        if num_blocks > self.get_num_free_blocks():
            raise KvsimError(f"{num_blocks} blocks wanted, {self.get_num_free_blocks()} are free")
        return [int(_get_new_block(self.state)) for _ in range(num_blocks)]

    def touch(self, blocks: list[int]) -> None:
        for block in blocks:
            _touch(self.state, block)

    def free_blocks(self, ordered_blocks: list[int]) -> None:
        """Give blocks back; the first in the list will be evicted first."""
        table = np.array(ordered_blocks[::-1], np.int32)
        _free_blocks_reversed(self.state, table, 0, len(table))

    def cache_block(self, block: int, block_hash: bytes, num_tokens: int, group_id: int = 0) -> None:
        _insert_block_hash(self.state, block, *split_hash(block_hash), group_id, num_tokens)

    def get_cached_block(self, block_hash: bytes, group_id: int = 0) -> int | None:
        block = int(_get_cached_block(self.state, *split_hash(block_hash), group_id))
        return None if block == NONE else block

    def reset_prefix_cache(self) -> bool:
        return bool(reset_prefix_cache(self.state))


def split_hash(block_hash: bytes) -> tuple[np.uint64, np.uint64]:
    """The two words of the first 16 bytes of a digest."""
    lo, hi = np.frombuffer(block_hash[:16], "<u8")
    return np.uint64(lo), np.uint64(hi)


def free_queue(pool: PoolState) -> list[int]:
    n = int(pool.scalars["num_gpu_blocks"][0])
    following: NDArray[np.int32] = pool.blocks["next_free_block"]
    out, block = [], int(following[n])
    while block != n + 1:
        out.append(block)
        block = int(following[block])
    return out
