"""A serving instance's records: who ended and how, taken from its engine as rows of the log."""

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.state import (
    FINISHED_ABORTED,
    FINISHED_ERROR,
    FINISHED_LENGTH_CAPPED,
    FINISHED_STOPPED,
    PREEMPTED,
    REASONS,
    RUNNING,
    WAITING,
)
from kvsim.engine.core import EngineCore
from kvsim.results import ABORTED, FINISHED, UNFINISHED, RequestLog
from kvsim.results import REASONS as ROW_REASONS
from kvsim.results.columns import ROW
from kvsim.sim.recorder import Recorder

# engine status, status of the row, reason
_ENDS = (
    (WAITING, UNFINISHED, "waiting"),
    (PREEMPTED, UNFINISHED, "preempted"),
    (RUNNING, UNFINISHED, "running"),
    (FINISHED_STOPPED, FINISHED, "stop"),
    (FINISHED_LENGTH_CAPPED, FINISHED, "length"),
    (FINISHED_ABORTED, ABORTED, "abort"),
    (FINISHED_ERROR, ABORTED, "error"),
)
_STATUS, _REASON = np.zeros((2, 1 + max(int(end[0]) for end in _ENDS)), np.uint8)
for _code, _status, _reason in _ENDS:
    _STATUS[_code], _REASON[_code] = _status, ROW_REASONS.index(_reason)
_SAME_FIELDS = (
    "arrival_time",
    "queued_time",
    "first_scheduled_time",
    "first_token_time",
    "finish_time",
    "num_prompt_tokens",
    "num_preemptions",
    "num_preempted_blocks",
    "num_lost_tokens",
    "num_recomputed_tokens",
)


class Instance:
    """One `EngineCore` of a run. Requests have numbers, `uid` = 1 + their row in the log."""

    def __init__(
        self, core: EngineCore, log: RequestLog, number: int, horizon: float, recorder: Recorder
    ) -> None:
        self.core = core
        self.number = number
        self._log = log
        self._horizon = horizon
        self._recorder = recorder

    @property
    def busy_until(self) -> float:
        """End of the latest step, seconds."""
        return float(self.core.state.scalars["busy_until"][0])

    def collect(self) -> None:
        """Take what the engine has to tell: who ended, steps, events."""
        self._recorder.record(self.number, self.core)
        ended = self.core.take_finished_rows()
        if not len(ended):
            return
        numbers, rows = ended["uid"] - 1, self._as_rows(ended)
        in_time = rows["finish_time"] <= self._horizon
        if in_time.all():
            self._log.end(numbers, rows)
            return
        self._log.end(numbers[in_time], rows[in_time])
        self._log.update(numbers[~in_time], _as_of(rows[~in_time], self._horizon))

    def close(self) -> None:
        """Record how far those came who have not ended by the horizon.

        What a step in progress then brings is not there yet, but its tokens count as generated.
        """
        self.collect()
        self._recorder.record(self.number, self.core, at_end=True)
        live = self.core.live_rows()
        self._log.update(live["uid"] - 1, _as_of(self._as_rows(live), self._horizon))

    def _as_rows(self, source: NDArray[np.void]) -> NDArray[np.void]:
        """Engine records as rows of the log."""
        rows = np.zeros(len(source), ROW)
        for name in _SAME_FIELDS:
            rows[name] = source[name]
        rows["num_output_tokens"] = source["num_tokens"] - source["num_prompt_tokens"]
        rows["num_cached_tokens"] = np.maximum(source["num_cached_tokens"], 0)  # -1 before admission
        for k, reason in enumerate(REASONS):
            rows[f"waiting_steps_{reason}"] = source["waiting_steps"][:, k]
        rows["instance"] = self.number
        rows["status"], rows["reason"] = _STATUS[source["status"]], _REASON[source["status"]]
        return rows


def _as_of(rows: NDArray[np.void], horizon: float) -> NDArray[np.void]:
    """Rows as they stand at the horizon: later instants are not reached, a later end is none."""
    late = rows["finish_time"] > horizon
    rows["status"][late], rows["reason"][late] = _STATUS[RUNNING], _REASON[RUNNING]
    for name in ("first_token_time", "finish_time"):
        rows[name][rows[name] > horizon] = np.nan
    return rows
