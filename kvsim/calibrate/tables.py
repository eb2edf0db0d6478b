"""Tables of measured kernel times: read, recognised by their columns, checked."""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kvsim.errors import KvsimError
from kvsim.files import foreign_separator, readable

LICENCE_KEY = b"licence"  # of a parquet file's metadata
OWN_MEASUREMENT = "own measurement"


@dataclass(frozen=True)
class TableForm:
    """A form of table: its columns, what it measures, and who publishes such tables.

    keys: identify a row, and decide which quarter it falls in. whole: keys that count (>= 0).
    also: other times. scale: of `time` to microseconds. passed_over: why no step time rests on such rows.
    """

    name: str
    words: tuple[str, ...]
    whole: tuple[str, ...]
    time: str
    scale: float = 1.0
    also: tuple[str, ...] = ()
    package: str = ""
    version: str = ""
    licence: str = ""
    passed_over: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        return self.words + self.whole

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.keys, *self.also, self.time)


_AICONFIGURATOR: Any = {"package": "aiconfigurator-core", "version": "0.12.0", "licence": "Apache-2.0"}
_LLMSERVINGSIM: Any = {"package": "casys-kaist/LLMServingSim", "version": "5daddb2", "licence": "MIT"}
_VIDUR: Any = {"package": "microsoft/vidur", "version": "7d47513", "licence": "MIT"}

FORMS = (
    TableForm(
        "attention",
        ("gpu", "kernel", "kv_dtype"),
        ("batch", "q_len", "kv_len", "n_q", "n_kv", "head_dim", "window"),
        "latency_us",
        **_AICONFIGURATOR,
    ),
    TableForm(
        "attention_encoder",
        ("gpu", "kernel"),
        ("batch", "seq_len", "n_heads", "head_dim"),
        "latency_us",
        **_AICONFIGURATOR,
    ),
    TableForm("gemm", ("gpu", "kernel", "dtype"), ("m", "n", "k"), "latency_us", **_AICONFIGURATOR),
    TableForm(
        "collectives", ("gpu", "source", "kernel"), ("num_gpus", "bytes"), "latency_us", **_AICONFIGURATOR
    ),
    TableForm(
        "step_attention",
        ("gpu", "model"),
        ("tp", "prefill_chunk", "kv_prefill", "n_decode", "kv_decode"),
        "time_us",
        **_LLMSERVINGSIM,
    ),
    TableForm(
        "step_attention_skew",
        ("gpu", "model"),
        ("tp", "n", "nb", "pc", "kp", "kvs", "kv_big", "kv_mean"),
        "t_skew_us",
        also=("t_mean_us",),
        **_LLMSERVINGSIM,
    ),
    TableForm("step_dense", ("gpu", "model", "layer"), ("tp", "tokens"), "time_us", **_LLMSERVINGSIM),
    TableForm(
        "step_per_sequence", ("gpu", "model", "layer"), ("tp", "sequences"), "time_us", **_LLMSERVINGSIM
    ),
    TableForm(
        "step_moe", ("gpu", "model"), ("tp", "tokens", "activated_experts"), "time_us", **_LLMSERVINGSIM
    ),
    TableForm("layers_v0", ("gpu", "model", "layer"), ("tp", "tokens"), "latency_us", **_LLMSERVINGSIM),
    TableForm(
        "chunked_attention_v0",
        ("gpu", "model"),
        ("tp", "n_q", "n_kv", "n_embd", "batch", "prefill_chunk", "kv_cache"),
        "median_ms",
        1e3,
        **_LLMSERVINGSIM,
    ),
    TableForm(
        "vidur_linear",
        ("gpu", "model", "op"),
        ("num_tokens", "tp", "n_head", "n_kv_head", "n_embd", "n_expanded_embd", "vocab_size"),
        "median_ms",
        1e3,
        **_VIDUR,
    ),
    TableForm(
        "vidur_network",
        ("node", "collective"),
        ("num_workers", "devices_per_node", "size"),
        "median_ms",
        1e3,
        **_VIDUR,
    ),
    TableForm(
        "copies",
        ("gpu", "kernel", "direction", "memory"),
        ("pieces", "bytes"),
        "latency_us",
        passed_over="copies between host and device are not part of a step",
    ),
)


# Counts that a kernel has at least one of.
_SIZES = frozenset(
    {"batch", "q_len", "kv_len", "n_q", "n_kv", "head_dim", "seq_len", "n_heads", "m", "n", "k"}
    | {"num_gpus", "tp", "tokens", "sequences", "num_tokens"}
)


@dataclass(frozen=True)
class Table:
    """One file of measurements. frame: its rows; `digest`: uint32 (rows,) of each row's keys.

    licence: as the file's metadata say it, empty if they do not.
    """

    path: Path
    form: TableForm
    frame: pd.DataFrame
    digest: NDArray[np.uint32]
    licence: str = ""

    @property
    def says_with_what(self) -> bool:
        """Whether each row names the package that it was timed with, as `kvsim calibrate measure` does."""
        return {"kernel", "package", "version"} <= set(self.frame.columns)

    @property
    def us(self) -> NDArray[np.float64]:
        """Measured times, microseconds."""
        return self.frame[self.form.time].to_numpy(float) * self.form.scale


