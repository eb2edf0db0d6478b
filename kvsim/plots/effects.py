"""What moves a figure of a sweep most: the swept keys side by side on one scale."""

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from kvsim.errors import KvsimError
from kvsim.plots import style
from kvsim.plots.grid import SweepTable, written
from kvsim.plots.metrics import Metric

Numbers = NDArray[np.float64]

_ROW = 0.68  # inches of height for one key


@dataclass(frozen=True)
class Effect:
    """One swept key: its values, and the figure's mean at each, over all settings of the other keys."""

    key: str
    values: tuple[str, ...]
    means: Numbers

    @property
    def span(self) -> float:
        """From the lowest to the highest mean, in the figure's unit."""
        return float(np.nanmax(self.means) - np.nanmin(self.means))


def effects(table: SweepTable, values: Numbers) -> list[Effect]:
    """Main effects of the keys that have several values, the largest first.

    A mean is taken over the settings that have a figure for every value of the key, so that one that
    failed at one value does not count at the others; values that always failed are left out, and where no
    setting is complete each mean is over what there is.
    """
    found = []
    for key in table.others([]):
        distinct, places = table.distinct(key), table.positions(key)
        settings = _settings(table, key)
        grid = np.full((int(settings.max()) + 1, len(distinct)), np.nan)
        grid[settings, places] = values
        there = np.isfinite(grid).any(axis=0)
        grid, names = grid[:, there], [written(v) for v, kept in zip(distinct, there, strict=True) if kept]
        whole = grid[np.isfinite(grid).all(axis=1)]
        if len(names) > 1:
            means = whole.mean(axis=0) if len(whole) else np.nanmean(grid, axis=0)
            found.append(Effect(key, tuple(names), means))
    return sorted(found, key=lambda effect: -effect.span)


def _settings(table: SweepTable, key: str) -> NDArray[np.int64]:
    """Which setting of all other keys each point has."""
    others = [table.positions(other) for other in table.axes if other != key]
    if not others:
        return np.zeros(len(table.frame), np.int64)
    return np.unique(np.stack(others, axis=1), axis=0, return_inverse=True)[1].reshape(-1)


def draw_effects(
    table: SweepTable, metric_name: str | None = None, *, title: str | None = None, ax: Axes | None = None
) -> Figure:
    """A bar for each swept key from the lowest to the highest mean of a figure, the values marked on it.

    Raises KvsimError where fewer than two keys have several values, or no point has the figure.
    """
    metric = table.metric(metric_name or table.default_metric(), "--metric")
    values = table.any_value(metric, "effects")
    found = effects(table, values)
    if len(found) < 2:
        raise KvsimError(
            "effects: wants two swept keys whose values were tried against each other; lines shows one key"
        )
    with style.styled():
        figure, ax = style.picture_and_axes(ax, 1.0 + _ROW * len(found))
        for row, effect in enumerate(found):
            _draw_one(ax, len(found) - 1 - row, effect, style.colour(row))
        names = [_name(effect, metric) for effect in found]
        ax.set_yticks(range(len(found) - 1, -1, -1), names)
        ax.set_ylim(-0.6, len(found) - 0.4)
        style.finish(ax, f"mean {metric.axis}", "", grid="x")
        _x_limits(ax, found)
        style.set_title(ax, title or f"What moves {metric.label} most", table.subtitle(), 66)
    return figure


def _draw_one(ax: Axes, row: int, effect: Effect, colour: str) -> None:
    low, high = float(np.nanmin(effect.means)), float(np.nanmax(effect.means))
    ax.plot([low, high], [row, row], color=colour, linewidth=7, alpha=0.35, solid_capstyle="butt")
    ax.plot(
        effect.means, np.full(len(effect.means), row), "|", color=colour, markersize=9, markeredgewidth=1.6
    )
    if not effect.span:
        _name_end(ax, row, high, "all values alike", above=True)
        return
    for at, above in ((np.nanargmin, False), (np.nanargmax, True)):  # apart even where the bar is a stroke
        end = int(at(effect.means))
        _name_end(ax, row, float(effect.means[end]), effect.values[end].rsplit("/", 1)[-1], above=above)


def _name_end(ax: Axes, row: int, mean: float, text: str, *, above: bool) -> None:
    ax.annotate(
        text,
        (mean, row),
        (0, 7 if above else -7),
        textcoords="offset points",
        ha="center",
        va="bottom" if above else "top",
        fontsize=style.SMALL,
    )


def _x_limits(ax: Axes, found: list[Effect]) -> None:
    """From zero, with room for the names of the values at both ends."""
    low = min(float(np.nanmin(effect.means)) for effect in found)
    high = max(float(np.nanmax(effect.means)) for effect in found)
    room = 0.14 * (high - min(low, 0.0)) or 1.0
    ax.set_xlim(min(low - room, 0.0), high + room)
    style.few_ticks(ax, "x", 6)
    style.separate_thousands(ax, "x")


def _name(effect: Effect, metric: Metric) -> str:
    return f"{effect.key.rsplit('.', 1)[-1]}\n{style.number(effect.span)}{metric.suffix}"
