"""The key of many lines, such as those of a cluster's replicas: one for all panels of a picture."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kvsim.plots import style

_MOST = 14  # then colours and dashes begin again


def key_of_lines(figure: Figure, ax: Axes, names: Sequence[str]) -> None:
    """What the first, second, ... `line_style` stands for, under the axes; of many lines the first ones."""
    labels = _labels(names)
    handles = [Line2D([], [], **style.line_style(i)) for i in range(len(labels))]
    style.key_below(figure, ax, handles, labels, _columns(labels), 2.8)


def height_of_key(names: Sequence[str]) -> float:
    """Inches that it takes; of no name, none."""
    labels = _labels(names)
    return 0.16 * math.ceil(len(labels) / _columns(labels)) if labels else 0.0


def _labels(names: Sequence[str]) -> list[str]:
    shown = [style.shorten(name, 30) for name in names]
    if len(shown) <= _MOST:
        return shown
    return [*shown[: _MOST - 1], f"{shown[_MOST - 1]} … {shown[-1]}"]


def _columns(labels: Sequence[str]) -> int:
    """As many as a picture has room for beside each other; the last label may be a long one."""
    *others, last = (36 + 0.58 * style.SMALL * len(label) for label in labels)  # points
    widest = max(others, default=last)
    room = style.WIDTH * 72 - max(last - widest, 0)
    return max(min(int(room / widest), len(labels), 5), 1)
