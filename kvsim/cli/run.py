"""``kvsim run``: load, simulate, write, show."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvsim import compiled
from kvsim.cli.interrupts import interrupts
from kvsim.cli.output import COMPILING, OutputError
from kvsim.cli.placing import placed
from kvsim.report import print_summary
from kvsim.results import RunResult
from kvsim.scenario import load_scenario
from kvsim.sim import OnProgress, run_to_folder

SECONDS_PER_UPDATE = 0.1


def run_command(
    file: Path, trace: Path | None, overrides: Sequence[str], results_dir: Path, quiet: bool
) -> None:
    """Raises `KvsimError` for bad input; then nothing has been written."""
    scenario = load_scenario(file, overrides, trace)
    progress = _progress_bar(Console(stderr=True, quiet=quiet), cold=not compiled.is_warm())
    with placed(scenario, file, overrides), progress as on_progress:
        result, folder = run_to_folder(scenario, results_dir, on_progress)
    interrupts.outcome = f"the results are in {folder}"
    try:
        _show(result, folder, quiet)
    except OutputError as error:
        raise OutputError(f"{error}; {interrupts.outcome}" if str(error) else "") from None


def _show(result: RunResult, folder: Path, quiet: bool) -> None:
    out = Console(highlight=False)
    if quiet:
        out.print(folder, soft_wrap=True, markup=False)
        return
    print_summary(result.metrics, out)
    out.print(f"\nResults written to {folder}", soft_wrap=True, markup=False)


@contextmanager
def _progress_bar(console: Console, cold: bool) -> Iterator[OnProgress]:
    """Ended requests of all; only on a terminal, and gone when the run ends.

    `cold`: say that compiling begins, when the first request enters an engine: from there on
    nothing can be wrong with the input but a later trace line.
    """
    columns = (
        TextColumn("simulating"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("requests, {task.fields[now]:,.1f} s simulated,"),
        TimeElapsedColumn(),
    )
    shown = console.is_terminal and not console.quiet
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        task = progress.add_task("", total=None, now=0.0)
        next_update = 0.0

        def on_progress(done: int, total: int | None, now: float) -> None:
            nonlocal next_update
            if next_update == 0.0 and cold:
                console.print(COMPILING, soft_wrap=True)
            if time.monotonic() >= next_update:
                next_update = time.monotonic() + SECONDS_PER_UPDATE
                progress.update(task, completed=done, total=total, now=now)

        yield on_progress
