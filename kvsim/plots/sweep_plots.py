"""`SweepResult.plot`: the pictures of a sweep."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvsim.plots.effects import draw_effects
from kvsim.plots.grid import SweepTable
from kvsim.plots.heatmap import draw_heatmap
from kvsim.plots.lines import draw_lines
from kvsim.plots.pareto import draw_pareto
from kvsim.plots.routers import DEFAULT_PANELS as ROUTER_PANELS
from kvsim.plots.routers import draw_routers


class SweepPlots:
    """Pictures of a table with a row per point: swept keys, figures under vLLM's names, `error`.

    frame: see `kvsim.sweep.SweepResult.frame`. axes: the swept keys' columns. name: of the scenario.
    gpus: that one point runs on, swept parallel sizes and replicas apart. find: "max:KEY" or "min:KEY" where
    a row is a search and column KEY what it found. replicas: `SweepResult.replicas`. scenario: its plain
    values, by which keys get their units. Keys and figures may be shortened: `block_size`, `ttft_p99`,
    `hit_rate`. All raise KvsimError with one line.
    """

    def __init__(
        self,
        frame: pd.DataFrame,
        axes: Sequence[str],
        name: str = "",
        gpus: int = 1,
        find: str = "",
        replicas: pd.DataFrame | None = None,
        scenario: Mapping[str, Any] | None = None,
    ) -> None:
        self._frame, self._axes, self._name, self._gpus, self._find = frame, axes, name, gpus, find
        self._replicas, self._scenario = replicas, scenario

    def where(self, values: Mapping[str, Any]) -> "SweepPlots":
        """The same of the points alone that have these values of swept keys, such as {"block_size": 16}."""
        table = self._table()
        for key, value in values.items():
            table = table.where(key, value)
        of = (self._name, self._gpus, self._find, self._replicas, self._scenario)
        return SweepPlots(table.frame, self._axes, *of)

    def lines(
        self,
        x: str | None = None,
        y: str | None = None,
        by: str | None = None,
        *,
        title: str | None = None,
        ax: Axes | None = None,
    ) -> Figure:
        """Figure `y` over key `x`; a line for each value of key `by` and of whatever else was swept."""
        return draw_lines(self._table(), x, y, by, title=title, ax=ax)

    def heatmap(
        self,
        x: str | None = None,
        y: str | None = None,
        value: str | None = None,
        by: str | None = None,
        *,
        title: str | None = None,
        ax: Axes | None = None,
    ) -> Figure:
        """Figure `value` over two keys, a panel for each value of key `by`; failed points are hatched."""
        return draw_heatmap(self._table(), x, y, value, by, title=title, ax=ax)

    def pareto(
        self,
        x: str | None = None,
        y: str | None = None,
        by: str | None = None,
        *,
        title: str | None = None,
        ax: Axes | None = None,
    ) -> Figure:
        """Figure `y` per GPU (generated tokens per second) against `x` (e2e_p99), and the frontier."""
        return draw_pareto(self._table(), x, y, by, gpus=self._gpus, title=title, ax=ax)

    def effects(
        self, metric: str | None = None, *, title: str | None = None, ax: Axes | None = None
    ) -> Figure:
        """What moves a figure most: for each swept key the means of the figure at its values."""
        return draw_effects(self._table(), metric, title=title, ax=ax)

    def routers(
        self,
        metric: str | Sequence[str] | None = None,
        by: str | None = None,
        *,
        title: str | None = None,
        ax: Axes | None = None,
    ) -> Figure:
        """Routing policies side by side: a panel for each figure (hit_rate, ttft_p99, imbalance)."""
        panels = (metric,) if isinstance(metric, str) else tuple(metric or ROUTER_PANELS)
        return draw_routers(self._table(), self._replicas, by, panels, title=title, ax=ax)

    def _table(self) -> SweepTable:
        return SweepTable(self._frame, self._axes, self._name, self._find, self._scenario)
