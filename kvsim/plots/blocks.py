"""The block map of a small run, step by step: who holds each block, what is cached, who is evicted next."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from kvsim.errors import KvsimError
from kvsim.plots import style
from kvsim.scenario import Scenario
from kvsim.sim.step_view import StepView

MOST_BLOCKS, MOST_STEPS = 128, 200
_SOON, _LATE = 0.45, 0.9  # grey of free cached blocks: the first and the last of the queue
_OWNERS = (style.BLUE, style.ORANGE, style.GREEN, style.RED, style.PURPLE, style.SKY, "#F0E442")
_HEIGHT = 0.115  # inches a block


@dataclass
class BlockHistory:
    """Rows are blocks, columns steps.

    owner: index into `requests`, -1 for a free block; of a shared block the request that came first.
    num_owners, cached (has a hash); place: in the free queue, 0 is handed out next, -1 if in use.
    """

    steps: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    owner: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    num_owners: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    cached: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((0, 0), np.bool_))
    place: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    preempted: list[tuple[int, str]] = field(default_factory=list)
    num_gpu_blocks: int = 0


def block_history(scenario: Scenario, window: tuple[int, int] | None, num_steps: int | None) -> BlockHistory:
    """Simulate as far as needed once more; the pool after each step of the window (from 1, ends included).

    num_steps: of the whole run, if known. Raises KvsimError beyond `MOST_STEPS` or `MOST_BLOCKS`.
    """
    first, last = window or (1, num_steps or 0)
    count = last - first + 1
    if num_steps == 0:
        raise KvsimError("blocks: the run has no engine step, so there is nothing to draw")
    if num_steps is not None and first > num_steps:
        raise KvsimError(f"blocks: --window begins at step {first:,}, and the run has {num_steps:,}")
    if count > MOST_STEPS:
        raise KvsimError(
            f"blocks: {count:,} steps are more than a block map shows, {MOST_STEPS}; "
            f"choose some with --window FROM:TO, such as --window {first}:{first + MOST_STEPS // 2 - 1}"
        )
    return _history(list(islice(scenario.steps(first, count, blocks=True), count)))


def _history(views: Sequence[StepView]) -> BlockHistory:
    shown = sorted(_rows(views))
    size = len(shown), len(views)
    seen = BlockHistory(
        [view.step for view in views],
        shown,
        owner=np.full(size, -1),
        num_owners=np.zeros(size, np.int64),
        cached=np.zeros(size, np.bool_),
        place=np.full(size, -1),
    )
    row_of = {block: row for row, block in enumerate(shown)}
    number_of: dict[str, int] = {}
    for column, view in enumerate(views):
        pool = view.block_map
        assert pool is not None
        seen.num_gpu_blocks = pool.num_gpu_blocks
        for each in pool.blocks:
            row = row_of[each.block_id]
            owners = [number_of.setdefault(name, len(number_of)) for name in each.owners]
            seen.owner[row, column] = min(owners, default=-1)
            seen.num_owners[row, column] = len(owners)
            seen.cached[row, column] = bool(each.hashes)
        for place, block in enumerate(pool.free_queue):
            if block in row_of:
                seen.place[row_of[block], column] = place
        seen.preempted += [(column, name) for name in view.preempted_req_ids]
    seen.requests = list(number_of)
    return seen


def _rows(views: Iterable[StepView]) -> set[int]:
    """All blocks of a small pool; of a larger one those that were in use or cached in some step."""
    used: set[int] = set()
    total = 0
    for view in views:
        assert view.block_map is not None
        used |= {each.block_id for each in view.block_map.blocks}
        total = view.block_map.num_gpu_blocks
    if total - 1 <= MOST_BLOCKS:
        return set(range(1, total))
    if len(used) > MOST_BLOCKS:
        raise KvsimError(
            f"blocks: {len(used):,} blocks of the pool's {total:,} were in use or cached, a block map shows "
            f"at most {MOST_BLOCKS}; run with a smaller engine.num_gpu_blocks_override, or choose fewer or "
            "earlier steps with --window"
        )
    if not used:
        raise KvsimError("blocks: no block was in use or cached in these steps")
    return used


def draw_blocks(seen: BlockHistory, of: str, *, title: str | None = None, ax: Axes | None = None) -> Figure:
    """Blocks up, steps to the right: colour tells the owner, a dot what is cached, grey the queue."""
    num_blocks, num_steps = seen.owner.shape
    with style.styled():
        height = float(np.clip(_HEIGHT * num_blocks, 0.9, 7.6))
        figure, ax = style.picture_and_axes(ax, height + 1.75)
        ax.imshow(
            _colours(seen),
            origin="lower",
            aspect="auto",
            interpolation="nearest",
            extent=(-0.5, num_steps - 0.5, -0.5, num_blocks - 0.5),
        )
        wide, high = (
            72 * (figure.get_figwidth() - 0.8) / num_steps,
            72 * height / num_blocks,
        )  # points of a cell
        if wide > 4 and high > 3:
            _separate(ax, num_blocks, num_steps)
        numbers = wide >= 8.5 and high >= 5.5
        _dots(ax, seen, wide, high, numbers)
        if numbers:
            _numbers(ax, seen, min(high * 0.72, 6.0))
        _names(ax, seen, wide, high)
        _preemptions(ax, seen)
        style.finish(ax, "engine step", "block id", grid=None)
        _ticks(ax, seen, high)
        _key(figure, ax, seen, numbers)
        whole = seen.num_gpu_blocks - 1
        shown = (
            f"{num_blocks} of {whole:,} blocks (those that were used)"
            if whole > num_blocks
            else f"{whole} blocks"
        )
        steps = f"steps {seen.steps[0]:,} to {seen.steps[-1]:,}"
        style.set_title(
            ax, title or "Who holds each KV cache block", f"{of}; {shown}, {steps}, after each step"
        )
    return figure


def _colours(seen: BlockHistory) -> NDArray[np.float64]:
    """Shape (blocks, steps, 3)."""
    picture = np.ones((*seen.owner.shape, 3))
    longest = max(int(seen.place.max(initial=0)), 1)
    free = (seen.owner < 0) & seen.cached
    shade = _SOON + (_LATE - _SOON) * seen.place / longest
    picture[free] = shade[free, None]
    palette = np.array([to_rgb(each) for each in _OWNERS])
    used = seen.owner >= 0
    picture[used] = 0.25 + 0.75 * palette[seen.owner[used] % len(palette)]
    return picture


def _separate(ax: Axes, num_blocks: int, num_steps: int) -> None:
    for edge in np.arange(0.5, num_steps - 1):
        ax.axvline(edge, color="white", linewidth=0.4)
    for edge in np.arange(0.5, num_blocks - 1):
        ax.axhline(edge, color="white", linewidth=0.4)


def _dots(ax: Axes, seen: BlockHistory, wide: float, high: float, numbers: bool) -> None:
    """A dot on cached blocks in use (shared ones get a number if there is room), a cross on free ones."""
    if min(wide, high) < 2.5:
        return
    several = (seen.num_owners > 1) if numbers else np.zeros_like(seen.cached)
    rows, columns = np.nonzero(seen.cached & (seen.owner >= 0) & ~several)
    size = min(0.3 * min(wide, high), 2.2)
    ax.plot(columns, rows, linestyle="", marker="o", color="black", markersize=size, markeredgewidth=0)
    if not numbers:  # else the number says it
        rows, columns = np.nonzero(seen.cached & (seen.owner < 0))
        look: dict[str, Any] = {"marker": "x", "color": "white", "markeredgewidth": 0.7}
        ax.plot(columns, rows, linestyle="", markersize=size + 0.8, **look)


def _numbers(ax: Axes, seen: BlockHistory, size: float) -> None:
    """Places in the free queue, and how many requests share a block."""
    for row, column in zip(*np.nonzero(seen.place >= 0), strict=True):
        shade = "black" if seen.cached[row, column] else "#8C8C8C"
        _number(ax, row, column, str(seen.place[row, column]), size, shade)
    for row, column in zip(*np.nonzero(seen.num_owners > 1), strict=True):
        _number(ax, row, column, f"×{seen.num_owners[row, column]}", size, "black", "bold")


def _number(
    ax: Axes, row: int, column: int, text: str, size: float, shade: str, weight: str = "normal"
) -> None:
    look = {"ha": "center", "va": "center_baseline", "fontsize": size, "color": shade, "fontweight": weight}
    ax.text(column, row, text, **look)  # type: ignore[arg-type]


def _runs(seen: BlockHistory, number: int) -> Iterator[tuple[int, int, int]]:
    """(row, first column, length) of the stretches in which a request is the owner of a block."""
    for row in np.flatnonzero((seen.owner == number).any(axis=1)):
        mine = np.concatenate([[0], (seen.owner[row] == number).astype(np.int8), [0]])
        edges = np.flatnonzero(np.diff(mine))
        for first, end in zip(edges[::2], edges[1::2], strict=True):
            yield int(row), int(first), int(end - first)


def _names(ax: Axes, seen: BlockHistory, wide: float, high: float) -> None:
    """Each request's name once, on its longest stretch, of equal ones the middle one, where it fits."""
    if high < 4.5:
        return
    size = float(np.clip(high * 0.85, 5.5, style.SMALL))
    for number, name in enumerate(seen.requests):
        runs = list(_runs(seen, number))
        longest = [run for run in runs if run[2] == max(length for _, _, length in runs)]
        if not longest:
            continue
        row, first, length = longest[len(longest) // 2]
        text = style.shorten(name, 14)
        if length * wide < 0.62 * size * len(text):
            continue
        ax.text(
            first + (length - 1) / 2,
            row,
            text,
            ha="center",
            va="center_baseline",
            fontsize=size,
            fontweight="bold",
            bbox={"boxstyle": "square,pad=0.08", "facecolor": "white", "edgecolor": "none", "alpha": 0.9},
        )


def _preemptions(ax: Axes, seen: BlockHistory) -> None:
    for column in sorted({column for column, _ in seen.preempted}):
        ax.plot(
            column,
            1.0,
            "v",
            color=style.RED,
            markersize=4.5,
            transform=ax.get_xaxis_transform(),
            clip_on=False,
        )


def _ticks(ax: Axes, seen: BlockHistory, high: float) -> None:
    every = max(1, -(-len(seen.steps) // 12))
    places = range(0, len(seen.steps), every)
    ax.set_xticks(places, [f"{seen.steps[i]:,}" for i in places])
    every = max(1, int(np.ceil(9 / high)))
    places = range(0, len(seen.blocks), every)
    ax.set_yticks(places, [f"{seen.blocks[i]:,}" for i in places])


def _key(figure: Figure, ax: Axes, seen: BlockHistory, numbers: bool) -> None:
    number = "; number: place in the free queue, 0 is next" if numbers else "; darker: sooner evicted"
    crossed = "" if numbers else "xx"
    handles: list[Patch | Line2D] = [
        Patch(facecolor=style.SKY, label="in use; a colour a request"),
        Line2D(
            [],
            [],
            linestyle="",
            marker="o",
            color="black",
            markersize=2.5,
            label="in use, cached (has a hash)",
        ),
        Patch(facecolor="0.55", hatch=crossed, edgecolor="white", label=f"free, cached{number}"),
        Patch(facecolor="white", edgecolor="0.6", label="free, not cached"),
    ]
    if numbers and (seen.num_owners > 1).any():
        handles.append(Line2D([], [], linestyle="", marker=r"$\times2$", color="black", markersize=8))
        handles[-1].set_label("shared by so many")
    if seen.preempted:
        mark = Line2D([], [], linestyle="", marker="v", color=style.RED, markersize=4.5)
        mark.set_label(f"preemption ({len(seen.preempted)} in all)")
        handles.append(mark)
    style.key_below(figure, ax, handles, [str(each.get_label()) for each in handles], 2)
