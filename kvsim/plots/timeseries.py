"""A run over simulated time: running, waiting, KV usage, hit rate, preemptions, tokens; a line per replica.

A picture has some 300 points across. Longer runs are put together in bins of equal time: gauges as their mean
over the bin, weighted by time, with a band from the least to the most; counters as the rate over the bin.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from kvsim.errors import KvsimError
from kvsim.plots import style
from kvsim.plots.metrics import one_of

MOST_POINTS = 300
FULL = 0.99  # from here on the pool counts as full
VLLM_WINDOW = 1000  # requests over which vLLM logs its hit rate

Numbers = NDArray[np.float64]

PANELS = {
    "running": "running,\nrequests",
    "waiting": "waiting,\nrequests",
    "kv_usage": "KV cache\nusage, %",
    "hit_rate": "hit rate,\n% of tokens",
    "preemptions": "preemptions\nper second",
    "tokens": "computed,\ntokens/s",
}
_WORDS = {
    "running": "running requests",
    "waiting": "waiting requests",
    "kv_usage": "KV cache usage",
    "hit_rate": "prefix cache hit rate",
    "preemptions": "preemptions",
    "tokens": "computed tokens",
}
_GAUGES = {
    "running": ("num_running", 1.0),
    "waiting": ("num_waiting", 1.0),
    "kv_usage": ("kv_cache_usage_perc", 100.0),
}
_COUNTERS = {"preemptions": "num_preempted", "tokens": "num_tokens"}


@dataclass(frozen=True)
class Series:
    """Points of a line, times in seconds; low and high: its band, None if there is none."""

    time: Numbers
    value: Numbers
    low: Numbers | None = None
    high: Numbers | None = None


def series(steps: pd.DataFrame, panel: str, window: tuple[float, float], most: int = MOST_POINTS) -> Series:
    """One replica's line in a panel: `running`, `waiting`, `kv_usage`, `hit_rate`, `preemptions`, `tokens`."""
    if panel == "hit_rate":
        return _hit_rate(steps, window, most)
    start, end = (steps[name].to_numpy(np.float64) for name in ("start_time", "end_time"))
    if panel in _COUNTERS:
        return _rate(end, steps[_COUNTERS[panel]].to_numpy(np.float64), window, most)
    column, factor = _GAUGES[panel]
    return _gauge(start, end, factor * steps[column].to_numpy(np.float64), window, most)


def _gauge(start: Numbers, end: Numbers, value: Numbers, window: tuple[float, float], most: int) -> Series:
    """`value` holds from `start` to `end`, and nothing runs, waits or is held in between."""
    edges, value = _with_idle(start, end, value)
    if len(value) <= most:
        return Series(edges, np.append(value, value[-1]))
    bins = np.linspace(*window, most + 1)
    area = np.concatenate([[0.0], np.cumsum(value * np.diff(edges))])
    mean = np.diff(np.interp(bins, edges, area)) / np.diff(bins)
    # What stood at the beginning of each bin, and what began in it.
    standing = value[np.clip(np.searchsorted(edges, bins[:-1], "right") - 1, 0, len(value) - 1)]
    low, high = standing.copy(), standing.copy()
    of = np.searchsorted(bins, edges[:-1], "right") - 1
    inside = (of >= 0) & (of < most)
    np.minimum.at(low, of[inside], value[inside])
    np.maximum.at(high, of[inside], value[inside])
    return Series((bins[1:] + bins[:-1]) / 2, mean, low, high)


def _with_idle(start: Numbers, end: Numbers, value: Numbers) -> tuple[Numbers, Numbers]:
    """Edges of intervals that follow each other (one more than values), 0 where there was no step."""
    gaps = np.flatnonzero(start[1:] > end[:-1] + 1e-9) + 1
    edges = np.append(np.insert(start, gaps, end[gaps - 1]), end[-1])
    return edges, np.insert(value, gaps, 0.0)


