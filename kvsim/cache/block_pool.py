"""The block pool: blocks handed out, shared, given back; cached content evicted on the way.

Followed: vLLM 0.33.0 `v1/core/block_pool.py`. Not reproduced: reuse watchers, several pools.

A block hash is 128 bits here: the first 16 bytes of vLLM's digest, or kvsim's own chain.
"""

import numpy as np

from kvsim.cache.block_map import (
    BUCKETS_PER_BLOCK,
    expect_removal,
    get_cached_block,
    has_hash,
    init_entries,
    insert_block_hash,
    remove_cached_block_hashes,
)
from kvsim.cache.event_log import log
from kvsim.cache.free_queue import append_free, free_queue, insert_free, link, remove_free
from kvsim.cache.state import (
    BLOCK_DTYPE,
    CACHE_DTYPE,
    ENTRY_DTYPE,
    LOG_CLEARED,
    LOG_DTYPE,
    LOG_OFF,
    LOG_ON,
    NO_HASH,
    NONE,
    NULL_BLOCK,
    ZERO,
    PoolState,
)
from kvsim.compiled import compiled, compiled_part
from kvsim.errors import KvsimError
from kvsim.prefetch import AHEAD, prefetch
from kvsim.rules import rules_for

_EXTRA_ENTRIES = 4  # spare cache-map entries per block, for partial tail entries


@compiled_part
def get_new_blocks(pool, table, first, end):
    """Pop blocks from the head of the free queue into table[first:end], each owned once.

    What they had cached is evicted.
    """
    blocks, caching = pool.blocks, pool.scalars["enable_caching"][0] != 0
    head = pool.scalars["num_gpu_blocks"][0]
    block, num_evicted = np.int64(blocks["next_free_block"][head]), ZERO
    for i in range(first, end):
        table[i] = block
        blocks["ref_cnt"][block] = 1
        if caching:
            prefetch(pool.entries, block)
        block = np.int64(blocks["next_free_block"][block])
    link(blocks, head, block)
    if caching:
        lead = min(AHEAD, end - first)
        for ahead in range(first, end + lead):
            if ahead < end:
                expect_removal(pool, np.int64(table[ahead]))
            if ahead - lead >= first:
                num_evicted += remove_cached_block_hashes(pool, np.int64(table[ahead - lead]))
    pool.scalars["num_free_blocks"][0] -= end - first
    pool.scalars["num_allocated"][0] += end - first
    pool.scalars["num_evicted"][0] += num_evicted


@compiled_part
def touch(pool, table, first, end):
    """One more owner for table[first:end]; blocks that nobody owned leave the free queue."""
    blocks, num_taken = pool.blocks, ZERO
    for i in range(first, end):
        block = np.int64(table[i])
        if block == NULL_BLOCK:
            continue
        if blocks["ref_cnt"][block] == 0:
            remove_free(pool, block)
            num_taken += 1
        blocks["ref_cnt"][block] += 1
    pool.scalars["num_free_blocks"][0] -= num_taken


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
    num_freed = ZERO
    for i in range(last - 1, first - 1, -1):
        block = np.int64(table[i])
        if block == NULL_BLOCK:
            continue
        blocks["ref_cnt"][block] -= 1
        if blocks["ref_cnt"][block] != 0:
            continue
        num_freed += 1
        if split and not (caching and has_hash(pool, block)):
            insert_free(pool, front, block)
            front = block
        else:
            append_free(pool, block)
    pool.scalars["num_free_blocks"][0] += num_freed


@compiled_part
def evict(pool, block):
    """Drop every key of a block."""
    pool.scalars["num_evicted"][0] += remove_cached_block_hashes(pool, block)


@compiled
def reset_prefix_cache(pool):
    """Forget all hashes; refused (false) while any block but the null block is in use."""
    p = pool.scalars
    n = p["num_gpu_blocks"][0]
    if n - p["num_free_blocks"][0] != 1:
        return False
    for block in range(n):
        pool.entries["hash_num_tokens"][block] = 0
        pool.entries["extra"][block] = NONE
    init_entries(pool)
    log(pool, LOG_CLEARED, ZERO, ZERO, ZERO, ZERO, NO_HASH, NO_HASH)
    return True


@compiled
def init_pool(pool):
    """All blocks free in the order of their ids, then block 0 taken as the null block."""
    n = pool.scalars["num_gpu_blocks"][0]
    link(pool.blocks, n, n + 1)
    for block in range(n):
        pool.entries["block_id"][block] = block
        pool.entries["extra"][block] = NONE
        append_free(pool, block)
    remove_free(pool, NULL_BLOCK)
    pool.scalars["num_free_blocks"][0] = n - 1
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
    num_buckets = 1 << (max(BUCKETS_PER_BLOCK * num_gpu_blocks, 2 * entries) - 1).bit_length()
    pool = PoolState(
        scalars=np.zeros(1, CACHE_DTYPE),
        blocks=np.zeros(num_gpu_blocks + 2, BLOCK_DTYPE),
        entries=np.zeros(entries, ENTRY_DTYPE),
        buckets=np.zeros(num_buckets, np.int32),
        log=np.zeros(log_capacity, LOG_DTYPE),
    )
    scalars = pool.scalars
    scalars["num_gpu_blocks"] = num_gpu_blocks
    scalars["bucket_mask"] = num_buckets - 1
    scalars["end_of_entries"] = entries
    scalars["enable_caching"] = enable_caching
    scalars["unhashed_to_front"] = rules_for(vllm_version).unhashed_blocks_freed_to_front
    scalars["logged_kinds"] = LOG_ON if log_capacity else LOG_OFF
    init_pool(pool)
    return pool


# Entries from Python, compiled only where they are used.


@compiled
def _get_new_blocks(pool, table, first, end):
    get_new_blocks(pool, table, first, end)


@compiled
def _touch(pool, table, first, end):
    touch(pool, table, first, end)


@compiled
def _free_blocks_reversed(pool, table, first, last):
    free_blocks_reversed(pool, table, first, last)


@compiled
def _insert_block_hash(pool, block, hash_lo, hash_hi, group_id, num_tokens):
    num_cached = insert_block_hash(pool, block, hash_lo, hash_hi, group_id, num_tokens)
    pool.scalars["num_cached"][0] += num_cached


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
        table = np.zeros(num_blocks, np.int32)
        _get_new_blocks(self.state, table, 0, num_blocks)
        return table.tolist()

    def touch(self, blocks: list[int]) -> None:
        _touch(self.state, np.array(blocks, np.int32), 0, len(blocks))

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
