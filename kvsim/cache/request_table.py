"""The table of live requests: a row (slot) each, and the room for their block hashes.

Rows given back are linked, those never used follow `end_of_slots`. Hashes are appended to one array;
when its end is reached, those of live requests are moved together, and the array doubles if that
frees less than half. So memory follows the live requests, not the trace.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.state import FREE_SLOT, NONE, REQUEST_DTYPE, RUNNING, KVState
from kvsim.compiled import compiled_part

_HASHES_PER_SLOT = 4


@compiled_part
def enter_request(kv, new, i, hashes):
    """Copy row `i` of `new` into a free slot and return it; NONE, and nothing done, without room.

    new: REQUEST_DTYPE; `hash_offset` counts in `hashes`, (n, 2), and becomes a place in `kv.block_hashes`.
    """
    s = kv.pool.scalars
    slot, end = s["first_free_slot"][0], s["end_of_hashes"][0]
    first, count = new["hash_offset"][i], new["num_hashes"][i]
    no_slot = slot == NONE and s["end_of_slots"][0] == len(kv.requests)
    if no_slot or end + count > len(kv.block_hashes):
        return NONE
    if slot == NONE:
        slot = s["end_of_slots"][0]
        s["end_of_slots"][0] += 1
    else:
        s["first_free_slot"][0] = kv.requests["next_waiting"][slot]
    s["end_of_hashes"][0] = end + count
    for k in range(count):
        kv.block_hashes[end + k, 0] = hashes[first + k, 0]
        kv.block_hashes[end + k, 1] = hashes[first + k, 1]
    kv.requests[slot] = new[i]
    kv.requests["hash_offset"][slot] = end
    return slot


@compiled_part
def release_request(kv, r):
    """Give a slot back."""
    kv.requests["status"][r] = FREE_SLOT
    kv.requests["next_waiting"][r] = kv.pool.scalars["first_free_slot"][0]
    kv.pool.scalars["first_free_slot"][0] = r


def with_room(kv: KVState, num_requests: int, num_hashes: int) -> KVState:
    """The state with room for one more request at least, and for `num_hashes` more block hashes.

    num_requests: how many are about to come; if the table is full, it grows for all of them.
    """
    s = kv.pool.scalars
    if s["first_free_slot"][0] == NONE and s["end_of_slots"][0] == len(kv.requests):
        kv = kv._replace(requests=_grown(kv.requests, num_requests))
    if s["end_of_hashes"][0] + num_hashes > len(kv.block_hashes):
        status = kv.requests["status"]
        live = np.flatnonzero((status != FREE_SLOT) & (status <= RUNNING))  # those that have ended need none
        starts, lengths = kv.requests["hash_offset"][live], kv.requests["num_hashes"][live]
        # Looking through all slots must be worth it, so some hashes for each are let in until the next time.
        room = num_hashes + _HASHES_PER_SLOT * int(s["end_of_slots"][0])
        hashes, starts = moved_together(kv.block_hashes, starts, lengths, room)
        kv.requests["hash_offset"][live] = starts
        s["end_of_hashes"] = lengths.sum()
        kv = kv._replace(block_hashes=hashes)
    return kv


def moved_together(
    array: NDArray[Any], starts: NDArray[np.int64], lengths: NDArray[np.int64], num_more: int
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Ranges of an array at the beginning of a new one, of which half is free, and their new starts."""
    total, size = int(lengths.sum()), len(array)
    while total + num_more > size // 2:
        size *= 2
    new_starts = np.cumsum(lengths) - lengths
    moved = np.zeros((size, *array.shape[1:]), array.dtype)
    if np.array_equal(starts, new_starts):  # nothing was freed, as while a burst arrives
        moved[:total] = array[:total]
    else:
        moved[:total] = array[np.repeat(starts - new_starts, lengths) + np.arange(total)]
    return moved, new_starts


def _grown(requests: NDArray[np.void], num_more: int) -> NDArray[np.void]:
    """Twice as many rows, or room for `num_more` if that is more."""
    n = len(requests)
    grown = np.zeros(n + max(n, num_more), REQUEST_DTYPE)
    grown[:n] = requests
    return grown
