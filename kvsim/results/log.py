"""Rows are written where requests arrive and leave for good once all before them have ended.

Memory holds only the chunks that still have a live request, so a run of millions needs no
more than its busiest stretch; the sink gets rows in arrival order whatever the order of ends.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from kvsim.results.columns import REFUSED, ROW
from kvsim.results.requests import new_rows, to_table
from kvsim.results.sinks import Sink

CHUNK_ROWS = 16_384
_NEW = new_rows(1)


class _Chunk:
    def __init__(self, size: int) -> None:
        self.rows = np.empty(size, ROW)  # filled as requests arrive: pages without any are never touched
        self.request_ids: list[str] = []
        self.sessions: list[str | None] = []
        self.refusals: dict[int, str] = {}
        self.num_live = 0


class RequestLog:
    """One row per request, numbered by arrival: 0, 1, 2, ...

    has_sessions: the table gets a column for the session of each request.
    """

    def __init__(self, sink: Sink, chunk_rows: int = CHUNK_ROWS, *, has_sessions: bool = False) -> None:
        self.sink = sink
        self.has_sessions = has_sessions
        self.num_arrived = 0
        self.num_ended = 0
        self._chunk_rows = chunk_rows
        self._chunks: dict[int, _Chunk] = {}
        self._next_chunk = 0

    def arrive(
        self,
        request_ids: Sequence[str],
        arrival_times: NDArray[np.float64],
        num_prompt_tokens: NDArray[np.int64],
        sessions: Sequence[str | None] | None = None,
    ) -> int:
        """Open rows; returns the number of the first. `sessions`: of each request, None for none."""
        first, done = self.num_arrived, 0
        while done < len(request_ids):
            index, at = divmod(self.num_arrived, self._chunk_rows)
            if at == 0:
                self._chunks[index] = _Chunk(self._chunk_rows)
            count = min(self._chunk_rows - at, len(request_ids) - done)
            chunk, part = self._chunks[index], slice(done, done + count)
            chunk.request_ids.extend(request_ids[part])
            if self.has_sessions:
                chunk.sessions.extend(sessions[part] if sessions else [None] * count)
            chunk.num_live += count
            rows = chunk.rows[at : at + count]
            rows[:] = _NEW
            rows["arrival_time"], rows["num_prompt_tokens"] = arrival_times[part], num_prompt_tokens[part]
            self.num_arrived += count
            done += count
        return first

    def sent(self, numbers: NDArray[np.int64], arrival_times: NDArray[np.float64]) -> None:
        """Note when requests reached the server that were opened before that was known."""
        rows = np.zeros(len(numbers), [("arrival_time", "f8")])
        rows["arrival_time"] = arrival_times
        self.update(numbers, rows)

    def take_back(self, number: int) -> None:
        """Forget the rows from this number on, live or refused: their requests never went out."""
        for index in [index for index in self._chunks if (index + 1) * self._chunk_rows > number]:
            chunk, keep = self._chunks[index], max(number - index * self._chunk_rows, 0)
            gone = [at for at in chunk.refusals if at >= keep]
            chunk.num_live -= len(chunk.request_ids) - keep - len(gone)
            self.num_ended -= len(gone)
            for at in gone:
                del chunk.refusals[at]
            del chunk.request_ids[keep:], chunk.sessions[keep:]
            if keep == 0:
                del self._chunks[index]
        self.num_arrived = number

    def refuse(self, number: int, reason: str) -> None:
        """End a request that can never fit."""
        index, at = divmod(number, self._chunk_rows)
        chunk = self._chunks[index]
        chunk.rows["status"][at] = REFUSED
        chunk.refusals[at] = reason
        self._ended(chunk, 1)

    def end(self, numbers: NDArray[np.int64], rows: NDArray[np.void]) -> None:
        """End requests that ran; `rows` has fields of `columns.ROW`, ``status`` among them."""
        for chunk, at, part in self._places(numbers, rows):
            _copy_fields(chunk.rows, at, part)
            self._ended(chunk, len(at))

    def update(self, numbers: NDArray[np.int64], rows: NDArray[np.void]) -> None:
        """Note what is known of requests that have not ended; `rows` as in `end`."""
        for chunk, at, part in self._places(numbers, rows):
            _copy_fields(chunk.rows, at, part)

    def close(self) -> None:
        """Hand over every row left; those without an end are *unfinished*."""
        for chunk in self._chunks.values():
            chunk.num_live = 0
        self._flush(keep_partial=False)
        if self.num_arrived == 0:
            self._write(_Chunk(0))

    def _places(
        self, numbers: NDArray[np.int64], rows: NDArray[np.void]
    ) -> Iterator[tuple[_Chunk, NDArray[np.int64], NDArray[np.void]]]:
        """The chunk, the places in it, and the rows for them."""
        if not len(numbers):
            return
        first, last = int(numbers.min()) // self._chunk_rows, int(numbers.max()) // self._chunk_rows
        if first == last:
            yield self._chunks[first], numbers - first * self._chunk_rows, rows
            return
        index, at = np.divmod(numbers, self._chunk_rows)
        for i in np.unique(index).tolist():
            select = np.flatnonzero(index == i)
            yield self._chunks[i], at[select], rows[select]

    def _ended(self, chunk: _Chunk, count: int) -> None:
        chunk.num_live -= count
        self.num_ended += count
        if chunk.num_live == 0:
            self._flush(keep_partial=True)

    def _flush(self, keep_partial: bool) -> None:
        while (chunk := self._chunks.get(self._next_chunk)) is not None and chunk.num_live == 0:
            count = len(chunk.request_ids)
            if keep_partial and count < self._chunk_rows:
                return
            self._write(chunk)
            del self._chunks[self._next_chunk]
            self._next_chunk += 1

    def _write(self, chunk: _Chunk) -> None:
        rows = chunk.rows[: len(chunk.request_ids)]
        sessions = chunk.sessions if self.has_sessions else None
        self.sink.write(to_table(rows, chunk.request_ids, chunk.refusals, sessions))


def _copy_fields(target: NDArray[np.void], at: NDArray[np.int64], source: NDArray[np.void]) -> None:
    if source.dtype == target.dtype:
        target[at] = source  # whole rows at once
        return
    for name in source.dtype.names or ():
        target[name][at] = source[name]
