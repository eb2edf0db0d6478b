"""One measurement: every point of the plan in turn, until it or the time is at its end."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from time import monotonic

from kvsim.calibrate.measure import operations
from kvsim.calibrate.measure.device import Device, OutOfMemoryError, open_device
from kvsim.calibrate.measure.grids import CARD, TINY
from kvsim.calibrate.measure.operations import collectives
from kvsim.calibrate.measure.operations.operation import Operation
from kvsim.calibrate.measure.points import Point, left_out, plan
from kvsim.calibrate.measure.request import COLD, HOT, Request
from kvsim.calibrate.measure.tables import Tables
from kvsim.calibrate.measure.timing import Timing
from kvsim.errors import KvsimError

_SECONDS_BETWEEN_TABLES = 30.0
_RESERVE_SECONDS = 1.0  # of the budget, for writing the tables
_REDUCE_SHARE = 0.25  # of the time left, for the all-reduce of one number of GPUs
_MOST_FAILURES = 3  # of one kind of point, then its kernel is left alone
_ALWAYS_HOT = ("copies", "collectives")  # nothing of them stays in the L2 cache


@dataclass
class Progress:
    """points: of the plan; done: of them, those found in the folder included."""

    points: int
    found: int = 0
    measured: int = 0
    out_of_memory: int = 0
    failed: int = 0
    now: str = ""
    started: float = field(default_factory=monotonic)
    deadline: float | None = None

    @property
    def done(self) -> int:
        return self.found + self.measured + self.out_of_memory + self.failed

    @property
    def share(self) -> float:
        """Of the work or, if that is farther, of the time."""
        work = self.done / max(self.points, 1)
        if self.deadline is None:
            return work
        spent = (monotonic() - self.started) / max(self.deadline - self.started, 1e-9)
        return min(max(work, spent), 1.0)

    @property
    def seconds_left(self) -> float | None:
        """None before anything tells."""
        took = monotonic() - self.started
        worked = self.done - self.found
        left = [took / worked * (self.points - self.done)] if worked else []
        if self.deadline is not None:
            left.append(max(self.deadline - monotonic(), 0.0))
        return min(left, default=None)


@dataclass(frozen=True)
class Outcome:
    """What came of it. failures: kernel and operation -> what it said. files: tables and their rows."""

    card: str
    progress: Progress
    failures: dict[str, str]
    files: list[tuple[Path, int]]
    stopped: bool

    @property
    def is_whole(self) -> bool:
        return self.progress.done == self.progress.points


def measure(
    request: Request,
    folder: Path,
    *,
    started: float | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    say: Callable[[str], None] = lambda text: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Measure what the folder lacks of the request.

    started: `monotonic` time from which the budget counts. Raises KvsimError if the device or torch is
    missing, the folder is another card's, or nothing of the request can be run here.
    """
    started = monotonic() if started is None else started
    device = open_device(request.device)
    found = [*operations.available(device), *_reduces(device)]
    found = [each for each in found if _is_wanted(each, request)]
    gpus = collectives.devices(device)
    points = plan(request, CARD if device.is_cuda else TINY, [each.kernel for each in found], gpus)
    if not points:
        raise KvsimError(_nothing(request, found))
    for line in left_out(request, [each.kernel for each in found]):
        say(line)
    with Tables(folder, device.card) as tables:
        return _Session(request, device, found, tables, started, on_progress, say, stopped).run(points)


def _reduces(device: Device) -> list[Operation]:
    return [collectives.AllReduce(device)] if collectives.devices(device) > 1 else []


def _is_wanted(operation: Operation, request: Request) -> bool:
    name = operation.kernel.name.lower()
    return not request.kernels or any(word.lower() in name for word in request.kernels)


def _nothing(request: Request, found: Iterable[Operation]) -> str:
    if request.kernels and not list(found):
        return f"--kernel {request.kernels[0]}: no kernel of that name is installed"
    what = f"{', '.join(request.operations)} in {', '.join(request.dtypes)}"
    return f"calibrate measure: nothing to measure: no installed kernel does {what} for these shapes and GPUs"


