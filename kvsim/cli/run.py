"""``kvsim run``: load, simulate, write, show."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvsim import compiled
from kvsim.report import print_summary
from kvsim.scenario import load_scenario
from kvsim.sim import OnProgress, run_to_folder

COMPILING = "compiling once for this machine (about a minute); later runs start at once"
SECONDS_PER_UPDATE = 0.1


def run_command(
    file: Path, trace: Path | None, overrides: Sequence[str], results_dir: Path, quiet: bool
) -> None:
    """Raises `KvsimError` for bad input, before anything is written."""
    scenario = load_scenario(file, overrides, trace)
    with _progress_bar(Console(stderr=True, quiet=quiet), cold=not compiled.is_warm()) as on_progress:
        result, folder = run_to_folder(scenario, results_dir, on_progress)
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
