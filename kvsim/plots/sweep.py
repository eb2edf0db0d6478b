"""A sweep's figures: lines over one key, and a heatmap over two."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from kvsim.errors import KvsimError
from kvsim.plots import style
from kvsim.plots.grid import SweepTable, written
from kvsim.plots.metrics import Metric

FEW_LINES = len(style.COLOURS)
MOST_PANELS = 6
DEFAULT_METRICS = ("prefix_cache_hit_rate", "generation_tokens_per_second", "kv_cache_size_tokens")

Numbers = NDArray[np.float64]


def default_metric(table: SweepTable) -> str:
    """The first of the figures one asks for most that differs between points."""
    columns = [c for name in DEFAULT_METRICS for c in table.figures if c.endswith(name)]
    differing = [c for c in columns if table.frame[c].nunique() > 1]
    found = [*differing, *columns, *table.figures]
    return found[0] if found else DEFAULT_METRICS[0]


# ---- lines


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
    metric = table.metric(y or default_metric(table), "--y") if table.figures else _nothing(table)
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
            _line(ax, positions[order], values[order], ", ".join(map(written, group)), look)
        _mark_failed(ax, table, positions)
        style.finish(ax, table.label(x), metric.axis, grid="both")
        _x_ticks(ax, ticks, positions)
        _y_limits(ax, values, metric)
        _mark_best(ax, positions, values, metric, ticks)
        key = ", ".join(each.rsplit(".", 1)[-1] for each in keys)
        if scale is not None:
            bar = figure.colorbar(scale, ax=ax, pad=0.02)
            bar.set_label(table.label(keys[0]), fontsize=style.SIZE)
            bar.ax.tick_params(labelsize=style.SMALL)
        elif len(groups) > 1:
            _legend(ax, key, len(groups))
        shown = f"{_capital(metric.label)} against {x.rsplit('.', 1)[-1]}"
        style.set_title(ax, title or shown, table.subtitle(), 84)
    return figure


def _line(ax: Axes, x: Numbers, y: Numbers, label: str, look: dict[str, Any]) -> None:
    """One line; where x repeats it is no line, but points."""
    if len(np.unique(x)) < len(x):
        look = look | {"linestyle": ""}
    ax.plot(x, y, label=label, **look)


def _nothing(table: SweepTable) -> Metric:
    why = f"; the first error: {table.first_error}" if table.first_error else ""
    raise KvsimError(f"lines: the table has no figures; {int(table.failed.sum())} points failed{why}")


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
    """From zero, unless the numbers are so close together that nothing would show."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if low < 0 or (metric.unit != "%" and low > 0.8 * high > 0):
        margin = 0.12 * (high - low) or 0.1 * abs(high) or 1
        ax.set_ylim(low - margin, high + 1.5 * margin)
    else:
        ax.set_ylim(0, 1.13 * high or 1)
    style.few_ticks(ax, "y", 6)
    style.separate_thousands(ax, "y")


