"""How far a sweep is: a bar on a terminal or in a notebook, nothing elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from kvsim.sweep.run import Count, OnProgress, do_nothing

POINTS, SEARCHES = "points", "searches"

Say = Callable[[str], None]


@contextmanager
def progress_bar(noun: str, *, quiet: bool = False) -> Iterator[tuple[Say, OnProgress]]:
    """How to say a line above the bar, and how to move it; `noun` names what is counted."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, quiet=quiet)
    can_show = _has_widgets() if console.is_jupyter else console.is_terminal
    if quiet or not can_show:
        yield (lambda text: console.print(text, soft_wrap=True, markup=False, highlight=False)), do_nothing
        return
    columns = (
        TextColumn("sweeping"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(noun + "{task.fields[more]},"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=console, transient=True, speed_estimate_period=120) as bar:
        task = bar.add_task("", total=None, more="")

        def on_progress(count: Count) -> None:
            bar.update(
                task, completed=count.done, total=count.jobs, more=_more(count, searching=noun == SEARCHES)
            )

        yield (
            (lambda text: bar.console.print(text, soft_wrap=True, markup=False, highlight=False)),
            on_progress,
        )


def _has_widgets() -> bool:
    """Without ipywidgets rich cannot move a bar in a notebook and would only complain."""
    return find_spec("ipywidgets") is not None


def _more(count: Count, *, searching: bool) -> str:
    """What else is to say of the count: points of searches, from an earlier run, failed."""
    points = f", {count.points:,} points" if searching else ""
    kept = f", {count.kept:,} kept" if count.kept else ""
    failed = f", {count.failed:,} failed" if count.failed else ""
    return points + kept + failed
