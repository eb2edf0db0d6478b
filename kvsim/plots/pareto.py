"""Throughput per GPU against latency, point by point, and the points that no other beats in both."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from kvsim.errors import KvsimError
from kvsim.plots import style
from kvsim.plots.grid import SweepTable
from kvsim.plots.metrics import Metric

MOST_LABELS = 12
_MARK = 5.0  # points
_GPU_KEYS = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "replicas")

Numbers = NDArray[np.float64]


def gpus_of(table: SweepTable, gpus: int) -> Numbers:
    """GPUs of each point: as its summary says, which it does of several replicas; else those of the base
    scenario, times what was swept of parallel sizes and replicas.
    """
    count = np.full(len(table.frame), float(gpus))
    for axis in table.axes:
        if axis.rsplit(".", 1)[-1] in _GPU_KEYS and table.is_numeric(axis):
            count *= table.frame[axis].to_numpy(np.float64)
    if "num_gpus" in table.frame.columns:
        said = table.frame["num_gpus"].to_numpy(np.float64, na_value=np.nan)
        return np.where(np.isfinite(said), said, count)
    return count


def frontier(x: Numbers, y: Numbers, x_low: bool = True, y_low: bool = False) -> NDArray[np.int64]:
    """Rows that no other row beats: none is as good in both and better in one; in order of x, ties once."""
    cost, gain = (x if x_low else -x), (-y if y_low else y)
    rows = np.flatnonzero(np.isfinite(cost) & np.isfinite(gain))
    rows = rows[np.lexsort((rows, -gain[rows], cost[rows]))]
    best, kept = -np.inf, []
    for row in rows.tolist():
        if gain[row] > best:
            best = gain[row]
            kept.append(row)
    return np.array(kept, np.int64)


def draw_pareto(
    table: SweepTable,
    x: str | None = None,
    y: str | None = None,
    by: str | None = None,
    *,
    gpus: int = 1,
    title: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Figure `y` (generated tokens per second) per GPU against `x` (p99 of E2E latency); colours by key `by`.

    gpus: of one point, swept parallel sizes and replicas apart. Only rates are divided by them.
    Raises KvsimError for keys and figures that are not there, and where no point has both.
    """
    across = table.metric(x or "e2e_p99", "--x")
    up = table.metric(y or "generation_tokens_per_second", "--y")
    if across.column == up.column:
        raise KvsimError(
            f"pareto: --x and --y are both {across.column}; weigh two figures against each other"
        )
    costs, gains = table.any_value(across, "pareto"), table.any_value(up, "pareto")
    per_gpu = "per_second" in up.column or "goodput" in up.column
    if per_gpu:
        gains = gains / gpus_of(table, gpus)
    key = table.axis(by, "--by") if by else None
    with style.styled():
        figure, ax = style.picture_and_axes(ax, 3.6)
        best = frontier(table.of_starting(costs), gains, across.low_is_good, up.low_is_good)
        _points(ax, table, key, costs, gains, best)
        style.finish(ax, across.axis, _per_gpu(up, per_gpu), grid="both")
        _limits(ax, costs, gains)
        _frontier_line(ax, costs[best], gains[best])
        _label(ax, table, costs, gains, best)
        style.key_beside(ax, key.rsplit(".", 1)[-1] if key else "")
        what = f"{up.label[0].upper()}{up.label[1:]}{' per GPU' if per_gpu else ''} against {across.label}"
        keys = ", ".join(axis.rsplit(".", 1)[-1] for axis in table.others([]) or table.axes)
        near = "(some marks overlap)" if _overlap(ax, costs[best], gains[best]) else ""
        subtitle = table.subtitle(
            " ".join(filter(None, (f"{len(best)} on the frontier", near))), f"labels: {keys}"
        )
        style.set_title(ax, title or what, subtitle)
    return figure