def left_out(digest: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """The quarter of the rows that is never fitted: CRC-32 of the row's keys divisible by 4.

    The keys are the form's name and the key columns as text, joined by "|" (see `row_digest`).
    """
    return digest % 4 == 0


def row_digest(form: TableForm, frame: pd.DataFrame) -> NDArray[np.uint32]:
    """CRC-32 of "form|key|key|..." of each row."""
    text = pd.Series(form.name, index=frame.index, dtype=object)
    for key in form.keys:
        text = text + "|" + frame[key].astype(str).astype(object)
    return np.array([zlib.crc32(row.encode()) for row in text], np.uint32)


def fingerprint(digest: NDArray[np.uint32]) -> str:
    """Names a set of rows, in any order."""
    return f"{len(digest)}-{int(np.sum(digest, dtype=np.uint64)) & 0xFFFFFFFF:08x}"


def read_table(path: Path) -> Table:
    """Raises KvsimError, one line naming the file and the fault."""
    frame = _read(path)
    form = _recognise(path, frame)
    _check(path, form, frame)
    return Table(path, form, frame, row_digest(form, frame), _licence(path))


def read_tables(paths: Iterable[Path]) -> list[Table]:
    """Raises KvsimError as `read_table`."""
    return [read_table(path) for path in paths]


def _read(path: Path) -> pd.DataFrame:
    readable(path)
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        if path.suffix in (".csv", ".gz", ".zst"):
            return pd.read_csv(path, comment="#")
    except (OSError, ValueError) as error:
        raise KvsimError(f"{path}: cannot be read as a table: {str(error).splitlines()[0]}") from None
    raise KvsimError(f"{path}: a table of kernel times is a .parquet or .csv file")


def _licence(path: Path) -> str:
    if path.suffix != ".parquet":
        return ""
    facts = pq.read_schema(path).metadata or {}
    return str(facts.get(LICENCE_KEY, b""), "utf-8", "replace")


def _recognise(path: Path, frame: pd.DataFrame) -> TableForm:
    """The form whose columns are all there; of several, the one with most."""
    have = set(frame.columns)
    whole = [form for form in FORMS if have >= set(form.columns)]
    if whole:
        return max(whole, key=lambda form: len(form.columns))
    nearest = max(FORMS, key=lambda form: len(have & set(form.columns)) / len(form.columns))
    missing = [column for column in nearest.columns if column not in have]
    if len(missing) > len(nearest.columns) // 2:
        mark = foreign_separator(frame.columns)
        if mark:
            raise KvsimError(f"{path}: columns are separated by {mark}; write commas")
        columns = ", ".join(map(str, frame.columns[:8]))
        raise KvsimError(f"{path}: columns {columns} are of no known form of table (docs/cost.md)")
    raise KvsimError(f"{path}: looks like a table of {nearest.name}, but {_missing(nearest, missing, have)}")


def _missing(form: TableForm, missing: list[str], have: set[str]) -> str:
    if missing == [form.time]:
        stem = form.time.rsplit("_", 1)[0]
        others = sorted(column for column in have if str(column).rsplit("_", 1)[0] == stem)
        if others:
            return f"the time is in {others[0]}; give it as {form.time}"
    return f"column {missing[0]} is missing"


def _check(path: Path, form: TableForm, frame: pd.DataFrame) -> None:
    if not len(frame):
        raise KvsimError(f"{path}: has no rows")
    times = (*form.also, form.time)
    for column in form.words:
        empty = np.flatnonzero(frame[column].isna())
        if len(empty):
            raise KvsimError(f"{path}: row {empty[0] + 1}: {column} is empty")
    for column in (*form.whole, *form.also, form.time):
        values = _numbers(frame[column])
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            cell = frame[column].iloc[bad[0]]
            shown = repr(cell) if isinstance(cell, str) else cell
            raise KvsimError(f"{path}: row {bad[0] + 1}: {column} is {shown}, not a number")
        above = column in times or column in _SIZES
        low = np.flatnonzero(values <= 0 if above else values < 0)
        if len(low):
            least = "above 0" if above else "0 or more"
            raise KvsimError(f"{path}: row {low[0] + 1}: {column} is {values[low[0]]:g}, must be {least}")
        broken = np.flatnonzero((values != np.floor(values)) & (column in _SIZES))
        if len(broken):
            raise KvsimError(
                f"{path}: row {broken[0] + 1}: {column} is {values[broken[0]]:g}, must be a whole number"
            )
    if {"n_q", "n_kv"} <= set(form.whole):
        uneven = np.flatnonzero(_numbers(frame["n_q"]) % _numbers(frame["n_kv"]))
        if len(uneven):
            row = frame.iloc[uneven[0]]
            raise KvsimError(
                f"{path}: row {uneven[0] + 1}: n_q {row.n_q} is not a multiple of n_kv {row.n_kv}"
            )


def _numbers(column: pd.Series) -> NDArray[np.float64]:
    """NaN for what is none; True and False are none."""
    if pd.api.types.is_bool_dtype(column):
        return np.full(len(column), np.nan)
    return np.asarray(pd.to_numeric(column, errors="coerce"), float)
