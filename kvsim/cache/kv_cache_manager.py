"""Slots for requests: lookup, allocation, caching of full blocks, release.

Followed: vLLM 0.33.0 `v1/core/kv_cache_manager.py`, `kv_cache_coordinator.py` and
`single_type_kv_cache_manager.py`; 0.16.0 where the scalars say so. Not reproduced: connectors,
Mamba and cross-attention groups, copy on write.
"""

import numpy as np

from kvsim.cache.block_map import carries_key, expect_entry, expect_key, has_hash, insert_block_hash
from kvsim.cache.block_pool import evict, free_blocks_reversed, get_new_blocks, touch
from kvsim.cache.event_log import log
from kvsim.cache.lookup import (
    blocks_for_window_hit,
    cdiv,
    find_longest_cache_hit,
    hash_index,
    num_hashed_tokens,
    num_skipped_tokens,
)
from kvsim.cache.state import (
    CHUNKED_LOCAL,
    FULL,
    HITS,
    LOG_LOOKUP,
    LOG_STORED,
    LOG_STORED_PARTIAL,
    LOG_STORED_RUN,
    NO_HASH,
    NONE,
    NULL_BLOCK,
    RETAIN_ALL,
    RETAIN_DENSE,
    SLIDING_WINDOW,
    ZERO,
)
from kvsim.compiled import compiled_inline, compiled_part
from kvsim.prefetch import AHEAD, prefetch

NEVER = np.int64(1 << 62)  # more tokens than any request has

# ---------------------------------------------------------------- lookup


@compiled_part
def record_stats(kv, r, num_hits):
    """Count a lookup, in tokens; requests that were preempted before are counted apart."""
    s = kv.pool.scalars
    if kv.requests["num_preemptions"][r] > 0:
        s["preempted_requests"][0] += 1
        s["preempted_queries"][0] += kv.requests["num_tokens"][r]
        s["preempted_hits"][0] += num_hits
    else:
        s["requests"][0] += 1
        s["queries"][0] += kv.requests["num_tokens"][r]
        s["hits"][0] += num_hits


@compiled_part
def lookup_enabled(kv, r):
    enabled = kv.pool.scalars["enable_caching"][0] != 0
    return enabled and kv.requests["skip_reading_prefix_cache"][r] == 0


@compiled_part
def get_computed_blocks(kv, r):
    """Hit tokens of a waiting request; the blocks are left in the row of hits.

    At most num_tokens - 1 tokens hit: the last one must be computed for its logits.
    """
    for g in range(kv.pool.scalars["num_groups"][0]):
        kv.groups["num_hit_blocks"][g] = 0
    hit, boundary = ZERO, ZERO
    if lookup_enabled(kv, r):
        hit, longest = find_longest_cache_hit(kv, r, np.int64(kv.requests["num_tokens"][r] - 1))
        if longest > hit and kv.pool.scalars["detects_junction"][0]:
            boundary = np.int64(longest)  # the next sharer of this prefix shall find its window here
        if kv.pool.scalars["record_stats_at_lookup"][0]:
            record_stats(kv, r, hit)
    kv.requests["shared_prefix_boundary"][r] = boundary
    log(kv.pool, LOG_LOOKUP, ZERO, kv.requests["uid"][r], hit, ZERO, NO_HASH, NO_HASH)
    return np.int64(hit)


# ---------------------------------------------------------------- caching full blocks


@compiled_part
def _in_tail_before(boundary, i, need, shift, block_size, alignment):
    end = boundary // alignment * alignment // block_size + shift
    return end - need <= i < end


