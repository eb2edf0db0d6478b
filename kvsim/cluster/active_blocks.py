"""Distinct blocks that each target's requests in flight use, counted once however many share them.

`active` says which targets have a block in use, `shared` by how many requests beyond the first: most blocks
have one user, so that most look-ups touch one table. The hashes of a request are kept until it ends in
linked rows of `held` (next row, hashes ...): rows are of one size, so none is ever moved.

Followed: Dynamo 1.6.1 `lib/kv-router/src/sequences` (a prompt's blocks are active from selection to end).
"""

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.state import NONE
from kvsim.cluster import worker_sets
from kvsim.cluster.hash_table import expect, has_room, key_of, remove_row, row_of
from kvsim.cluster.state import IN_ACTIVE, IN_HELD, IN_SHARED
from kvsim.compiled import compiled_inline, compiled_part
from kvsim.prefetch import AHEAD, prefetch
from kvsim.tokens import mix64

HELD_WORDS = 16  # of a row of `held`: two cache lines
_HASHES = np.int64(HELD_WORDS - 1)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@compiled_inline
def _next(held, row):
    return np.int64(held[row, 0]) - np.int64(1)


@compiled_inline
def _link(held, row, following):
    held[row, 0] = np.uint64(following + np.int64(1))  # 0: NONE


def new_held(rows: int) -> NDArray[np.uint64]:
    """`held` with all rows free, in order; the first free one is row 0."""
    held = np.zeros((rows, HELD_WORDS), np.uint64)
    held[:-1, 0] = np.arange(2, rows + 1)
    return held


def larger_held(held: NDArray[np.uint64], fill: NDArray[np.void]) -> NDArray[np.uint64]:
    """Twice as many rows; the new ones are the first to be used."""
    rows = len(held)
    new = new_held(2 * rows)
    new[:rows] = held
    new[-1, 0] = fill["first_free"][IN_HELD] + 1
    fill["first_free"][IN_HELD] = rows
    return new


@compiled_inline
def _pair_key(block_hash, target):
    return key_of(mix64(block_hash + (np.uint64(target) + np.uint64(1)) * _GOLDEN))


@compiled_part
def has_room_for_blocks(router, num_blocks):
    """Whether a request of so many blocks can be added; what lacks room is noted."""
    fill = router.fill
    enough = True
    if not has_room(router.active, fill["used"][IN_ACTIVE], num_blocks):
        fill["lacks"][IN_ACTIVE] = 1
        enough = False
    if not has_room(router.shared, fill["used"][IN_SHARED], num_blocks):
        fill["lacks"][IN_SHARED] = 1
        enough = False
    if fill["used"][IN_HELD] + (num_blocks + _HASHES - 1) // _HASHES > np.int64(router.held.shape[0]):
        fill["lacks"][IN_HELD] = 1
        enough = False
    return enough


@compiled_part
def _use(router, block_hash, target):
    if not worker_sets.holds(router.active, block_hash, target):
        worker_sets.add(router.active, router.fill, IN_ACTIVE, block_hash, target)
        router.targets["active_blocks"][target] += 1
        return
    key = _pair_key(block_hash, target)
    row = row_of(router.shared, key)
    if router.shared[row, 0] != key:
        router.shared[row, 0] = key
        router.fill["used"][IN_SHARED] += 1
    router.shared[row, 1] += np.uint64(1)


@compiled_part
def _leave(router, block_hash, target):
    if router.fill["used"][IN_SHARED] > 0:
        key = _pair_key(block_hash, target)
        row = row_of(router.shared, key)
        if router.shared[row, 0] == key:
            router.shared[row, 1] -= np.uint64(1)
            if router.shared[row, 1] == np.uint64(0):
                remove_row(router.shared, row)
                router.fill["used"][IN_SHARED] -= 1
            return
    worker_sets.discard(router.active, router.fill, IN_ACTIVE, block_hash, target)
    router.targets["active_blocks"][target] -= 1


@compiled_part
def use_blocks(router, hashes, first, step, num_blocks, target):
    """A request's blocks come into use (there is room); the row of `held` where its hashes begin, or NONE."""
    held, fill = router.held, router.fill
    head, row = NONE, NONE
    for i in range(num_blocks):
        if i + AHEAD < num_blocks:
            expect(router.active, hashes[first + (i + AHEAD) * step, 0])
        block_hash = hashes[first + i * step, 0]
        _use(router, block_hash, target)
        at = i % _HASHES
        if at == 0:
            taken = fill["first_free"][IN_HELD]
            fill["first_free"][IN_HELD] = _next(held, taken)
            fill["used"][IN_HELD] += 1
            if head == NONE:
                head = taken
            else:
                _link(held, row, taken)
            row = taken
        held[row, 1 + at] = block_hash
    return head


@compiled_inline
def _expect_row(router, row, target):
    """The hashes of a row are looked up soon, and those of the next row are read."""
    held = router.held
    prefetch(held, _next(held, row))
    for k in range(1, HELD_WORDS):
        expect(router.active, held[row, k])
    if router.fill["used"][IN_SHARED] > 0:
        for k in range(1, HELD_WORDS):
            expect(router.shared, _pair_key(held[row, k], target))


@compiled_part
def leave_blocks(router, head, num_blocks, target):
    """The request has ended: its blocks are no longer in use by it, its rows are free."""
    held, fill = router.held, router.fill
    row = head
    for i in range(num_blocks):
        at = i % _HASHES
        if at == 0:
            _expect_row(router, row, target)
        _leave(router, held[row, 1 + at], target)
        if at == _HASHES - 1 or i == num_blocks - 1:
            following = _next(held, row)
            _link(held, row, fill["first_free"][IN_HELD])
            fill["first_free"][IN_HELD] = row
            fill["used"][IN_HELD] -= 1
            row = following


@compiled_inline
def blocks_in_use(router, i, out):
    """out[t]: blocks of request i that target t has in use already (from the first without a gap)."""
    routed = router.routed
    first, step = routed["first_hash"][i], routed["hash_step"][i]
    worker_sets.leading_blocks(router.active, router.hashes, first, step, routed["num_blocks"][i], out)
