"""The per-request record: which columns it has, their units, and how rows become a table.

Times are simulated seconds since the start of the run; an empty cell means that the
request never got that far.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

STATUSES = ("unfinished", "finished", "refused", "aborted")
UNFINISHED, FINISHED, REFUSED, ABORTED = range(4)
# How a request ended, in vLLM's words (v1/engine/__init__.py, 0.33); where it stood at the horizon.
REASONS = (None, "stop", "length", "abort", "error", "waiting", "preempted", "running")

# What is kept of a request while the run goes on; NaN marks an instant not reached.
ROW = np.dtype(
    [
        ("arrival_time", "f8"),
        ("first_scheduled_time", "f8"),
        ("first_token_time", "f8"),
        ("finish_time", "f8"),
        ("num_prompt_tokens", "i8"),
        ("num_output_tokens", "i8"),
        ("num_cached_tokens", "i8"),
        ("num_preemptions", "i4"),
        ("num_recomputed_tokens", "i8"),
        ("instance", "i4"),
        ("status", "u1"),
        ("reason", "u1"),
    ]
)


@dataclass(frozen=True)
class Column:
    """One column of ``requests.parquet``."""

    name: str
    type: pa.DataType
    unit: str
    meaning: str


_SECONDS, _COUNT, _TEXT = pa.float64(), pa.int64(), pa.string()

COLUMNS = (
    Column("request_id", _TEXT, "", "name of the request"),
    Column("arrival_time", _SECONDS, "s", "when it reached the server"),
    Column("status", _TEXT, "", "finished, refused (can never fit), aborted, or unfinished at the horizon"),
    Column(
        "reason",
        _TEXT,
        "",
        "refusal in words; length or stop; if unfinished: running, waiting or preempted",
    ),
    Column("instance", pa.int32(), "", "number of the serving instance, -1 if none took it"),
    Column("first_scheduled_time", _SECONDS, "s", "start of the first step that computed it"),
    Column("first_token_time", _SECONDS, "s", "when its first output token was out"),
    Column("finish_time", _SECONDS, "s", "when its last output token was out"),
    Column("num_prompt_tokens", _COUNT, "tokens", "length of the prompt, image placeholders included"),
    Column("num_output_tokens", _COUNT, "tokens", "output tokens generated"),
    Column("num_cached_tokens", _COUNT, "tokens", "prompt tokens hit in the prefix cache at first admission"),
    Column("num_preemptions", pa.int32(), "", "how often it lost its blocks and started over"),
    Column("num_recomputed_tokens", _COUNT, "tokens", "computed tokens that preemptions threw away"),
    Column("queue_time", _SECONDS, "s", "first_scheduled_time - arrival_time"),
    Column("ttft", _SECONDS, "s", "time to first token: first_token_time - arrival_time"),
    Column("tpot", _SECONDS, "s", "time per output token after the first; empty for a single token"),
    Column("e2e", _SECONDS, "s", "finish_time - arrival_time"),
)
SCHEMA = pa.schema([pa.field(column.name, column.type) for column in COLUMNS])


def new_rows(count: int) -> NDArray[np.void]:
    """`count` rows in which nothing has happened yet."""
    rows = np.zeros(count, ROW)
    for name in ("first_scheduled_time", "first_token_time", "finish_time"):
        rows[name] = np.nan
    rows["instance"] = -1
    return rows


def derived(rows: NDArray[np.void]) -> dict[str, NDArray[np.float64]]:
    """Latencies from the instants of each row, in seconds; NaN where not reached."""
    arrival, first, finish = rows["arrival_time"], rows["first_token_time"], rows["finish_time"]
    later_tokens = np.where(rows["num_output_tokens"] > 1, rows["num_output_tokens"] - 1.0, np.nan)
    return {
        "queue_time": rows["first_scheduled_time"] - arrival,
        "ttft": first - arrival,
        "tpot": (finish - first) / later_tokens,
        "e2e": finish - arrival,
    }


def to_table(rows: NDArray[np.void], request_ids: list[str], refusals: dict[int, str]) -> pa.Table:
    """Rows as an Arrow table with the columns of `COLUMNS`; NaN becomes an empty cell.

    `refusals` holds the reason of each refused row by its index.
    """
    values: dict[str, Any] = {name: rows[name] for name in ROW.names or ()}
    values |= derived(rows)
    reasons = [REASONS[code] for code in rows["reason"]]
    for index, text in refusals.items():
        reasons[index] = text
    values |= {"request_id": request_ids, "reason": reasons}
    values["status"] = [STATUSES[code] for code in rows["status"]]
    arrays = [
        pa.array(values[column.name], column.type, from_pandas=column.type == _SECONDS) for column in COLUMNS
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)
