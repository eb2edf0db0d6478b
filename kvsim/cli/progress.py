"""How far a run has come, on standard error."""

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from kvsim.cli import collector
from kvsim.compiled import COMPILING
from kvsim.sim import OnProgress

SECONDS_PER_UPDATE = 0.1

Say = Callable[[str], None]


@contextmanager
def progress(quiet: bool, cold: bool) -> Iterator[OnProgress]:
    """Ended requests of all; only on a terminal, and gone when the run ends.

    `cold`: say that compiling begins, when the first request enters an engine: from there on
    nothing can be wrong with the input but a later trace line. Warnings become lines, too.
    """
    with _lines(quiet) as (say, update), _told(say):
        next_update = 0.0

        def on_progress(done: int, total: int | None, now: float) -> None:
            nonlocal next_update
            if next_update == 0.0:
                collector.resume()  # all is loaded
                if cold:
                    say(COMPILING)
            if time.monotonic() >= next_update:
                next_update = time.monotonic() + SECONDS_PER_UPDATE
                update(completed=done, total=total, now=now)

        yield on_progress


@contextmanager
def _lines(quiet: bool) -> Iterator[tuple[Say, Callable[..., Any]]]:
    """How to print a line, and how to move the bar."""
    if quiet:
        yield lambda text: None, lambda **_: None
    elif sys.stderr.isatty():
        with _bar() as both:
            yield both
    else:
        yield partial(print, file=sys.stderr, flush=True), lambda **_: None


@contextmanager
def _bar() -> Iterator[tuple[Say, Callable[..., Any]]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("simulating"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("requests, {task.fields[now]:,.1f} s simulated,"),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None, now=0.0)
        yield partial(console.print, soft_wrap=True, markup=False), partial(bar.update, task)


@contextmanager
def _told(say: Say) -> Iterator[None]:
    """kvsim's own warnings are said; others are none of the user's business, but stay warnings."""
    from kvsim.results import ManyRowsWarning

    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, ManyRowsWarning):
                say(f"kvsim: {message}")
            else:
                others(message, category, *place, **more)

        warnings.simplefilter("always", ManyRowsWarning)
        warnings.showwarning = show
        yield
