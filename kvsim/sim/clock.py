"""Waiting on SimPy's clock."""

from collections.abc import Generator

import simpy


def wait_until(env: simpy.Environment, time: float) -> Generator[simpy.Event, None, None]:
    """Wait until the clock shows at least `time`, exactly.

    One timeout may end a rounding error early, since SimPy adds the delay to its clock; the
    second then is exact. No instant is ever seen before it has come.
    """
    while env.now < time:
        yield env.timeout(time - env.now)
