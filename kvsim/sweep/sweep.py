"""From a scenario and what is asked of it to a `SweepResult`."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from kvsim import compiled
from kvsim.compiled import COMPILING
from kvsim.scenario import Scenario, Template, template_of
from kvsim.sweep.asked import Asked, asked
from kvsim.sweep.axes import axis_of
from kvsim.sweep.pools import Pool, local_pool, num_cores, worthwhile
from kvsim.sweep.progress import POINTS, SEARCHES, progress_bar
from kvsim.sweep.ray_pool import RayPool
from kvsim.sweep.result import SweepResult
from kvsim.sweep.routers import Policy, routers_asked
from kvsim.sweep.run import OnCompiling, OnProgress, Plan, do_nothing, drive, plan_sweep
from kvsim.sweep.store import Folder, Memory
from kvsim.sweep.version import kvsim_version

PROBES_OF_A_SEARCH = 10  # about


def run_sweep(
    template: Template,
    given: Asked,
    *,
    folder: Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
    fresh: bool = False,
    on_progress: OnProgress = do_nothing,
    on_compiling: OnCompiling = do_nothing,
) -> SweepResult:
    """Run every point that is not finished in `folder` yet; the tables go there, too.

    Raises KvsimError for what is wrong with scenario, values, folder or workers; a point that fails is a row.
    """
    plan = plan_sweep(template, given, on_compiling)
    head = head_of(template, given)
    with ExitStack() as stack:
        pool: Pool | None = None
        if ray is not None:  # found out before anything is written
            pool = stack.enter_context(closing(RayPool(ray, workers)))
        store = stack.enter_context(Memory() if folder is None else Folder(folder, head, fresh=fresh))
        pool = pool or stack.enter_context(closing(_local_pool(plan, store, workers, on_compiling)))
        _warm_up(pool, plan, on_compiling)
        rows = drive(plan, pool, store, on_progress)
        probes = [probe for each in rows for probe in each.probes]
        replicas = [replica for each in rows for replica in each.replicas]
        result = SweepResult.of_rows(head, [each.row for each in rows], probes, replicas)
        if folder is not None:
            result.save(folder)
    return result


def head_of(template: Template, given: Asked) -> dict[str, Any]:
    """What `sweep.json` holds."""
    return {
        "kvsim": kvsim_version(),
        "name": template.values["name"],
        "axes": list(given.keys),
        "asked": given.to_dict(),
        "scenario": template.values,
    }


def _local_pool(plan: Plan, store: Memory, workers: int | None, on_compiling: OnCompiling) -> Pool:
    """As many workers as were asked for; else as there are cores, if they save more than they cost.

    Never more than points, or searches, that can run at a time.
    """
    points = {point.hash: point for point in plan.points if point.scenario and not store.get(point.hash)}
    count = max(min(workers or num_cores(), len(points)), 1)
    if workers is not None or count == 1:
        return local_pool(count)
    if not compiled.is_warm():
        on_compiling()
    some = next(point.scenario for point in points.values() if point.scenario)
    num_points = len(points) * (1 if plan.asked.find is None else PROBES_OF_A_SEARCH)
    return local_pool(worthwhile(num_points, some, count))


def _warm_up(pool: Pool, plan: Plan, on_compiling: OnCompiling) -> None:
    if not compiled.is_warm():
        on_compiling()
    scenario = next((point.scenario for point in plan.points if point.scenario), None)
    if scenario is not None:
        pool.warm_up(scenario)


def sweep_scenario(
    scenario: Scenario,
    set_: Mapping[str, Any] | None,
    *,
    points: Sequence[Mapping[str, Any]],
    out: str | Path | None,
    workers: int | None,
    ray: str | None,
    fresh: bool,
    progress: bool,
    ignore_block: bool,
    **words: Any,
) -> SweepResult:
    """`Scenario.sweep`."""
    template = template_of(scenario)
    most = words.get("max_points") or 10_000
    axes = [axis_of(key, _listed(values), key, most=most) for key, values in (set_ or {}).items()]
    block = None if ignore_block else template.sweep
    given = asked(block, place=template.place, set_=axes, points=[dict(point) for point in points], **words)
    options = {"folder": None if out is None else Path(out), "workers": workers, "ray": ray, "fresh": fresh}
    return _run_watched(template, given, progress, options)


def compare_scenario(
    scenario: Scenario,
    policies: Sequence[Policy],
    *,
    out: str | Path | None,
    workers: int | None,
    ray: str | None,
    fresh: bool,
    progress: bool,
) -> SweepResult:
    """`Scenario.compare_routers`."""
    template = template_of(scenario)
    given = routers_asked(template, policies, "compare_routers")
    options = {"folder": None if out is None else Path(out), "workers": workers, "ray": ray, "fresh": fresh}
    return _run_watched(template, given, progress, options)


def _run_watched(template: Template, given: Asked, progress: bool, options: Mapping[str, Any]) -> SweepResult:
    """With a bar where there is anything to show it on."""
    if not progress:
        return run_sweep(template, given, **options)
    with progress_bar(SEARCHES if given.find else POINTS) as (say, on_progress):
        return run_sweep(
            template, given, on_progress=on_progress, on_compiling=lambda: say(COMPILING), **options
        )


def _listed(values: Any) -> Any:
    """Arrays and ranges as lists of plain numbers."""
    if isinstance(values, str | Mapping) or not hasattr(values, "__iter__"):
        return values
    return [value.item() if hasattr(value, "item") else value for value in values]