@compiled_part
def _resumes_prompt(kv, r, g, i, need, shift):
    """Whether a later request that replays this prompt can resume at block `i`'s window."""
    size = kv.pool.scalars["scheduler_block_size"][0]
    block_size = kv.groups["block_size"][g]
    num_prompt = np.int64(kv.requests["num_prompt_tokens"][r])
    if kv.pool.scalars["drop_eagle_block"][0]:
        resend = max((num_prompt - 1) // size * size - size, 0)
        extension = max(num_prompt // size * size - size, 0)
        if _in_tail_before(resend, i, need, shift, block_size, size):
            return True
        if _in_tail_before(extension, i, need, shift, block_size, size):
            return True
    elif _in_tail_before(num_prompt - 1, i, need, shift, block_size, size):
        return True
    junction = np.int64(kv.requests["shared_prefix_boundary"][r])
    if junction == 0:
        return False
    if _in_tail_before(junction, i, need, shift, block_size, size):
        return True
    return shift == 1 and _in_tail_before(junction - block_size, i, need, shift, block_size, size)


@compiled_part
def is_reachable(kv, r, g, i):
    """Whether block `i` of a window group can ever serve a hit, hence is worth a cache entry."""
    retention = kv.pool.scalars["retention_interval"][0]
    if kv.groups["kind"][g] != SLIDING_WINDOW or retention == RETAIN_ALL:
        return True
    block_size = kv.groups["block_size"][g]
    shift = 1 if kv.groups["use_eagle"][g] else 0
    need = blocks_for_window_hit(kv.groups["window"][g], block_size, shift == 1)
    segment = kv.pool.scalars["scheduler_block_size"][0] if retention == RETAIN_DENSE else retention
    per_segment = segment // block_size
    if segment > 0 and need >= per_segment:
        return True
    if segment > 0 and i >= shift and (i - shift) % per_segment >= per_segment - need:
        return True
    return retention != RETAIN_DENSE and _resumes_prompt(kv, r, g, i, need, shift)


@compiled_part
def _cache_full_blocks(kv, r, g, first, end):
    uid = kv.requests["uid"][r]
    table, num_cached = kv.block_tables[kv.requests["row"][r], g], ZERO
    lead = min(AHEAD, end - first)
    for ahead in range(first, end + lead):
        i = ahead - lead
        if ahead < end:
            expect_key(kv.pool, kv.block_hashes[hash_index(kv, r, g, ahead), 0], g)
            prefetch(kv.pool.entries, np.int64(table[ahead]))
        if first <= ahead - lead // 2 < end:
            expect_entry(kv.pool, kv.block_hashes[hash_index(kv, r, g, ahead - lead // 2), 0], g)
        if i < first:
            continue
        block = np.int64(table[i])
        if block == NULL_BLOCK or not is_reachable(kv, r, g, i):
            continue
        if has_hash(kv.pool, block):  # a partial tail entry: the block is full now
            evict(kv.pool, block)
        at = hash_index(kv, r, g, i)
        lo, hi = kv.block_hashes[at, 0], kv.block_hashes[at, 1]
        num_cached += insert_block_hash(kv.pool, block, lo, hi, g, (i + 1) * kv.groups["block_size"][g])
        log(kv.pool, LOG_STORED, g, uid, i, block, lo, hi)
    kv.pool.scalars["num_cached"][0] += num_cached
    log(kv.pool, LOG_STORED_RUN, g, uid, first, end, NO_HASH, NO_HASH)


@compiled_part
def _cache_partial_tail_block(kv, r, g, num_tokens):
    """A second key for the prompt's last hash boundary inside a coarser block."""
    size = kv.pool.scalars["hash_block_size"][0]
    limit = kv.requests["num_prompt_tokens"][r] - (0 if kv.groups["use_eagle"][g] else 1)
    boundary = min(limit // size * size, num_hashed_tokens(kv, r))
    if boundary == 0 or boundary > num_tokens or boundary % kv.groups["block_size"][g] == 0:
        return
    index = boundary // kv.groups["block_size"][g]
    row = kv.requests["row"][r]
    if index >= kv.rows["num_blocks"][row, g]:
        return
    block = np.int64(kv.block_tables[row, g, index])
    if block == NULL_BLOCK:
        return
    at = kv.requests["hash_offset"][r] + boundary // size - 1
    lo, hi = kv.block_hashes[at, 0], kv.block_hashes[at, 1]
    if carries_key(kv.pool, block, lo, hi, g):
        return
    if has_hash(kv.pool, block) and kv.pool.entries["hash_num_tokens"][block] < boundary:
        evict(kv.pool, block)
    kv.pool.scalars["num_cached"][0] += insert_block_hash(kv.pool, block, lo, hi, g, boundary)
    log(kv.pool, LOG_STORED_PARTIAL, g, kv.requests["uid"][r], boundary, block, lo, hi)


@compiled_part
def _num_cacheable_tokens(kv, g, num_tokens):
    """Tokens of a hybrid model's group that a future (aligned) hit could match."""
    if kv.pool.scalars["num_groups"][0] == 1 or kv.pool.scalars["align_cached_tokens"][0] == 0:
        return num_tokens
    size = kv.pool.scalars["scheduler_block_size"][0]
    aligned = num_tokens // size * size
    if kv.groups["use_eagle"][g] and aligned > 0:  # EAGLE matches one block more, then drops it
        return min(num_tokens, aligned + kv.groups["block_size"][g])
    return aligned


@compiled_part
def cache_blocks(kv, r, num_tokens):
    """Put the request's blocks that are full within `num_tokens` into the cache map.

    Nothing to do below `next_full_block` tokens: a hot caller asks first.
    """
    kv.requests["next_full_block"][r] = NEVER
    if kv.pool.scalars["enable_caching"][0] == 0:
        return
    row = kv.requests["row"][r]
    for g in range(kv.pool.scalars["num_groups"][0]):
        cacheable = _num_cacheable_tokens(kv, g, num_tokens)
        num_cached = max(kv.rows["num_cached_blocks"][row, g], 0)
        num_full = min(cacheable, num_hashed_tokens(kv, r)) // kv.groups["block_size"][g]
        if num_cached < num_full:
            _cache_full_blocks(kv, r, g, num_cached, num_full)
            kv.rows["num_cached_blocks"][row, g] = num_full
        following = (max(num_cached, num_full) + 1) * kv.groups["block_size"][g]
        partial = kv.groups["kind"][g] == FULL and kv.groups["scale"][g] > 1
        if partial and kv.pool.scalars["partial_tail_entries"][0]:
            _cache_partial_tail_block(kv, r, g, cacheable)
            following = ZERO
        kv.requests["next_full_block"][r] = min(kv.requests["next_full_block"][r], following)


# ---------------------------------------------------------------- allocation

UNCAPPED, CAPPED = map(np.int64, range(2))  # whether recycled window blocks count once


@compiled_part
def _num_blocks_to_allocate(kv, r, num_tokens, num_computed_tokens, cap):
    """Free blocks that the request would take, over all groups; hits that are free count too."""
    row = kv.requests["row"][r]
    total = 0
    for g in range(kv.pool.scalars["num_groups"][0]):
        block_size = kv.groups["block_size"][g]
        required = cdiv(num_tokens, block_size)
        if cap == CAPPED and kv.groups["max_admission_blocks"][g] != NONE:
            required = min(required, kv.groups["max_admission_blocks"][g])
        if row != NONE:
            total += max(required - kv.rows["num_blocks"][row, g], 0)
            continue
        num_hits = kv.groups["num_hit_blocks"][g]
        skipped = num_skipped_tokens(kv, g, num_computed_tokens) // block_size
        total += max(required - max(skipped, num_hits), 0)
        for i in range(skipped, num_hits):
            block = kv.block_tables[HITS, g, i]
            if block != NULL_BLOCK and kv.pool.blocks["ref_cnt"][block] == 0:
                total += 1
    return total


@compiled_part
def _next_block_behind(kv, g, num_tokens):
    """The least number of tokens beyond `num_tokens` at which a window group skips one more block."""
    window, block_size = kv.groups["window"][g], kv.groups["block_size"][g]
    if kv.groups["kind"][g] == CHUNKED_LOCAL:
        return (num_tokens // window + 1) * window
    skipped = num_skipped_tokens(kv, g, num_tokens) // block_size
    return (skipped + 1) * block_size + window - 1


@compiled_part
def remove_skipped_blocks(kv, r, num_tokens):
    """Free the blocks behind the attention window; the table keeps null blocks in their place."""
    row = kv.requests["row"][r]
    kv.requests["next_block_behind"][r] = NEVER
    for g in range(kv.pool.scalars["num_groups"][0]):
        if kv.groups["kind"][g] != FULL:
            following = _next_block_behind(kv, g, num_tokens)
            kv.requests["next_block_behind"][r] = min(kv.requests["next_block_behind"][r], following)
    if row == NONE:
        return
    for g in range(kv.pool.scalars["num_groups"][0]):
        skipped = num_skipped_tokens(kv, g, num_tokens) // kv.groups["block_size"][g]
        end = min(skipped, kv.rows["num_blocks"][row, g])
        first = end
        while first > 0 and kv.block_tables[row, g, first - 1] != NULL_BLOCK:
            first -= 1
        table = kv.block_tables[row, g]
        free_blocks_reversed(kv.pool, table, first, end)
        table[first:end] = NULL_BLOCK


@compiled_part
def _take_row(kv, r):
    row = np.int64(kv.pool.scalars["first_free_row"][0])
    kv.pool.scalars["first_free_row"][0] = kv.rows["next_free_row"][row, 0]
    kv.requests["row"][r] = row
    for g in range(kv.pool.scalars["num_groups"][0]):
        kv.rows["num_blocks"][row, g] = 0
        kv.rows["num_cached_blocks"][row, g] = NONE
    return row


@compiled_part
def _add_computed_blocks(kv, row, num_computed_tokens):
    """Own the hit blocks of every group before any group evicts for new ones."""
    any_hit = False
    for g in range(kv.pool.scalars["num_groups"][0]):
        any_hit |= kv.groups["num_hit_blocks"][g] > 0
    if not any_hit:
        return
    for g in range(kv.pool.scalars["num_groups"][0]):
        skipped = num_skipped_tokens(kv, g, num_computed_tokens) // kv.groups["block_size"][g]
        num_blocks = max(skipped, kv.groups["num_hit_blocks"][g])
        for i in range(num_blocks):
            kv.block_tables[row, g, i] = NULL_BLOCK if i < skipped else kv.block_tables[HITS, g, i]
        touch(kv.pool, kv.block_tables[row, g], ZERO, np.int64(num_blocks))
        kv.rows["num_blocks"][row, g] = num_blocks
        kv.rows["num_cached_blocks"][row, g] = num_blocks


@compiled_part
def _allocate_new_blocks(kv, row, num_tokens):
    for g in range(kv.pool.scalars["num_groups"][0]):
        held = kv.rows["num_blocks"][row, g]
        required = cdiv(num_tokens, kv.groups["block_size"][g])
        get_new_blocks(kv.pool, kv.block_tables[row, g], held, max(required, held))
        kv.rows["num_blocks"][row, g] = max(required, held)


@compiled_part
def _num_slots_held(kv, row):
    held = NEVER
    for g in range(kv.pool.scalars["num_groups"][0]):
        held = min(held, kv.rows["num_blocks"][row, g] * kv.groups["block_size"][g])
    return held


@compiled_inline
def slots_are_held(kv, r, num_new_tokens, num_lookahead_tokens):
    """Whether `allocate_slots` of a running request would succeed and change nothing, as in most decodes."""
    q = kv.requests
    num_computed = q["num_computed_tokens"][r]
    known = num_computed + num_new_tokens
    return (
        known + num_lookahead_tokens <= q["slots_held"][r]
        and min(known, q["num_tokens"][r]) < q["next_full_block"][r]
        and num_computed < q["next_block_behind"][r]
    )


@compiled_part
def full_sequence_fits(kv, r, num_hit_tokens, watermark):
    """The admission gate: whether all known tokens of a waiting request have room at once."""
    full = min(kv.requests["num_tokens"][r], kv.pool.scalars["max_model_len"][0])
    need = _num_blocks_to_allocate(kv, r, full, num_hit_tokens, CAPPED)
    return need + watermark <= kv.pool.scalars["num_free_blocks"][0]


@compiled_part
def allocate_slots(kv, r, num_new_tokens, num_hit_tokens, num_lookahead_tokens, watermark):
    """Slots for `num_new_tokens` more tokens; false, and nothing taken, if there is no room.

        | computed | hit | new | lookahead |
                         |- to compute ----|
                   |- slots taken here ----|      hit blocks gain an owner, the rest is popped

    Order: free behind the window, count, own the hits, pop new blocks, cache what is full. So
    blocks are in the cache map when scheduled, before they are computed. `watermark` blocks must
    stay free.
    """
    q = kv.requests
    max_model_len = kv.pool.scalars["max_model_len"][0]
    num_computed = min(q["num_computed_tokens"][r] + num_hit_tokens, max_model_len)
    processed = num_computed
    if kv.pool.scalars["free_behind_processed"][0]:  # steps in flight still read below their start
        processed = max(0, num_computed - q["num_in_flight_tokens"][r])
    remove_skipped_blocks(kv, r, processed)

    num_slots = min(num_computed + num_new_tokens + num_lookahead_tokens, max_model_len)
    need = _num_blocks_to_allocate(kv, r, num_slots, num_computed, UNCAPPED)
    if need + watermark > kv.pool.scalars["num_free_blocks"][0]:
        return False

    row = q["row"][r]
    if row == NONE:
        row = _take_row(kv, r)
        _add_computed_blocks(kv, row, num_computed)
    _allocate_new_blocks(kv, row, num_slots)
    q["slots_held"][r] = _num_slots_held(kv, row)
    # Draft tokens may be rejected, so nothing beyond the known tokens is cached.
    cache_blocks(kv, r, min(num_computed + num_new_tokens, q["num_tokens"][r]))
    return True


@compiled_part
def num_blocks_held(kv, r):
    """Blocks in a request's tables, over all groups, without the null blocks behind windows."""
    row, held = kv.requests["row"][r], ZERO
    if row == NONE:
        return held
    for g in range(kv.pool.scalars["num_groups"][0]):
        for i in range(kv.rows["num_blocks"][row, g]):
            held += kv.block_tables[row, g, i] != NULL_BLOCK
    return held


@compiled_part
def free_request(kv, r):
    """Give the request's blocks back, group by group, last block first."""
    row = kv.requests["row"][r]
    if row == NONE:
        return
    for g in range(kv.pool.scalars["num_groups"][0]):
        free_blocks_reversed(kv.pool, kv.block_tables[row, g], ZERO, kv.rows["num_blocks"][row, g])
    kv.rows["next_free_row"][row, 0] = kv.pool.scalars["first_free_row"][0]
    kv.pool.scalars["first_free_row"][0] = row
    kv.requests["row"][r] = NONE


@compiled_inline
def usage(scalars):
    """Share of a pool's usable blocks that live requests hold, 0..1 (`kv_cache_usage_perc`)."""
    return 1.0 - scalars["num_free_blocks"][0] / (scalars["num_gpu_blocks"][0] - 1)
