"""Named random streams: a further draw in one part leaves every other part as it was."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from kvsim.tokens import stream_key

BLOCK = 1024  # requests drawn at a time; streams are sequential, so it does not change what is drawn

_MASK = (1 << 64) - 1
_GOLDEN, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def generator(seed: int, *names: object) -> np.random.Generator:
    """The random generator of a part, named by a path such as ("workload", "arrivals")."""
    return np.random.Generator(np.random.Philox(key=stream_key(seed, *names)))


def token_streams(base: int, first: int, count: int) -> NDArray[np.uint64]:
    """Keys of the token streams number first .. first + count - 1 of a family, shape (count,).

    Distinct within a family (splitmix64's finaliser is a bijection), never the placeholder's 0.
    """
    return _mixed(np.uint64((base + first * _GOLDEN) & _MASK), np.arange(count, dtype=np.uint64))


def token_streams_at(base: int, numbers: Sequence[int]) -> NDArray[np.uint64]:
    """Keys of the token streams with these numbers (from 0, below 2^64) of a family, shape (numbers,)."""
    return _mixed(np.uint64(base), np.array(numbers, np.uint64))


def _mixed(start: np.uint64, steps: NDArray[np.uint64]) -> NDArray[np.uint64]:
    key = start + steps * np.uint64(_GOLDEN)
    key = (key ^ (key >> np.uint64(30))) * np.uint64(_MIX1)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(_MIX2)
    key ^= key >> np.uint64(31)
    return np.where(key == 0, np.uint64(1), key)


def blocks(num_requests: int | None) -> Iterator[tuple[int, int]]:
    """(first index, count) of each block of requests; endless for None."""
    first = 0
    while num_requests is None or first < num_requests:
        count = BLOCK if num_requests is None else min(BLOCK, num_requests - first)
        yield first, count
        first += count
