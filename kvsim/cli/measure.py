"""``kvsim calibrate measure``: time kernels on the device at hand, and show what came of it."""

import math
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING

from kvsim.cli import collector
from kvsim.cli.interrupts import SIGNALS
from kvsim.errors import KvsimError

if TYPE_CHECKING:
    from kvsim.calibrate.measure.request import Request, Shapes
    from kvsim.calibrate.measure.session import Outcome, Progress

_SECONDS_PER_LINE = 30.0  # where there is no terminal for a bar
_MOST_TENSOR_PARALLEL = 64
_FULL, _INTERRUPTED = 0, 128

Say = Callable[[str], None]


def measure_command(
    heads: Sequence[str],
    models: Sequence[str],
    tensor_parallel: Sequence[int],
    dtypes: Sequence[str],
    operations: Sequence[str],
    kernels: Sequence[str],
    l2: str,
    budget: str | None,
    device: str,
    out: Path,
    quiet: bool,
) -> int:
    """The exit code: 0, or 128 + signal if interrupted. Raises KvsimError for bad input."""
    started = monotonic()  # what the program itself took to get here counts for nothing
    request = _request(heads, models, tensor_parallel, dtypes, operations, kernels, l2, budget, device)
    if out.exists() and not out.is_dir():
        raise KvsimError(f"-o {out}: is a file; name a folder")
    collector.resume()
    from kvsim.calibrate.measure.session import measure

    with _stoppable() as signals, _progress(quiet) as (say, on_progress):
        outcome = measure(
            request,
            out,
            started=started,
            on_progress=on_progress,
            say=say,
            stopped=lambda: bool(signals),
        )
    if not outcome.files:
        raise KvsimError(_none(outcome))
    if signals:
        print(f"kvsim: interrupted; {_kept(outcome)}", file=sys.stderr)
        return _INTERRUPTED + signals[0]
    if quiet:
        print(out)
    else:
        _show(outcome, out)
    return _FULL


def _request(
    heads: Sequence[str],
    models: Sequence[str],
    tensor_parallel: Sequence[int],
    dtypes: Sequence[str],
    operations: Sequence[str],
    kernels: Sequence[str],
    l2: str,
    budget: str | None,
    device: str,
) -> "Request":
    from kvsim.calibrate.measure import request as known

    wanted = tuple(known.one_of("--operation", each, known.OPERATIONS) for each in operations)
    wanted = wanted or known.OPERATIONS
    return known.Request(
        shapes=_shapes(heads, models, tensor_parallel, wanted),
        operations=tuple(dict.fromkeys(wanted)),
        dtypes=tuple(dict.fromkeys(known.one_of("--dtype", each, known.DTYPES) for each in dtypes)),
        l2=known.L2_STATES[known.one_of("--l2", l2, tuple(known.L2_STATES))],
        kernels=tuple(kernels),
        budget=None if budget is None else known.parse_budget(budget),
        device=device,
    )


def _shapes(
    heads: Sequence[str], models: Sequence[str], tensor_parallel: Sequence[int], operations: tuple[str, ...]
) -> "Shapes":
    from kvsim.calibrate.measure import shapes
    from kvsim.calibrate.measure.request import Shapes, parse_heads

    if not heads and not models and set(operations) - {"copy", "all_reduce", "gemm"}:
        raise KvsimError("calibrate measure: name what to measure, --heads 32/8/128 or --model NAME")
    for size in tensor_parallel:
        if not 1 <= size <= _MOST_TENSOR_PARALLEL:
            raise KvsimError(f"--tp {size}: must be from 1 to {_MOST_TENSOR_PARALLEL}")
    if tensor_parallel and not models:
        raise KvsimError("--tp: splits a --model; --heads are those on one GPU")
    made = Shapes()
    for text in heads:
        made += shapes.of_heads(parse_heads(text))
    for name in models:
        for size in tensor_parallel or (1,):
            made += shapes.of_model(name, size, operations)
    return made


