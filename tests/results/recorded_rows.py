"""Rows as an engine hands them out, made by hand."""

import numpy as np

from kvsim.cache.state import LOG_DTYPE as ENGINE_LOG_DTYPE
from kvsim.results import WAITING_REASONS

STEP_DTYPE = np.dtype(
    [
        ("step", "i8"),
        ("start_time", "f8"),
        ("end_time", "f8"),
        *(
            (name, "i8")
            for name in (
                "num_reqs",
                "num_new_reqs",
                "num_resumed_reqs",
                "num_tokens",
                "num_prefill_tokens",
                "num_encoder_tokens",
                "num_spec_tokens",
                "num_preempted",
                "num_running",
                "num_waiting",
                "num_blocks_used",
                *(f"waiting_{reason}" for reason in WAITING_REASONS),
                "prefix_cache_queries",
                "prefix_cache_hits",
                "blocks_cached",
                "blocks_evicted",
            )
        ),
    ]
)
_IN_ENGINE = [(name, ENGINE_LOG_DTYPE[name]) for name in ENGINE_LOG_DTYPE.names or ()]
LOG_DTYPE = np.dtype(
    [*_IN_ENGINE, *(field for field in (("step", "i8"), ("time", "f8")) if field not in _IN_ENGINE)]
)


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
