"""Lists of blocks in the order in which they were last touched, for LRU and time-limited indexes.

An entry is a block of an owner (a target, or nobody for lists common to all); each owner has a list. Entries
are found by hash and owner through a table (`hash_table`) and keep their rows, so links stay valid.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsim.addresses import array_at
from kvsim.cache.state import NONE
from kvsim.cluster.hash_table import has_room, key_of, larger, new_table, remove_row, row_of
from kvsim.cluster.state import IN_HOLDERS
from kvsim.compiled import compiled_inline, compiled_once, compiled_part
from kvsim.tokens import mix64

ENTRY_DTYPE = np.dtype(
    [("hash", "u8"), ("time", "f8"), ("owner", "i4"), ("older", "i4"), ("newer", "i4"), ("filler", "i4")]
)
LIST_DTYPE = np.dtype([("oldest", "i8"), ("newest", "i8"), ("size", "i8")])
STATE_DTYPE = np.dtype([("used", "i8"), ("first_free", "i8"), ("lacks", "i8")])
NUM_ARRAYS = 4

_GOLDEN, _ONE = np.uint64(0x9E3779B97F4A7C15), np.uint64(1)


class Recency(NamedTuple):
    """state (1,): entries in use, first free one (linked by `newer`); lists (owners,); entries; table."""

    state: NDArray[np.void]
    lists: NDArray[np.void]
    entries: NDArray[np.void]
    table: NDArray[np.uint64]


def new_recency(num_owners: int, rows: int = 1024) -> Recency:
    """Empty lists with room for `rows` (a power of two) entries in all."""
    state = np.zeros(1, STATE_DTYPE)
    lists = np.zeros(num_owners, LIST_DTYPE)
    lists["oldest"] = lists["newest"] = NONE
    entries = np.zeros(rows, ENTRY_DTYPE)
    entries["newer"] = np.arange(1, rows + 1)
    return Recency(state, lists, entries, new_table(2 * rows, 1))


def grown(recency: Recency) -> Recency:
    """The same lists with twice as much room, if somebody found none or half of it is used."""
    state, rows = recency.state, len(recency.entries)
    if not state["lacks"][0] and 2 * state["used"][0] <= rows:
        return recency
    entries = np.zeros(2 * rows, ENTRY_DTYPE)
    entries[:rows] = recency.entries
    entries["newer"][rows:] = np.arange(rows + 1, 2 * rows + 1)
    entries["newer"][-1] = state["first_free"][0]
    state["first_free"], state["lacks"] = rows, 0
    return recency._replace(entries=entries, table=larger(recency.table))


@compiled_once
def recency_at(words, first):
    """The lists whose arrays begin at number `first` of some words."""
    return Recency(
        array_at(words, first, STATE_DTYPE, 1),
        array_at(words, first + 1, LIST_DTYPE, 1),
        array_at(words, first + 2, ENTRY_DTYPE, 1),
        array_at(words, first + 3, np.uint64, 2),
    )


@compiled_inline
def room_for_entries(recency, n):
    """Whether `n` further entries fit; what lacks is noted."""
    if has_room(recency.table, recency.state["used"][0], n):
        return True
    recency.state["lacks"][0] = 1
    return False


@compiled_inline
def room_to_remember(router, recency, n):
    """Whether `n` further blocks fit into a router's index and a policy's lists; what lacks is noted."""
    if not has_room(router.holders, router.fill["used"][IN_HOLDERS], n):
        router.fill["lacks"][IN_HOLDERS] = 1
        return False
    return room_for_entries(recency, n)


@compiled_inline
def _key(block_hash, owner):
    return key_of(mix64(block_hash + (np.uint64(owner) + _ONE) * _GOLDEN))


@compiled_inline
def _unlink(recency, e):
    entries, lists = recency.entries, recency.lists
    owner = np.int64(entries["owner"][e])
    older, newer = np.int64(entries["older"][e]), np.int64(entries["newer"][e])
    if older == NONE:
        lists["oldest"][owner] = newer
    else:
        entries["newer"][older] = newer
    if newer == NONE:
        lists["newest"][owner] = older
    else:
        entries["older"][newer] = older


@compiled_inline
def _link_newest(recency, e, owner):
    entries, lists = recency.entries, recency.lists
    newest = lists["newest"][owner]
    entries["older"][e] = newest
    entries["newer"][e] = NONE
    if newest == NONE:
        lists["oldest"][owner] = e
    else:
        entries["newer"][newest] = e
    lists["newest"][owner] = e


@compiled_part
def touch(recency, block_hash, owner, now):
    """Make a block the newest of its owner's; True if it was not there before. There is room."""
    entries = recency.entries
    key = _key(block_hash, owner)
    row = row_of(recency.table, key)
    if recency.table[row, 0] == key:
        e = np.int64(recency.table[row, 1])
        entries["time"][e] = now
        if recency.lists["newest"][owner] != e:
            _unlink(recency, e)
            _link_newest(recency, e, owner)
        return False
    e = recency.state["first_free"][0]
    recency.state["first_free"][0] = np.int64(entries["newer"][e])
    recency.state["used"][0] += 1
    recency.table[row, 0], recency.table[row, 1] = key, np.uint64(e)
    entries["hash"][e] = block_hash
    entries["owner"][e] = owner
    entries["time"][e] = now
    _link_newest(recency, e, owner)
    recency.lists["size"][owner] += 1
    return True


@compiled_part
def drop_oldest(recency, owner):
    """Take the oldest block off an owner's list (there is one); its hash."""
    entries = recency.entries
    e = recency.lists["oldest"][owner]
    block_hash = entries["hash"][e]
    _unlink(recency, e)
    remove_row(recency.table, row_of(recency.table, _key(block_hash, owner)))
    entries["newer"][e] = recency.state["first_free"][0]
    recency.state["first_free"][0] = e
    recency.state["used"][0] -= 1
    recency.lists["size"][owner] -= 1
    return block_hash


@compiled_inline
def oldest_time(recency, owner):
    """When the oldest block of an owner was touched; infinity without one."""
    e = recency.lists["oldest"][owner]
    return recency.entries["time"][e] if e != NONE else np.inf
