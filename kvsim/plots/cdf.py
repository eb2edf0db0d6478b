"""Cumulative distributions: latencies, age of blocks at eviction, gaps between uses of a block."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from kvsim.errors import KvsimError
from kvsim.plots import style
from kvsim.plots.line_key import height_of_key, key_of_lines

MOST_POINTS = 2000
LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E latency", "queue_time": "queue time"}
BLOCKS = {"block_age": "block age at eviction", "reuse_gap": "gap between uses of a block"}
KINDS = (*LATENCIES, *BLOCKS)
_PERCENTILES = (50, 90, 99)
_SPREAD = 100.0  # from p1 to p99.9: beyond, the axis is logarithmic

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """Values in seconds, of one group of things, such as a replica."""

    label: str
    values: Numbers


def cumulative(values: Numbers, most: int = MOST_POINTS) -> tuple[Numbers, Numbers]:
    """Sorted values and the share (%) up to each; of many a choice, the least and the largest with them."""
    ordered = np.sort(values[np.isfinite(values)])
    share = 100.0 * np.arange(1, len(ordered) + 1) / max(len(ordered), 1)
    if len(ordered) > most:
        body = np.linspace(0, len(ordered) - 1, most - 100)
        tail = len(ordered) - 1 - np.geomspace(1, len(ordered) / 50, 100)
        chosen = np.unique(np.concatenate([body, tail]).astype(np.int64))
        ordered, share = ordered[chosen], share[chosen]
    return ordered, share


def draw_cdf(
    samples: Mapping[str, Sequence[Sample]],
    of: str,
    limits: Mapping[str, float],
    *,
    title: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """A panel for each kind of `samples`; `limits` (s) by kind are drawn with the share that keeps them."""
    kinds = list(samples)
    if ax is not None and len(kinds) != 1:
        raise KvsimError("cdf: one axes has room for one kind; name it")
    if not any(len(each.values) for group in samples.values() for each in group):
        raise KvsimError(f"cdf: there is no {_name(kinds[0])} to draw: {_why_empty(kinds[0])}")
    with style.styled():
        names = next(([each.label for each in group] for group in samples.values() if len(group) > 1), [])
        if ax is not None:
            figure, all_axes = style.picture_and_axes(ax, 0)[0], [ax]
        else:
            figure = style.new_picture(2.9 + height_of_key(names))
            all_axes = list(figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0])
        scales = _units([_shown(samples[kind], limits.get(kind)) for kind in kinds])
        for kind, each, scale in zip(kinds, all_axes, scales, strict=True):
            _draw(each, kind, samples[kind], limits.get(kind), *scale)
        things = {_what(kind) for kind in kinds}
        whose = f" of {things.pop()}" if len(things) == 1 else ""
        all_axes[0].set_ylabel(f"share{whose}, %", fontsize=style.SIZE)
        shown = (
            _name(kinds[0]) if len(kinds) == 1 else "latency" if set(kinds) <= set(LATENCIES) else "blocks"
        )
        shown = shown[0].upper() + shown[1:]
        lift = int(any(kind in limits for kind in kinds))  # room for what stands above the axes
        style.set_title(all_axes[0], title or f"{shown}: cumulative distribution", of, lift=lift)
        if names:
            key_of_lines(figure, all_axes[0], names)
    return figure


def _name(kind: str) -> str:
    return (LATENCIES | BLOCKS)[kind]


def _what(kind: str) -> str:
    return {"block_age": "evicted blocks", "reuse_gap": "uses"}.get(kind, "finished requests")


def _why_empty(kind: str) -> str:
    return {
        "block_age": "no cached block was evicted",
        "reuse_gap": "no block was used a second time",
    }.get(kind, "no request finished after the warm-up")


def _draw(
    ax: Axes, kind: str, group: Sequence[Sample], limit: float | None, factor: float, unit: str
) -> None:
    """factor: of the unit, from seconds."""
    everything = np.concatenate([each.values for each in group]) if group else np.zeros(0)
    everything = everything[np.isfinite(everything)]
    style.finish(ax, f"{_name(kind)}, {unit}", "", grid="both")
    ax.set_ylim(0, 103)
    if not len(everything):
        style.note(ax, _why_empty(kind))
        ax.set_xticks([])
        return
    for index, each in enumerate(group):
        values, share = cumulative(each.values)
        if len(values):
            x, y = np.concatenate([values[:1], values]), np.concatenate([[0.0], share])
            look = style.line_style(index)
            ax.plot(factor * x, y, drawstyle="steps-post", label=each.label, **look)
    _scale(ax, factor * everything, None if limit is None else factor * limit)
    if limit is not None:
        _draw_limit(ax, factor * limit, unit, 100 * float((everything <= limit).mean()))
    if len(group) == 1:
        _mark_percentiles(ax, factor * everything, unit)


def _shown(group: Sequence[Sample], limit: float | None) -> float:
    """The largest number that a panel shows, in seconds."""
    values = np.concatenate([[limit or 0.0], *(each.values for each in group)])
    return float(np.max(values, initial=0.0, where=np.isfinite(values)))


def _units(largest: Sequence[float]) -> list[tuple[float, str]]:
    """Milliseconds as on screens; where those have five digits, seconds, and in panels beside it."""
    in_seconds = max(largest) >= 10
    return [(1.0, "s") if in_seconds and each >= 1 else (1e3, "ms") for each in largest]


def _scale(ax: Axes, values: Numbers, limit: float | None) -> None:
    low, high = np.percentile(values, [1, 99.9])
    least = float(values.min())
    if low > 0 and least > 0 and high / low > _SPREAD:
        ax.set_xscale("log")
        ax.set_xlim(low / 1.5, float(values.max()) * 1.2)
    else:
        right = max(float(values.max()), 0.0 if limit is None else limit)
        ax.set_xlim(0, 1.06 * right or 1)
        style.few_ticks(ax, "x", 5)
    style.separate_thousands(ax, "x")


def _draw_limit(ax: Axes, limit: float, unit: str, share: float) -> None:
    """The line, and above the axes who keeps it: among the curves there is no room for words."""
    ax.axvline(limit, color=style.RED, linewidth=1.1, linestyle="--")
    place = ax.transAxes.inverted().transform(ax.transData.transform((limit, 0)))[0]
    ax.annotate(
        f"SLO {style.number(limit)} {unit}: {share:.1f}% keep it",
        (limit, 1.0),
        (0, 2),
        xycoords=ax.get_xaxis_transform(),
        textcoords="offset points",
        ha="right" if place > 0.6 else "left" if place < 0.4 else "center",
        va="bottom",
        fontsize=style.SMALL,
        color=style.RED,
    )


def _mark_percentiles(ax: Axes, values: Numbers, unit: str) -> None:
    """Beside the curve, on the side that has room: left and right of it a rising curve leaves free."""
    points = np.percentile(values, _PERCENTILES)
    ax.plot(points, _PERCENTILES, linestyle="", marker="o", color=style.BLACK, markersize=3.5)
    for percentile, x in zip(_PERCENTILES, points.tolist(), strict=True):
        place = ax.transAxes.inverted().transform(ax.transData.transform((x, percentile)))[0]
        left = place > 0.5
        ax.annotate(
            f"p{percentile}  {style.number(x, 3)} {unit}",
            (x, percentile),
            (-5 if left else 5, 1 if left else -2),
            textcoords="offset points",
            ha="right" if left else "left",
            va="center" if left else "top",
            fontsize=style.SMALL,
            bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
        )
