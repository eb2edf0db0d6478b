"""The request generator: lets each request of a workload arrive at its time."""

from collections.abc import Callable, Generator, Iterable

import simpy

from kvsim.workload.request import Request


def wait_until(env: simpy.Environment, time: float) -> Generator[simpy.Event, None, None]:
    """Wait until the clock shows at least `time`, exactly.

    One timeout may end a rounding error early, since SimPy adds the delay to its clock; the
    second then is exact. No instant is ever seen before it has come.
    """
    while env.now < time:
        yield env.timeout(time - env.now)


def request_source(
    env: simpy.Environment, requests: Iterable[Request], submit: Callable[[Request], None]
) -> Generator[simpy.Event, None, None]:
    """Process: hand over each request when it arrives; those of one instant in their order."""
    for request in requests:
        if env.now < request.arrival_time:
            yield from wait_until(env, request.arrival_time)
        submit(request)
