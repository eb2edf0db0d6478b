"""Recorded on request: streams of rows from the engines, cut into chunks for a sink.

Chunks have one size whatever the pieces that rows come in, so equal rows give equal bytes.
"""

import warnings
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kvsim.results import arrow
from kvsim.results.columns import STEP_COLUMNS, STEP_SCHEMA
from kvsim.results.sinks import Sink

CHUNK_ROWS = 65_536
MANY_ROWS = 1_000_000


class ManyRowsWarning(UserWarning):
    """A table that is recorded on request has more than a million rows."""


class ChunkedLog:
    """Rows of several instances, copied, cut and handed over as tables."""

    name = ""
    schema: pa.Schema

    def __init__(self, sink: Sink, chunk_rows: int = CHUNK_ROWS, many_rows: int = MANY_ROWS) -> None:
        self._sink = sink
        self._chunk_rows, self._many_rows = chunk_rows, many_rows
        self._pieces: list[tuple[NDArray[np.int32], NDArray[np.void]]] = []
        self._num_waiting = self._num_written = 0

    def write(self, instance: int, rows: NDArray[np.void]) -> None:
        """Take rows of an instance; they are copied."""
        if not len(rows):
            return
        self._pieces.append((np.full(len(rows), instance, np.int32), rows.copy()))
        self._num_waiting += len(rows)
        while self._num_waiting >= self._chunk_rows:
            instances, rows = self._joined()
            count = self._num_whole(rows[: self._chunk_rows])
            self._hand_over(instances[:count], rows[:count])
            self._pieces = [(instances[count:], rows[count:])]
            self._num_waiting = len(rows) - count

    def close(self) -> None:
        """Hand over what is left."""
        if self._pieces:
            self._hand_over(*self._joined())
        elif not self._num_written:
            self._sink.write(pa.Table.from_batches([], self.schema))
        self._pieces = []

    def _joined(self) -> tuple[NDArray[np.int32], NDArray[np.void]]:
        instances, rows = zip(*self._pieces, strict=True)
        return np.concatenate(instances), np.concatenate(rows)

    def _num_whole(self, rows: NDArray[np.void]) -> int:
        """How many of a full chunk may go without parting rows that belong together."""
        return len(rows)

    def _table(self, instances: NDArray[np.int32], rows: NDArray[np.void]) -> pa.Table:
        raise NotImplementedError

    def _hand_over(self, instances: NDArray[np.int32], rows: NDArray[np.void]) -> None:
        table = self._table(instances, rows)
        self._sink.write(table)
        before, self._num_written = self._num_written, self._num_written + table.num_rows
        if before <= self._many_rows < self._num_written:
            warnings.warn(self._many(), ManyRowsWarning, stacklevel=2)

    def _many(self) -> str:
        megabytes = self._sink.num_bytes / 1e6
        return (
            f"{self._num_written:,} rows of {self.name} so far, {megabytes:,.0f} MB, and more to come; "
            f"without record.{self.name}: true (or --record {self.name}) there are none"
        )


class StepLog(ChunkedLog):
    """One row per step: `kvsim.engine.state.STEP_DTYPE` to `STEP_COLUMNS`."""

    name, schema = "steps", STEP_SCHEMA

    def __init__(
        self,
        sink: Sink,
        num_gpu_blocks: int | Sequence[int],
        chunk_rows: int = CHUNK_ROWS,
        many_rows: int = MANY_ROWS,
    ) -> None:
        """num_gpu_blocks: of every instance, or of each."""
        super().__init__(sink, chunk_rows, many_rows)
        self._usable_blocks = np.maximum(np.asarray(num_gpu_blocks) - 1, 1)  # all but the null block

    def _table(self, instances: NDArray[np.int32], rows: NDArray[np.void]) -> pa.Table:
        values = {name: rows[name] for name in rows.dtype.names or ()}
        values["instance"] = instances
        values["duration"] = rows["end_time"] - rows["start_time"]
        usable = self._usable_blocks[instances] if self._usable_blocks.ndim else self._usable_blocks
        values["kv_cache_usage_perc"] = rows["num_blocks_used"] / usable
        arrays = [arrow.numbers(values[column.name], column.type) for column in STEP_COLUMNS]
        return pa.Table.from_arrays(arrays, schema=STEP_SCHEMA)
