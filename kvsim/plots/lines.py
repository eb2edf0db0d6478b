"""A figure of a sweep over one key, a line for each setting of the others."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from kvsim.plots import style
from kvsim.plots.grid import SweepTable, written
from kvsim.plots.metrics import Metric

_SPREAD = 50.0  # beyond, latencies need a logarithmic axis
FEW_LINES = len(style.COLOURS)

Numbers = NDArray[np.float64]


def draw_lines(
    table: SweepTable,
    x: str | None = None,
    y: str | None = None,
    by: str | None = None,
    *,
    title: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Figure `y` over key `x`, a line for each value of `by` and of what else was swept; the best is marked.

    Raises KvsimError for a key or figure that is not there, and where no point has a value.
    """
    x = table.axis(x, "--x") if x else _default_x(table, by)
    metric = table.metric(y or table.default_metric(), "--y")
    values = table.any_value(metric, "lines")
    others = table.others([x])
    first = [table.axis(by, "--by")] if by else []
    keys = [key for key in (*first, *others) if key != x]
    keys = list(dict.fromkeys(keys))
    with style.styled():
        figure, ax = style.picture_and_axes(ax, 3.3)
        groups = _groups(table, keys)
        positions, ticks = _x_positions(table, x)
        continuous = len(groups) > FEW_LINES and len(keys) == 1 and table.is_numeric(keys[0])
        scale = _colour_scale(table, keys[0]) if continuous else None
        for index, (group, rows) in enumerate(groups.items()):
            order = rows[np.argsort(positions[rows], kind="stable")]
            look = style.point_style(index)
            if scale is not None:
                look = {"color": scale.to_rgba(float(group[0])), "marker": "o", "markersize": 2.5}  # type: ignore[arg-type]
            if ticks is not None:
                look = look | {"linestyle": ""}  # nothing lies between names
            if np.isfinite(values[rows]).any():
                _line(ax, positions[order], values[order], ", ".join(map(written, group)), look)
        _mark_failed(ax, table, positions)
        style.finish(ax, table.label(x), metric.axis, grid="both")
        _x_ticks(ax, ticks, positions)
        _y_limits(ax, values, metric)
        _mark_best(ax, positions, values, metric)
        key = ", ".join(each.rsplit(".", 1)[-1] for each in keys)
        if scale is not None:
            bar = figure.colorbar(scale, ax=ax, pad=0.02)
            bar.set_label(table.label(keys[0]), fontsize=style.SIZE)
            bar.ax.tick_params(labelsize=style.SMALL)
        elif len(groups) > 1:
            style.key_beside(ax, key)
        shown = f"{metric.capital} against {x.rsplit('.', 1)[-1]}"
        style.set_title(
            ax, title or shown, table.subtitle(table.best_words("ringed", (x, *keys), values, metric)), 84
        )
    return figure


def _line(ax: Axes, x: Numbers, y: Numbers, label: str, look: dict[str, Any]) -> None:
    """One line; where x repeats it is no line, but points."""
    if len(np.unique(x)) < len(x):
        look = look | {"linestyle": ""}
    ax.plot(x, y, label=label, **look)


def _default_x(table: SweepTable, by: str | None) -> str:
    used = table.axis(by, "--by") if by else None
    left = [a for a in table.axes if a != used]
    numeric = [a for a in left if table.is_numeric(a) and len(table.distinct(a)) > 1]
    found = [*numeric, *left, *table.axes]
    return max(numeric, key=lambda a: len(table.distinct(a))) if numeric else found[0]


def _groups(table: SweepTable, keys: list[str]) -> dict[tuple[Any, ...], NDArray[np.int64]]:
    """Rows by the values of the keys, in order of those values."""
    places = [table.positions(key) for key in keys]
    names = [table.distinct(key) for key in keys]
    rows: dict[tuple[int, ...], list[int]] = {}
    for i in range(len(table.frame)):
        rows.setdefault(tuple(int(place[i]) for place in places), []).append(i)
    return {
        tuple(names[k][p] for k, p in enumerate(group)): np.array(found, np.int64)
        for group, found in sorted(rows.items())
    }


def _x_positions(table: SweepTable, x: str) -> tuple[Numbers, list[Any] | None]:
    """Numbers are where they are; anything else is a place in a row, with its name."""
    if table.is_numeric(x):
        return table.frame[x].to_numpy(np.float64), None
    return table.positions(x).astype(np.float64), table.distinct(x)


def _x_ticks(ax: Axes, names: list[Any] | None, positions: Numbers) -> None:
    if names is not None:
        ax.set_xticks(range(len(names)), [written(name) for name in names])
        if sum(len(written(name)) for name in names) > 70:
            ax.tick_params(axis="x", rotation=30)
        return
    values = np.unique(positions)
    if len(values) > 2 and values[0] > 0 and values[-1] / values[0] >= 16 and _doubling(values):
        ax.set_xscale("log", base=2)
        ax.minorticks_off()
    if len(values) <= 8 and _apart(ax, values):
        ax.set_xticks(values, [style.number(float(v)) for v in values])
    else:
        style.separate_thousands(ax, "x")


def _doubling(values: Numbers) -> bool:
    """Spaced by ratios rather than by differences."""
    ratios, steps = values[1:] / values[:-1], np.diff(values)
    return float(ratios.max() / ratios.min()) < float(steps.max() / steps.min())


def _apart(ax: Axes, values: Numbers) -> bool:
    """Whether tick labels at these values leave each other room."""
    if len(values) < 2:
        return True
    places = np.log(values) if ax.get_xscale() == "log" else values
    return float(np.diff(places).min() / (places[-1] - places[0])) > 0.07


def _y_limits(ax: Axes, values: Numbers, metric: Metric) -> None:
    """From zero, unless numbers are so close together, or so far apart, that nothing would show."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if metric.low_is_good and low > 0 and high / low > _SPREAD:
        ax.set_yscale("log")
        ax.set_ylim(low / 2.5, high * 1.6)
        style.separate_thousands(ax, "y")
        return
    if low < 0 or (metric.unit != "%" and low > 0.8 * high > 0):
        margin = 0.12 * (high - low) or 0.1 * abs(high) or 1
        ax.set_ylim(low - margin, high + 1.5 * margin)
    else:
        ax.set_ylim(0, 1.13 * high or 1)
    style.few_ticks(ax, "y", 6)
    style.separate_thousands(ax, "y")


def _mark_best(ax: Axes, x: Numbers, y: Numbers, metric: Metric) -> None:
    """A ring about the best point, the first one where several are equal."""
    best = metric.best(y)
    if best is not None:
        at = int(np.flatnonzero(y == best)[0])
        ax.plot(x[at], y[at], "o", markersize=9, fillstyle="none", color=style.BLACK, markeredgewidth=1.1)


def _mark_failed(ax: Axes, table: SweepTable, positions: Numbers) -> None:
    if table.failed.any():
        at = np.unique(positions[table.failed])
        ax.plot(
            at,
            np.full(len(at), 0.02),
            linestyle="",
            marker="x",
            color=style.BLACK,
            markersize=5,
            transform=ax.get_xaxis_transform(),
            label="failed",
        )


def _colour_scale(table: SweepTable, key: str) -> ScalarMappable:
    values = table.frame[key].to_numpy(np.float64)
    return ScalarMappable(Normalize(float(np.nanmin(values)), float(np.nanmax(values))), style.SEQUENTIAL)