def _rate(end: Numbers, count: Numbers, window: tuple[float, float], most: int) -> Series:
    """Per second in bins, edges of bins as times; a short run gets fewer of them, about ten steps each."""
    bins = int(np.clip(len(end) // 10, 1, most // 2))
    edges = np.linspace(*window, bins + 1)
    width = max(edges[1] - edges[0], 1e-12)
    total, _ = np.histogram(end, edges, weights=count)
    rate = total / width
    return Series(edges, np.append(rate, rate[-1]))


def hit_window(num_requests: int) -> int:
    """vLLM's 1,000 latest requests, or a tenth of them all where those would show no change."""
    return int(min(VLLM_WINDOW, max(10, num_requests // 10)))


def _hit_rate(steps: pd.DataFrame, window: tuple[float, float], most: int) -> Series:
    """Hits per looked-up token over the latest requests, in %; as `CachingMetrics` of vLLM, by steps."""
    looked = steps[steps["prefix_cache_queries"] > 0]
    requests = np.cumsum(np.maximum(looked["num_new_reqs"].to_numpy(np.float64), 1))
    queries, hits = (
        np.concatenate([[0.0], np.cumsum(looked[name].to_numpy(np.float64))])
        for name in ("prefix_cache_queries", "prefix_cache_hits")
    )
    if not len(requests):
        return Series(np.zeros(0), np.zeros(0))
    kept = requests - hit_window(int(requests[-1]))
    first = np.searchsorted(requests, kept, "right")
    first = np.minimum(first, np.arange(len(first)))  # the latest update always stays
    now = np.arange(1, len(first) + 1)
    rate = 100 * (hits[now] - hits[first]) / (queries[now] - queries[first])
    time = looked["end_time"].to_numpy(np.float64)
    if len(time) > 4 * most:
        chosen = np.unique(np.linspace(0, len(time) - 1, 4 * most).astype(np.int64))
        time, rate = time[chosen], rate[chosen]
    return Series(time, rate)


def draw_timeseries(
    steps: pd.DataFrame,
    of: str,
    panels: Sequence[str] = tuple(PANELS),
    *,
    window: tuple[float, float] | None = None,
    replica: int | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Panels over simulated time; raises KvsimError for an unknown panel, an empty window or replica."""
    panels = [one_of(panel, PANELS, "timeseries") for panel in panels]
    if ax is not None and len(panels) != 1:
        raise KvsimError("timeseries: one axes has room for one panel; name it with metric=")
    steps = _chosen(steps, window, replica)
    span = window or (0.0, float(steps["end_time"].max()))
    span = (max(span[0], 0.0), min(span[1], float(steps["end_time"].max())))
    groups = [(int(i), part) for i, part in steps.groupby("instance", sort=True)]  # type: ignore[call-overload]
    with style.styled():
        if ax is not None:
            figure, all_axes = style.picture_and_axes(ax, 0)[0], [ax]
        else:
            figure = style.new_picture(0.75 + 0.95 * len(panels) + 0.5 * (len(panels) == 1))
            all_axes = list(figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0])
        for panel, each in zip(panels, all_axes, strict=True):
            _draw_panel(each, panel, groups, span)
            style.finish(each, "", PANELS[panel])
        all_axes[-1].set_xlabel("simulated time, s", fontsize=style.SIZE)
        all_axes[-1].set_xlim(*span)
        style.separate_thousands(all_axes[-1], "x")
        if ax is None:
            figure.align_ylabels(all_axes)
        whose = f"replica {replica}, " if replica is not None else ""
        count = f"{len(groups)} replicas, " if len(groups) > 1 else ""
        bands = any(len(each.collections) for each in all_axes)
        remark = "; band: least and most within a point's time" if bands else ""
        subtitle = f"{of}; {whose}{count}{len(steps):,} engine steps{remark}"
        shown = "Load, KV cache and throughput" if len(panels) > 2 else _in_words(panels)
        style.set_title(all_axes[0], title or f"{shown} over time", subtitle)
        if len(groups) > 1:
            _key(figure, all_axes[-1], [i for i, _ in groups])
    return figure


def _in_words(panels: Sequence[str]) -> str:
    words = " and ".join(_WORDS[panel] for panel in panels)
    return words[0].upper() + words[1:]


def _chosen(steps: pd.DataFrame, window: tuple[float, float] | None, replica: int | None) -> pd.DataFrame:
    if not len(steps):
        raise KvsimError("timeseries: the run has no engine step, so there is nothing to draw")
    if replica is not None:
        known = sorted(steps["instance"].unique().tolist())
        steps = steps[steps["instance"] == replica]
        if not len(steps):
            raise KvsimError(
                f"timeseries: there is no replica {replica}; there are {known[0]} to {known[-1]}"
            )
    if window is not None:
        end = float(steps["end_time"].max())
        steps = steps[(steps["end_time"] >= window[0]) & (steps["start_time"] <= window[1])]
        if not len(steps):
            raise KvsimError(
                f"timeseries: no engine step between {window[0]:g} and {window[1]:g} s; the last ends at {end:g} s"
            )
    return steps


def _draw_panel(
    ax: Axes, panel: str, groups: Sequence[tuple[int, pd.DataFrame]], span: tuple[float, float]
) -> None:
    top = 0.0
    for index, (replica, part) in enumerate(groups):
        line = series(part, panel, span)
        look = style.line_style(index)
        label = f"replica {replica}"
        stairs = panel in _COUNTERS or (line.low is None and len(line.time) <= MOST_POINTS + 1)
        marker = {"marker": "o", "clip_on": False} if len(line.time) == 1 else {}
        draw = "steps-post" if stairs else "default"
        ax.plot(line.time, line.value, drawstyle=draw, label=label, **look, **marker)
        if line.low is not None and line.high is not None and len(groups) == 1:
            ax.fill_between(line.time, line.low, line.high, color=look["color"], alpha=0.25, linewidth=0)
            top = max(top, float(np.nanmax(line.high)))
        if len(line.value):
            top = max(top, float(np.nanmax(line.value)))
    ax.set_ylim(0, 105 if panel in ("kv_usage", "hit_rate") else (1.12 * top or 1))
    if panel in ("kv_usage", "hit_rate"):
        ax.set_yticks([0, 50, 100])
    else:
        style.few_ticks(ax, "y", 4, whole=panel in ("running", "waiting"))
    style.separate_thousands(ax, "y")
    if panel == "tokens" and len(groups) == 1:
        _split_tokens(ax, groups[0][1], span)
    _mark(ax, panel, groups, span)


def _split_tokens(ax: Axes, steps: pd.DataFrame, span: tuple[float, float]) -> None:
    """Decoded ones beside all, where one replica leaves room for it."""
    decoding = steps["num_tokens"] - steps["num_prefill_tokens"]
    line = _rate(steps["end_time"].to_numpy(np.float64), decoding.to_numpy(np.float64), span, MOST_POINTS)
    ax.lines[0].set_label("all")
    ax.plot(line.time, line.value, drawstyle="steps-post", label="decode", **style.line_style(1))
    ax.legend(loc="upper right", ncols=2, borderaxespad=0.1, handlelength=2.2, fontsize=style.SMALL)
    ax.set_ylim(0, 1.25 * ax.get_ylim()[1])


def _mark(
    ax: Axes, panel: str, groups: Sequence[tuple[int, pd.DataFrame]], span: tuple[float, float]
) -> None:
    """The thing to see: the first preemption, the pool full, the window of the hit rate."""
    steps = pd.concat([part for _, part in groups]) if len(groups) > 1 else groups[0][1]
    if panel == "preemptions":
        hit = steps.loc[steps["num_preempted"] > 0, "start_time"]
        if not len(hit):
            ax.set_yticks([0])
            style.note(ax, "no preemption")
            return
        total = int(steps["num_preempted"].sum())
        at = float(hit.min())
        _mark_time(ax, at, f"first at {style.number(at)} s{_whose(steps, hit)}, {total:,} in all", span)
    elif panel == "kv_usage":
        full = steps.loc[steps["kv_cache_usage_perc"] >= FULL, "start_time"]
        if len(full):
            at = float(full.min())
            _mark_time(ax, at, f"full from {style.number(at)} s{_whose(steps, full)}", span, low=True)
        else:
            peak = float(steps["kv_cache_usage_perc"].max())
            _corner(ax, f"peak {peak:.1%}")
    elif panel == "hit_rate":
        if not (steps["prefix_cache_queries"] > 0).any():
            style.note(ax, "no prompt token was looked up")
            return
        requests = int(steps["num_new_reqs"].sum()) // len(groups)
        low = sum(float(line.get_ydata()[-1]) for line in ax.lines) / len(ax.lines) > 50  # type: ignore[index]
        _corner(ax, f"over the latest {hit_window(requests):,} requests", low=low)


def _whose(steps: pd.DataFrame, times: pd.Series) -> str:
    """Which replica the earliest of the times belongs to, if there are several."""
    place = int(np.flatnonzero(steps["start_time"].isin(times) & (steps["start_time"] == times.min()))[0])
    several = steps["instance"].nunique() > 1
    return f" (replica {steps['instance'].iloc[place]})" if several else ""


def _corner(ax: Axes, text: str, *, low: bool = False) -> None:
    ax.annotate(
        text,
        (1, 0.06 if low else 0.94),
        xycoords="axes fraction",
        ha="right",
        va="bottom" if low else "top",
        fontsize=style.SMALL,
        color=style.GREY,
    )


def _mark_time(ax: Axes, at: float, text: str, span: tuple[float, float], *, low: bool = False) -> None:
    late = at > span[0] + 0.6 * (span[1] - span[0])
    ax.axvline(at, color=style.BLACK, linewidth=0.8, linestyle=":")
    ax.annotate(
        text,
        (at, 0.06 if low else 0.94),
        (-4 if late else 4, 0),
        xycoords=ax.get_xaxis_transform(),
        textcoords="offset points",
        ha="right" if late else "left",
        va="bottom" if low else "top",
        fontsize=style.SMALL,
        bbox={"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
    )


def _key(figure: Figure, ax: Axes, replicas: Sequence[int]) -> None:
    """Few replicas by name; of many, the first ones."""
    handles, labels = ax.get_legend_handles_labels()
    most = 14  # then colours and dashes begin again
    if len(replicas) > most:
        handles, labels = handles[:most], [*labels[: most - 1], f"{labels[most - 1]} … {replicas[-1]}"]
    style.key_below(figure, ax, handles, labels, min(len(handles), 5))
