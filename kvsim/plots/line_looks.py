"""How the lines of a sweep are told apart: colour by one key, dashes and markers by the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from numpy.typing import NDArray

from kvsim.plots import style
from kvsim.plots.grid import SweepTable

FEW_LINES = len(style.COLOURS)
_MOST_HALOS = 3

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """Rows of the table, in order of x, and how they are drawn."""

    rows: NDArray[np.int64]
    look: dict[str, Any]


@dataclass(frozen=True)
class Lines:
    """`key`: by heading, the names and looks that tell the lines apart; `untold`: keys that no look tells."""

    lines: list[Line]
    key: dict[str, list[tuple[str, dict[str, Any]]]]
    untold: list[str]


def lines_of(table: SweepTable, positions: Numbers, keys: list[str], *, joined: bool) -> Lines:
    """A line for each setting of `keys`: the first key gives the colour, the others dashes and marker.

    Where most settings have a single place on the axis, as in a sample, there are points, and only the first
    key is told.
    """
    groups = _groups(table, keys)
    places = [len(np.unique(positions[rows])) for rows in groups.values()]
    alone = float(np.mean(places)) < 2 and len(np.unique(positions)) > 1
    untold: list[str] = []
    if alone and len(keys) > 1:
        keys, untold = keys[:1], keys[1:]
        groups = _groups(table, keys)
    settings = list(dict.fromkeys(sorted(group[1:] for group in groups)))
    loose = {} if joined and not alone else {"linestyle": ""}  # nothing lies between names
    lines = []
    for group, rows in groups.items():
        look = _look(table, keys, group[0], settings.index(group[1:])) if keys else style.point_style(0)
        order = rows[np.argsort(positions[rows], kind="stable")]
        label = ", ".join(table.names(each)[place] for each, place in zip(keys, group, strict=True))
        lines.append(Line(order, look | loose | {"label": label or None}))
    key: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for each in keys[:1]:
        looks = [_look(table, keys, place, 0) for place in range(len(table.distinct(each)))]
        if len(keys) > 1:  # the marker tells the other keys
            looks = [{"color": look["color"], "marker": "", "linestyle": "-"} for look in looks]
        key[last_word(each)] = list(
            zip(table.names(each), [look | _loose(keys, loose) for look in looks], strict=True)
        )
    if len(keys) > 1:
        names = [table.names(each) for each in keys[1:]]
        words = [", ".join(names[k][place] for k, place in enumerate(setting)) for setting in settings]
        looks = [
            _look(table, keys, 0, place) | {"color": style.GREY} | loose for place in range(len(settings))
        ]
        key[", ".join(map(last_word, keys[1:]))] = list(zip(words, looks, strict=True))
    return Lines(lines, key, untold)


def _loose(keys: list[str], loose: dict[str, Any]) -> dict[str, Any]:
    return loose if len(keys) == 1 else {}


def _look(table: SweepTable, keys: list[str], place: int, setting: int) -> dict[str, Any]:
    """Of the value at `place` of the first key, and of a setting of the others."""
    if len(keys) == 1:
        look = style.point_style(place)
        return (
            look | {"marker": "o", "markersize": 2.5, "linestyle": "-"}
            if is_continuous(table, keys)
            else look
        )
    count = len(table.distinct(keys[0]))
    shade: Any = style.colour(place)
    if count > FEW_LINES:
        shade = colormaps[style.SEQUENTIAL](place / (count - 1))
    return style.point_style(setting) | {"color": shade}


def is_continuous(table: SweepTable, keys: list[str]) -> bool:
    """Whether a colour bar tells the first key: a number of many values."""
    return bool(keys) and table.is_numeric(keys[0]) and len(table.distinct(keys[0])) > FEW_LINES


def last_word(key: str) -> str:
    return key.rsplit(".", 1)[-1]


def _groups(table: SweepTable, keys: list[str]) -> dict[tuple[int, ...], NDArray[np.int64]]:
    """Rows by the places of the keys' values among the distinct ones, in that order."""
    places = [table.positions(key) for key in keys]
    rows: dict[tuple[int, ...], list[int]] = {}
    for i in range(len(table.frame)):
        rows.setdefault(tuple(int(place[i]) for place in places), []).append(i)
    return {group: np.array(found, np.int64) for group, found in sorted(rows.items())}


def halos_of(x: Numbers, y: Numbers, groups: Sequence[NDArray[np.int64]]) -> list[int]:
    """For each line how many later ones lie on it, to the eye; at most as many as can be told apart."""
    near = 0.008 * (float(np.nanmax(y) - np.nanmin(y)) or 1.0)
    curves = [(x[rows], y[rows]) for rows in groups]
    return [
        min(_MOST_HALOS, sum(_alike(curve, later, near) for later in curves[index + 1 :]))
        for index, curve in enumerate(curves)
    ]


def _alike(one: tuple[Numbers, Numbers], other: tuple[Numbers, Numbers], near: float) -> bool:
    if len(one[0]) != len(other[0]) or not np.array_equal(one[0], other[0]):
        return False
    there = np.isfinite(one[1])
    return bool(
        there.any()
        and np.array_equal(there, np.isfinite(other[1]))
        and (abs(one[1] - other[1])[there] <= near).all()
    )
