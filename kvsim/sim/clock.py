"""Waiting on SimPy's clock."""

import math
from collections.abc import Generator

import simpy


def delay_until(env: simpy.Environment, time: float) -> float:
    """The longest delay that does not end after `time`, seconds.

    The clock adds it to the present instant, and the sum of rounded numbers may lie beyond.
    """
    delay = time - env.now
    while env.now + delay > time:
        delay = math.nextafter(delay, 0.0)
    return delay


def wait_until(env: simpy.Environment, time: float) -> Generator[simpy.Event, None, None]:
    """Wait until the clock shows at least `time`, exactly.

    One timeout may end a rounding error early, since SimPy adds the delay to its clock; the
    second then is exact. No instant is ever seen before it has come.
    """
    while env.now < time:
        yield env.timeout(delay_until(env, time))
