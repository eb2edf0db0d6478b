"""Checks that workload descriptions make on themselves; a failure names the field."""

import json
import math
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any

from kvsim.errors import KvsimError

MAX_TOKENS = 2**31 - 1  # vLLM keeps token counts in 32-bit integers
MAX_EXACT = 2**53  # floats count in ones up to here


class FieldError(KvsimError):
    """A bad value of one field; `problem` is the sentence without the field's name."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field, self.problem = field, problem


def shown(value: Any) -> str:
    """A value as people typed it in YAML or JSON, short enough for one line."""
    text = _spelled(value, depth=4).replace("\n", " ")
    return text if len(text) <= 60 else text[:57] + "..."


def _spelled(value: Any, depth: int) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if not isinstance(value, Mapping | list | tuple):
        return repr(value)
    if depth == 0:
        return "..."
    if isinstance(value, Mapping):
        pairs = islice(value.items(), 30)
        return "{" + ", ".join(f"{key}: {_spelled(item, depth - 1)}" for key, item in pairs) + "}"
    return "[" + ", ".join(_spelled(item, depth - 1) for item in islice(value, 30)) + "]"


def not_whole(value: Any) -> str:
    """What to say of a value that should be a whole number; 1e3 is YAML's for 1000.0."""
    written = isinstance(value, float) and value.is_integer() and abs(value) <= MAX_EXACT
    return f"{shown(value)} is not a whole number" + (f"; write {int(value)}" if written else "")


def whole(field: str, value: Any, low: int, high: int = MAX_TOKENS) -> int:
    """The value, if it is an integer in low .. high; raises FieldError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise FieldError(field, not_whole(value))
    if not low <= value <= high:
        bound = f"at least {low}" if value < low else f"at most {high}"
        raise FieldError(field, f"{shown(value)} is out of range; give {bound}")
    return value


def number(field: str, value: Any, above: float, high: float, infinite: bool = False) -> float:
    """The value, if it is a number in (above, high], or infinity where allowed; raises FieldError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FieldError(field, f"{shown(value)} is not a number")
    if infinite and value == math.inf:
        return math.inf
    if not above < value <= high:  # NaN compares false
        allowed = f"give a number above {above:g}, up to {high:g}{', or inf' if infinite else ''}"
        raise FieldError(field, f"{shown(value)} is out of range; {allowed}")
    return float(value)


def required(field: str, fields: Mapping[str, Any], place: str = "") -> Any:
    """A field that must be there; raises FieldError. place: where `fields` stand in a row, as requests[0]."""
    if field not in fields:
        name = f"{place}.{field}" if place else field
        raise FieldError(name, f"missing; {place or 'the row'} has {shown(', '.join(map(str, fields)))}")
    return fields[field]


def one_of(field: str, value: Any, known: Collection[str]) -> str:
    """The value, if it is one of the known names; raises FieldError."""
    if not isinstance(value, str) or value not in known:
        raise FieldError(field, f"{shown(value)} is not known; one of {', '.join(known)}")
    return value
