"""Which targets were sent which text: production-stack's trie of 128-character chunks.

Nobody builds the text: `chars_per_token` characters stand for each token, no character stands for two tokens,
so equal characters mean equal tokens. A node of the trie is known by the hash of all chunks down to it and
held in one table with open addressing, next to a bit for each target.
Source: vllm-project/production-stack `src/vllm_router/prefix/hashtrie.py`.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kvsim.compiled import compiled, compiled_inline
from kvsim.tokens import Segments, mix64, num_tokens, token_at

CHUNK_SIZE = 128  # characters
CHARS_PER_TOKEN = 4

_FREE = np.uint64(0)
_CHUNK_END = np.uint64(0xD6E8FEB86659FD93)


@compiled_inline
def _end_of_chunk(key, num_chars):
    ended = mix64(key + _CHUNK_END + np.uint64(num_chars))
    return ended if ended != _FREE else np.uint64(1)


@compiled
def chunk_keys(segments, chars_per_token, chunk_size, keys):
    """Fill in a key for each chunk, which stands for all up to it; how many. The last one may be short."""
    key, filled, n = np.uint64(1), np.int64(0), np.int64(0)
    for k in range(segments.shape[0]):
        stream, start = segments[k, 0], segments[k, 1]
        for i in range(np.int64(segments[k, 2])):
            token = token_at(stream, start + np.uint64(i))
            left = chars_per_token
            while left > 0:
                key = mix64(key + token)
                taken = min(left, chunk_size - filled)
                filled += taken
                left -= taken
                if filled == chunk_size:
                    key = _end_of_chunk(key, filled)
                    keys[n] = key
                    n += 1
                    filled = np.int64(0)
    if filled > 0:
        keys[n] = _end_of_chunk(key, filled)
        n += 1
    return n


@compiled_inline
def _place(table, key):
    """Where a key stands, or where it would."""
    mask = np.int64(len(table) - 1)
    place = np.int64(key & np.uint64(mask))
    while table[place] != _FREE and table[place] != key:
        place = (place + 1) & mask
    return place


@compiled
def match(table, holders, keys, num_keys, candidates):
    """Walk down while a candidate holds the chunk, leave those of the last one; how many chunks matched."""
    num_words = holders.shape[1]
    for n in range(num_keys):
        place = _place(table, keys[n])
        if table[place] == _FREE:
            return n
        left = _FREE
        for word in range(num_words):
            left |= holders[place, word] & candidates[word]
        if left == _FREE:
            return n
        for word in range(num_words):
            candidates[word] &= holders[place, word]
    return num_keys


@compiled
def insert(table, holders, keys, num_keys, target):
    """Enter chunks for a target; how many are new. The table has room."""
    new = np.int64(0)
    word, bit = target >> 6, np.uint64(1) << np.uint64(target & 63)
    for n in range(num_keys):
        place = _place(table, keys[n])
        new += table[place] == _FREE
        table[place] = keys[n]
        holders[place, word] |= bit
    return new


@compiled
def _move(table, holders, larger, larger_holders):
    for place in range(len(table)):
        if table[place] != _FREE:
            new_place = _place(larger, table[place])
            larger[new_place] = table[place]
            for word in range(holders.shape[1]):
                larger_holders[new_place, word] = holders[place, word]


class HashTrie:
    """The trie of a router over `num_targets` targets; entries are never removed."""

    def __init__(
        self, num_targets: int, chunk_size: int = CHUNK_SIZE, chars_per_token: int = CHARS_PER_TOKEN
    ) -> None:
        self.num_targets, self.chunk_size, self.chars_per_token = num_targets, chunk_size, chars_per_token
        self._num_words = -(-num_targets // 64)
        self._table, self._holders = self._empty(1 << 12)
        self._num_nodes = 0
        self._all = _bits(range(num_targets), self._num_words)
        self._keys = np.zeros(1 << 10, np.uint64)
        self._latest: Segments | None = None
        self._num_keys = 0

    def _empty(self, size: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        return np.zeros(size, np.uint64), np.zeros((size, self._num_words), np.uint64)

    def longest_prefix_match(
        self, prompt: Segments, available: Iterable[int] | None = None
    ) -> tuple[int, list[int]]:
        """Characters that match, whole chunks counted, and the targets that were sent all of them.

        available: targets that may be named; all, if none are given.
        """
        num_keys = self._hash(prompt)
        candidates = self._all.copy() if available is None else _bits(available, self._num_words)
        matched = match(self._table, self._holders, self._keys, num_keys, candidates)
        return int(matched) * self.chunk_size, self._numbers(candidates)

    def insert(self, prompt: Segments, target: int) -> None:
        """Note that a target was sent a prompt."""
        num_keys = self._hash(prompt)
        while 2 * (self._num_nodes + num_keys) > len(self._table):
            larger, holders = self._empty(2 * len(self._table))
            _move(self._table, self._holders, larger, holders)
            self._table, self._holders = larger, holders
        self._num_nodes += int(insert(self._table, self._holders, self._keys, num_keys, target))

    def _hash(self, prompt: Segments) -> int:
        """Keys of a prompt in `_keys`; a match and the insertion after it need them once."""
        if prompt is not self._latest:
            num_chunks = num_tokens(prompt) * self.chars_per_token // self.chunk_size + 1
            if num_chunks > len(self._keys):
                self._keys = np.zeros(2 * num_chunks, np.uint64)
            self._num_keys = int(chunk_keys(prompt, self.chars_per_token, self.chunk_size, self._keys))
            self._latest = prompt
        return self._num_keys

    def _numbers(self, bits: NDArray[np.uint64]) -> list[int]:
        words = bits.tolist()
        return [target for target in range(self.num_targets) if words[target >> 6] >> (target & 63) & 1]


def _bits(targets: Iterable[int], num_words: int) -> NDArray[np.uint64]:
    words = [0] * num_words
    for target in targets:
        words[target >> 6] |= 1 << (target & 63)
    return np.array(words, np.uint64)
