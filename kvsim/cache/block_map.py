"""The map from block hash to the blocks that hold the content, oldest first.

Followed: `BlockHashToBlockMap` and the hash book-keeping of vLLM 0.33.0 `v1/core/block_pool.py`.
An entry for each key of each block: the first has the block's number, further ones (partial prompt
tails of coarser blocks) are spare rows. Buckets lead to the oldest entry of each key.
"""

from collections.abc import Iterator

import numpy as np

from kvsim.cache.event_log import log
from kvsim.cache.state import LOG_EVICTED, LOG_REMOVED, NO_HASH, NONE, ZERO, PoolState
from kvsim.compiled import compiled_inline, compiled_part
from kvsim.prefetch import prefetch

_GROUP_MIX = np.uint64(0x9E3779B97F4A7C15)
BUCKETS_PER_BLOCK = 4  # most buckets are empty: a second entry costs a mispredicted branch and a cache miss


@compiled_inline
def _bucket(pool, hash_lo, group_id):
    mixed = hash_lo ^ (np.uint64(group_id) * _GROUP_MIX)
    return mixed & np.uint64(pool.scalars["bucket_mask"][0])


@compiled_inline
def expect_key(pool, hash_lo, group_id):
    """A look-up of this key comes soon."""
    prefetch(pool.buckets, np.int64(_bucket(pool, hash_lo, group_id)))


@compiled_inline
def expect_entry(pool, hash_lo, group_id):
    """The same once more, some time later: by now it is known where the bucket leads."""
    prefetch(pool.entries, np.int64(pool.buckets[_bucket(pool, hash_lo, group_id)]))


@compiled_inline
def _has_key(entries, e, hash_lo, hash_hi, group_id):
    same = entries["hash_lo"][e] == hash_lo and entries["hash_hi"][e] == hash_hi
    return same and entries["group_id"][e] == group_id


@compiled_inline
def _find_in_bucket(pool, bucket, hash_lo, hash_hi, group_id):
    e = np.int64(pool.buckets[bucket])
    while e != NONE and not _has_key(pool.entries, e, hash_lo, hash_hi, group_id):
        e = np.int64(pool.entries["next_in_bucket"][e])
    return e


@compiled_inline
def find_entry(pool, hash_lo, hash_hi, group_id):
    """The oldest entry under a key, or NONE."""
    return _find_in_bucket(pool, _bucket(pool, hash_lo, group_id), hash_lo, hash_hi, group_id)


@compiled_inline
def get_cached_block(pool, hash_lo, hash_hi, group_id):
    """The block that has held this content longest, or NONE."""
    e = find_entry(pool, hash_lo, hash_hi, group_id)
    return e if e == NONE else np.int64(pool.entries["block_id"][e])


@compiled_inline
def _insert_entry(pool, e, hash_lo, hash_hi, group_id, num_tokens):
    entries = pool.entries
    entries["hash_lo"][e] = hash_lo
    entries["hash_hi"][e] = hash_hi
    entries["group_id"][e] = group_id
    entries["hash_num_tokens"][e] = num_tokens
    bucket = _bucket(pool, hash_lo, group_id)
    oldest = _find_in_bucket(pool, bucket, hash_lo, hash_hi, group_id)
    if oldest != NONE:
        _insert_behind(entries, e, oldest)
        return
    entries["next_in_bucket"][e] = pool.buckets[bucket]
    pool.buckets[bucket] = e


@compiled_part
def _insert_behind(entries, e, oldest):
    """The same content again: kept beside the older block, never merged."""
    newest = oldest if entries["newer"][oldest] == NONE else np.int64(entries["newest"][oldest])
    entries["newer"][newest] = e
    entries["older"][e] = newest
    entries["newest"][oldest] = e


@compiled_inline
def _replace_in_bucket(pool, bucket, e, by):
    """Put `by` (an entry or NONE) in the place of `e`."""
    if pool.buckets[bucket] == e:
        pool.buckets[bucket] = by
        return
    before = np.int64(pool.buckets[bucket])
    while pool.entries["next_in_bucket"][before] != e:
        before = np.int64(pool.entries["next_in_bucket"][before])
    pool.entries["next_in_bucket"][before] = by


@compiled_inline
def _remove_entry(pool, e):
    entries = pool.entries
    group_id, lo, hi = np.int64(entries["group_id"][e]), entries["hash_lo"][e], entries["hash_hi"][e]
    if entries["older"][e] == NONE and entries["newer"][e] == NONE:
        following = np.int64(entries["next_in_bucket"][e])
        _replace_in_bucket(pool, _bucket(pool, lo, group_id), e, following)
    else:
        _remove_one_of_several(pool, e)
    log(pool, LOG_REMOVED, group_id, ZERO, ZERO, ZERO, lo, hi)
    entries["hash_num_tokens"][e] = 0


