"""A serving instance: an engine given its time, and its records taken."""

from collections.abc import Iterator

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
from kvsim.engine.core import NO_ARRIVALS, PAUSED, Arrivals, EngineCore
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
    """One `EngineCore` that serves requests on the simulated clock.

    It runs ahead of the clock as far as nothing can reach it, in compiled stretches. Requests have
    numbers, `uid` = 1 + their row in the log.
    """

    def __init__(
        self, core: EngineCore, log: RequestLog, number: int, horizon: float, recorder: Recorder
    ) -> None:
        self.core = core
        self.number = number
        self.now = 0.0  # when its next iteration begins, seconds
        self.unsent = NO_ARRIVALS.rows  # by a client with limited concurrency, when its last stretch ended
        self._under_way = NO_ARRIVALS  # sent by such a client, but still with the API server
        self._log = log
        self._horizon = horizon
        self._recorder = recorder

    @property
    def busy_until(self) -> float:
        """End of the latest step, seconds."""
        return float(self.core.state.scalars["busy_until"][0])

    def submit(self, arrivals: Arrivals, until: float) -> Iterator[None]:
        """Serve, letting in the arrivals, up to `until`: nothing else reaches it earlier.

        Yields now and then, about every tenth of a second.
        """
        first, why = 0, PAUSED
        self.core.client["num_sent"] = len(self._under_way.rows)
        arrivals = self._under_way.followed_by(arrivals)
        while why == PAUSED:
            self.now, first, why = self.core.advance(self.now, until, arrivals, first)
            self.collect()
            yield
        num_sent = int(self.core.client["num_sent"][0])
        self._under_way, self.unsent = arrivals.part(first, num_sent), arrivals.rows[num_sent:]

    def collect(self) -> int:
        """Take what the engine has to tell: who ended, steps, events. Returns how many ended."""
        self._recorder.record(self.number, self.core)
        ended = self.core.take_finished_rows()
        if not len(ended):
            return 0
        numbers, rows = ended["uid"] - 1, self._as_rows(ended)
        in_time = rows["finish_time"] <= self._horizon
        if in_time.all():
            self._log.end(numbers, rows)
            return len(ended)
        self._log.end(numbers[in_time], rows[in_time])
        self._log.update(numbers[~in_time], _as_of(rows[~in_time], self._horizon))
        return len(ended)

    def close(self) -> None:
        """Record how far those came who have not ended by the horizon.

        What a step in progress then brings is not there yet, but its tokens count as generated.
        """
        self.collect()
        late = self._under_way.rows
        if len(late):
            self._log.sent(late["uid"] - 1, late["arrival_time"])
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
