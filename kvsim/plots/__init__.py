"""Pictures of runs, sweeps and capacity plans, all in one style; matplotlib without pyplot."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvsim.gpu.capacity import CapacityPlan
from kvsim.plots.memory import bar_of_plan, draw_memory
from kvsim.plots.run import RunPlots
from kvsim.plots.style import SUFFIXES, checked_path, save
from kvsim.plots.sweep_plots import SweepPlots

RUN_KINDS = ("memory", "timeseries", "cdf", "blocks", "replicas")
SWEEP_KINDS = ("lines", "heatmap", "pareto", "effects", "routers")

__all__ = [
    "RUN_KINDS",
    "SUFFIXES",
    "SWEEP_KINDS",
    "Figure",
    "RunPlots",
    "SweepPlots",
    "checked_path",
    "memory_of",
    "save",
]


def memory_of(plan: CapacityPlan, *, title: str | None = None, ax: Axes | None = None) -> Figure:
    """The memory bar of a capacity plan (`kvsim.plan_capacity`), one GPU of it."""
    return draw_memory(bar_of_plan(plan), ax, title)
