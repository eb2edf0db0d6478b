"""Which targets hold a block: a table (`hash_table`) from block hash to a set of targets, one bit each.

What routers that read KV events keep, as flat as it can be: the hash of a block names its whole prefix, so
no tree is needed to follow a prompt. Any number of targets: bit t of word t // 64.
"""

import numpy as np

from kvsim.cluster.hash_table import expect, has_room, key_of, remove_row, row_of
from kvsim.compiled import compiled_inline, compiled_part
from kvsim.prefetch import AHEAD

_ZERO, _ONE, _SIX, _LOW6 = np.uint64(0), np.uint64(1), np.uint64(6), np.uint64(63)
BITS = 64

# The place of a single bit, by a de Bruijn sequence (Leiserson, Prokop and Randall, 1998)
_DE_BRUIJN, _S58 = np.uint64(0x03F79D71B4CB0A89), np.uint64(58)
_PLACES = np.zeros(BITS, np.int64)
for _place in range(BITS):
    _PLACES[((0x03F79D71B4CB0A89 << _place) & (2**64 - 1)) >> 58] = _place


def num_words(num_targets: int) -> int:
    """Words of a set of targets."""
    return -(-num_targets // BITS)


@compiled_inline
def lowest_bit(bits):
    """Place of the lowest bit that is set (there is one)."""
    return _PLACES[np.int64(((bits & (~bits + _ONE)) * _DE_BRUIJN) >> _S58)]


@compiled_inline
def _bit(target):
    return _ONE << (np.uint64(target) & _LOW6)


@compiled_inline
def _word(target):
    return np.int64(1) + (target >> np.int64(6))


@compiled_part
def add(table, fill, which, block_hash, target):
    """Note that a target holds a block; False, and nothing changed, if the table is full.

    fill: FILL_DTYPE, of which row `which` is the table's.
    """
    key = key_of(block_hash)
    row = row_of(table, key)
    if table[row, 0] != key:
        if not has_room(table, fill["used"][which], np.int64(1)):
            fill["lacks"][which] = 1
            return False
        table[row, 0] = key
        fill["used"][which] += 1
    table[row, _word(target)] |= _bit(target)
    return True


@compiled_inline
def holds(table, block_hash, target):
    row = row_of(table, key_of(block_hash))  # a free row has no bits
    return (table[row, _word(target)] & _bit(target)) != _ZERO


@compiled_inline
def only_holds(table, row, target):
    """Whether a target holds the block of a row, and no other does."""
    for k in range(1, table.shape[1]):
        if table[row, k] != (_bit(target) if k == _word(target) else _ZERO):
            return False
    return True


@compiled_part
def _discard_at(table, fill, which, row, target):
    table[row, _word(target)] &= ~_bit(target)
    for k in range(1, table.shape[1]):
        if table[row, k] != _ZERO:
            return False
    remove_row(table, row)
    fill["used"][which] -= 1
    return True


@compiled_part
def discard(table, fill, which, block_hash, target):
    """Note that a target holds a block no longer (also if it never did)."""
    key = key_of(block_hash)
    row = row_of(table, key)
    if table[row, 0] == key:
        _discard_at(table, fill, which, row, target)


@compiled_part
def forget(table, fill, which, block_hash):
    """No target holds a block any longer."""
    row = row_of(table, key_of(block_hash))
    if table[row, 0] != _ZERO:
        remove_row(table, row)
        fill["used"][which] -= 1


@compiled_part
def clear(table, fill, which, target):
    """A target holds nothing any more."""
    for row in range(table.shape[0]):
        # another entry may move to the row that becomes free
        while (table[row, _word(target)] & _bit(target)) != _ZERO:
            _discard_at(table, fill, which, np.int64(row), target)


@compiled_inline
def leading_blocks(table, hashes, first, step, num_blocks, out):
    """out[t]: how many blocks, counted from the first without a gap, target t holds.

    The keys stand in hashes[first + i * step, 0]; stops where nobody is left.
    """
    out[:] = 0
    if num_blocks == 0:
        return
    for word in range(1, table.shape[1]):
        base = (word - 1) * BITS
        alive = table[row_of(table, key_of(hashes[first, 0])), word]
        block = np.int64(1)
        while alive != _ZERO and block < num_blocks:
            if block + AHEAD < num_blocks:
                expect(table, hashes[first + (block + AHEAD) * step, 0])
            bits = table[row_of(table, key_of(hashes[first + block * step, 0])), word]
            lost = alive & ~bits
            alive &= bits
            while lost != _ZERO:
                out[base + lowest_bit(lost)] = block
                lost &= lost - _ONE
            block += 1
        while alive != _ZERO:
            out[base + lowest_bit(alive)] = num_blocks
            alive &= alive - _ONE


@compiled_inline
def leading_blocks_of_either(table, other, hashes, first, step, num_blocks, out):
    """`leading_blocks` of targets that hold each block by one of two tables of the same width."""
    out[:] = 0
    for word in range(1, table.shape[1]):
        base, alive, block = (word - 1) * BITS, ~_ZERO, np.int64(0)
        while alive != _ZERO and block < num_blocks:
            key = key_of(hashes[first + block * step, 0])
            bits = table[row_of(table, key), word] | other[row_of(other, key), word]
            lost = alive & ~bits
            alive &= bits
            while block > 0 and lost != _ZERO:
                out[base + lowest_bit(lost)] = block
                lost &= lost - _ONE
            block += 1
        while block > 0 and alive != _ZERO:
            out[base + lowest_bit(alive)] = num_blocks
            alive &= alive - _ONE
