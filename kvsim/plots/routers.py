"""Routing policies side by side: a panel for each figure, a bar for each policy, a mark for each replica."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from kvsim.errors import KvsimError
from kvsim.plots import style
from kvsim.plots.grid import SweepTable
from kvsim.plots.lines import is_log
from kvsim.plots.metrics import Metric

DEFAULT_PANELS = ("hit_rate", "ttft_p99", "imbalance")
_ROUTER_KEYS = ("router", "routers", "policy")  # how the key of a policy ends
_MOST_PANELS = 5
# How evenly loads lie is no figure of one replica; its own is its load over the mean.
_LOADS = {
    "imbalance.requests.max_over_mean": "requests.total",
    "imbalance.prompt_tokens.max_over_mean": "vllm:prompt_tokens",
    "imbalance.busy_time.max_over_mean": "busy_time",
}
_HEIGHT = 0.8  # of a policy's bars together

Numbers = NDArray[np.float64]


def draw_routers(
    table: SweepTable,
    replicas: pd.DataFrame | None = None,
    by: str | None = None,
    panels: Sequence[str] = DEFAULT_PANELS,
    *,
    title: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Bars of each policy in each panel; colours tell the values of another swept key `by`.

    replicas: a row for each point and replica (`SweepResult.replicas`), drawn as marks. Raises KvsimError for
    a sweep over no router, for figures that are not there, and where more was swept than the picture tells.
    """
    key = _router_key(table)
    colour = table.axis(by, "--by") if by else next(iter(table.others([key])), None)
    if colour == key:
        raise KvsimError(f"routers: --by {by} is the axis already; give another key")
    if others := table.others([key, colour]):
        raise KvsimError(f"routers: {others[0]} has several values, too; choose one with --where")
    if not 1 <= len(panels) <= _MOST_PANELS:
        raise KvsimError(f"routers: wants 1 to {_MOST_PANELS} figures, not {len(panels)}")
    if ax is not None and len(panels) != 1:
        raise KvsimError("routers: one axes has room for one figure; name it with metric=")
    metrics = [table.metric(panel, "--metric") for panel in panels]
    values = [table.any_value(metric, "routers") for metric in metrics]
    bars = _bars_of(table, key, colour)
    names = table.names(key)
    with style.styled():
        if ax is not None:
            figure, all_axes = style.picture_and_axes(ax, 0)[0], [ax]
        else:
            figure = style.new_picture(1.0 + len(names) * (0.16 + 0.12 * bars.num_colours))
            all_axes = list(figure.subplots(1, len(panels), sharey=True, squeeze=False)[0])
        marked = False
        for each, metric, figures in zip(all_axes, metrics, values, strict=True):
            own = _of_replicas(table, replicas, metric)
            marked |= bool(own)
            _draw_panel(each, bars, figures, own, metric)
        all_axes[0].set_yticks(range(len(names)), [style.shorten(name, 34) for name in names])
        all_axes[0].set_ylim(len(names) - 0.45, -0.55)
        marks = "strokes: single replicas" if marked else ""
        style.set_title(all_axes[0], title or "Routing policies side by side", table.subtitle(marks))
        if colour is not None:
            handles = [Patch(facecolor=style.colour(i)) for i in range(bars.num_colours)]
            labels = [f"{colour.rsplit('.', 1)[-1]} {value}" for value in table.names(colour)]
            style.key_below(figure, all_axes[0], handles, labels, min(len(labels), 4))
    return figure


@dataclass(frozen=True)
class _Bars:
    """Where the bar of each point is: `at` its middle, `colours` the number of its colour."""

    at: Numbers
    colours: NDArray[np.int64]
    num_colours: int

    @property
    def height(self) -> float:
        return _HEIGHT / self.num_colours


def _bars_of(table: SweepTable, key: str, colour: str | None) -> _Bars:
    rows = table.positions(key).astype(np.float64)
    if colour is None:
        return _Bars(rows, np.zeros(len(rows), np.int64), 1)
    colours, count = table.positions(colour), len(table.distinct(colour))
    return _Bars(rows + ((colours + 0.5) / count - 0.5) * _HEIGHT, colours, count)


def _router_key(table: SweepTable) -> str:
    found = [axis for axis in table.axes if axis.rsplit(".", 1)[-1] in _ROUTER_KEYS]
    if not found:
        raise KvsimError(
            f"routers: {', '.join(table.axes)} was swept, no router; compare them with "
            "kvsim run FILE --compare-routers NAME,NAME"
        )
    return found[0]


def _draw_panel(
    ax: Axes, bars: _Bars, values: Numbers, own: Sequence[tuple[int, Numbers]], metric: Metric
) -> None:
    colours = [style.colour(i) for i in bars.colours]
    apart = is_log(values, metric)
    most = float(np.nanmax(values))
    if apart:  # a bar has no length where nothing is 0
        ax.scatter(values, bars.at, 28, colours, zorder=2)
    else:
        ax.barh(bars.at, np.nan_to_num(values), 0.9 * bars.height, color=colours, alpha=0.75)
    for point, figures in own:
        at = np.full(len(figures), bars.at[point])
        size = max(bars.height * 16, 4.0)
        ax.plot(figures, at, "|", color=style.BLACK, markersize=size, markeredgewidth=0.7, alpha=0.7)
        most = max(most, float(figures.max()))
    for at, value in zip(bars.at.tolist(), values.tolist(), strict=True):
        ax.annotate(
            "failed" if np.isnan(value) else f"{style.number(value, 3)}{metric.suffix}",
            (1, at),
            xycoords=ax.get_yaxis_transform(),
            ha="right",
            va="center",
            fontsize=style.SMALL,
        )
    if apart:
        low = min([float(np.nanmin(values)), *(float(figures[figures > 0].min()) for _, figures in own)])
        ax.set_xscale("log")
        ax.set_xlim(low / 2, most * (most / low) ** 0.8)  # the numbers at the right want their room
        decades = np.arange(math.ceil(math.log10(low / 2)), math.floor(math.log10(most)) + 1)
        ax.set_xticks(10.0 ** decades[:: math.ceil(len(decades) / 2)])
        ax.minorticks_off()
    else:
        ax.set_xlim(0, 1.6 * most or 1)
        style.few_ticks(ax, "x", 4)
        if metric.unit == "%" and most > 50:
            ax.set_xticks([0, 50, 100])
    style.separate_thousands(ax, "x")
    style.finish(ax, metric.axis.replace(" (", "\n("), "", grid="x")


def _of_replicas(
    table: SweepTable, replicas: pd.DataFrame | None, metric: Metric
) -> list[tuple[int, Numbers]]:
    """Number of a point, and the figure of each of its replicas in the metric's unit."""
    column = _LOADS.get(metric.column, metric.column)
    if replicas is None or column not in replicas.columns:
        return []
    numbers = pd.to_numeric(replicas[column], errors="coerce").to_numpy(np.float64, na_value=np.nan)
    points, theirs = _places(table.frame, table.axes), _places(replicas, table.axes)
    found = []
    for number, place in enumerate(points):
        own = numbers[[each == place for each in theirs]]
        if metric.column in _LOADS:
            own = own / own.mean() if len(own) and own.mean() else own
        own = own[np.isfinite(own)] * metric.factor
        if len(own):
            found.append((number, own))
    return found


def _places(frame: pd.DataFrame, axes: Sequence[str]) -> list[tuple[str, ...]]:
    """The swept values of each row, as text."""
    return list(zip(*(frame[axis].astype(str) for axis in axes), strict=True))
