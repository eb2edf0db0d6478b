"""A hash table of 64-bit keys with some words each: rows (key, words ...) of one array, open addressing.

Keys are hashes already, so their low bits name the row; a taken row leads to the next. Removal moves
later rows back (Knuth, TAOCP vol. 3, section 6.4, algorithm R), so the table holds no graves and never slows
down. A look-up touches one cache line as a rule. At most half of the rows are used.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.compiled import compiled, compiled_inline, compiled_part
from kvsim.prefetch import prefetch

_FREE, _ONE = np.uint64(0), np.uint64(1)


@compiled_inline
def key_of(block_hash):
    """The key of a hash; 0 marks a free row."""
    return block_hash if block_hash != _FREE else _ONE


@compiled_inline
def row_of(table, key):
    """Where a key stands, or the free row where it would; the words of a free row are 0."""
    mask = np.int64(table.shape[0] - 1)
    row = np.int64(key & np.uint64(mask))
    while table[row, 0] != key and table[row, 0] != _FREE:
        row = (row + 1) & mask
    return row


@compiled_inline
def expect(table, key):
    """A look-up of this key comes soon."""
    prefetch(table, np.int64(key & np.uint64(table.shape[0] - 1)))


@compiled_inline
def has_room(table, used, rows):
    """Whether `rows` further keys fit beside the `used` ones."""
    return used + rows <= np.int64(table.shape[0] >> 1)


@compiled_part
def remove_row(table, row):
    """Free a row; those behind it that it kept from their places move up."""
    mask = np.int64(table.shape[0] - 1)
    free = np.int64(row)
    at = (free + 1) & mask
    while table[at, 0] != _FREE:
        home = np.int64(table[at, 0] & np.uint64(mask))
        if ((at - home) & mask) >= ((at - free) & mask):
            for k in range(table.shape[1]):
                table[free, k] = table[at, k]
            free = at
        at = (at + 1) & mask
    for k in range(table.shape[1]):
        table[free, k] = _FREE


@compiled
def _copy_rows(old, new):
    for row in range(old.shape[0]):
        if old[row, 0] != _FREE:
            to = row_of(new, old[row, 0])
            for k in range(old.shape[1]):
                new[to, k] = old[row, k]


def new_table(rows: int, words: int) -> NDArray[np.uint64]:
    """An empty table of `rows` (a power of two), of which half can be used, with some words for each key."""
    assert rows & (rows - 1) == 0
    return np.zeros((rows, 1 + words), np.uint64)


def larger(table: NDArray[Any], factor: int = 2) -> NDArray[Any]:
    """The same entries in a table of `factor` (a power of two) times as many rows."""
    new = np.zeros((factor * len(table), table.shape[1]), np.uint64)
    _copy_rows(table, new)
    return new
