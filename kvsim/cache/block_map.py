"""The map from block hash to the blocks that hold the content, oldest first.

Followed: `BlockHashToBlockMap` and the hash book-keeping of vLLM 0.33.0 `v1/core/block_pool.py`.
Entries live in the rows of the blocks: a block's first key in its own row, further keys (partial
prompt tails of coarser blocks) in spare rows. The oldest entry of a key stands in a bucket chain.
"""

import numpy as np

from kvsim.cache.event_log import log
from kvsim.cache.state import LOG_EVICTED, LOG_REMOVED, NO_HASH, NONE, ZERO
from kvsim.compiled import compiled_inline, compiled_part

_GROUP_MIX = np.uint64(0x9E3779B97F4A7C15)


@compiled_part
def _bucket(pool, hash_lo, group_id):
    mixed = hash_lo ^ (np.uint64(group_id) * _GROUP_MIX)
    return np.int64(mixed & np.uint64(pool.scalars["bucket_mask"][0]))


@compiled_part
def _has_key(blocks, e, hash_lo, hash_hi, group_id):
    same = blocks["hash_lo"][e] == hash_lo and blocks["hash_hi"][e] == hash_hi
    return same and blocks["group_id"][e] == group_id


@compiled_inline
def find_entry(pool, hash_lo, hash_hi, group_id):
    """The oldest entry under a key, or NONE."""
    blocks = pool.blocks
    e = np.int64(blocks["bucket"][_bucket(pool, hash_lo, group_id)])
    while e != NONE:
        if _has_key(blocks, e, hash_lo, hash_hi, group_id):
            return e
        e = np.int64(blocks["bucket_next"][e])
    return e


@compiled_inline
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


@compiled_inline
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
        if _has_key(blocks, e, hash_lo, hash_hi, group_id):
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


@compiled_part
def init_entries(pool):
    n = pool.scalars["num_gpu_blocks"][0]
    pool.blocks["bucket"][:] = NONE
    pool.scalars["num_cached_keys"][0] = 0
    first, end = n + 2, pool.scalars["end_of_entries"][0]
    pool.scalars["spare"][0] = first if first < end else NONE
    for e in range(first, end):
        pool.blocks["extra"][e] = e + 1 if e + 1 < end else NONE
