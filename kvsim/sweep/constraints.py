"""Limits that a point must keep, such as "ttft_p99<=2s" or "hit_rate>=80%"."""

import difflib
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from kvsim.errors import KvsimError
from kvsim.sweep.figures import SHORT_NAMES

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "%": 1e-2}
_FORM = re.compile(
    r"\s*([A-Za-z_][\w:.]*)\s*(<=|>=|<|>)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([a-z%]*)\s*"
)


@dataclass(frozen=True)
class Constraint:
    """`column` compared with `limit` (seconds, fractions, counts); `text` as it was typed."""

    text: str
    column: str
    sign: str
    limit: float
    unit: str

    @property
    def name(self) -> str:
        """The figure's name as typed."""
        return re.split("[<>]", self.text)[0]

    @property
    def is_upper(self) -> bool:
        """Whether the figure must stay below."""
        return self.sign.startswith("<")

    def holds(self, value: float) -> bool:
        return _COMPARISONS[self.sign](value, self.limit)

    def problem(self, figures: Mapping[str, float | None]) -> str | None:
        """What is wrong with the figures, or None; a figure without a value keeps no limit."""
        value = figures.get(self.column)
        if value is None:
            return f"{self.text}: no value, no request is measured"
        return None if self.holds(value) else f"{self.text}: {self.shown(value)}"

    def shown(self, value: float) -> str:
        """In the unit of the limit."""
        return f"{value / _UNITS[self.unit]:.4g}{'' if self.unit == '%' else ' '}{self.unit}".strip()


def read_constraint(text: str) -> Constraint:
    """Raises KvsimError for another form, an unknown unit or an unknown short name."""
    parts = _FORM.fullmatch(text)
    if parts is None:
        raise KvsimError(f"--subject-to {text}: write NAME<=LIMIT or NAME>=LIMIT, such as ttft_p99<=2s")
    name, sign, number, unit = parts.groups()
    if unit not in _UNITS:
        raise KvsimError(f"--subject-to {text}: {unit} is no unit; one of s, ms, us, min, %")
    column = SHORT_NAMES.get(name, name)
    compact = f"{name}{sign}{number}{unit}"
    return Constraint(compact, column, sign, float(number) * _UNITS[unit], unit)


def check_names(constraints: Collection[Constraint], columns: Collection[str]) -> None:
    """Raises KvsimError for a figure that no summary has, naming the nearest."""
    for constraint in constraints:
        if constraint.column not in columns:
            known = [*SHORT_NAMES, *columns]
            name = re.split("[<>]", constraint.text)[0]
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(SHORT_NAMES)}"
            raise KvsimError(f"--subject-to {constraint.text}: unknown figure {name}; {hint}")
