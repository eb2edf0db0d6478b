"""``kvsim run --compare-routers``: one scenario under several routing policies."""

from collections.abc import Sequence
from pathlib import Path

from kvsim.cli import collector
from kvsim.cli.interrupts import interrupts
from kvsim.cli.sweep import watched
from kvsim.errors import KvsimError
from kvsim.report.routers import print_comparison
from kvsim.report.tables import console
from kvsim.scenario import Scenario, template_of
from kvsim.sweep.progress import POINTS, progress_bar
from kvsim.sweep.result import SweepResult
from kvsim.sweep.routers import COMPARE, is_stale, routers_asked
from kvsim.sweep.store import REPLICAS, TABLE
from kvsim.sweep.sweep import run_sweep


def compare_command(
    scenario: Scenario,
    policies: Sequence[str],
    record: Sequence[str],
    results_dir: Path,
    *,
    quiet: bool,
    workers: int | None = None,
    ray: str | None = None,
) -> int:
    """The exit code. Raises `KvsimError` for bad input, then nothing has run, and if every policy failed.

    policies: as typed, each text with commas.
    """
    collector.resume()
    if record:
        raise KvsimError(
            f"--record {record[0]}: {COMPARE} keeps summaries only; record a policy in a run of its own, "
            "with --set cluster.router=NAME"
        )
    template = template_of(scenario)
    names = [name.strip() for text in policies for name in text.split(",") if name.strip()]
    given = routers_asked(template, names)
    folder = results_dir / f"{scenario.name}-routers"
    with progress_bar(POINTS, quiet=quiet) as (say, show):
        result = run_sweep(
            template,
            given,
            folder=folder,
            workers=workers,
            ray=ray,
            fresh=is_stale(folder),
            **watched(folder, say, show),
        )
    interrupts.outcome = f"the results are in {folder}"
    _show(result, folder, quiet=quiet)
    if result.num_failed == len(result.frame):
        raise KvsimError(f"{folder}: {result.frame['error'].iloc[0]}")
    return 0


def _show(result: SweepResult, folder: Path, *, quiet: bool) -> None:
    if quiet:
        print(folder)
        return
    print_comparison(result, console())
    tables = [TABLE, *([REPLICAS] if result.replicas is not None else [])]
    print(f"\nTables written to {', '.join(f'{folder / name}.parquet and .csv' for name in tables)}")
    if result.num_failed < len(result.frame):
        print(f"Pictures: kvsim plot {folder} routers")
