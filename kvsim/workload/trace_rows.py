"""Rows of request traces that carry prefix-block ids: what a good row is.

Formats, told apart by their fields and never by magnitudes:
    Mooncake (kvcache-ai/Mooncake, FAST25-release): `timestamp` in ms, 512 tokens an id
    Qwen-Bailian (has `chat_id`):                   `timestamp` in s, 16 tokens an id
In both, `hash_ids` holds ceil(input_length / tokens an id) ids, and equal ids mean equal tokens.

What may look odd but is a good row: an id that stands behind different ids in different rows, such as
[1, 2] and [3, 2]. Its tokens are equal in both, but a prefix cache shares only equal beginnings, so it
is found again only behind the same ids. An `output_length` of 0 is replayed as 1: vLLM generates at
least one token.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import KvsimError
from kvsim.tokens import Segments, stream_keys
from kvsim.workload.checks import FieldError, required, shown, whole

MOONCAKE_BLOCK, BAILIAN_BLOCK = 512, 16
TOLERANCE = 1e-3  # seconds that a row may lie before the one above: rounding, not disorder
_MAX_SECONDS = 1e12


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A checked row: `timestamp` in seconds, lengths in tokens, `block_size` tokens an id."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]
    block_size: int
    chat_id: int | str | None = None
    parent_chat_id: int | str | None = None
    session: int | str | None = None


def check_row(row: Any, trace_block_size: int | None = None, in_session: bool = False) -> TraceRow:
    """Read one row; `trace_block_size` replaces the format's own. Raises FieldError naming the field.

    A row in a session may lack its time, which then is 0, and its ids: then its prompt is like no other.
    """
    if not isinstance(row, Mapping):
        raise FieldError("row", f"{shown(row)} is not an object with timestamp, input_length, ...")
    if row.get("delay") is not None and row.get("session_id") is None:
        raise FieldError("delay", "counts from the answer before in a session; the row has no session_id")
    bailian = row.get("chat_id") is not None
    block = trace_block_size or (BAILIAN_BLOCK if bailian else MOONCAKE_BLOCK)
    timed = not in_session or row.get("timestamp") is not None
    timestamp = _timestamp(required("timestamp", row)) / (1.0 if bailian else 1000.0) if timed else 0.0
    num_input = whole("input_length", required("input_length", row), 1)
    num_output = whole("output_length", required("output_length", row), 0)
    with_ids = not in_session or row.get("hash_ids") is not None
    ids = _hash_ids(required("hash_ids", row), num_input, block) if with_ids else ()
    chat, parent, session = _name(row, "chat_id"), _name(row, "parent_chat_id"), _name(row, "session_id")
    return TraceRow(timestamp, num_input, num_output, ids, block, chat, parent, session)


def check_rows(rows: Iterable[Any], trace_block_size: int | None = None) -> list[TraceRow]:
    """Read all rows of a trace; raises KvsimError "row N: field F: problem" for the first bad one."""
    checked: list[TraceRow] = []
    for number, row in enumerate(rows, 1):
        try:
            read = check_row(row, trace_block_size)
            check_order(read, checked[-1] if checked else None)
        except FieldError as error:
            raise KvsimError(f"row {number}: field {error}") from None
        checked.append(read)
    return checked


def check_order(row: TraceRow, above: TraceRow | None) -> None:
    """Raises FieldError if a row lies before the one above it."""
    if above is not None and row.timestamp < above.timestamp - TOLERANCE:
        problem = f"{row.timestamp:g} s lies before the row above, {above.timestamp:g} s"
        raise FieldError("timestamp", f"{problem}; sort the trace by time")


def _name(row: Mapping[str, Any], field: str) -> int | str | None:
    """A conversation's number or name; null is as good as absent."""
    value = row.get(field)
    if value is not None and type(value) not in (int, str):
        raise FieldError(field, f"{shown(value)} is neither a whole number nor a name")
    return value


def _timestamp(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FieldError("timestamp", f"{shown(value)} is not a number")
    if math.isnan(value):
        raise FieldError("timestamp", "NaN is not a number")
    if not 0 <= value <= _MAX_SECONDS * 1000:
        bound = "count up from 0" if value < 0 else f"end at {_MAX_SECONDS * 1000:g}"
        raise FieldError("timestamp", f"{shown(value)} is out of range; times {bound}")
    return float(value)


def _hash_ids(ids: Any, num_tokens: int, block: int) -> tuple[int, ...]:
    if not isinstance(ids, list | tuple):
        raise FieldError("hash_ids", f"{shown(ids)} is not a list of whole numbers")
    needed = -(-num_tokens // block)
    if len(ids) != needed:
        need = f"{num_tokens} tokens need {needed} id{'' if needed == 1 else 's'} of {block}"
        raise FieldError("hash_ids", f"{need}, row has {len(ids)}{_hint(ids, num_tokens)}")
    for entry in ids:
        if type(entry) is not int or entry < 0:
            raise FieldError("hash_ids", f"{shown(entry)} is not a whole number from 0")
    return tuple(ids)


def _hint(ids: Any, num_tokens: int) -> str:
    """Names the usual block size that the row would fit; a few ids fit one by chance."""
    fitting = (size for size in (16, 64, 128, 256, 512) if -(-num_tokens // size) == len(ids))
    size = next(fitting, None) if len(ids) > 4 else None
    return f" (as for trace_block_size: {size})" if size else ""


class IdStreams:
    """The token streams that the ids of a trace stand for. An id seen not long ago is not hashed again."""

    _MOST = 1 << 18  # ids that are remembered

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def of(self, hash_ids: Sequence[int]) -> NDArray[np.uint64]:
        """Stream keys of ids, shape (ids,)."""
        known = self._known
        new = [hash_id for hash_id in dict.fromkeys(hash_ids) if hash_id not in known]
        if len(known) + len(new) > self._MOST:
            known.clear()
            new = list(dict.fromkeys(hash_ids))
        known.update(zip(new, stream_keys("mooncake", new).tolist(), strict=True))
        return np.fromiter(map(known.__getitem__, hash_ids), np.uint64, len(hash_ids))


_streams = IdStreams()


def prompt_segments(row: TraceRow) -> Segments:
    """The prompt of a row: one segment an id, shape (ids, 3)."""
    content = np.zeros((len(row.hash_ids), 3), np.uint64)
    content[:, 0] = _streams.of(row.hash_ids)
    content[:, 2] = row.block_size
    content[-1, 2] = row.input_length - row.block_size * (len(row.hash_ids) - 1)
    return content


def all_segments(rows: Sequence[TraceRow], outputs: NDArray[np.uint64]) -> tuple[Segments, NDArray[np.int64]]:
    """Prompts and outputs of rows in turns, shape (n, 3); where each row's output stands in it.

    outputs: stream keys of the outputs, shape (rows,). A row that says nothing says one token.
    """
    ends = np.cumsum([len(row.hash_ids) + 1 for row in rows])
    content = np.zeros((ends[-1], 3), np.uint64)
    is_prompt = np.ones(len(content), bool)
    is_prompt[ends - 1] = False
    content[is_prompt, 0] = _streams.of([hash_id for row in rows for hash_id in row.hash_ids])
    content[is_prompt, 2] = np.repeat([row.block_size for row in rows], np.diff(ends, prepend=0) - 1)
    content[ends - 2, 2] = [row.input_length - row.block_size * (len(row.hash_ids) - 1) for row in rows]
    content[ends - 1, 0] = outputs
    content[ends - 1, 2] = [max(row.output_length, 1) for row in rows]
    return content, ends - 1
