"""Tables of measured times in one folder: written whole at the end, row by row into a journal before.

Each finished point is one line of `.unfinished.jsonl`; a process that is killed loses at most the line that
it was writing. Tables come from the journal and the tables that are there, under a temporary name, and the
journal goes once they stand. Cold rows (see `timing`) are tables of their own, in the folder `cold`, so
that a reader who does not know of them meets hot ones only, as in the tables of others.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvsim.calibrate.measure.device import Card
from kvsim.calibrate.measure.points import Point
from kvsim.calibrate.measure.request import COLD, HOT
from kvsim.calibrate.measure.timing import Timing
from kvsim.calibrate.tables import LICENCE_KEY, OWN_MEASUREMENT
from kvsim.errors import KvsimError

Row = dict[str, Any]

_TEXT, _COUNT, _BYTES, _TIME = pa.string(), pa.int32(), pa.int64(), pa.float32()
_JOURNAL = ".unfinished.jsonl"
_METADATA = b"kvsim.calibrate.measure"

# Beside each time: L2 cache hot or cold, how it was timed, interquartile range over the median, repeats,
# tokens of a KV block (0: not paged), and with what it was taken.
_PROVENANCE = {
    "l2": _TEXT,
    "timed": _TEXT,
    "spread": _TIME,
    "repeats": _COUNT,
    "block_size": _COUNT,
    "card": _TEXT,
    "package": _TEXT,
    "version": _TEXT,
    "torch": _TEXT,
    "cuda": _TEXT,
    "driver": _TEXT,
}


@dataclass(frozen=True)
class Form:
    """Columns that identify a row, and the column of the time. vllm: whether it tells vLLM's version."""

    keys: Mapping[str, pa.DataType]
    time: str = "latency_us"
    vllm: bool = True

    @property
    def schema(self) -> pa.Schema:
        version = {"vllm": _TEXT} if self.vllm else {}
        return pa.schema({**self.keys, **version, self.time: _TIME, **_PROVENANCE})


def _counts(*names: str) -> dict[str, pa.DataType]:
    return dict.fromkeys(names, _COUNT)


_WHO = {"gpu": _TEXT, "kernel": _TEXT}
_ATTENTION = Form(
    {
        **_WHO,
        **_counts("batch", "q_len", "kv_len", "n_q", "n_kv", "head_dim"),
        "kv_dtype": _TEXT,
        "window": _COUNT,
    }
)

FORMS = {
    "attention_prefill": _ATTENTION,
    "attention_decode": _ATTENTION,
    "attention_encoder": Form({**_WHO, **_counts("batch", "seq_len", "n_heads", "head_dim")}),
    "gemm": Form({**_WHO, "dtype": _TEXT, **_counts("m", "n", "k")}),
    "step_attention": Form(
        {
            "gpu": _TEXT,
            "model": _TEXT,
            **_counts("tp", "prefill_chunk", "kv_prefill", "n_decode", "kv_decode"),
            "kernel": _TEXT,
            **_counts("n_q", "n_kv", "head_dim"),
        },
        time="time_us",
    ),
    "collectives": Form(
        {
            "gpu": _TEXT,
            "source": _TEXT,
            "kernel": _TEXT,
            "dtype": _TEXT,
            "num_gpus": _COUNT,
            "message_size": _COUNT,
            "bytes": _BYTES,
        },
        vllm=False,
    ),
    "copies": Form(
        {**_WHO, "direction": _TEXT, "memory": _TEXT, "pieces": _COUNT, "bytes": _BYTES}, vllm=False
    ),
}

_Key = tuple[Any, ...]


