"""Where points are computed: in this process, in worker processes of this machine, or in a Ray cluster.

All give futures, so whoever hands out the points need not know which it is.
"""

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Protocol

from kvsim import compiled
from kvsim.errors import KvsimError
from kvsim.scenario import Scenario
from kvsim.sweep.work import TERMINAL_SIGNALS, end_with, rehearse, seconds_of

# So many points are handed out for each worker: one is computed while the next waits at hand.
POINTS_AHEAD = 2

Task = Callable[..., Any]  # what a worker does; it and its arguments can be pickled


class Pool(Protocol):
    """slots: points that should be under way at a time."""

    slots: int

    def warm_up(self, scenario: Scenario) -> None:
        """Compile where that has not been done, once for all workers of a machine."""
        ...

    def submit(self, task: Task, *arguments: Any) -> "Future[Any]": ...

    def close(self) -> None:
        """End the workers at once, whatever they are doing."""
        ...


# What outlives this process unless it is ended first.
to_end: list[Pool] = []
_SECONDS_TO_END = 5


def abandon_all() -> None:
    """For a process about to end at once: in a thread, since whoever was interrupted may hold locks."""
    for pool in to_end:
        thread = threading.Thread(target=pool.close, daemon=True)
        thread.start()
        thread.join(_SECONDS_TO_END)


class PoolError(KvsimError):
    """Workers cannot be reached or were lost; the message says which and what to do."""


class InProcess:
    """One point at a time, here."""

    slots = 1

    def warm_up(self, scenario: Scenario) -> None:
        """The first point compiles."""

    def submit(self, task: Task, *arguments: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(task(*arguments))
        return future

    def close(self) -> None:
        """Nothing to end."""


class Processes:
    """Worker processes (loky). They end with this process, however that ends."""

    def __init__(self, workers: int) -> None:
        from multiprocessing import resource_tracker

        from loky import ProcessPoolExecutor

        # loky ends a worker that has grown large between two points; nothing is wrong with that
        warnings.filterwarnings("ignore", "A worker (was restarted|stopped) while some jobs", UserWarning)
        self.slots = workers * POINTS_AHEAD
        with _quiet_trackers():
            resource_tracker.ensure_running()  # when it starts it lets signals through, so not within
            self._executor = ProcessPoolExecutor(workers, initializer=end_with, initargs=(os.getpid(),))
            with _signals_held():
                self._executor.submit(os.getpid)  # the first task starts all workers

    def warm_up(self, scenario: Scenario) -> None:
        if not compiled.is_warm():
            rehearse(scenario)

    def submit(self, task: Task, *arguments: Any) -> "Future[Any]":
        return self._executor.submit(task, *arguments)

    def close(self) -> None:
        self._executor.shutdown(wait=True, kill_workers=True)


@contextmanager
def _quiet_trackers() -> Iterator[None]:
    """What loky starts within clears away what a killed sweep left behind without a word."""
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, [before, "ignore:resource_tracker"]))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = before


@contextmanager
def _signals_held() -> Iterator[None]:
    """What starts within never sees Ctrl-C, which a terminal sends to everyone; here it waits."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, TERMINAL_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def num_cores() -> int:
    """Cores that this process may use, by affinity and by its container's limit."""
    from loky import cpu_count

    return int(cpu_count())


_SECONDS_TO_START = 4.0  # until workers have loaded what they need and have paid for it


def worthwhile(points: int, scenario: Scenario, workers: int) -> int:
    """So many workers, or one where others would take longer to start than they save.

    points: still to be computed, each taken to be about as long as `scenario`.
    """
    if workers == 1 or points < 2:
        return 1
    rehearse(scenario)  # loads or compiles what is timed
    saved = seconds_of(scenario) * points * (1 - 1 / min(workers, points))
    return workers if saved > _SECONDS_TO_START else 1


def local_pool(workers: int) -> Pool:
    return InProcess() if workers == 1 else Processes(workers)


# Of loky and of Ray, neither of which need be there.
_LOST = {
    "TerminatedWorkerError",
    "BrokenProcessPool",
    "WorkerCrashedError",
    "NodeDiedError",
    "OutOfMemoryError",
    "LocalRayletDiedError",
}


def lost_worker(error: BaseException) -> PoolError | None:
    """What to say where an error means that a worker process vanished."""
    if type(error).__name__ in _LOST:
        return PoolError(
            "a worker process died, perhaps for lack of memory; finished points are kept, "
            "run the sweep again with fewer --workers"
        )
    return None