@contextmanager
def _stoppable() -> Iterator[list[int]]:
    """Within, a signal asks for an end after the point under way; a second one ends at once."""
    seen: list[int] = []
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    for number, handler in before.items():
        if handler not in (signal.SIG_IGN, None):
            signal.signal(number, note)
    try:
        yield seen
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)


@contextmanager
def _progress(quiet: bool) -> Iterator[tuple[Say, Callable[["Progress"], None]]]:
    if quiet:
        yield lambda text: None, lambda progress: None
    elif sys.stderr.isatty():
        with _bar() as both:
            yield both
    else:
        say = partial(print, file=sys.stderr, flush=True)
        yield say, _lines(say)


@contextmanager
def _bar() -> Iterator[tuple[Say, Callable[["Progress"], None]]]:
    from rich import progress as shown
    from rich.console import Console

    console = Console(stderr=True)
    columns = (
        shown.TextColumn("measuring"),
        shown.BarColumn(),
        shown.TextColumn("{task.description}"),
    )
    with shown.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("opening the device", total=1.0)

        def update(progress: "Progress") -> None:
            bar.update(task, completed=progress.share, description=told(progress))

        yield partial(console.print, soft_wrap=True, markup=False), update


def _lines(say: Say) -> Callable[["Progress"], None]:
    latest = monotonic()

    def update(progress: "Progress") -> None:
        nonlocal latest
        if monotonic() - latest >= _SECONDS_PER_LINE:
            latest = monotonic()
            say(told(progress))

    return update


def told(progress: "Progress") -> str:
    """How far it is: points, time left, and what is being timed."""
    left = progress.seconds_left
    time = "" if left is None else f", {clock(left)} left"
    return f"{progress.done:,}/{progress.points:,} points{time}: {progress.now}"


def clock(seconds: float) -> str:
    """``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _show(outcome: "Outcome", out: Path) -> None:
    from kvsim.report.tables import console, table

    progress = outcome.progress
    rows = [(str(path), f"{count:,}") for path, count in outcome.files]
    console().print(table(("Table", ">Rows"), rows))
    counts = [
        (progress.measured, "measured"),
        (progress.found, "were there"),
        (progress.out_of_memory, "do not fit into memory"),
        (progress.failed, "failed"),
        (progress.points - progress.done, "not reached: the same command goes on with them"),
    ]
    told_counts = "; ".join(f"{count:,} {what}" for count, what in counts if count)
    print(f"\n{outcome.card}: {progress.points:,} points: {told_counts}")
    for kind, reason in outcome.failures.items():
        print(f"failed: {kind}: {reason}")
    print(_next(outcome))


def _next(outcome: "Outcome") -> str:
    if outcome.card == "cpu":
        return "Times of a CPU only try the program out: a calibration is fitted to those of a GPU"
    folders = dict.fromkeys(path.parent for path, _ in outcome.files if path.stem != "copies")
    tables = " ".join(str(folder / "*.parquet") for folder in folders)
    return f"Next: kvsim calibrate fit {tables} -o mine.json" if folders else "Copies only: nothing to fit"


def _kept(outcome: "Outcome") -> str:
    progress = outcome.progress
    folder = outcome.files[0][0].parent
    done = f"{progress.done:,} of {progress.points:,} points are in {folder}"
    return f"{done}, and the same command goes on with the rest"


def _none(outcome: "Outcome") -> str:
    if outcome.failures:
        kind, reason = next(iter(outcome.failures.items()))
        more = f" (and {len(outcome.failures) - 1} more)" if len(outcome.failures) > 1 else ""
        return f"calibrate measure: nothing could be measured: {kind}: {reason}{more}"
    if outcome.progress.out_of_memory:
        return "calibrate measure: nothing could be measured: no point fits into the memory that is free"
    return "calibrate measure: nothing was measured in this time; allow more with --budget"
