"""What happened to blocks and requests, recorded on request: the engine's log of numbers as a table."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kvsim.results import arrow
from kvsim.results.columns import EVENT_COLUMNS, EVENT_SCHEMA, TEXT
from kvsim.results.recorded import ChunkedLog

# Kinds as `kvsim.cache.state.LOG_*` numbers them (a test compares) ...
EVICTED, REMOVED, STORED_RUN, STORED, STORED_PARTIAL, CLEARED, LOOKUP, PREEMPTED, FINISHED = range(1, 10)
# ... and what they are called in the table; a run is only the end of a row of stored blocks.
NAMES = {
    EVICTED: "evicted",
    REMOVED: "key_removed",
    STORED: "stored",
    STORED_PARTIAL: "stored_partial",
    CLEARED: "cleared",
    LOOKUP: "lookup",
    PREEMPTED: "preempted",
    FINISHED: "finished",
}
# By `kvsim.cache.state.FINISHED_*`.
REASONS = ("", "", "", "", "stop", "length", "abort", "error")

# column -> kind -> the field of the log that holds it; other kinds leave the cell empty
_FIELDS: dict[str, dict[int, str]] = {
    "group_id": dict.fromkeys((STORED, STORED_PARTIAL, EVICTED, REMOVED), "group_id"),
    "block_id": {STORED: "last", STORED_PARTIAL: "last", EVICTED: "first", REMOVED: "first"},
    "block_index": {STORED: "first"},
    "num_tokens": {STORED_PARTIAL: "first", LOOKUP: "first", PREEMPTED: "last"},
    "num_blocks": {PREEMPTED: "first"},
}
_HASHED = (STORED, STORED_PARTIAL, EVICTED, REMOVED)


class EventLog(ChunkedLog):
    """One row per event: `kvsim.cache.state.LOG_DTYPE` to `EVENT_COLUMNS`.

    The log tells of an eviction in several entries, the block and then each of its keys; its row has
    block and key together.
    """

    name, schema = "events", EVENT_SCHEMA

    def _num_whole(self, rows: NDArray[np.void]) -> int:
        """The keys of a block evicted last may be yet to come."""
        others = np.flatnonzero(rows["kind"] != REMOVED)
        last = int(others[-1]) if len(others) else 0
        return last if last and rows["kind"][last] == EVICTED else len(rows)

    def _table(self, instances: NDArray[np.int32], rows: NDArray[np.void]) -> pa.Table:
        kept, rows = _evictions_joined(rows)
        kind, finished = rows["kind"], rows["kind"] == FINISHED
        made = {
            "kind": arrow.texts([NAMES.get(code, "") for code in range(max(NAMES) + 1)], kind),
            "block_hash": arrow.hex_texts(_digests(rows), np.isin(kind, _HASHED)),
            "reason": arrow.texts(REASONS, np.where(finished, rows["last"], 0), finished),
        }
        everywhere = np.ones(len(rows), np.bool_)
        cells = {
            "instance": (instances[kept], everywhere),
            "step": (rows["step"], everywhere),
            "time": (rows["time"], everywhere),
            "request": (rows["request"] - 1, rows["request"] > 0),
            **{name: _picked(rows, fields) for name, fields in _FIELDS.items()},
        }
        for column in EVENT_COLUMNS:
            if column.type != TEXT:
                made[column.name] = arrow.numbers(cells[column.name][0], column.type, cells[column.name][1])
        return pa.Table.from_arrays([made[column.name] for column in EVENT_COLUMNS], schema=EVENT_SCHEMA)


def _evictions_joined(rows: NDArray[np.void]) -> tuple[NDArray[np.bool_], NDArray[np.void]]:
    """Which rows stay, and those rows: an evicted block has its key, further keys have their block."""
    rows, at = rows.copy(), np.arange(len(rows))
    kind = rows["kind"]
    removed = kind == REMOVED
    eviction = np.maximum.accumulate(np.where(kind == EVICTED, at, 0))  # that a key belongs to
    rows["first"][removed] = rows["first"][eviction[removed]]
    own = removed & (eviction == at - 1)  # a block's own key comes first
    for field in ("group_id", "hash_lo", "hash_hi"):
        rows[field][eviction[own]] = rows[field][own]
    kept = ~own & (kind != STORED_RUN)
    return kept, rows[kept]


def _picked(rows: NDArray[np.void], fields: dict[int, str]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """A column's numbers, and in which rows it has one."""
    values, valid = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.bool_)
    for kind, field in fields.items():
        chosen = rows["kind"] == kind
        values[chosen] = rows[field][chosen]
        valid |= chosen
    return values, valid


def _digests(rows: NDArray[np.void]) -> NDArray[np.uint8]:
    """The 16 bytes of each key, shape (n, 16)."""
    words = np.stack([rows["hash_lo"], rows["hash_hi"]], axis=1)
    return words.astype("<u8").view(np.uint8)
