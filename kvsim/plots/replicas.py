"""The replicas of a run side by side: what each got and did, with the whole cluster beside it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from kvsim.errors import KvsimError
from kvsim.plots import style
from kvsim.plots.metrics import one_of

Part = Mapping[str, Any]  # a replica's part of the summary, or the summary

_MOST_NAMES = 24
_MOST_GROUPS = len(style.COLOURS)
_TTFT = "vllm:time_to_first_token_seconds"


@dataclass(frozen=True)
class Panel:
    """A figure of each replica. `whole`: reads it of the cluster; None where that is the replicas' mean."""

    label: str
    words: str
    read: Callable[[Part], float | None]
    whole: Callable[[Part], float | None] | None = None
    factor: float = 1.0
    unit: str = ""
    peak: Callable[[Part], float | None] | None = None


def _usage(figure: str) -> Callable[[Part], float | None]:
    return lambda part: part["vllm:kv_cache_usage_perc"][figure]


def _named(name: str) -> Callable[[Part], float | None]:
    return lambda part: part[name]


def _p99(part: Part) -> float | None:
    return part[_TTFT]["p99"]  # type: ignore[no-any-return]


PANELS = {
    "requests": Panel("requests", "requests", lambda part: part["requests"]["total"]),
    "hit_rate": Panel(
        "hit rate,\n% of tokens",
        "hit rate",
        _named("prefix_cache_hit_rate"),
        _named("prefix_cache_hit_rate"),
        100.0,
        "%",
    ),
    "kv_usage": Panel(
        "KV cache\nusage, %", "KV cache usage", _usage("mean"), _usage("mean"), 100.0, "%", _usage("peak")
    ),
    "running": Panel(
        "running,\nrequests", "running requests", lambda part: part["vllm:num_requests_running"]["mean"]
    ),
    "ttft_p99": Panel("TTFT p99,\ns", "TTFT p99", _p99, _p99, 1.0, " s"),
    "prompt_tokens": Panel("prompt\ntokens", "prompt tokens", _named("vllm:prompt_tokens")),
    "busy_time": Panel("busy\ntime, s", "busy time", _named("busy_time"), unit=" s"),
    "preemptions": Panel("preemptions", "preemptions", _named("vllm:num_preemptions")),
}
DEFAULT_PANELS = ("requests", "hit_rate", "kv_usage")


def draw_replicas(
    metrics: Mapping[str, Any],
    of: str,
    panels: Sequence[str] = DEFAULT_PANELS,
    *,
    title: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """A bar for each replica in each panel, and a line for the cluster; colours tell groups.

    metrics: a summary. Raises KvsimError for an unknown panel, and for a run with a single replica.
    """
    panels = [one_of(panel, PANELS, "replicas") for panel in panels]
    if ax is not None and len(panels) != 1:
        raise KvsimError("replicas: one axes has room for one panel; name it with metric=")
    parts = metrics.get("replicas") or ()
    if not parts:
        raise KvsimError("replicas: the run has a single replica, so there is nothing to compare")
    groups = list(dict.fromkeys(part["group"] for part in parts))
    with style.styled():
        if ax is not None:
            figure, all_axes = style.picture_and_axes(ax, 0)[0], [ax]
        else:
            figure = style.new_picture(1.0 + 0.95 * len(panels) + 0.5 * (len(panels) == 1))
            all_axes = list(figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0])
        colours = [style.colour(groups.index(part["group"])) for part in parts]
        for panel, each in zip(panels, all_axes, strict=True):
            _draw_panel(each, PANELS[panel], parts, metrics, colours)
        _names(all_axes[-1], [part["name"] for part in parts])
        if ax is None:
            figure.align_ylabels(all_axes)
        peak = "; strokes: peak" if any(PANELS[panel].peak for panel in panels) else ""
        subtitle = f"{of}; {len(parts):,} replicas{_policies(metrics)}{peak}"
        words = [PANELS[panel].words for panel in panels]
        shown = ", ".join(words[:-1]) + f" and {words[-1]}" if len(words) > 1 else words[0]
        style.set_title(all_axes[0], title or f"{shown[0].upper()}{shown[1:]} of each replica", subtitle)
        if len(groups) > 1:
            _key(figure, all_axes[-1], groups)
    return figure


