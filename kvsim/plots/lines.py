"""A figure of a sweep over one key, a line for each setting of the others."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from kvsim.errors import KvsimError
from kvsim.plots import style
from kvsim.plots.grid import SweepTable
from kvsim.plots.line_looks import Lines, halos_of, is_continuous, last_word, lines_of
from kvsim.plots.metrics import Metric

_SPREAD = 50.0  # beyond, latencies need a logarithmic axis
_STROKE, _MARKER = 1.4, 4.0  # points
_MOST_NAMES = 9

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

    Colours tell `by`, or the first of the other keys; dashes and markers the rest.
    Raises KvsimError for a key or figure that is not there, and where no point has a value.
    """
    x = table.axis(x, "--x") if x else _default_x(table, by)
    by = table.axis(by, "--by") if by else None
    if by == x:
        raise KvsimError(f"lines: --by {by} is the axis already; lines want another key")
    metric = table.metric(y or table.default_metric(), "--y")
    values = table.any_value(metric, "lines")
    keys = list(dict.fromkeys([*([by] if by else []), *table.others([x])]))
    with style.styled():
        figure, ax = style.picture_and_axes(ax, 3.3)
        positions, ticks = _x_positions(table, x)
        drawn = lines_of(table, positions, keys, joined=ticks is None)
        scale = _colour_scale(table, keys[0]) if is_continuous(table, keys) else None
        heights = np.log(values) if is_log(values, metric) else values
        halos = halos_of(positions, heights, [line.rows for line in drawn.lines])
        for line, halo in zip(drawn.lines, halos, strict=True):
            look = line.look
            if scale is not None:
                value = float(table.frame[keys[0]].iloc[line.rows[0]])
                look = look | {"color": scale.to_rgba(value)}  # type: ignore[arg-type]
                if look["linestyle"] == "":
                    look = look | {"markersize": 5.0}
            if np.isfinite(values[line.rows]).any():
                _line(ax, positions[line.rows], values[line.rows], look, halo)
        marks = [*_mark_not_starting(ax, table, positions, values), *_mark_failed(ax, table, positions)]
        style.finish(ax, table.label(x), metric.axis, grid="both")
        _x_ticks(ax, table.names(x) if ticks is not None else None, positions)
        _y_limits(ax, values, metric)
        _mark_best(ax, positions, table.of_starting(values), metric)
        if scale is not None:
            bar = figure.colorbar(scale, ax=ax, pad=0.02)
            bar.set_label(table.label(keys[0]), fontsize=style.SIZE)
            bar.ax.tick_params(labelsize=style.SMALL)
        _key(ax, drawn, marks, coloured=scale is None)
        shown = f"{metric.capital} against {x.rsplit('.', 1)[-1]}"
        remarks = [
            table.best_words("ringed", (x, *keys), values, metric),
            "lines that lie on one another are drawn one inside the other" if max(halos) else "",
            f"{', '.join(map(last_word, drawn.untold))} differ, too" if drawn.untold else "",
        ]
        style.set_title(ax, title or shown, table.subtitle(*remarks), 84)
    return figure


def _line(ax: Axes, x: Numbers, y: Numbers, look: dict[str, Any], halo: int) -> None:
    """One line; where x repeats it is no line, but points. halo: how many lie on top of it."""
    if len(np.unique(x)) < len(x):
        look = look | {"linestyle": ""}
    if halo:
        size = look.get("markersize", _MARKER)
        look = look | {"linewidth": _STROKE + 2.4 * halo, "markersize": size + 2.6 * halo, "linestyle": "-"}
        look = look | {"alpha": 0.55, "linestyle": look["linestyle"] if len(x) > 1 else ""}
    ax.plot(x, y, **look)


def _key(ax: Axes, drawn: Lines, marks: list[Line2D], *, coloured: bool) -> None:
    """What colours, then what dashes and markers mean; a heading each where there are both."""
    parts = dict(drawn.key)
    if not coloured and parts:
        del parts[next(iter(parts))]  # the colour bar tells it
    parts = {heading: names for heading, names in parts.items() if len(names) > 1}
    if not parts and not marks:
        return
    entries: list[Line2D] = []
    for heading, names in parts.items():
        if len(parts) > 1:
            entries.append(Line2D([], [], linestyle="", label=heading))
        kept = (
            names
            if len(names) <= _MOST_NAMES
            else [*names[: _MOST_NAMES - 1], (f"… {names[-1][0]}", names[-1][1])]
        )
        entries += [Line2D([], [], label=name, **look) for name, look in kept]
    title = next(iter(parts)) if len(parts) == 1 else ""
    style.key_beside(ax, title, 2 * _MOST_NAMES + 4, [*entries, *marks])


def _default_x(table: SweepTable, by: str | None) -> str:
    used = table.axis(by, "--by") if by else None
    left = [a for a in table.axes if a != used]
    numeric = [a for a in left if table.is_numeric(a) and len(table.distinct(a)) > 1]
    found = [*numeric, *left, *table.axes]
    return max(numeric, key=lambda a: len(table.distinct(a))) if numeric else found[0]


def _x_positions(table: SweepTable, x: str) -> tuple[Numbers, list[Any] | None]:
    """Numbers are where they are; anything else is a place in a row, with its name."""
    if table.is_numeric(x):
        return table.frame[x].to_numpy(np.float64), None
    return table.positions(x).astype(np.float64), table.distinct(x)


def _x_ticks(ax: Axes, names: list[str] | None, positions: Numbers) -> None:
    if names is not None:
        ax.set_xticks(range(len(names)), names)
        if sum(map(len, names)) > 70:
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


def is_log(values: Numbers, metric: Metric) -> bool:
    """Whether latencies lie so far apart that an even axis hides some; not all are NaN."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return metric.low_is_good and low > 0 and high / low > _SPREAD


def _y_limits(ax: Axes, values: Numbers, metric: Metric) -> None:
    """From zero, unless numbers are so close together, or so far apart, that nothing would show."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if is_log(values, metric):
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


def _mark_not_starting(ax: Axes, table: SweepTable, x: Numbers, y: Numbers) -> list[Line2D]:
    refused = table.not_starting & np.isfinite(y)
    if not refused.any():
        return []
    return ax.plot(x[refused], y[refused], label="vLLM would\nnot start", **style.NOT_STARTING)


def _mark_failed(ax: Axes, table: SweepTable, positions: Numbers) -> list[Line2D]:
    if not table.failed.any():
        return []
    at = np.unique(positions[table.failed])
    look: dict[str, Any] = {"linestyle": "", "marker": "x", "color": style.BLACK, "markersize": 5}
    return ax.plot(at, np.full(len(at), 0.02), transform=ax.get_xaxis_transform(), label="failed", **look)


def _colour_scale(table: SweepTable, key: str) -> ScalarMappable:
    values = table.frame[key].to_numpy(np.float64)
    return ScalarMappable(Normalize(float(np.nanmin(values)), float(np.nanmax(values))), style.SEQUENTIAL)
