"""Limits that a point must keep, such as "ttft_p99<=2s" or "hit_rate>=80%"."""

import difflib
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from kvsim.errors import KvsimError
from kvsim.sweep.figures import NEEDS_SLO, SHORT_NAMES, measure_of

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "%": 1e-2}
_UNITS_OF = {"seconds": ("", "s", "ms", "us", "min"), "share": ("", "%"), "number": ("",)}
_FORM = re.compile(
    r"\s*([A-Za-z_][\w:.]*)\s*(<=|>=|<|>)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([a-z%]*)\s*"
)


@dataclass(frozen=True)
class Constraint:
    """`column` compared with `limit` (seconds, fractions, counts); `text` as it was typed.

    What is said of it begins with `option`.
    """

    text: str
    column: str
    sign: str
    limit: float
    unit: str
    option: str = field(default="", compare=False)

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


def read_constraint(text: str, option: str | None = None) -> Constraint:
    """Raises KvsimError, which begins with `option`, for another form, and for units and limits that the
    figure cannot have."""
    option = option or f"--subject-to {text}"
    parts = _FORM.fullmatch(text)
    if parts is None:
        raise KvsimError(f"{option}: write NAME<=LIMIT or NAME>=LIMIT, such as ttft_p99<=2s")
    name, sign, number, unit = parts.groups()
    if unit not in _UNITS:
        raise KvsimError(f"{option}: {unit} is no unit; one of {', '.join(filter(None, _UNITS))}")
    column = SHORT_NAMES.get(name, name)
    limit = float(number) * _UNITS[unit]
    known = name in SHORT_NAMES or measure_of(column) != "number"
    if (problem := _impossible(name, measure_of(column) if known else None, limit, unit)) is not None:
        raise KvsimError(f"{option}: {problem}")
    return Constraint(f"{name}{sign}{number}{unit}", column, sign, limit, unit, option)


def _impossible(name: str, measure: str | None, limit: float, unit: str) -> str | None:
    """Why a figure that counts `measure`, None if that is not known, can have no such limit."""
    if measure is not None and unit not in _UNITS_OF[measure]:
        right = {
            "seconds": "a time; give it in s, ms, us or min",
            "share": "a share; give it in % or as a fraction",
            "number": "a plain number; give it without a unit",
        }
        return f"{name} is {right[measure]}, not in {unit}"
    if not 0 <= limit < float("inf"):
        return f"{name} is never below 0; give a limit of 0 or above"
    if measure == "share" and limit > 1:
        return f"{name} is a share and never above 100%; give at most 100% or 1"
    return None


def check_measured(constraints: Collection[Constraint], *, has_slo: bool) -> None:
    """Raises KvsimError for a figure that only scenarios with an slo: section have, where there is none."""
    for constraint in constraints:
        if not has_slo and constraint.column.startswith(NEEDS_SLO):
            raise KvsimError(
                f"{constraint.option}: {constraint.name} counts requests within latency limits, and the "
                "scenario has none; give it an slo: section, such as slo: {ttft: 2} (seconds)"
            )


def check_names(constraints: Collection[Constraint], columns: Collection[str]) -> None:
    """Raises KvsimError for a figure that no summary has, naming the nearest."""
    for constraint in constraints:
        if constraint.column not in columns:
            known = [*SHORT_NAMES, *columns]
            near = difflib.get_close_matches(constraint.name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(SHORT_NAMES)}"
            raise KvsimError(f"{constraint.option}: unknown figure {constraint.name}; {hint}")
