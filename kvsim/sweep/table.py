"""Tables of a sweep: a row for each point, the same bytes whoever computed the points and when."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvsim.results.store import ResultsError, writing

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]


def table_of(rows: Sequence[Row], keys: Sequence[str], last: Sequence[str] = ("error",)) -> pa.Table:
    """Columns in order of first appearance, swept `keys` first and `last` last.

    A column of numbers and other things, such as max_model_len with auto, is text.
    """
    names = dict.fromkeys([*keys, *(name for row in rows for name in row if name not in last), *last])
    return pa.table({name: _column([row.get(name) for row in rows]) for name in names})


def _column(values: list[Any]) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {bool} and kinds:
        return pa.array(values, pa.bool_())
    if kinds == {int}:
        return pa.array(values, pa.int64())
    if kinds <= {int, float}:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.array(
        [value if value is None or isinstance(value, str) else json.dumps(value) for value in values],
        pa.string(),
    )


def frame_of(table: pa.Table) -> "pd.DataFrame":
    """Whole numbers stay whole where some are missing (``<NA>``)."""
    import pandas as pd

    whole = {pa.int64(): pd.Int64Dtype()}
    gaps = [name for name in table.column_names if table[name].type in whole and table[name].null_count]
    frame = table.drop_columns(gaps).to_pandas() if gaps else table.to_pandas()
    for name in gaps:
        cells = table.select([name]).to_pandas(types_mapper=whole.get)
        frame.insert(table.column_names.index(name), name, cells[name])
    return frame[table.column_names]


def write_tables(folder: Path, name: str, table: pa.Table) -> None:
    """``<name>.parquet`` and ``<name>.csv``, each whole or not at all; raises `ResultsError`."""
    for ending, write in ((".parquet", _write_parquet), (".csv", _write_csv)):
        temporary, place = folder / f".{name}{ending}.tmp", folder / f"{name}{ending}"
        with writing(place):
            try:
                write(table, temporary)
                temporary.replace(place)
            finally:
                temporary.unlink(missing_ok=True)


def _write_parquet(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, compression="zstd")


def _write_csv(table: pa.Table, path: Path) -> None:
    frame_of(table).to_csv(path, index=False, lineterminator="\n")


def read_table(path: Path) -> pa.Table:
    """Raises `ResultsError` where it is missing or damaged."""
    try:
        return pq.read_table(path)
    except FileNotFoundError:
        raise ResultsError(f"{path} is missing; the sweep has not ended, run it again to finish it") from None
    except (OSError, pa.ArrowInvalid) as error:
        raise ResultsError(f"{path} cannot be read: {error}") from None
