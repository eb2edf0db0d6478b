"""Where the tables of a run go, chunk by chunk: memory or a Parquet file."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from kvsim.results.columns import EVENT_SCHEMA, SCHEMA, SESSION_SCHEMA, STEP_SCHEMA
from kvsim.results.store import EVENTS, REQUESTS, STEPS, ResultsError, writing

UNIQUE = ("request_id", "block_hash")
_SCHEMAS = {REQUESTS: (SCHEMA, SESSION_SCHEMA), STEPS: (STEP_SCHEMA,), EVENTS: (EVENT_SCHEMA,)}


class Rows(Protocol):
    """Rows that are there."""

    def read(self, columns: Sequence[str] | None = None) -> pa.Table: ...

    def chunks(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows as they were written, one chunk at a time, in bounded memory."""
        ...


class Sink(Rows, Protocol):
    """Takes finished chunks, and gives them back once all have come."""

    def write(self, table: pa.Table) -> None: ...

    @property
    def num_bytes(self) -> int:
        """What they take up, in memory or on disk."""
        ...


class MemorySink:
    """Keeps the tables; about 250 bytes a request."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []

    def write(self, table: pa.Table) -> None:
        self._tables.append(table)

    @property
    def num_bytes(self) -> int:
        return sum(table.nbytes for table in self._tables)

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        return _selected(pa.concat_tables(self._tables), columns)

    def chunks(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        for table in self._tables:
            yield from _selected(table, columns).to_batches()


class ParquetRows:
    """Rows of a Parquet file. Raises `ResultsError` where they cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        with _reading(self.path) as file:
            return file.read(columns=columns)

    def chunks(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        with _reading(self.path) as file:
            for number in range(file.num_row_groups):
                group = file.read_row_group(number, columns=columns, use_threads=False)
                yield from group.combine_chunks().to_batches()


class ParquetSink(ParquetRows):
    """Streams chunks to a file; its bytes depend on nothing but the rows. Read, it takes no more.

    All chunks have the columns of the first one.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._writer: pq.ParquetWriter | None = None
        with writing(path):  # found out before there are rows
            self._file: pa.NativeFile | None = pa.OSFile(str(path), "wb")

    def write(self, table: pa.Table) -> None:
        assert self._file is not None, "rows after the sink was read"
        with writing(self.path):
            if self._writer is None:
                self._writer = self._begun(table.schema)
            self._writer.write_table(table)

    def _begun(self, schema: pa.Schema) -> pq.ParquetWriter:
        # Times hardly repeat: a dictionary of them takes three times as long to write, and more room.
        repeating = [
            field.name for field in schema if field.type != pa.float64() and field.name not in UNIQUE
        ]
        return pq.ParquetWriter(self._file, schema, compression="zstd", use_dictionary=repeating)

    @property
    def num_bytes(self) -> int:
        return os.path.getsize(self.path)

    def close(self) -> None:
        with writing(self.path):
            if self._writer is not None:
                self._writer.close()
            if self._file is not None:
                self._file.close()
        self._writer = self._file = None

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        self.close()
        return super().read(columns)

    def chunks(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        self.close()
        return super().chunks(columns)


class Sinks(NamedTuple):
    """Where the tables of a run go; None: not recorded."""

    requests: Sink
    steps: Sink | None
    events: Sink | None

    @classmethod
    def in_memory(cls, steps: bool = False, events: bool = False) -> "Sinks":
        return cls(MemorySink(), MemorySink() if steps else None, MemorySink() if events else None)

    @classmethod
    def in_folder(cls, folder: Path, steps: bool = False, events: bool = False) -> "Sinks":
        """Parquet files of a results folder; raises `ResultsError` where they cannot be written."""
        return cls(
            ParquetSink(folder / REQUESTS),
            ParquetSink(folder / STEPS) if steps else None,
            ParquetSink(folder / EVENTS) if events else None,
        )

    def close(self) -> None:
        """Files are whole after this."""
        for sink in self:
            if isinstance(sink, ParquetSink):
                sink.close()


class Tables(NamedTuple):
    """The tables of a finished run; None: not recorded."""

    requests: Rows
    steps: Rows | None = None
    events: Rows | None = None

    @classmethod
    def of_folder(cls, folder: Path) -> "Tables":
        """Read when asked for."""
        paths = (folder / STEPS, folder / EVENTS)
        return cls(ParquetRows(folder / REQUESTS), *(ParquetRows(p) if p.exists() else None for p in paths))

    def copy(self, folder: Path) -> None:
        """Write them as files of a results folder, a chunk at a time."""
        sinks = Sinks.in_folder(folder, self.steps is not None, self.events is not None)
        try:
            for rows, sink in zip(self, sinks, strict=True):
                if rows is not None and sink is not None:
                    for chunk in rows.chunks():
                        sink.write(pa.Table.from_batches([chunk]))
        finally:
            sinks.close()


def _selected(table: pa.Table, columns: Sequence[str] | None) -> pa.Table:
    return table if columns is None else table.select(columns)


@contextmanager
def _reading(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path) as file:
            expected = _SCHEMAS.get(path.name, ())
            if expected and file.schema_arrow.names not in [schema.names for schema in expected]:
                raise ResultsError(f"{path} has not the columns of {path.name}; this kvsim did not write it")
            yield file
    except (OSError, pa.ArrowInvalid) as error:
        raise ResultsError(f"{path} cannot be read: {error}") from None
