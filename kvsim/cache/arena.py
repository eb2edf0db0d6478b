"""Room for variable-length data of live requests in one growing array.

Ranges are appended; when the end is reached, live ranges are moved together, and the array
doubles if that frees less than half. So memory follows the live requests, not the trace.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Arena:
    """Book-keeping of who holds which range; the array itself belongs to the caller."""

    def __init__(self) -> None:
        self._used = 0
        self._ranges: dict[int, tuple[int, int]] = {}  # owner -> offset, length

    def place(
        self, array: NDArray[Any], owner: int, length: int, offsets: NDArray[Any]
    ) -> tuple[NDArray[Any], int]:
        """A range of `length` rows for `owner`; (array, perhaps a new one; offset).

        `offsets[owner]` of every owner whose range moves is kept right.
        """
        if self._used + length > len(array):
            array = self._make_room(array, length, offsets)
        offset = self._used
        self._ranges[owner] = (offset, length)
        offsets[owner] = offset
        self._used += length
        return array, offset

    def free(self, owner: int) -> None:
        self._ranges.pop(owner)

    def _make_room(self, array: NDArray[Any], length: int, offsets: NDArray[Any]) -> NDArray[Any]:
        live = sum(n for _, n in self._ranges.values())
        size = len(array)
        while live + length > size // 2:
            size *= 2
        moved = np.zeros((size, *array.shape[1:]), array.dtype)
        self._used = 0
        for owner, (offset, n) in self._ranges.items():
            moved[self._used : self._used + n] = array[offset : offset + n]
            self._ranges[owner] = (self._used, n)
            offsets[owner] = self._used
            self._used += n
        return moved
