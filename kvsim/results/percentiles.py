"""Exact percentiles of columns that are read chunk by chunk, several times, in bounded memory.

The bits of a float, taken as a whole number (with the sign turned), are in the order of the floats. A
first pass counts values by their leading bits; that tells in which of these bins each wanted rank
lies. Further passes look into those bins only: a small one is collected and sorted, a large one
divided by its next bits.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PERCENTILES = (50, 90, 95, 99)
FIGURES = ("mean", *(f"p{p}" for p in PERCENTILES))

_FIRST_BITS, _FURTHER_BITS = 16, 12
_SMALL_BIN = 65_536  # values; at most 4 MB for the eight bins of a column
_SIGN = np.uint64(1 << 63)
_LARGEST = (1 << 64) - 1

Chunk = Mapping[str, NDArray[np.float64]]


def distributions(
    chunks: Callable[[list[str]], Iterable[Chunk]], names: Iterable[str]
) -> dict[str, dict[str, float | int | None]]:
    """Count, mean and percentiles (linear interpolation) of columns; None where there is no value.

    `chunks` reads the named columns once through; NaN is no value.
    """
    columns = {name: Distribution() for name in names}
    while unfinished := [name for name in columns if not columns[name].finished]:
        for chunk in chunks(unfinished):
            for name in unfinished:
                columns[name].take(chunk[name])
        for name in unfinished:
            columns[name].end_pass()
    return {name: column.figures() for name, column in columns.items()}


class Distribution:
    """The figures of one column; it wants all values again, pass after pass, until `finished`."""

    def __init__(self) -> None:
        self.count = 0
        self._sums: list[float] = []
        self._bins = [_Bin(_EVERYTHING)]
        self._passes = 0
        self._at_rank: dict[int, float] = {}

    @property
    def finished(self) -> bool:
        return not self._bins

    def take(self, values: NDArray[np.float64]) -> None:
        """The next values of a pass."""
        values = values[~np.isnan(values)]
        if not self._passes:
            self.count += len(values)
            self._sums.append(float(values.sum()))
        keys = _keys(values)
        for each in self._bins:
            each.take(keys)

    def end_pass(self) -> None:
        if not self._passes:
            self._bins[0].ranks = sorted({rank for p in PERCENTILES for rank in self._neighbours(p)})
        self._passes += 1
        settled, self._bins = self._bins, []
        for each in settled:
            found, inner = each.settle()
            self._at_rank |= found
            self._bins += inner

    def figures(self) -> dict[str, float | int | None]:
        if not self.count:
            return {"count": 0, **dict.fromkeys(FIGURES)}
        values = [math.fsum(self._sums) / self.count, *(self._percentile(p) for p in PERCENTILES)]
        return {"count": self.count, **dict(zip(FIGURES, values, strict=True))}

    def _neighbours(self, p: int) -> tuple[int, ...]:
        """Ranks between which a percentile lies."""
        if not self.count:
            return ()
        below = math.floor(self._index(p))
        return below, min(below + 1, self.count - 1)

    def _index(self, p: int) -> float:
        return (self.count - 1) * (p / 100)

    def _percentile(self, p: int) -> float:
        """As `numpy.percentile` interpolates, to the last bit."""
        low, high = (self._at_rank[rank] for rank in self._neighbours(p))
        share = self._index(p) - math.floor(self._index(p))
        return high - (high - low) * (1 - share) if share >= 0.5 else low + (high - low) * share


@dataclass(frozen=True)
class _Range:
    """Keys that begin with `prefix`, followed by `rest` bits; `below` keys of all are smaller."""

    prefix: int
    rest: int
    below: int
    count: int | None  # not known of everything


_EVERYTHING = _Range(0, 64, 0, None)


class _Bin:
    """Finds which values of a range stand at some ranks, or in which smaller ranges."""

    def __init__(self, keys: _Range, ranks: Sequence[int] = ()) -> None:
        self.ranks = ranks
        self._range = keys
        self._bits = _FIRST_BITS if keys.rest == 64 else min(_FURTHER_BITS, keys.rest)
        self._small = keys.count is not None and keys.count <= _SMALL_BIN
        self._collected: list[NDArray[np.uint64]] = []
        self._counts = np.zeros(0 if self._small else 1 << self._bits, np.int64)
        self._least, self._most = _LARGEST, 0

    def take(self, keys: NDArray[np.uint64]) -> None:
        rest = self._range.rest
        if rest < 64:
            keys = keys[keys >> np.uint64(rest) == np.uint64(self._range.prefix)]
        if self._small:
            self._collected.append(keys)
        elif len(keys):
            following = keys >> np.uint64(rest - self._bits) & np.uint64(len(self._counts) - 1)
            self._counts += np.bincount(following.view(np.int64), minlength=len(self._counts))
            self._least, self._most = min(self._least, int(keys.min())), max(self._most, int(keys.max()))

    def settle(self) -> "tuple[dict[int, float], list[_Bin]]":
        """After a pass: values by rank, and bins in which the other ranks are to be sought."""
        if self._small:
            keys = np.sort(np.concatenate(self._collected))
            return {rank: _value(keys[rank - self._range.below]) for rank in self.ranks}, []
        if self._least == self._most:
            return dict.fromkeys(self.ranks, _value(self._least)), []
        return {}, self._divided()

    def _divided(self) -> "list[_Bin]":
        ends = self._range.below + np.cumsum(self._counts)
        ranks_of: dict[int, list[int]] = {}
        for rank in self.ranks:
            ranks_of.setdefault(int(np.searchsorted(ends, rank, side="right")), []).append(rank)
        return [_Bin(self._inner(number, int(ends[number])), ranks) for number, ranks in ranks_of.items()]

    def _inner(self, number: int, end: int) -> _Range:
        count = int(self._counts[number])
        prefix = self._range.prefix << self._bits | number
        return _Range(prefix, self._range.rest - self._bits, end - count, count)


def _keys(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Whole numbers in the order of the values."""
    values = values + 0.0  # one zero only
    negative = (values.view(np.int64) >> 63).view(np.uint64)  # all bits or none
    return values.view(np.uint64) ^ (negative | _SIGN)


def _value(key: int | np.uint64) -> float:
    bits = np.uint64(key)
    bits = bits & ~_SIGN if bits & _SIGN else ~bits
    return float(bits.view(np.float64))
