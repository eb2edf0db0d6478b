"""The request generator: lets the requests of a workload arrive at their times."""

import math
from collections.abc import Callable, Generator, Iterable

import simpy

from kvsim.workload.request import RequestBlock


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
