"""Rows of requests as a table."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kvsim.results import arrow
from kvsim.results.columns import COLUMNS, REASONS, ROW, SCHEMA, SESSION_SCHEMA, STATUSES


def new_rows(count: int) -> NDArray[np.void]:
    """`count` rows in which nothing has happened yet."""
    rows = np.zeros(count, ROW)
    for name in ("queued_time", "first_scheduled_time", "first_token_time", "finish_time"):
        rows[name] = np.nan
    rows["instance"] = -1
    return rows


def derived(rows: NDArray[np.void]) -> dict[str, NDArray[np.float64]]:
    """Latencies from the instants of each row, in seconds; NaN where not reached."""
    arrival, first, finish = rows["arrival_time"], rows["first_token_time"], rows["finish_time"]
    later_tokens = np.where(rows["num_output_tokens"] > 1, rows["num_output_tokens"] - 1.0, np.nan)
    return {
        "queue_time": rows["first_scheduled_time"] - rows["queued_time"],
        "ttft": first - arrival,
        "tpot": (finish - first) / later_tokens,
        "e2e": finish - arrival,
    }


def to_table(
    rows: NDArray[np.void],
    request_ids: list[str],
    refusals: dict[int, str],
    sessions: Sequence[str | None] | None = None,
) -> pa.Table:
    """Rows as an Arrow table with the columns of `COLUMNS`; NaN becomes an empty cell.

    `refusals` holds the reason of each refused row by its index; with `sessions`, one of each row, the table
    has a column of them.
    """
    made = {
        "request_id": arrow.strings(request_ids),
        "status": arrow.texts(STATUSES, rows["status"]),
        "reason": _reasons(rows["reason"], refusals),
    }
    values = {name: rows[name] for name in ROW.names or ()} | derived(rows)
    arrays = [
        made[column.name] if column.name in made else arrow.numbers(values[column.name], column.type)
        for column in COLUMNS
    ]
    if sessions is None:
        return pa.Table.from_arrays(arrays, schema=SCHEMA)
    arrays.insert(1, pa.array(sessions, pa.string()))
    return pa.Table.from_arrays(arrays, schema=SESSION_SCHEMA)


def _reasons(codes: NDArray[np.uint8], refusals: dict[int, str]) -> pa.StringArray:
    words = [word or "" for word in REASONS]
    numbers = dict(zip(dict.fromkeys(refusals.values()), range(len(words), 1 << 31), strict=False))
    codes = codes.astype(np.int32)
    codes[list(refusals)] = [numbers[text] for text in refusals.values()]
    return arrow.texts([*words, *numbers], codes, codes != REASONS.index(None))
