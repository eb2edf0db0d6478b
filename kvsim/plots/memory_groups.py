"""The memory of a cluster's groups: a bar for one GPU of each, one below the other."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from kvsim.plots import style
from kvsim.plots.memory import GIB, MemoryBar, Part, bar_of_run, draw_parts, handle
from kvsim.scenario import Scenario

MOST_GROUPS = 10
_MOST_SIZES = 4  # groups whose sizes a key has room for
_PITCH = 0.66  # inches from bar to bar
_THICK = 0.36  # of the pitch


@dataclass(frozen=True)
class GroupMemory:
    """One GPU of a group. `heading` says which, `facts` what its KV cache holds and how full it was."""

    name: str
    heading: str
    facts: str
    bar: MemoryBar


def memory_of_group(name: str, scenario: Scenario, metrics: Mapping[str, Any]) -> GroupMemory:
    """scenario: as if the group were alone. metrics: the summary of the whole run."""
    group = metrics["groups"][name]
    replicas, gpus = group["replicas"], scenario.engine.num_gpus
    each = f" x {gpus}" if gpus > 1 else ""
    count = f"{replicas:,} replica{'' if replicas == 1 else 's'}"
    bar = bar_of_run(scenario, {**metrics, **group})
    peaks = [
        part["vllm:kv_cache_usage_perc"]["peak"]
        for part in metrics["replicas"]
        if part["group"] == name and part["vllm:kv_cache_usage_perc"]["peak"] is not None
    ]
    used = f", at most {max(peaks):.1%} in use" if peaks else ""
    kv = next(part for part in bar.parts if part.name == "KV cache")
    return GroupMemory(
        name,
        f"{name}: {count}, {group['model']} on {group['gpu']}{each}",
        f"{kv.size / GIB:,.2f} GiB of KV cache: {kv.remark}{used}; {bar.budget_label}",
        bar,
    )


def draw_groups(
    shown: Sequence[GroupMemory], count: int, of: str, ax: Axes | None = None, title: str | None = None
) -> Figure:
    """A stacked bar for each of several groups, on one scale, with one key.

    shown: of `count` groups all, or the first `MOST_GROUPS`.
    """
    parts = _parts(shown)
    with style.styled():
        handles, labels = [handle(name) for name in parts], parts
        columns = 4
        if len(shown) <= _MOST_SIZES:  # their sizes, and before them whose they are
            columns = 1
            names = " | ".join(style.shorten(each.name, 20) for each in shown)
            handles = [Patch(facecolor="none", edgecolor="none"), *handles]
            labels = [f"GiB of {names}", *(_sizes(name, shown) for name in parts)]
        height = 1.05 + _PITCH * len(shown) + 0.16 * math.ceil(len(labels) / columns)
        figure, ax = style.picture_and_axes(ax, height)
        across = max(_whole(each.bar) for each in shown)
        ax.set_xlim(0, across * 1.005)
        for row, each in enumerate(shown):
            _draw_row(ax, row, each, across)
        ax.set_ylim(len(shown) - 1 + 0.3, -0.72)
        ax.set_yticks([])
        ax.spines["left"].set_visible(False)
        style.finish(ax, "memory of one GPU, GiB; dashed: the budget", "", grid=None)
        style.separate_thousands(ax, "x")
        style.key_below(figure, ax, handles, labels, columns)
        which = f"{count} groups" if count == len(shown) else f"the first {len(shown)} of {count:,} groups"
        subtitle = f"{of}; one GPU of each of {which}"
        style.set_title(ax, title or _title(shown), subtitle)
    return figure


def _draw_row(ax: Axes, row: int, group: GroupMemory, across: float) -> None:
    bar = group.bar
    draw_parts(ax, [part for part in bar.parts if part.size > 0], across, row, _THICK)
    if bar.budget is not None:
        at = bar.budget / GIB
        ax.plot([at, at], [row - 0.25, row + 0.25], color=style.BLACK, linewidth=1.2, linestyle="--")
    for text, points, colour in ((group.heading, 12.5, style.BLACK), (group.facts, 3.5, style.GREY)):
        ax.annotate(
            style.shorten(text, 112),
            (0, row - _THICK / 2),
            (0, points),
            textcoords="offset points",
            va="bottom",
            fontsize=style.SMALL,
            color=colour,
        )


def _whole(bar: MemoryBar) -> float:
    return max(sum(part.size for part in bar.parts), bar.total or 0) / GIB


def _parts(groups: Sequence[GroupMemory]) -> list[str]:
    """Names of the parts that any group has, in the order of the bars."""
    names: list[str] = []
    for group in groups:
        place = 0
        for part in group.bar.parts:
            if part.size <= 0:
                continue
            if part.name not in names:
                names.insert(place, part.name)
            place = names.index(part.name) + 1
    return names


def _sizes(name: str, groups: Sequence[GroupMemory]) -> str:
    """A part, and its size in each group."""
    return f"{name}  {' | '.join(_size(name, group.bar.parts) for group in groups)}"


def _size(name: str, parts: Sequence[Part]) -> str:
    size = sum(part.size for part in parts if part.name == name)
    return f"{size / GIB:,.2f}" if size else "-"


def _title(groups: Sequence[GroupMemory]) -> str:
    sizes = [part.size / GIB for each in groups for part in each.bar.parts if part.name == "KV cache"]
    least, most = f"{min(sizes):,.2f}", f"{max(sizes):,.2f}"
    return f"{least if least == most else f'{least} to {most}'} GiB of one GPU's memory are KV cache"