class _Session:
    def __init__(
        self,
        request: Request,
        device: Device,
        found: list[Operation],
        tables: Tables,
        started: float,
        on_progress: Callable[[Progress], None],
        say: Callable[[str], None],
        stopped: Callable[[], bool],
    ) -> None:
        self._request = request
        self._device = device
        self._by_kernel = {each.kernel: each for each in found}
        self._tables = tables
        self._on_progress = on_progress
        self._say = say
        self._stopped = stopped
        self._failures: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._written = monotonic()
        deadline = None if request.budget is None else started + request.budget - _RESERVE_SECONDS
        self._progress = Progress(0, started=started, deadline=deadline)

    def run(self, points: list[Point]) -> Outcome:
        self._progress.points = len(points)
        missing = [point for point in points if self._missing(point)]
        self._progress.found = len(points) - len(missing)
        if missing:
            self._device.timer.warm_up()
        for gpus, group in groupby(missing, _gpus):
            batch = list(group)
            if not (self._several(batch) if gpus else self._each(batch)):
                break
        return Outcome(
            self._device.card.name, self._progress, self._failures, self._tables.files(), self._stopped()
        )

    def _missing(self, point: Point) -> list[str]:
        """L2 states that are wanted and not in the folder."""
        wanted = (HOT,) if point.table in _ALWAYS_HOT else self._request.l2
        return [l2 for l2 in wanted if not self._tables.has(point, l2)]

    def _each(self, points: Iterable[Point]) -> bool:
        """False once it must end."""
        for point in points:
            if self._must_end():
                return False
            self._show(point)
            self._point(point)
            if monotonic() - self._written > _SECONDS_BETWEEN_TABLES:
                self._tables.write()
                self._written = monotonic()
        return True

    def _must_end(self) -> bool:
        deadline = self._progress.deadline
        return self._stopped() or (deadline is not None and monotonic() >= deadline)

    def _show(self, point: Point) -> None:
        self._progress.now = f"{point.operation}, {point.kernel.name}"
        self._on_progress(self._progress)

    def _point(self, point: Point) -> None:
        kind = f"{point.kernel.name}, {point.operation}, {point.dtype}"
        if self._counts[kind] >= _MOST_FAILURES:
            self._progress.failed += 1
            return
        try:
            self._time(point)
        except (OutOfMemoryError, MemoryError):
            self._progress.out_of_memory += 1
            self._device.release()
        except Exception as error:
            if isinstance(error, self._device.torch.cuda.OutOfMemoryError):
                self._progress.out_of_memory += 1
                self._device.release()
            else:
                self._fail(kind, error)
        else:
            self._progress.measured += 1

    def _time(self, point: Point) -> None:
        operation = self._by_kernel[point.kernel]
        states = self._missing(point)
        timings: list[tuple[str, Timing]] = []
        calls = operation.prepare(self._device, point)
        for l2 in states:
            timings.append((l2, operation.time(self._device, point, calls, cold=l2 == COLD)))
        for l2, timing in timings:
            self._tables.add(point, l2, timing)

    def _fail(self, kind: str, error: Exception) -> None:
        """Told once for a kind of point; goes on unless the device is lost."""
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        self._counts[kind] += 1
        self._progress.failed += 1
        if kind not in self._failures:
            self._failures[kind] = reason
            self._say(f"{kind}: failed: {reason}")
        if not self._device.is_alive():
            raise KvsimError(
                f"{kind}: after {reason!r} the device answers no more in this process; what was measured is "
                f"in {self._tables.folder}; go on without it by --kernel or --operation"
            )

    def _several(self, points: list[Point]) -> bool:
        """All-reduce of one number of GPUs, in processes of its own."""
        if self._must_end():
            return False
        self._show(points[0])
        deadline = self._progress.deadline
        end = (
            monotonic() + 3600.0
            if deadline is None
            else monotonic() + _REDUCE_SHARE * (deadline - monotonic())
        )
        try:
            for point, timing in collectives.all_reduce(self._device, points, end, self._stopped):
                self._tables.add(point, HOT, timing)
                self._progress.measured += 1
        except (RuntimeError, OSError) as error:
            self._fail(f"{points[0].kernel.name}, {points[0]['num_gpus']} GPUs", error)
        return True


def _gpus(point: Point) -> int:
    """0 for what one GPU does."""
    return point["num_gpus"] if point.operation == "all_reduce" else 0
