"""``kvsim plot``: a picture of a results folder or of a sweep's folder."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.cli import collector
from kvsim.errors import KvsimError

if TYPE_CHECKING:
    from kvsim.plots import Figure, RunPlots, SweepPlots

SWEEP = "sweep.json"  # only a sweep's folder has it
# kind -> the options that bear on it, `--title`, `--dpi` and `-o` apart
OPTIONS = {
    "memory": (),
    "timeseries": ("metric", "window", "replica"),
    "cdf": ("metric", "replica", "trace"),
    "blocks": ("window", "trace"),
    "lines": ("x", "y", "by", "metric", "where"),
    "heatmap": ("x", "y", "by", "metric", "where"),
    "pareto": ("x", "y", "by", "where"),
    "effects": ("metric", "where"),
    "replicas": ("metric",),
    "routers": ("metric", "by", "where"),
}


@dataclass(frozen=True)
class PlotOptions:
    """As typed; None where an option was not given."""

    x: str | None = None
    y: str | None = None
    by: str | None = None
    metric: str | None = None
    window: str | None = None
    replica: str | None = None
    trace: Path | None = None
    title: str | None = None
    where: tuple[str, ...] | None = None


def plot_command(folder: Path, kind: str, output: Path | None, options: PlotOptions, dpi: int) -> None:
    """Draw and write one picture; prints its path. Raises `KvsimError`; then nothing has been written."""
    collector.resume()
    from kvsim.plots import RUN_KINDS, SWEEP_KINDS, checked_path, save
    from kvsim.plots.metrics import one_of
    from kvsim.results import RunResult

    kind = one_of(kind, OPTIONS, "KIND")
    path = checked_path(output if output is not None else Path(f"{folder.resolve().name}-{kind}.png"))
    for name, value in vars(options).items():
        if value is not None and name not in (*OPTIONS[kind], "title"):
            able = ", ".join(f"--{option}" for option in OPTIONS[kind]) or "none but --title"
            raise KvsimError(f"--{name}: has no meaning for {kind}, which takes {able}")
    is_sweep = (folder / SWEEP).exists()
    plot = None if is_sweep else RunResult.load(folder).plot
    if kind not in (SWEEP_KINDS if is_sweep else RUN_KINDS):
        there, wanted = ("a sweep", "one run") if is_sweep else ("one run", "a sweep")
        kinds = ", ".join(SWEEP_KINDS if is_sweep else RUN_KINDS)
        raise KvsimError(f"{kind}: shows {wanted}, and {folder} holds {there}; of {there} there are {kinds}")
    figure = _of_sweep(folder, kind, options) if plot is None else _of_run(plot, kind, options)
    print(save(figure, path, dpi))


def _of_run(plot: "RunPlots", kind: str, options: PlotOptions) -> "Figure":
    drawing: dict[str, Callable[[RunPlots, PlotOptions], Figure]] = {
        "memory": lambda plot, asked: plot.memory(title=asked.title),
        "timeseries": _timeseries,
        "cdf": _cdf,
        "replicas": lambda plot, asked: plot.replicas(_names(asked.metric), title=asked.title),
        "blocks": lambda plot, asked: plot.blocks(_steps(asked.window), trace=asked.trace, title=asked.title),
    }
    return drawing[kind](plot, options)


def _timeseries(plot: "RunPlots", asked: PlotOptions) -> "Figure":
    window = _window(asked.window, "seconds")
    return plot.timeseries(_names(asked.metric), window=window, replica=asked.replica, title=asked.title)


def _cdf(plot: "RunPlots", asked: PlotOptions) -> "Figure":
    kinds = _names(asked.metric)
    given: dict[str, Any] = {"kind": kinds} if kinds else {}
    return plot.cdf(**given, replica=asked.replica, trace=asked.trace, title=asked.title)


def _names(text: str | None) -> list[str] | None:
    """--metric, one name or several with commas."""
    return [name.strip() for name in text.split(",")] if text is not None else None


def _window(text: str | None, unit: str) -> tuple[float, float] | None:
    """FROM:TO."""
    if text is None:
        return None
    try:
        first, last = (float(part) for part in text.split(":"))
    except ValueError:
        first, last = math.nan, math.nan
    if not (0 <= first < math.inf and first <= last < math.inf):
        raise KvsimError(f"--window {text}: write FROM:TO in {unit}, such as 10:20")
    return first, last


def _steps(text: str | None) -> tuple[int, int] | None:
    window = _window(text, "steps")
    if window is None:
        return None
    if window[0] < 1 or not all(edge.is_integer() for edge in window):
        raise KvsimError(f"--window {text}: steps are whole numbers from 1, such as 1:40")
    return int(window[0]), int(window[1])


def _fixed(given: Sequence[str]) -> dict[str, str]:
    """--where KEY=VALUE, each key once."""
    fixed: dict[str, str] = {}
    for text in given:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not (key and equals and value):
            raise KvsimError(f"--where {text}: write KEY=VALUE, such as block_size=16")
        if key in fixed:
            raise KvsimError(f"--where {text}: {key} has a value already, {fixed[key]}")
        fixed[key] = value
    return fixed


def _of_sweep(folder: Path, kind: str, options: PlotOptions) -> "Figure":
    from kvsim.sweep import SweepResult

    plot: SweepPlots = SweepResult.load(folder).plot
    plot = plot.where(_fixed(options.where or ()))
    keys: dict[str, Any] = {"x": options.x, "y": options.y, "by": options.by, "title": options.title}
    if kind == "heatmap":
        return plot.heatmap(value=options.metric, **keys)
    if kind == "effects":
        return plot.effects(options.metric, title=options.title)
    if kind == "routers":
        return plot.routers(_names(options.metric), options.by, title=options.title)
    if kind == "pareto":
        return plot.pareto(**keys)
    if options.y is not None and options.metric is not None:
        raise KvsimError("--metric: is the same as --y for lines; give one of them")
    return plot.lines(**(keys | {"y": options.y or options.metric}))
