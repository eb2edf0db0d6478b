"""``kvsim run``: load, simulate, write, show."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from kvsim import compiled
from kvsim.cli.interrupts import interrupts
from kvsim.cli.output import OutputError
from kvsim.cli.placing import placed
from kvsim.cli.progress import progress
from kvsim.errors import KvsimError
from kvsim.report import print_summary
from kvsim.results import RunResult
from kvsim.scenario import Override, RecordSection, Scenario, SloSection, load_scenario
from kvsim.sim import run_to_folder
from kvsim.sim.cells import MapCells

MILLISECONDS = 1e3


def run_command(
    file: Path,
    trace: Path | None,
    overrides: Sequence[str],
    record: Sequence[str],
    goodput: Sequence[str],
    results_dir: Path,
    quiet: bool,
    compare_routers: Sequence[str] | None = None,
    workers: int | None = None,
    ray: str | None = None,
) -> int:
    """The exit code. Raises `KvsimError` for bad input; then nothing has been written."""
    options: list[str | Override] = [
        *overrides,
        *map(recorded, dict.fromkeys(record)),
        *map(limited, goodput),
    ]
    scenario = load_scenario(file, options, trace)
    if compare_routers is not None:
        from kvsim.cli.compare import compare_command  # loads what sweeps need

        return compare_command(
            scenario, compare_routers, record, results_dir, workers=workers, ray=ray, quiet=quiet
        )
    showing = progress(quiet, cold=not compiled.is_warm())
    with (
        placed(scenario, file, overrides),
        _cells_on(scenario, workers, ray) as map_cells,
        showing as on_progress,
    ):
        result, folder = run_to_folder(scenario, results_dir, on_progress, map_cells)
    interrupts.outcome = f"the results are in {folder}"
    try:
        _show(result, folder, quiet)
    except OutputError as error:
        raise OutputError(f"{error}; {interrupts.outcome}" if str(error) else "") from None
    return 0


def _cells_on(scenario: Scenario, workers: int | None, ray: str | None) -> AbstractContextManager[MapCells]:
    """Workers for several cells; none are needed for a single one."""
    if len(scenario.cluster.routers) < 2:
        if ray:
            raise KvsimError(
                f"--ray {ray}: a scenario with one router is one run; workers are for several routers, "
                "--compare-routers and sweeps"
            )
        return nullcontext(map)
    from kvsim.sweep.cells import cells_on  # loads what sweeps need

    return cells_on(scenario, workers, ray)


def recorded(table: str) -> Override:
    """`--record TABLE`."""
    option = f"--record {table}"
    if table not in RecordSection.model_fields:
        raise KvsimError(f"{option}: not known; one of {', '.join(RecordSection.model_fields)}")
    return Override(("record", table), True, option)


def limited(pair: str) -> Override:
    """`--goodput NAME:MILLISECONDS`, as in `vllm bench serve`, whose name for E2E is e2el."""
    option = f"--goodput {pair}"
    name, _, text = pair.partition(":")
    name = "e2e" if name == "e2el" else name
    if name not in SloSection.model_fields:
        names = ", ".join(SloSection.model_fields)
        raise KvsimError(f"{option}: write NAME:MILLISECONDS, where NAME is one of {names}")
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = math.nan
    if not 0 < milliseconds < math.inf:
        raise KvsimError(f"{option}: write a number of milliseconds above 0 after the colon")
    return Override(("slo", name), milliseconds / MILLISECONDS, option)


def _show(result: RunResult, folder: Path, quiet: bool) -> None:
    if quiet:
        print(folder)
        return
    print_summary(result.metrics)
    print(f"\nResults written to {folder}")