def _draw_panel(ax: Axes, panel: Panel, parts: Sequence[Part], metrics: Part, colours: Sequence[str]) -> None:
    values = _values(panel.read, parts, panel.factor)
    at = np.arange(len(parts))
    ax.bar(at, np.nan_to_num(values), 0.8 if len(parts) <= 64 else 1.0, color=colours)
    top = float(np.nanmax(values, initial=0.0))
    if panel.peak is not None:
        peaks = _values(panel.peak, parts, panel.factor)
        ax.plot(at, peaks, linestyle="", marker="_", markersize=_stroke(len(parts)), color=style.BLACK)
        top = max(top, float(np.nanmax(peaks, initial=0.0)))
    ax.set_ylim(0, 1.25 * top or 1)
    style.few_ticks(ax, "y", 4)
    style.separate_thousands(ax, "y")
    style.finish(ax, "", panel.label)
    there = np.isfinite(values)
    whole = panel.whole(metrics) if panel.whole else None
    if panel.whole and whole is not None:
        _line(ax, whole * panel.factor, f"all {style.number(whole * panel.factor, 3)}{panel.unit}")
    elif not panel.whole and there.any():
        mean = float(values[there].mean())
        _line(ax, mean, f"mean {style.number(mean, 3)}{panel.unit}, most {_over(values[there], mean)}")


def _over(values: NDArray[np.float64], mean: float) -> str:
    return f"{values.max() / mean:.2f} times that" if mean else "0"


def _line(ax: Axes, height: float, text: str) -> None:
    ax.axhline(height, color=style.BLACK, linewidth=0.9, linestyle="--")
    ax.annotate(
        text,
        (1, 0.97),
        xycoords="axes fraction",
        ha="right",
        va="top",
        fontsize=style.SMALL,
        bbox={"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
    )


def _values(
    read: Callable[[Part], float | None], parts: Sequence[Part], factor: float
) -> NDArray[np.float64]:
    found = [read(part) for part in parts]
    return np.array([np.nan if value is None else value * factor for value in found])


def _stroke(count: int) -> float:
    """As wide as a bar, in points."""
    return max(min(0.7 * style.WIDTH * 72 / count, 24.0), 1.5)


def _names(ax: Axes, names: Sequence[str]) -> None:
    """Under the bars; of many replicas their numbers."""
    ax.set_xlim(-0.6, len(names) - 0.4)
    if len(names) > _MOST_NAMES:
        ax.set_xlabel("number of the replica", fontsize=style.SIZE)
        style.few_ticks(ax, "x", 9, whole=True)
        return
    ax.set_xticks(range(len(names)), [style.shorten(name, 20) for name in names])
    if sum(map(len, names)) > 80:
        ax.tick_params(axis="x", rotation=45 if len(names) <= 12 else 90)


def _policies(metrics: Mapping[str, Any]) -> str:
    policies = list(dict.fromkeys(router["policy"] for router in metrics["routers"]))
    return f", {', '.join(policies)}" if policies else ""


def _key(figure: Figure, ax: Axes, groups: Sequence[str]) -> None:
    """Of very many groups the first ones; then colours begin again."""
    handles = [Patch(facecolor=style.colour(i)) for i in range(min(len(groups), _MOST_GROUPS))]
    labels = list(groups[:_MOST_GROUPS])
    if len(groups) > _MOST_GROUPS:
        labels[-1] = f"{labels[-1]} … {groups[-1]}"
    style.key_below(figure, ax, handles, labels, min(len(handles), 5))
