"""The names of a run's replicas, by which a picture tells them apart and a user asks for one."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from kvsim.errors import KvsimError
from kvsim.plots.metrics import listed
from kvsim.plots.style import shorten

_FEW = 12


def names_of(metrics: Mapping[str, Any]) -> list[str]:
    """In the order of their numbers, the column ``instance`` of the tables; none for a single replica."""
    return [part["name"] for part in metrics.get("replicas") or ()]


def name_of(number: int, names: Sequence[str]) -> str:
    return names[number] if number < len(names) else f"replica {number}"


def number_of(replica: int | str, names: Sequence[str], what: str) -> int:
    """The number of a replica that was asked for by name or number.

    Raises KvsimError with the nearest names, or all of a few; what: begins the message.
    """
    if replica in names:
        return names.index(str(replica))
    text = " ".join(str(replica).split()) or "''"
    if text.isdecimal() and len(text) < 10 and int(text) < max(len(names), 1):
        return int(text)
    raise KvsimError(f"{what}: there is no replica {shorten(text, 40)}; {_known(text, names)}")


def _known(text: str, names: Sequence[str]) -> str:
    if not names:
        return "there is one, 0"
    near = difflib.get_close_matches(text, names, 3) if len(names) > _FEW else []
    there = f"nearest: {', '.join(near)}" if near else listed(names, _FEW)
    return f"{there}; or a number from 0 to {len(names) - 1}"