@compiled_part
def _remove_one_of_several(pool, e):
    """Another entry has the same key; the oldest of them stands in the bucket."""
    entries = pool.entries
    group_id, lo, hi = np.int64(entries["group_id"][e]), entries["hash_lo"][e], entries["hash_hi"][e]
    older, newer = np.int64(entries["older"][e]), np.int64(entries["newer"][e])
    if older == NONE:
        entries["newest"][newer] = entries["newest"][e]
        entries["older"][newer] = NONE
        entries["next_in_bucket"][newer] = entries["next_in_bucket"][e]
        _replace_in_bucket(pool, _bucket(pool, lo, group_id), e, newer)
    else:
        entries["newer"][older] = newer
        if newer != NONE:
            entries["older"][newer] = older
        else:
            entries["newest"][find_entry(pool, lo, hi, group_id)] = older
    entries["older"][e] = NONE
    entries["newer"][e] = NONE


@compiled_inline
def has_hash(pool, block):
    return pool.entries["hash_num_tokens"][block] > 0


@compiled_part
def carries_key(pool, block, hash_lo, hash_hi, group_id):
    """Whether one of the block's own entries has this key."""
    entries = pool.entries
    if not has_hash(pool, block):
        return False
    e = np.int64(block)
    while e != NONE:
        if _has_key(entries, e, hash_lo, hash_hi, group_id):
            return True
        e = np.int64(entries["extra"][e])
    return False


@compiled_inline
def insert_block_hash(pool, block, hash_lo, hash_hi, group_id, num_tokens):
    """Make a block reachable under a key; 1 if it is its first one, 0 if a further one."""
    if has_hash(pool, block):
        _insert_further_hash(pool, block, hash_lo, hash_hi, group_id, num_tokens)
        return ZERO
    _insert_entry(pool, block, hash_lo, hash_hi, group_id, num_tokens)
    return np.int64(1)


@compiled_part
def _insert_further_hash(pool, block, hash_lo, hash_hi, group_id, num_tokens):
    if carries_key(pool, block, hash_lo, hash_hi, group_id):
        return
    e = pool.scalars["spare"][0]
    if e == NONE:
        return  # as many further keys as there is room for; they are never hit without Mamba groups
    pool.scalars["spare"][0] = pool.entries["extra"][e]
    pool.entries["block_id"][e] = block
    _insert_entry(pool, e, hash_lo, hash_hi, group_id, num_tokens)
    last = np.int64(block)
    while pool.entries["extra"][last] != NONE:
        last = np.int64(pool.entries["extra"][last])
    pool.entries["extra"][e] = NONE
    pool.entries["extra"][last] = e


@compiled_inline
def remove_cached_block_hashes(pool, block):
    """Drop every key of a block; 1 if it had any, else 0."""
    if not has_hash(pool, block):
        return ZERO
    log(pool, LOG_EVICTED, ZERO, ZERO, block, ZERO, NO_HASH, NO_HASH)
    _remove_entry(pool, block)
    if pool.entries["extra"][block] != NONE:
        _remove_further_hashes(pool, block)
    return np.int64(1)


@compiled_part
def _remove_further_hashes(pool, block):
    entries = pool.entries
    e = np.int64(entries["extra"][block])
    entries["extra"][block] = NONE
    while e != NONE:
        following = np.int64(entries["extra"][e])
        _remove_entry(pool, e)
        entries["extra"][e] = pool.scalars["spare"][0]
        pool.scalars["spare"][0] = e
        e = following


@compiled_inline
def expect_removal(pool, block):
    """The key of a block is dropped soon."""
    entries = pool.entries
    expect_key(pool, entries["hash_lo"][block], np.int64(entries["group_id"][block]))


@compiled_part
def init_entries(pool):
    n = pool.scalars["num_gpu_blocks"][0]
    pool.buckets[:] = NONE
    pool.entries["older"][:] = NONE
    pool.entries["newer"][:] = NONE
    first, end = n + 2, pool.scalars["end_of_entries"][0]
    pool.scalars["spare"][0] = first if first < end else NONE
    for e in range(first, end):
        pool.entries["extra"][e] = e + 1 if e + 1 < end else NONE


def num_cached_keys(pool: PoolState) -> int:
    """Different keys in the map."""
    return sum(1 for _ in oldest_entries(pool))


def oldest_entries(pool: PoolState) -> Iterator[int]:
    """Rows of the oldest entry of every key in the map."""
    for entry in pool.buckets[pool.buckets != NONE].tolist():
        while entry != NONE:
            yield entry
            entry = int(pool.entries["next_in_bucket"][entry])
