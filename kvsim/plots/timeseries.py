"""A run over time: running, waiting, KV usage, hit rate, preemptions, tokens; a line per replica."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvsim.errors import KvsimError
from kvsim.plots import style
from kvsim.plots.binning import COUNTERS, MOST_POINTS, hit_window, rate, series
from kvsim.plots.line_key import height_of_key, key_of_lines
from kvsim.plots.metrics import one_of
from kvsim.plots.replica_names import name_of

FULL = 0.99  # from here on the pool counts as full

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


def draw_timeseries(
    steps: pd.DataFrame,
    of: str,
    panels: Sequence[str] = tuple(PANELS),
    *,
    window: tuple[float, float] | None = None,
    replica: int | None = None,
    names: Sequence[str] = (),
    title: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Panels over simulated time; raises KvsimError for an unknown panel, an empty window or replica.

    names: of the replicas, in the order of their numbers.
    """
    panels = [one_of(panel, PANELS, "timeseries") for panel in panels]
    if ax is not None and len(panels) != 1:
        raise KvsimError("timeseries: one axes has room for one panel; name it with metric=")
    steps = _chosen(steps, window, replica, names)
    span = window or (0.0, float(steps["end_time"].max()))
    span = (max(span[0], 0.0), min(span[1], float(steps["end_time"].max())))
    numbers = sorted(steps["instance"].unique().tolist())
    groups = [(name_of(i, names), steps[steps["instance"] == i]) for i in numbers]
    with style.styled():
        if ax is not None:
            figure, all_axes = style.picture_and_axes(ax, 0)[0], [ax]
        else:
            key = height_of_key([name for name, _ in groups]) if len(groups) > 1 else 0
            figure = style.new_picture(0.75 + 0.95 * len(panels) + 0.5 * (len(panels) == 1) + key)
            all_axes = list(figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0])
        for panel, each in zip(panels, all_axes, strict=True):
            _draw_panel(each, panel, groups, span)
            style.finish(each, "", PANELS[panel])
        all_axes[-1].set_xlabel("simulated time, s", fontsize=style.SIZE)
        all_axes[-1].set_xlim(*span)
        style.separate_thousands(all_axes[-1], "x")
        if ax is None:
            figure.align_ylabels(all_axes)
        whose = f"{name_of(replica, names)}, " if replica is not None else ""
        count = f"{len(groups)} replicas, " if len(groups) > 1 else ""
        bands = any(len(each.collections) for each in all_axes)
        remark = "; band: least and most within a point's time" if bands else ""
        subtitle = f"{of}; {whose}{count}{len(steps):,} engine steps{remark}"
        shown = "Load, KV cache and throughput" if len(panels) > 2 else _in_words(panels)
        style.set_title(all_axes[0], title or f"{shown} over time", subtitle)
        if len(groups) > 1:
            key_of_lines(figure, all_axes[-1], [name for name, _ in groups])
    return figure


def _in_words(panels: Sequence[str]) -> str:
    words = " and ".join(_WORDS[panel] for panel in panels)
    return words[0].upper() + words[1:]


def _chosen(
    steps: pd.DataFrame, window: tuple[float, float] | None, replica: int | None, names: Sequence[str]
) -> pd.DataFrame:
    if not len(steps):
        raise KvsimError("timeseries: the run has no engine step, so there is nothing to draw")
    if replica is not None:
        steps = steps[steps["instance"] == replica]
        if not len(steps):
            raise KvsimError(f"timeseries: {name_of(replica, names)} has no engine step, so it has no line")
    if window is not None:
        end = float(steps["end_time"].max())
        steps = steps[(steps["end_time"] >= window[0]) & (steps["start_time"] <= window[1])]
        if not len(steps):
            raise KvsimError(
                f"timeseries: no engine step between {window[0]:g} and {window[1]:g} s; "
                f"the last ends at {end:g} s"
            )
    return steps


