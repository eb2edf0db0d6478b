"""A serving instance: the process that gives the engine its time, step after step."""

import math
from collections.abc import Generator, Sequence

import numpy as np
import simpy
from numpy.typing import NDArray

from kvsim.cache.state import (
    FINISHED_ABORTED,
    FINISHED_ERROR,
    FINISHED_LENGTH_CAPPED,
    FINISHED_STOPPED,
    PREEMPTED,
    RUNNING,
    WAITING,
)
from kvsim.engine.core import IDLE, EngineCore
from kvsim.results import ABORTED, FINISHED, REASONS, UNFINISHED, RequestLog
from kvsim.results.columns import ROW
from kvsim.sim.source import wait_until
from kvsim.workload.request import Request

STEPS_PER_COLLECT = 256  # ended requests are fetched from the engine in batches

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
    _STATUS[_code], _REASON[_code] = _status, REASONS.index(_reason)
_SAME_FIELDS = (
    "arrival_time",
    "first_scheduled_time",
    "first_token_time",
    "finish_time",
    "num_prompt_tokens",
    "num_preemptions",
    "num_recomputed_tokens",
)


class Instance:
    """One `EngineCore` on the simulated clock.

    Idle it waits for a request; busy it begins the next step when the engine says that it may.
    """

    def __init__(self, env: simpy.Environment, core: EngineCore, log: RequestLog, number: int) -> None:
        self.core = core
        self.number = number
        self.busy_until = 0.0  # end of the latest step, seconds
        self._env = env
        self._log = log
        self._numbers: dict[str, int] = {}  # live requests -> their rows in the log
        self._wake_up: simpy.Event | None = None
        env.process(self._serve())

    def submit(self, request: Request, number: int) -> None:
        """Queue a request; `number` is its row in the log."""
        self.core.add_request(request, request.arrival_time)
        self._numbers[request.request_id] = number
        if self._wake_up is not None:
            self._wake_up.succeed()
            self._wake_up = None

    def close(self, horizon: float | None = None) -> None:
        """Record what has ended by the horizon, and how far the others came.

        What a step in progress then brings is not there yet, but its tokens count as generated.
        """
        limit = math.inf if horizon is None else horizon
        self._collect(limit)
        ids, live = self.core.live_requests()
        self._log.update(self._take_numbers(ids), _as_of(self._as_rows(live), limit))

    def _serve(self) -> Generator[simpy.Event, None, None]:
        env, core, steps = self._env, self.core, 0
        while True:
            until = core.step(env.now) if core.has_requests() else IDLE
            if until == IDLE:
                self._collect()
                self._wake_up = env.event()
                yield self._wake_up
            elif until > env.now:
                self.busy_until = until
                yield from wait_until(env, until)
            steps += 1
            if steps % STEPS_PER_COLLECT == 0:
                self._collect()

    def _collect(self, horizon: float = math.inf) -> None:
        ids, ended = self.core.take_finished()
        if not ids:
            return
        numbers, rows = self._take_numbers(ids), self._as_rows(ended)
        in_time = rows["finish_time"] <= horizon
        self._log.end(numbers[in_time], rows[in_time])
        self._log.update(numbers[~in_time], _as_of(rows[~in_time], horizon))

    def _take_numbers(self, request_ids: Sequence[str]) -> NDArray[np.int64]:
        return np.array([self._numbers.pop(request_id) for request_id in request_ids], np.int64)

    def _as_rows(self, source: NDArray[np.void]) -> NDArray[np.void]:
        """Engine records as rows of the log."""
        rows = np.zeros(len(source), ROW)
        for name in _SAME_FIELDS:
            rows[name] = source[name]
        rows["num_output_tokens"] = source["num_tokens"] - source["num_prompt_tokens"]
        rows["num_cached_tokens"] = np.maximum(source["num_cached_tokens"], 0)  # -1 before admission
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
