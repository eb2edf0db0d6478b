"""Rows as an engine hands them out, made by hand."""

import numpy as np

from kvsim.cache.state import LOG_DTYPE
from kvsim.engine.state import STEP_DTYPE


def steps(count: int, first: int = 0) -> np.ndarray:
    rows = np.zeros(count, STEP_DTYPE)
    rows["step"] = np.arange(first, first + count)
    rows["start_time"] = rows["step"] * 0.5
    rows["end_time"] = rows["start_time"] + 0.25
    rows["num_blocks_used"] = rows["step"] % 10
    rows["waiting_queue_head"] = 3
    return rows


def events(*entries: dict) -> np.ndarray:
    rows = np.zeros(len(entries), LOG_DTYPE)
    for row, entry in zip(rows, entries, strict=True):
        for field, value in entry.items():
            row[field] = value
    return rows
