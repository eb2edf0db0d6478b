"""Between numpy and Arrow without pandas, which `pyarrow.array` would import (a quarter of a second)."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_DTYPES = {pa.float64(): "f8", pa.int64(): "i8", pa.int32(): "i4"}
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), "S2")


def numbers(values: NDArray, kind: pa.DataType, valid: NDArray[np.bool_] | None = None) -> pa.Array:
    """Numbers as Arrow's float64, int64 or int32; cells that are NaN, or not `valid`, are empty."""
    data = np.ascontiguousarray(values, _DTYPES[kind])
    if valid is None and kind == pa.float64():
        valid = ~np.isnan(data)
    return pa.Array.from_buffers(kind, len(data), [_bitmap(valid), pa.py_buffer(data)], -1)


def texts(words: Sequence[str], codes: NDArray, valid: NDArray[np.bool_] | None = None) -> pa.StringArray:
    """The word at each code; cells that are not `valid` are empty."""
    coded = [word.encode() for word in words]
    starts = _offsets([len(word) for word in coded])
    lengths = np.diff(starts)[codes]
    if valid is not None:
        lengths *= valid
    offsets = _offsets(lengths)
    letters = np.repeat(starts[codes] - offsets[:-1], lengths) + np.arange(offsets[-1], dtype=np.int32)
    data = np.frombuffer(b"".join(coded), np.uint8)[letters]
    return _string_array(offsets, data, valid)


def strings(values: Sequence[str]) -> pa.StringArray:
    """A text for each cell."""
    data = "".join(values)
    if data.isascii():
        return _string_array(_offsets(list(map(len, values))), data.encode())
    coded = [value.encode() for value in values]
    return _string_array(_offsets(list(map(len, coded))), b"".join(coded))


def hex_texts(values: NDArray[np.uint8], valid: NDArray[np.bool_]) -> pa.StringArray:
    """Rows of bytes, shape (n, width), as hex digits; cells that are not `valid` are empty."""
    return _string_array(_offsets(valid * (2 * values.shape[1])), _HEX[values[valid]], valid)


def floats(cells: pa.Array) -> NDArray[np.float64]:
    """Number cells as float64; empty ones are NaN."""
    bitmap, data = cells.buffers()
    values = np.frombuffer(data, _DTYPES[cells.type], len(cells) + cells.offset)[cells.offset :]
    values = values.astype(np.float64, copy=False)
    if cells.null_count:
        bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
        values = np.where(bits[cells.offset : cells.offset + len(cells)], values, np.nan)
    return values


def first_letters(cells: pa.StringArray) -> NDArray[np.uint8]:
    """The first byte of each text; none may be empty."""
    _, offsets, data = cells.buffers()
    starts = np.frombuffer(offsets, np.int32, len(cells) + cells.offset)[cells.offset :]
    return np.frombuffer(data, np.uint8)[starts] if len(cells) else np.zeros(0, np.uint8)


def _offsets(lengths: Sequence[int] | NDArray) -> NDArray[np.int32]:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _string_array(
    offsets: NDArray[np.int32], data: NDArray | bytes, valid: NDArray[np.bool_] | None = None
) -> pa.StringArray:
    count = len(offsets) - 1
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data), _bitmap(valid), -1)


def _bitmap(valid: NDArray[np.bool_] | None) -> pa.Buffer | None:
    return None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
