"""What llm-d's endpoint picker believes of prefixes: from its own choices, or from KV events.

Followed: llm-d/llm-d-router `pkg/epp/framework/plugins/requestcontrol/dataproducer/approximateprefix` and
`preciseprefixcache` (Aug 2026). The approximate data is a list of blocks for each target, least recently sent
first out; as a prompt is touched from its head on, its head goes first.
"""

import numpy as np
from numpy.typing import NDArray

from kvsim.cluster.booking import removed, stored
from kvsim.cluster.hash_table import key_of, row_of
from kvsim.cluster.recency import drop_oldest, touch
from kvsim.cluster.worker_sets import BITS, add, discard, lowest_bit
from kvsim.compiled import compiled_inline, compiled_part

_ZERO, _ONE = np.uint64(0), np.uint64(1)

# Blocks thought to be on a target soon after a request for them was sent there: a queue in order of time
GUESS_DTYPE = np.dtype([("hash", "u8"), ("target", "i8"), ("time", "f8")])
QUEUE_DTYPE = np.dtype([("first", "i8"), ("used", "i8"), ("lacks", "i8")])


@compiled_inline
def _count(out, base, bits, run):
    while bits != _ZERO:
        out[base + lowest_bit(bits)] += run
        bits &= bits - _ONE


@compiled_part
def found_blocks(table, hashes, first, num_blocks, out):
    """out[t]: how many of a prompt's blocks target t has, up to the first that nobody has."""
    out[:] = 0
    end = np.int64(0)
    while end < num_blocks:
        key = key_of(hashes[first + end, 0])
        if table[row_of(table, key), 0] != key:
            break
        end += 1
    for word in range(1, table.shape[1]):
        bits, run, base = _ZERO, np.int64(0), (word - 1) * BITS
        for block in range(end):
            now = table[row_of(table, key_of(hashes[first + block, 0])), word]
            if now != bits:
                _count(out, base, bits, run)
                bits, run = now, np.int64(0)
            run += 1
        _count(out, base, bits, run)


@compiled_part
def note_sent(router, recency, capacity, i, target, now):
    """A prompt was sent to a target, whose list holds `capacity` blocks."""
    routed, hashes = router.routed, router.hashes
    first, num_blocks = routed["first_hash"][i], routed["num_blocks"][i]
    for block in range(num_blocks):
        if touch(recency, hashes[first + block, 0], target, now) and recency.lists["size"][target] > capacity:
            removed(router, target, drop_oldest(recency, target))
    for block in range(num_blocks):  # also those that a prompt longer than the list has pushed out itself
        stored(router, target, hashes[first + block, 0])


@compiled_part
def guess(router, table, fill, queue, guesses, i, target, now):
    """The prompt's blocks count as stored for a while."""
    routed, size = router.routed, guesses.shape[0]
    first, step = routed["first_hash"][i], routed["hash_step"][i]
    for block in range(routed["num_blocks"][i]):
        block_hash = router.hashes[first + block * step, 0]
        at = (queue["first"][0] + queue["used"][0]) % size
        guesses["hash"][at], guesses["target"][at], guesses["time"][at] = block_hash, target, now
        queue["used"][0] += 1
        add(table, fill, np.int64(0), block_hash, target)


@compiled_part
def drop_guesses(table, fill, queue, guesses, until):
    """Guesses made at or before `until` end; what was guessed again in the meantime ends with the first."""
    size = guesses.shape[0]
    while queue["used"][0] > 0 and guesses["time"][queue["first"][0]] <= until:
        at = queue["first"][0]
        discard(table, fill, np.int64(0), guesses["hash"][at], guesses["target"][at])
        queue["first"][0] = (at + 1) % size
        queue["used"][0] -= 1


def larger_guesses(queue: NDArray[np.void], guesses: NDArray[np.void]) -> NDArray[np.void]:
    """The same queue, its first entry at row 0, with twice as many rows."""
    new = np.zeros(2 * len(guesses), GUESS_DTYPE)
    new[: len(guesses)] = np.roll(guesses, -int(queue["first"][0]))
    queue["first"], queue["lacks"] = 0, 0
    return new
