"""A figure of a sweep over two keys, as coloured cells with numbers."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle
from numpy.typing import NDArray

from kvsim.errors import KvsimError
from kvsim.plots import style
from kvsim.plots.grid import SweepTable, written
from kvsim.plots.metrics import Metric

MOST_PANELS = 6

Numbers = NDArray[np.float64]


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
        raise KvsimError(_too_many(table, several, by))
    panels = table.distinct(by) if by else [None]
    if len(panels) > MOST_PANELS:
        raise KvsimError(
            f"heatmap: --by {by} has {len(panels)} values, and a picture at most {MOST_PANELS} panels; "
            f"choose one with --where {by}={written(panels[0])}"
        )
    if ax is not None and len(panels) > 1:
        raise KvsimError("heatmap: one axes has room for one panel; leave out by=")
    metric = None
    if table.figures or not table.failed.all():
        metric = table.metric(value or table.default_metric(), "--metric")
    amounts = table.values(metric) if metric else np.full(len(table.frame), np.nan)
    of_panel = table.positions(by) if by else np.zeros(len(table.frame), np.int64)
    with style.styled():
        columns = min(len(panels), 2)
        rows = -(-len(panels) // columns)
        height = _height(len(table.distinct(y)))
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
            if ax is None:
                each.label_outer()
            if panel is not None:
                text = f"{by.rsplit('.', 1)[-1]} {written(panel)}" if by else ""
                each.set_title(text, loc="right", fontsize=style.SMALL, pad=5)
        if metric and len(np.unique(amounts[np.isfinite(amounts)])) > 1:
            beside: Any = all_axes[: len(panels)] if len(panels) > 1 else all_axes[0]
            bar = figure.colorbar(scale, ax=beside, pad=0.02, aspect=25)
            bar.set_label(metric.axis, fontsize=style.SIZE)
            bar.ax.tick_params(labelsize=style.SMALL)
            bar.outline.set_linewidth(0.5)  # type: ignore[operator]
            style.separate_thousands(bar.ax, "y")
        shown = metric.capital if metric else "Every point failed"
        names = f"{y.rsplit('.', 1)[-1]} x {x.rsplit('.', 1)[-1]}"
        remarks = [
            "hatched: failed" if table.failed.any() else "",
            "red corner: vLLM would not start" if table.not_starting.any() else "",
            "blank: no value" if _any_blank(table, (x, y), amounts, len(panels)) else "",
            table.best_words("framed", [x, y, *([by] if by else [])], amounts, metric) if metric else "",
        ]
        if table.failed.all():
            remarks.append(f"first error: {style.shorten(table.first_error, 90)}")
        style.set_title(
            all_axes[0], title or f"{shown}: {names}", table.subtitle(*remarks), lift=int(by is not None)
        )
    return figure


def _height(ny: int) -> float:
    """Inches of a panel with so many rows, title and x axis included."""
    return max(min(0.28 * ny + 1.3, 3.6), 1.9)


def _too_many(table: SweepTable, free: list[str], by: str | None) -> str:
    """What to do about keys that neither axes nor panels show."""
    chosen = " ".join(f"--where {key}={written(table.distinct(key)[0])}" for key in free)
    panels = "" if by or len(table.distinct(free[0])) > MOST_PANELS else f", or --by {free[0]} for panels"
    also = f"{', '.join(free)} {'was' if len(free) == 1 else 'were'} swept, too"
    return f"heatmap: shows two keys and one more as panels, and {also}; choose a value: {chosen}{panels}"


def _any_blank(table: SweepTable, keys: tuple[str, str], amounts: Numbers, panels: int) -> bool:
    cells = len(table.distinct(keys[0])) * len(table.distinct(keys[1])) * panels
    return cells > len(amounts) or bool((~np.isfinite(amounts) & ~table.failed).any())


def _three_keys(
    table: SweepTable, x: str | None, y: str | None, by: str | None
) -> tuple[str, str, str | None]:
    by = table.axis(by, "--by") if by else None
    x, y = (table.axis(key, option) if key else None for key, option in ((x, "--x"), (y, "--y")))
    if by is not None and by in (x, y):
        raise KvsimError(f"heatmap: --by {by} is an axis already; panels want another key")
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
    refused = chosen & table.not_starting
    norm: Any = scale.norm
    ax.pcolormesh(cells, cmap=scale.cmap, norm=norm, edgecolors="white", linewidth=0.3)
    _mark_corners(ax, xs[refused], ys[refused])
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
    good = cells.copy()
    good[ys[refused], xs[refused]] = np.nan
    _frame_best(ax, good, metric, table.of_starting(amounts))
    upward = table.label(keys[1])
    if 0.6 * style.SIZE * len(upward) > 72 * (_height(ny) - 0.7):  # what title and x axis leave of it
        upward = upward.replace(", ", ",\n")
    style.finish(ax, table.label(keys[0]), upward, grid=None)
    _cell_ticks(ax, table, keys, columns)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    ax.tick_params(length=0)


def _mark_corners(ax: Axes, columns: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
    """A corner of cells with settings at which vLLM would not start is red; their figures stay."""
    for column, row in zip(columns.tolist(), rows.tolist(), strict=True):
        corner = [(column, row + 1), (column + 0.25, row + 1), (column, row + 0.55)]
        ax.add_patch(Polygon(corner, facecolor=style.RED, edgecolor="white", linewidth=0.8))


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


def _frame_best(ax: Axes, cells: Numbers, metric: Metric | None, amounts: Numbers) -> None:
    """A frame about the best cell of the whole picture, the first one where several are equal."""
    best = metric.best(amounts) if metric else None
    if best is None:
        return
    found = np.argwhere(cells == best)
    if len(found):
        row, column = found[0]
        for width, shade in ((3.2, "white"), (1.6, style.RED)):
            ax.add_patch(
                Rectangle(
                    (column, row), 1, 1, fill=False, edgecolor=shade, linewidth=width, clip_on=False, zorder=3
                )
            )


def _cell_ticks(ax: Axes, table: SweepTable, keys: tuple[str, str], columns: int) -> None:
    for axis, key, most in (("x", keys[0], 16 // columns), ("y", keys[1], 16)):
        names = table.names(key)
        every = max(1, -(-len(names) // most))
        if axis == "x":
            longest = max(map(len, names))
            every = max(every, -(-len(names) * (longest + 1) // (90 // columns)))
        places = range(0, len(names), every)
        shown = [names[i] for i in places]
        (ax.set_xticks if axis == "x" else ax.set_yticks)([i + 0.5 for i in places], shown)