def _draw_panel(
    ax: Axes, panel: str, groups: Sequence[tuple[str, pd.DataFrame]], span: tuple[float, float]
) -> None:
    """groups: name and steps of each replica."""
    top = 0.0
    for index, (name, part) in enumerate(groups):
        line = series(part, panel, span)
        look = style.line_style(index)
        stairs = panel in COUNTERS or (line.low is None and len(line.time) <= MOST_POINTS + 1)
        look |= {"drawstyle": "steps-post" if stairs else "default"}
        if len(line.time) == 1:
            look |= {"marker": "o", "clip_on": False}
        ax.plot(line.time, line.value, label=name, **look)
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
    line = rate(steps["end_time"].to_numpy(np.float64), decoding.to_numpy(np.float64), span, MOST_POINTS)
    ax.lines[0].set_label("all")
    ax.plot(line.time, line.value, drawstyle="steps-post", label="decode", **style.line_style(1))
    ax.legend(loc="upper right", ncols=2, borderaxespad=0.1, handlelength=2.2, fontsize=style.SMALL)
    ax.set_ylim(0, 1.25 * ax.get_ylim()[1])


def _mark(
    ax: Axes, panel: str, groups: Sequence[tuple[str, pd.DataFrame]], span: tuple[float, float]
) -> None:
    """The thing to see: the first preemption, the pool full, the window of the hit rate."""
    steps = pd.concat([part for _, part in groups]) if len(groups) > 1 else groups[0][1]
    if panel == "preemptions":
        hit = _earliest(groups, lambda part: part["num_preempted"] > 0)
        if hit is None:
            ax.set_yticks([0])
            style.note(ax, "no preemption")
            return
        total = int(steps["num_preempted"].sum())
        at, whose = hit
        _mark_time(ax, at, f"first at {style.number(at)} s{whose}, {total:,} in all", span)
    elif panel == "kv_usage":
        full = _earliest(groups, lambda part: part["kv_cache_usage_perc"] >= FULL)
        if full is not None:
            at, whose = full
            _mark_time(ax, at, f"full from {style.number(at)} s{whose}", span, low=True)
        else:
            peak = float(steps["kv_cache_usage_perc"].max())
            _corner(ax, f"peak {peak:.1%}", span)
    elif panel == "hit_rate":
        if not (steps["prefix_cache_queries"] > 0).any():
            style.note(ax, "no prompt token was looked up")
            return
        requests = int(steps["num_new_reqs"].sum()) // len(groups)
        _corner(ax, f"over the latest {hit_window(requests):,} requests", span)


def _earliest(
    groups: Sequence[tuple[str, pd.DataFrame]], chosen: Callable[[pd.DataFrame], pd.Series]
) -> tuple[float, str] | None:
    """When the first of the chosen steps begins, and whose it is, if there are several replicas."""
    times = [(float(part.loc[chosen(part), "start_time"].min()), name) for name, part in groups]
    found = min((each for each in times if np.isfinite(each[0])), key=lambda each: each[0], default=None)
    if found is None:
        return None
    return found[0], f" ({found[1]})" if len(groups) > 1 else ""


def _corner(ax: Axes, text: str, span: tuple[float, float]) -> None:
    """Words at the right, above the lines or below them, whichever leaves more room."""
    from_time = span[0] + 0.7 * (span[1] - span[0])
    bottom, top = ax.get_ylim()
    least, most = top, bottom
    for line in ax.lines:
        times, values = (np.asarray(data, np.float64) for data in line.get_data())
        there = values[(times >= from_time) & np.isfinite(values)] if len(times) > 1 else values
        there = there if len(there) else values[-1:]
        least, most = min(least, float(there.min())), max(most, float(there.max()))
    low = least - bottom > top - most
    ax.annotate(
        text,
        (1, 0.06 if low else 0.94),
        xycoords="axes fraction",
        ha="right",
        va="bottom" if low else "top",
        fontsize=style.SMALL,
        color=style.GREY,
        bbox={"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
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
