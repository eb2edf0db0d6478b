"""The longest cached prefix of a request, over one or several cache groups.

Followed: `find_longest_cache_hit` of vLLM 0.33.0 `v1/core/single_type_kv_cache_manager.py` and
`kv_cache_coordinator.py`. A lookup changes nothing but its own result: the last row of `kv.block_tables` and
`groups['num_hit_blocks']`.
"""

from kvsim.cache.block_map import get_cached_block
from kvsim.cache.state import CHUNKED_LOCAL, FULL, HITS, NONE, NULL_BLOCK, SLIDING_WINDOW, ZERO
from kvsim.compiled import compiled_inline, compiled_part


@compiled_part
def cdiv(a, b):
    return -(-a // b)


@compiled_part
def num_hashed_tokens(kv, r):
    """Tokens of a request whose block hashes exist by now."""
    size = kv.pool.scalars["hash_block_size"][0]
    known = kv.requests["num_tokens"][r] - kv.pool.scalars["num_hash_lookahead_tokens"][0]
    return max(known, 0) // size * size


@compiled_inline
def hash_index(kv, r, g, block_index):
    """Where in `block_hashes` the key of a request's block stands, for one group's block size.

    A coarser block is named by the fine hash that ends with it (0.33), or by a hash of its
    concatenated fine hashes (0.16), which follow the request's fine ones group by group.
    """
    offset = kv.requests["hash_offset"][r]
    scale = kv.groups["scale"][g]
    if scale == 1:
        return offset + block_index
    if kv.pool.scalars["concatenated_hashes"][0] == 0:
        return offset + (block_index + 1) * scale - 1
    fine = kv.requests["num_hash_blocks"][r]
    offset += fine
    for other in range(g):
        if kv.groups["scale"][other] > 1:
            offset += fine // kv.groups["scale"][other]
    return offset + block_index


@compiled_inline
def _get_cached_block(kv, r, spec, block_index):
    """Look a block up for every group of a spec, into the row of hits; true if all have it."""
    for g in range(kv.pool.scalars["num_groups"][0]):
        if kv.groups["spec"][g] != spec:
            continue
        at = hash_index(kv, r, g, block_index)
        block = get_cached_block(kv.pool, kv.block_hashes[at, 0], kv.block_hashes[at, 1], g)
        if block == NONE:
            return False
        kv.block_tables[HITS, g, block_index] = block
    return True


@compiled_part
def _set_hit_length(kv, spec, num_blocks):
    for g in range(kv.pool.scalars["num_groups"][0]):
        if kv.groups["spec"][g] == spec:
            kv.groups["num_hit_blocks"][g] = num_blocks


@compiled_part
def _clear_hits(kv, spec, num_blocks):
    for g in range(kv.pool.scalars["num_groups"][0]):
        if kv.groups["spec"][g] == spec:
            kv.block_tables[HITS, g, :num_blocks] = NULL_BLOCK


@compiled_part
def _round_to_alignment(num_blocks, block_size, alignment):
    while num_blocks * block_size % alignment != 0:
        num_blocks -= 1
    return num_blocks


@compiled_part
def _find_full(kv, r, spec, block_size, max_length, drop_eagle_block, alignment):
    limit = min(max_length, num_hashed_tokens(kv, r)) // block_size
    n = ZERO
    while n < limit and _get_cached_block(kv, r, spec, n):
        n += 1  # hashes are chained, so the first miss ends the prefix
    if drop_eagle_block and n > 0:
        n -= 1
    return _round_to_alignment(n, block_size, alignment)


@compiled_part
def blocks_for_window_hit(window, block_size, use_eagle):
    """Contiguous cached blocks that make a position resumable (one more if EAGLE drops one)."""
    return cdiv(window - 1, block_size) + (1 if use_eagle else 0)


@compiled_part
def _find_sliding_window(kv, r, spec, block_size, window, max_length, drop_eagle_block, alignment):
    need = blocks_for_window_hit(window, block_size, drop_eagle_block)
    limit = max_length // block_size
    _clear_hits(kv, spec, limit)
    run, found = 0, False
    i = limit - 1
    while i >= 0 and not found:
        if not _get_cached_block(kv, r, spec, i):
            run = 0
        else:
            end = i if drop_eagle_block else i + 1
            if run > 0 or end * block_size % alignment == 0:
                run += 1
                found = run >= need
        if not found:
            i -= 1
    # Without a run of `need` blocks, the one that starts at block 0 counts whatever its length.
    n = i + run if found else _round_to_alignment(run, block_size, alignment)
    if drop_eagle_block and n > 0:
        n = _round_to_alignment(n - 1, block_size, alignment)
    return n


@compiled_part
def _find_chunked_local(kv, r, spec, block_size, chunk, max_length):
    """Blocks before the chunk of the next token count as computed without being looked up."""
    n = max(max_length, 0) // chunk * chunk // block_size
    _clear_hits(kv, spec, n)
    limit = max_length // block_size
    while n < limit and _get_cached_block(kv, r, spec, n):
        n += 1
    return n


@compiled_part
def _find_for_spec(kv, r, spec, g, max_length, drop_eagle_block):
    """Tokens of the longest hit for one spec (its first group is `g`)."""
    block_size = kv.groups["block_size"][g]
    alignment = kv.pool.scalars["scheduler_block_size"][0]
    window = kv.groups["window"][g]
    kind = kv.groups["kind"][g]
    if kind == FULL:
        n = _find_full(kv, r, spec, block_size, max_length, drop_eagle_block, alignment)
    elif kind == SLIDING_WINDOW:
        n = _find_sliding_window(kv, r, spec, block_size, window, max_length, drop_eagle_block, alignment)
    else:
        n = _find_chunked_local(kv, r, spec, block_size, window, max_length)
    _set_hit_length(kv, spec, n)
    return n * block_size


@compiled_part
def _first_group(kv, spec):
    for g in range(kv.pool.scalars["num_groups"][0]):
        if kv.groups["spec"][g] == spec:
            return g
    return NONE


@compiled_part
def find_longest_cache_hit(kv, r, max_length):
    """(hit tokens, longest single-spec hit): a hit must suit every group of the request.

    Every spec accepts the length so far or shortens it, until nothing changes. Full attention
    comes first: its hits are prefix-closed, so it is looked up once and then only trimmed.
    """
    num_specs = kv.pool.scalars["num_specs"][0]
    if kv.pool.scalars["num_groups"][0] == 1:
        hit = _find_for_spec(kv, r, ZERO, ZERO, max_length, kv.groups["use_eagle"][0] != 0)
        return hit, hit
    simple = num_specs == 2 and kv.groups["kind"][_first_group(kv, ZERO)] == FULL
    hit_length, longest = max_length, 0
    first_round = True
    verified = 0  # bit per spec: its EAGLE drop holds at the present length
    while True:
        current = hit_length
        for spec in range(num_specs):
            g = _first_group(kv, spec)
            block_size = kv.groups["block_size"][g]
            if kv.groups["kind"][g] == FULL and not first_round:
                current = min(current, kv.groups["num_hit_blocks"][g] * block_size)
                continue
            drop = kv.groups["use_eagle"][g] != 0 and verified & (1 << spec) == 0
            limit = current
            if drop and kv.pool.scalars["eagle_margin"][0]:
                limit = min(current + block_size, num_hashed_tokens(kv, r))
            found = _find_for_spec(kv, r, spec, g, limit, drop)
            if kv.pool.scalars["eagle_margin"][0]:
                if drop:
                    verified |= 1 << spec
                elif found < current:
                    verified = 0
            current = found
            longest = max(longest, current)
        first_round = False
        if current >= hit_length:
            break
        hit_length = current
        if simple:
            break
    for g in range(kv.pool.scalars["num_groups"][0]):
        if kv.groups["kind"][g] == FULL:
            keep = cdiv(hit_length, kv.groups["block_size"][g])
            kv.groups["num_hit_blocks"][g] = min(kv.groups["num_hit_blocks"][g], keep)
    return hit_length, longest


@compiled_part
def num_skipped_tokens(kv, g, num_computed_tokens):
    """Leading tokens that the next token's attention no longer reads."""
    window = kv.groups["window"][g]
    kind = kv.groups["kind"][g]
    if kind == SLIDING_WINDOW:
        return max(0, num_computed_tokens - window + 1)
    if kind == CHUNKED_LOCAL:
        return num_computed_tokens // window * window
    return 0
