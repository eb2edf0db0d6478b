"""An instance that gives its engine one event of the clock per step: the slow way, to check the other."""

import math
from collections.abc import Generator, Iterator
from typing import Any

import simpy

from kvsim.engine.core import WAITING_FOR_REQUESTS, Arrivals
from kvsim.sim.instance import Instance
from kvsim.sim.source import Places, wait_until


class SteppingInstance(Instance):
    """Idle it waits for a request; busy it begins the next step when the engine says that it may."""

    def __init__(self, env: simpy.Environment, places: Places, *args: Any) -> None:
        super().__init__(*args)
        self._env, self._places = env, places
        self._inbox: list[Arrivals] = []
        self._wake_up: simpy.Event | None = None
        env.process(self._serve())

    def submit(self, arrivals: Arrivals, until: float) -> Iterator[None]:
        """Requests that have just arrived; when the next ones will is not looked at."""
        if len(arrivals.rows):
            queued = float(arrivals.rows["queued_time"][0])
            if queued > self._env.now:
                self._env.process(self._queue_later(arrivals, queued))
            else:
                self._queue(arrivals)
            yield

    def _queue_later(self, arrivals: Arrivals, queued: float) -> Generator[simpy.Event, None, None]:
        yield from wait_until(self._env, queued)
        self._queue(arrivals)

    def _queue(self, arrivals: Arrivals) -> None:
        self._inbox.append(arrivals)
        if self._wake_up is not None:
            self._wake_up.succeed()
            self._wake_up = None

    def close(self) -> None:
        """Those who arrived during the step under way at the horizon wait, too."""
        self._let_in(self.now)
        super().close()

    def _let_in(self, now: float) -> None:
        for arrivals in self._inbox:
            self.core.advance(now, math.inf, arrivals, most_steps=0)
        self._inbox.clear()

    def _serve(self) -> Generator[simpy.Event, None, None]:
        env, core = self._env, self.core
        while True:
            yield env.timeout(0)  # those who arrive at this instant go first
            self._let_in(env.now)
            self.now, _, why = core.advance(env.now, math.inf, most_steps=1)
            num_ended = self.collect()
            if why == WAITING_FOR_REQUESTS:
                self._wake_up = env.event()
                yield self._wake_up
            else:
                yield from wait_until(env, self.now)
                self._places.give_back(num_ended)
