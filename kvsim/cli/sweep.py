"""``kvsim sweep``: run many points of a scenario, keep them, show the table."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvsim.cli import collector
from kvsim.cli.interrupts import interrupts
from kvsim.compiled import COMPILING
from kvsim.errors import KvsimError
from kvsim.report.sweep import print_sweep_result
from kvsim.report.tables import console
from kvsim.scenario import read_template
from kvsim.sweep.asked import asked
from kvsim.sweep.progress import POINTS, SEARCHES, Say, progress_bar
from kvsim.sweep.result import SweepResult
from kvsim.sweep.run import Count, OnProgress
from kvsim.sweep.store import PROBES, REPLICAS, TABLE
from kvsim.sweep.sweep import run_sweep


def sweep_command(
    file: Path,
    trace: Path | None,
    words: Mapping[str, Any],
    out: Path | None,
    options: Mapping[str, Any],
    *,
    ignore_block: bool,
    quiet: bool,
) -> int:
    """The exit code. Raises `KvsimError` for bad input, when nothing has run, and if every point failed.

    words: of `kvsim.sweep.asked.asked`. options: workers, ray, fresh.
    """
    collector.resume()
    template = read_template(file, trace)
    block = None if ignore_block else template.sweep
    given = asked(block, place=template.place, **words)
    folder = out if out is not None else Path("results") / f"{template.values['name']}-sweep"
    with progress_bar(SEARCHES if given.find else POINTS, quiet=quiet) as (say, show):
        result = run_sweep(template, given, folder=folder, **watched(folder, say, show), **options)
    interrupts.outcome = f"the results are in {folder}"
    _show(result, folder, quiet=quiet)
    if result.num_failed < len(result.frame):
        return 0
    raise KvsimError(f"{folder}: {_all_failed(result)}")


def watched(folder: Path, say: Say, show: OnProgress) -> dict[str, Any]:
    """What `run_sweep` tells of its progress: to the screen, and for whoever interrupts it."""

    def on_progress(count: Count) -> None:
        num_kept = count.kept + count.points
        interrupts.outcome = (
            f"{num_kept:,} finished points are kept in {folder}; the same command goes on from there"
        )
        show(count)

    return {"on_progress": on_progress, "on_compiling": lambda: say(COMPILING)}


def _all_failed(result: SweepResult) -> str:
    """What is said where no row came to an end."""
    first, count = result.frame["error"].iloc[0], len(result.frame)
    noun, plural = ("search", "searches") if result.searched else ("point", "points")
    return f"{first}" if count == 1 else f"all {count:,} {plural} failed; the first {noun}: {first}"


def only(texts: Sequence[str], option: str) -> str | None:
    """The text of an option that may be given once; raises `KvsimError` for a second."""
    if len(texts) > 1:
        raise KvsimError(f"{option} {texts[1]}: given twice, after {texts[0]}; give it once")
    return texts[0] if texts else None


def _show(result: SweepResult, folder: Path, *, quiet: bool) -> None:
    if quiet:
        print(folder)
        return
    print_sweep_result(result, console())
    names = [TABLE, *([PROBES] if result.searched else [])]
    names += [REPLICAS] if result.replicas is not None else []
    print(f"\nTables written to {', '.join(f'{folder / name}.parquet and .csv' for name in names)}")


def split_limits(texts: Sequence[str]) -> list[str]:
    """Several limits in one --subject-to, parted by commas."""
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]