class Tables:
    """The folder's rows, old and new. Use as a context: leaving it writes the tables, whatever happened.

    Raises KvsimError if the folder holds another card's times, or tables that are not of this program.
    """

    def __init__(self, folder: Path, card: Card) -> None:
        self.folder = folder
        self._card = card
        self._rows: dict[tuple[str, str], dict[_Key, Row]] = {}
        self._journal: IO[str] | None = None
        self._changed: set[tuple[str, str]] = set()
        self._read_tables()
        self._read_journal()

    def __enter__(self) -> "Tables":
        self.folder.mkdir(parents=True, exist_ok=True)
        self._journal = open(self.folder / _JOURNAL, "a", encoding="utf-8")
        _lock(self._journal, self.folder)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        self.write()
        assert self._journal is not None
        self._journal.close()
        (self.folder / _JOURNAL).unlink()

    def has(self, point: Point, l2: str) -> bool:
        return self._key(point.table, self._identity(point)) in self._rows.get((point.table, l2), {})

    def add(self, point: Point, l2: str, timing: Timing) -> None:
        """Kept at once: the line is with the operating system before this returns."""
        assert self._journal is not None
        row = self._row(point, l2, timing)
        self._journal.write(json.dumps({"table": point.table, "row": row}) + "\n")
        self._journal.flush()
        self._keep(point.table, row)

    def write(self) -> None:
        """Every table that has changed, whole, under a temporary name first."""
        for table, l2 in sorted(self._changed):
            path = self._path(table, l2)
            path.parent.mkdir(exist_ok=True)
            made = pa.Table.from_pylist(list(self._rows[table, l2].values()), schema=self._schema(table))
            unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
            pq.write_table(made, unfinished, compression="zstd")
            os.replace(unfinished, path)
        self._changed.clear()

    def files(self) -> list[tuple[Path, int]]:
        """Tables with their numbers of rows, hot ones first."""
        keys = sorted(self._rows, key=lambda key: (key[1] == COLD, key))
        return [(self._path(*key), len(self._rows[key])) for key in keys]

    def _schema(self, table: str) -> pa.Schema:
        facts = {**vars(self._card), "written": datetime.now(UTC).isoformat(timespec="seconds")}
        return FORMS[table].schema.with_metadata(
            {_METADATA: json.dumps(facts).encode(), LICENCE_KEY: OWN_MEASUREMENT.encode()}
        )

    def _path(self, table: str, l2: str) -> Path:
        return (self.folder / COLD if l2 == COLD else self.folder) / f"{table}.parquet"

    def _row(self, point: Point, l2: str, timing: Timing) -> Row:
        form, kernel, card = FORMS[point.table], point.kernel, self._card
        version = {"vllm": kernel.version if kernel.package == "vllm" else ""} if form.vllm else {}
        return {
            **self._identity(point),
            **version,
            form.time: timing.us,
            "l2": l2,
            "timed": timing.how,
            "spread": timing.spread,
            "repeats": timing.repeats,
            "block_size": kernel.block_size,
            "card": card.name,
            "package": kernel.package,
            "version": kernel.version,
            "torch": card.torch,
            "cuda": card.cuda,
            "driver": card.driver,
        }

    def _identity(self, point: Point) -> Row:
        return {"gpu": self._card.gpu, "kernel": point.kernel.name, **dict(point.columns)}

    def _key(self, table: str, row: Mapping[str, Any]) -> _Key:
        return tuple(row[name] for name in FORMS[table].keys)

    def _keep(self, table: str, row: Row) -> None:
        self._rows.setdefault((table, row["l2"]), {})[self._key(table, row)] = row
        self._changed.add((table, row["l2"]))

    def _read_tables(self) -> None:
        for table in FORMS:
            for l2 in (HOT, COLD):
                path = self._path(table, l2)
                if path.exists():
                    rows = _read(path, FORMS[table])
                    self._check_card(path, rows)
                    self._rows[table, l2] = {self._key(table, row): row for row in rows}

    def _read_journal(self) -> None:
        path = self.folder / _JOURNAL
        if not path.exists():
            return
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
                table, row = entry["table"], entry["row"]
                whole = set(FORMS[table].schema.names) <= set(row)
            except (ValueError, KeyError, TypeError):
                continue  # what was being written when the process was killed
            if whole:
                self._check_card(path, [row])
                self._keep(table, row)

    def _check_card(self, path: Path, rows: Iterable[Row]) -> None:
        others = sorted({row["card"] for row in rows} - {self._card.name})
        if others:
            raise KvsimError(
                f"{path}: holds times of {others[0]}, this is {self._card.name}; name another folder with -o"
            )


def _read(path: Path, form: Form) -> list[Row]:
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise KvsimError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None
    if _METADATA not in (table.schema.metadata or {}) or not set(form.schema.names) <= set(
        table.column_names
    ):
        raise KvsimError(f"{path}: is not a table of calibrate measure; name another folder with -o")
    rows: list[Row] = table.select(form.schema.names).to_pylist()
    return rows


def _lock(journal: IO[str], folder: Path) -> None:
    """Raises KvsimError if another process measures into the folder."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise KvsimError(
            f"{folder}: another calibrate measure writes there; name another folder with -o"
        ) from None