def _mark_best(ax: Axes, x: Numbers, y: Numbers, metric: Metric, names: list[Any] | None) -> None:
    """A ring about the best point, with its value."""
    if np.isfinite(y).sum() < 2 or np.nanmax(y) == np.nanmin(y):
        return
    best = int(np.nanargmin(y) if metric.low_is_good else np.nanargmax(y))
    ax.plot(x[best], y[best], "o", markersize=9, fillstyle="none", color=style.BLACK, markeredgewidth=1.1)
    left, right = ax.get_xlim()
    places = np.log([left, right, x[best]]) if ax.get_xscale() == "log" else np.array([left, right, x[best]])
    late = (places[2] - places[0]) / (places[1] - places[0]) > 0.75
    at = written(names[int(x[best])]) if names is not None else style.number(float(x[best]))
    word = "lowest" if metric.low_is_good else "highest"
    ax.annotate(
        f"{word}: {style.number(float(y[best]))}{_unit(metric)} at {at}",
        (x[best], y[best]),
        (-7 if late else 7, -9 if metric.low_is_good else 6),
        textcoords="offset points",
        ha="right" if late else "left",
        va="top" if metric.low_is_good else "bottom",
        fontsize=style.SMALL,
        bbox={"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
    )


def _unit(metric: Metric) -> str:
    return f"{'' if metric.unit == '%' else ' '}{metric.unit}" if metric.unit else ""


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


def _legend(ax: Axes, title: str, count: int) -> None:
    """Beside the axes; of very many lines the first and the last."""
    handles, labels = ax.get_legend_handles_labels()
    most = 20
    if len(handles) > most:
        handles = [*handles[: most - 2], handles[-1]]
        labels = [*labels[: most - 2], f"… {labels[-1]} ({count} lines)"]
    legend = ax.legend(
        handles,
        labels,
        title=title,
        loc="upper left",
        bbox_to_anchor=(1.01, 1),
        borderaxespad=0,
        handlelength=3,
    )
    legend.get_title().set_fontsize(style.SMALL)


def _colour_scale(table: SweepTable, key: str) -> ScalarMappable:
    values = table.frame[key].to_numpy(np.float64)
    return ScalarMappable(Normalize(float(np.nanmin(values)), float(np.nanmax(values))), style.SEQUENTIAL)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


# ---- heatmap


def draw_heatmap(
    table: SweepTable,
    x: str | None = None,
    y: str | None = None,
    value: str | None = None,
    by: str | None = None,
    *,
    title: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Figure `value` over keys `x` and `y`, a panel for each value of `by`; failed points are hatched.

    Raises KvsimError for keys and figures that are not there, and where several points share a cell.
    """
    x, y, by = _three_keys(table, x, y, by)
    several = table.others([x, y, by])
    if several:
        raise KvsimError(
            f"heatmap: {several[0]} was swept, too; draw a panel for each value with --by {several[0]}"
        )
    panels = table.distinct(by) if by else [None]
    if len(panels) > MOST_PANELS:
        raise KvsimError(
            f"heatmap: --by {by} has {len(panels)} values; a picture has at most {MOST_PANELS} panels"
        )
    if ax is not None and len(panels) > 1:
        raise KvsimError("heatmap: one axes has room for one panel; leave out by=")
    metric = None
    if table.figures or not table.failed.all():
        metric = table.metric(value or default_metric(table), "--metric")
    amounts = table.values(metric) if metric else np.full(len(table.frame), np.nan)
    of_panel = table.positions(by) if by else np.zeros(len(table.frame), np.int64)
    with style.styled():
        columns = min(len(panels), 2)
        rows = -(-len(panels) // columns)
        height = min(0.28 * len(table.distinct(y)) + 1.3, 3.6)
        height = max(height, 1.9)
        if ax is not None:
            figure, all_axes = style.picture_and_axes(ax, 0)[0], [ax]
        else:
            figure = style.new_picture(height * rows + 0.2)
            grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
            all_axes = list(grid.flat)
        for extra in all_axes[len(panels) :]:
            extra.set_visible(False)
        scale = _scale_of(amounts)
        for index, (panel, each) in enumerate(zip(panels, all_axes, strict=False)):
            chosen = of_panel == index
            _draw_cells(each, table, (x, y), amounts, chosen, metric, scale, figure, columns)
            if panel is not None:
                text = f"{by.rsplit('.', 1)[-1]} {written(panel)}" if by else ""
                each.set_title(text, loc="right", fontsize=style.SMALL)
        if metric and np.isfinite(amounts).any():
            bar = figure.colorbar(scale, ax=all_axes[: len(panels)], pad=0.02, aspect=25)
            bar.set_label(metric.axis, fontsize=style.SIZE)
            bar.ax.tick_params(labelsize=style.SMALL)
            bar.outline.set_linewidth(0.5)  # type: ignore[operator]
            style.separate_thousands(bar.ax, "y")
        shown = _capital(metric.label) if metric else "Every point failed"
        names = f"{y.rsplit('.', 1)[-1]} x {x.rsplit('.', 1)[-1]}"
        remarks = [
            "hatched: failed" if table.failed.any() else "",
            _best_words(table, (x, y, by), amounts, metric),
        ]
        if table.failed.all():
            remarks.append(f"first error: {style.shorten(table.first_error, 90)}")
        style.set_title(all_axes[0], title or f"{shown}: {names}", table.subtitle(*remarks))
    return figure


def _three_keys(
    table: SweepTable, x: str | None, y: str | None, by: str | None
) -> tuple[str, str, str | None]:
    by = table.axis(by, "--by") if by else None
    x, y = (table.axis(key, option) if key else None for key, option in ((x, "--x"), (y, "--y")))
    left = [a for a in table.axes if a not in (x, y, by)]
    left.sort(key=lambda a: len(table.distinct(a)) < 2)  # those that vary first, else in their order
    x = x or (left.pop(0) if left else None)
    y = y or (left.pop(0) if left else None)
    if x is None or y is None or x == y:
        raise KvsimError(f"heatmap: wants two swept keys; this sweep has {', '.join(table.axes)} (see lines)")
    if (
        by is None
        and len(table.others([x, y])) == 1
        and len(table.distinct(table.others([x, y])[0])) <= MOST_PANELS
    ):
        by = table.others([x, y])[0]
    return x, y, by


def _scale_of(amounts: Numbers) -> ScalarMappable:
    finite = amounts[np.isfinite(amounts)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    return ScalarMappable(Normalize(low, high if high > low else low + 1), style.SEQUENTIAL)


def _draw_cells(
    ax: Axes,
    table: SweepTable,
    keys: tuple[str, str],
    amounts: Numbers,
    chosen: NDArray[np.bool_],
    metric: Metric | None,
    scale: ScalarMappable,
    figure: Figure,
    columns: int,
) -> None:
    (xs, ys), (nx, ny) = [table.positions(k) for k in keys], [len(table.distinct(k)) for k in keys]
    cells, failed = np.full((ny, nx), np.nan), np.zeros((ny, nx), np.bool_)
    taken = np.zeros((ny, nx), np.int64)
    np.add.at(taken, (ys[chosen], xs[chosen]), 1)
    if (taken > 1).any():
        raise KvsimError("heatmap: several points have the same two values; draw lines instead")
    cells[ys[chosen], xs[chosen]] = amounts[chosen]
    failed[ys[chosen], xs[chosen]] = table.failed[chosen]
    ax.pcolormesh(cells, cmap=scale.cmap, norm=scale.norm, edgecolors="white", linewidth=0.5)
    for row, column in zip(*np.nonzero(failed), strict=True):
        ax.add_patch(
            Rectangle(
                (column, row), 1, 1, facecolor="#F2F2F2", hatch="////", edgecolor="#7F7F7F", linewidth=0.3
            )
        )
    ax.set_xlim(0, nx)
    ax.set_ylim(0, ny)
    size = _letters(cells, figure, columns, nx, metric)
    if size:
        _write_cells(ax, cells, scale, size, metric)
    _frame_best(ax, cells, metric, amounts)
    style.finish(ax, table.label(keys[0]), table.label(keys[1]), grid=None)
    _cell_ticks(ax, table, keys, columns)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    ax.tick_params(length=0)


def _letters(cells: Numbers, figure: Figure, columns: int, nx: int, metric: Metric | None) -> float:
    """Points of the numbers in the cells; 0 where they would not fit."""
    words = [_in_cell(v, metric) for v in cells[np.isfinite(cells)]]
    longest = max((len(word) for word in words), default=1)
    room = 72 * figure.get_figwidth() * 0.74 / columns / nx  # points a cell is wide
    size = min(style.SMALL, room / (0.62 * longest + 0.5))
    return size if size >= 4.5 else 0.0


def _in_cell(value: float, metric: Metric | None) -> str:
    return f"{value:.1f}" if metric and metric.unit == "%" else style.number(value, 3)


def _write_cells(ax: Axes, cells: Numbers, scale: ScalarMappable, size: float, metric: Metric | None) -> None:
    for row, column in zip(*np.nonzero(np.isfinite(cells)), strict=True):
        value = float(cells[row, column])
        red, green, blue = to_rgb(scale.to_rgba(value))  # type: ignore[arg-type]
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        ax.text(
            column + 0.5,
            row + 0.5,
            _in_cell(value, metric),
            ha="center",
            va="center",
            fontsize=size,
            color="white" if dark else "black",
        )


def _best(amounts: Numbers, metric: Metric | None) -> float | None:
    finite = amounts[np.isfinite(amounts)]
    if metric is None or len(finite) < 2 or finite.min() == finite.max():
        return None
    return float(finite.min() if metric.low_is_good else finite.max())


def _frame_best(ax: Axes, cells: Numbers, metric: Metric | None, amounts: Numbers) -> None:
    """A frame about the best cell of the whole picture, the first one where several are equal."""
    best = _best(amounts, metric)
    found = np.argwhere(cells == best) if best is not None else []
    if len(found):
        row, column = found[0]
        for width, shade in ((3.2, "white"), (1.6, style.RED)):
            ax.add_patch(
                Rectangle(
                    (column, row), 1, 1, fill=False, edgecolor=shade, linewidth=width, clip_on=False, zorder=3
                )
            )


def _best_words(
    table: SweepTable, keys: tuple[str, str, str | None], amounts: Numbers, metric: Metric | None
) -> str:
    best = _best(amounts, metric)
    if best is None or metric is None:
        return ""
    equal = int((amounts == best).sum())
    row = int(np.flatnonzero(amounts == best)[0])
    at = ", ".join(f"{k.rsplit('.', 1)[-1]} {written(table.frame[k].iloc[row])}" for k in keys if k)
    word = "lowest" if metric.low_is_good else "highest"
    more = f" (and {equal - 1} equal)" if equal > 1 else ""
    return f"framed, {word}: {style.number(best)}{_unit(metric)} at {at}{more}"


def _cell_ticks(ax: Axes, table: SweepTable, keys: tuple[str, str], columns: int) -> None:
    for axis, key, most in (("x", keys[0], 16 // columns), ("y", keys[1], 16)):
        names = [written(value) for value in table.distinct(key)]
        every = max(1, -(-len(names) // most))
        if axis == "x":
            longest = max(map(len, names))
            every = max(every, -(-len(names) * (longest + 1) // (90 // columns)))
        places = range(0, len(names), every)
        shown = [names[i] for i in places]
        (ax.set_xticks if axis == "x" else ax.set_yticks)([i + 0.5 for i in places], shown)
