"""A serving instance: the process that gives the engine its time, step after step."""

from collections.abc import Generator, Sequence

import numpy as np
import simpy
from numpy.typing import NDArray

from kvsim.cache.state import FINISHED_ABORTED, FINISHED_ERROR, FINISHED_LENGTH_CAPPED, FINISHED_STOPPED
from kvsim.engine.core import IDLE, EngineCore
from kvsim.results import ABORTED, FINISH_REASONS, FINISHED, UNFINISHED, RequestLog
from kvsim.results.columns import ROW
from kvsim.sim.source import wait_until
from kvsim.workload.request import Request

STEPS_PER_COLLECT = 256  # ended requests are fetched from the engine in batches

# engine status -> (status of the row, reason)
_ENDS = {
    FINISHED_STOPPED: (FINISHED, FINISH_REASONS.index("stop")),
    FINISHED_LENGTH_CAPPED: (FINISHED, FINISH_REASONS.index("length")),
    FINISHED_ABORTED: (ABORTED, FINISH_REASONS.index("abort")),
    FINISHED_ERROR: (ABORTED, FINISH_REASONS.index("error")),
}
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
        """Record what has ended, and how far the others came.

        What a step in progress at the horizon would bring has not happened yet, but its tokens count.
        """
        self._collect(np.inf if horizon is None else horizon)
        ids, rows = self.core.live_requests()
        self._log.update(self._take_numbers(ids), self._as_rows(rows, horizon))

    def _serve(self) -> Generator[simpy.Event, None, None]:
        env, core, steps = self._env, self.core, 0
        while True:
            until = core.step(env.now)
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

    def _collect(self, horizon: float = np.inf) -> None:
        ids, rows = self.core.take_finished()
        if not ids:
            return
        numbers, ended = self._take_numbers(ids), rows["finish_time"] <= horizon
        self._log.end(numbers[ended], self._as_rows(rows[ended]))
        self._log.update(numbers[~ended], self._as_rows(rows[~ended], horizon))

    def _take_numbers(self, request_ids: Sequence[str]) -> NDArray[np.int64]:
        return np.array([self._numbers.pop(request_id) for request_id in request_ids], np.int64)

    def _as_rows(self, source: NDArray[np.void], horizon: float | None = None) -> NDArray[np.void]:
        """Engine records as rows of the log; with a horizon, as they stand then."""
        rows = np.zeros(len(source), ROW)
        for name in _SAME_FIELDS:
            rows[name] = source[name]
        rows["num_output_tokens"] = source["num_tokens"] - source["num_prompt_tokens"]
        rows["num_cached_tokens"] = np.maximum(source["num_cached_tokens"], 0)  # -1 before admission
        rows["instance"] = self.number
        ends = [_ENDS.get(int(status), (UNFINISHED, 0)) for status in source["status"]]
        rows["status"], rows["finish_reason"] = zip(*ends, strict=True) if ends else ((), ())
        if horizon is not None:
            rows["status"] = UNFINISHED
            rows["finish_reason"] = 0
            for name in ("first_token_time", "finish_time"):
                rows[name][~(rows[name] <= horizon)] = np.nan
        return rows
