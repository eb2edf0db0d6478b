"""The request generator: lets the requests of a workload arrive at their times."""

import math
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace

import numpy as np
import simpy

from kvsim.workload.request import Request, RequestBlock


def wait_until(env: simpy.Environment, time: float) -> Generator[simpy.Event, None, None]:
    """Wait until the clock shows at least `time`, exactly.

    One timeout may end a rounding error early, since SimPy adds the delay to its clock; the
    second then is exact. No instant is ever seen before it has come.
    """
    while env.now < time:
        yield env.timeout(time - env.now)


def request_source(
    env: simpy.Environment,
    blocks: Iterable[RequestBlock],
    deliver: Callable[[RequestBlock, float], None],
) -> Generator[simpy.Event, None, None]:
    """Process: hand over each block when its first request arrives, and until when nobody else comes.

    That is the arrival of the next block's first request (seconds), or inf after the last block.
    """
    upcoming = iter(blocks)
    block = next(upcoming, None)
    while block is not None:
        yield from wait_until(env, float(block.arrival_times[0]))
        following = next(upcoming, None)
        deliver(block, math.inf if following is None else float(following.arrival_times[0]))
        block = following


class Places:
    """Requests that may be under way at a time; None for no limit."""

    def __init__(self, env: simpy.Environment, count: int | None) -> None:
        self.limited = count is not None
        self._env = env
        self._num_free = math.inf if count is None else count
        self._freed: simpy.Event | None = None

    def take(self) -> Generator[simpy.Event, None, None]:
        """Wait for a place and take it; one waits at a time."""
        while self._num_free == 0:
            self._freed = self._env.event()
            yield self._freed
        self._num_free -= 1

    def give_back(self, count: int) -> None:
        self._num_free += count
        if count and self._freed is not None:
            self._freed.succeed()
            self._freed = None


def limited_source(
    env: simpy.Environment,
    requests: Iterable[RequestBlock],
    places: Places,
    refusal: Callable[[Request], str | None],
    deliver: Callable[[RequestBlock, float], None],
) -> Generator[simpy.Event, None, None]:
    """Process: hand over requests (blocks of one) at their times, or later, when there is a place for them.

    Those that the server will refuse take none.
    """
    for block in requests:
        yield from wait_until(env, float(block.arrival_times[0]))
        if refusal(block[0]) is None:
            yield from places.take()
            block = replace(block, arrival_times=np.array([env.now]))
        deliver(block, math.inf)