def _places(ax: Axes, x: Numbers, y: Numbers) -> Numbers:
    """In points on paper, shape (len(x), 2)."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    return np.asarray(ax.transData.transform(np.stack([x, y], axis=1)) * 72 / figure.dpi)


def _overlap(ax: Axes, x: Numbers, y: Numbers) -> bool:
    """Whether some marks, in order of x, lie on one another."""
    return bool((np.hypot(*np.diff(_places(ax, x, y), axis=0).T) < _MARK).any()) if len(x) > 1 else False


def _frontier_line(ax: Axes, x: Numbers, y: Numbers) -> None:
    """Through the frontier; named in the key if some of it is to be seen between the marks."""
    seen = len(x) > 1 and bool((np.hypot(*np.diff(_places(ax, x, y), axis=0).T) > 2 * _MARK).any())
    look: dict[str, Any] = {"color": style.BLACK, "linewidth": 1.0, "linestyle": "--", "zorder": 1}
    ax.plot(x, y, label="frontier" if seen else None, **look)


def _per_gpu(metric: Metric, per_gpu: bool) -> str:
    return f"{metric.label}, {metric.unit} per GPU" if per_gpu else metric.axis


def _points(
    ax: Axes, table: SweepTable, key: str | None, x: Numbers, y: Numbers, best: NDArray[np.int64]
) -> None:
    on = np.zeros(len(x), np.bool_)
    on[best] = True
    refused = table.not_starting & np.isfinite(x) & np.isfinite(y)
    if refused.any():
        ax.plot(x[refused], y[refused], label="vLLM would not start", **style.NOT_STARTING)
    if key is None:
        beaten = ~on & ~refused & np.isfinite(x) & np.isfinite(y)
        if beaten.any():
            ax.plot(x[beaten], y[beaten], **_look(0), label="beaten", alpha=0.8)
        ax.plot(x[on], y[on], **_look(1), label="on the frontier")
        return
    place = table.positions(key)
    for index, name in enumerate(table.names(key)):
        chosen = place == index
        ax.plot(x[chosen], y[chosen], **_look(index), label=name)


def _look(index: int) -> dict[str, Any]:
    return style.point_style(index) | {
        "linestyle": "",
        "markersize": _MARK,
        "markeredgecolor": "white",
        "mew": 0.5,
    }


def _limits(ax: Axes, x: Numbers, y: Numbers) -> None:
    both = np.isfinite(x) & np.isfinite(y)
    xs, ys = x[both], y[both]
    if len(xs) and xs.min() > 0 and xs.max() / xs.min() > 30:
        ax.set_xscale("log")
        ax.set_xlim(xs.min() / 2.5, xs.max() * 1.6)
    else:
        ax.set_xlim(*_ends(xs, 0.18))
    ax.set_ylim(*_ends(ys, 0.16))
    style.separate_thousands(ax)


def _ends(values: Numbers, room: float) -> tuple[float, float]:
    """From zero, unless the values are so close together that they would lie on one another."""
    if not len(values) or values.max() <= 0:
        return 0, 1
    low, high = float(values.min()), float(values.max())
    if low > 0.8 * high and high > low:
        return low - 0.25 * (high - low), high + 0.35 * (high - low)
    return 0, (1 + room) * high


def _label(ax: Axes, table: SweepTable, x: Numbers, y: Numbers, best: NDArray[np.int64]) -> None:
    """Points on the frontier by what was swept; of many, those that stand apart, the ends with them."""
    keys = table.others([]) or table.axes
    places = _places(ax, x[best], y[best])
    named = [(table.names(key), table.positions(key)) for key in keys]
    labelled: list[Any] = []
    order = sorted(range(len(best)), key=lambda i: (i not in (0, len(best) - 1), i))
    for i in order:
        apart = all(abs(places[i][1] - p[1]) > 9 or abs(places[i][0] - p[0]) > 70 for p in labelled)
        if not apart or len(labelled) >= MOST_LABELS:
            continue
        labelled.append(places[i])
        row = best[i]
        text = ", ".join(names[place[row]] for names, place in named)
        text = style.shorten(text, 30)
        share = ax.transAxes.inverted().transform(ax.transData.transform((x[row], y[row])))[0]
        width = 4.2 * len(text) + 8  # points
        left = places[i] - places
        covers = ((left[:, 0] > 0) & (left[:, 0] < width) & (abs(left[:, 1]) < 12)).any()
        right = share * 60 * style.WIDTH < width or covers  # no room to the left
        ax.annotate(
            text,
            (x[row], y[row]),
            (3 if right else -5, 5 if right else 2),  # up and to the left nothing better can be
            textcoords="offset points",
            ha="left" if right else "right",
            va="bottom",
            fontsize=style.SMALL,
        )
