"""Times that people take: seconds, or a distribution with bounds. The spellings:

    2.5
    {distribution: constant, value: 2.5}
    {distribution: uniform, min: 1, max: 10}
    {distribution: exponential, mean: 5}
    {distribution: lognormal, average: 20, median_ratio: 0.5}     median = ratio x average
    {distribution: lognormal, mean: 2.0, sigma: 1.2}              of the logarithm

All take `min` and `max`: a drawn time is moved into them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.workload.checks import FieldError, number, one_of, shown
from kvsim.workload.lengths import Parameters, check_keys, lognormal

DurationSpec = float | Mapping[str, Any]
MAX_SECONDS = 1e9

_PARAMETERS: Parameters = {  # name -> (needed, further)
    "constant": ({"value"}, set()),
    "uniform": ({"min", "max"}, set()),
    "exponential": ({"mean"}, set()),
    "lognormal": (set(), {"average", "median_ratio", "mean", "sigma"}),
}


@dataclass(frozen=True)
class Duration:
    """A checked duration; `low` and `high` bound everything that it draws."""

    low: float
    high: float
    _draw: Callable[[np.random.Generator, int], NDArray[np.float64]] | None = None

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """`count` times in seconds, shape (count,). A constant takes nothing from the stream."""
        if self._draw is None:
            return np.full(count, self.low)
        return np.clip(self._draw(rng, count), self.low, self.high)


def seconds(field: str, value: Any, high: float = MAX_SECONDS, unit: str = "seconds") -> float:
    """The value, if it is a number from 0 to `high`; raises FieldError, which names the unit."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FieldError(field, f"{shown(value)} is not a number of {unit}")
    if not 0 <= value <= high:  # NaN compares false
        problem = f"{shown(value)} is out of range; give a number of {unit} from 0 to {high:g}"
        raise FieldError(field, problem)
    return float(value)


def duration(field: str, spec: Any) -> Duration:
    """Read a duration from its YAML form; raises FieldError naming `field` or a key in it."""
    if not isinstance(spec, Mapping):
        value = seconds(field, spec)
        return Duration(value, value)
    kind = one_of(f"{field}.distribution", spec.get("distribution"), tuple(_PARAMETERS))
    check_keys(field, spec, kind, _PARAMETERS)
    least = seconds(f"{field}.min", spec.get("min", 0.0))
    most = seconds(f"{field}.max", spec.get("max", MAX_SECONDS))
    if least > most:
        raise FieldError(f"{field}.min", f"{least:g} is above max, {most:g}")
    if kind == "constant":
        value = min(max(seconds(f"{field}.value", spec["value"]), least), most)
        return Duration(value, value)
    if kind == "uniform":
        return Duration(least, most, lambda rng, count: least + (most - least) * rng.random(count))
    if kind == "exponential":
        scale = number(f"{field}.mean", spec["mean"], 0.0, MAX_SECONDS)
        return Duration(least, most, lambda rng, count: scale * rng.standard_exponential(count))
    mean, sigma = lognormal(field, spec)
    return Duration(least, most, lambda rng, count: np.exp(mean + sigma * rng.standard_normal(count)))
