"""Token counts: a constant, or a distribution with bounds.

The spellings are those of vLLM's multi-turn benchmark (`benchmarks/multi_turn`), plus
`normal` and `choice`:

    64
    {distribution: constant, value: 64}
    {distribution: uniform, min: 16, max: 256}                    both ends included
    {distribution: lognormal, average: 256, median_ratio: 0.85}   median = ratio x average
    {distribution: lognormal, mean: 5.0, sigma: 0.8}              of the logarithm
    {distribution: normal, mean: 256, std: 32}
    {distribution: poisson, alpha: 100}
    {distribution: zipf, alpha: 1.2}
    {distribution: choice, values: [64, 512], weights: [3, 1]}

All take `min` and `max`: a drawn number is rounded and moved into them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.workload.checks import MAX_TOKENS, FieldError, number, one_of, shown, whole

LengthSpec = int | Mapping[str, Any]
Parameters = Mapping[str, tuple[set[str], set[str]]]
Draw = Callable[[np.random.Generator, int], NDArray[Any]]

_PARAMETERS: Parameters = {  # name -> (needed, further)
    "constant": ({"value"}, set()),
    "uniform": ({"min", "max"}, set()),
    "lognormal": (set(), {"average", "median_ratio", "mean", "sigma"}),
    "normal": ({"mean", "std"}, set()),
    "poisson": ({"alpha"}, set()),
    "zipf": ({"alpha"}, set()),
    "choice": ({"values"}, {"weights"}),
}
_LARGEST = float(MAX_TOKENS)


@dataclass(frozen=True)
class Length:
    """A checked length; `low` and `high` bound everything that it draws."""

    low: int
    high: int
    _draw: Draw | None = None

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """`count` lengths, shape (count,). A constant takes nothing from the stream."""
        if self._draw is None:
            return np.full(count, self.low, np.int64)
        drawn = np.clip(self._draw(rng, count), self.low, self.high)
        return np.rint(drawn).astype(np.int64)


def length(field: str, spec: Any, low: int = 0, high: int = MAX_TOKENS) -> Length:
    """Read a length from its YAML form; raises FieldError naming `field` or a key in it."""
    if not isinstance(spec, Mapping):
        value = whole(field, spec, low, high)
        return Length(value, value)
    kind = one_of(f"{field}.distribution", spec.get("distribution"), tuple(_PARAMETERS))
    check_keys(field, spec, kind, _PARAMETERS)
    least = whole(f"{field}.min", spec.get("min", low), low, high)
    most = whole(f"{field}.max", spec.get("max", high), low, high)
    if least > most:
        raise FieldError(f"{field}.min", f"{least} is above max, {most}")
    if kind == "constant":
        value = whole(f"{field}.value", spec["value"], least, most)
        return Length(value, value)
    if kind == "choice":
        return _choice(field, spec, least, most)
    return Length(least, most, _sampler(field, spec, kind, least, most))


def check_keys(field: str, spec: Mapping[str, Any], kind: str, parameters: Parameters) -> None:
    """Raises FieldError for a key that the distribution does not take, or needs and lacks."""
    needed, further = parameters[kind]
    known = needed | further | {"distribution", "min", "max"}
    for key in spec:
        if key not in known:
            raise FieldError(f"{field}.{key}", f"unknown key; {kind} takes {', '.join(sorted(known))}")
    for key in sorted(needed - set(spec)):
        raise FieldError(f"{field}.{key}", f"missing; {kind} needs {', '.join(sorted(needed))}")


def _sampler(field: str, spec: Mapping[str, Any], kind: str, least: int, most: int) -> Draw:
    def parameter(key: str, above: float = 0.0, high: float = _LARGEST) -> float:
        return number(f"{field}.{key}", spec[key], above, high)

    if kind == "uniform":
        return lambda rng, count: rng.integers(least, most, count, endpoint=True)
    if kind == "lognormal":
        mean, sigma = lognormal(field, spec)
        return lambda rng, count: np.exp(mean + sigma * rng.standard_normal(count))
    if kind == "normal":
        mean, std = parameter("mean", -_LARGEST), parameter("std")
        return lambda rng, count: mean + std * rng.standard_normal(count)
    if kind == "poisson":
        alpha = parameter("alpha")
        return lambda rng, count: rng.poisson(alpha, count)
    exponent = parameter("alpha", above=1.01, high=1000.0)  # nearer to 1 nearly all draws overflow
    return lambda rng, count: rng.zipf(exponent, count)


def lognormal(field: str, spec: Mapping[str, Any]) -> tuple[float, float]:
    """Mean and sigma of the logarithm; raises FieldError."""
    if "average" in spec:
        if "mean" in spec or "sigma" in spec:
            raise FieldError(field, "give average (and median_ratio) or mean and sigma, not both")
        average = number(f"{field}.average", spec["average"], 0.0, _LARGEST)
        ratio = number(f"{field}.median_ratio", spec.get("median_ratio", 0.85), 0.0, 1.0)
        return math.log(average * ratio), math.sqrt(-2.0 * math.log(ratio))
    if "mean" not in spec or "sigma" not in spec or "median_ratio" in spec:
        raise FieldError(field, "lognormal needs average (and median_ratio), or mean and sigma")
    mean = number(f"{field}.mean", spec["mean"], -21.5, 21.5)
    return mean, number(f"{field}.sigma", spec["sigma"], 0.0, 10.0)


def _choice(field: str, spec: Mapping[str, Any], least: int, most: int) -> Length:
    values, weights = spec["values"], spec.get("weights")
    if not isinstance(values, list | tuple) or not values:
        raise FieldError(f"{field}.values", f"{shown(values)} is not a list of whole numbers")
    table = np.array([whole(f"{field}.values", value, least, most) for value in values], np.int64)
    edges = np.cumsum(_weights(field, weights, len(table)))
    edges /= edges[-1]

    def draw(rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        return table[np.searchsorted(edges, rng.random(count), side="right")]

    return Length(int(table.min()), int(table.max()), draw)


def _weights(field: str, weights: Any, count: int) -> NDArray[np.float64]:
    if weights is None:
        return np.ones(count)
    if not isinstance(weights, list | tuple) or len(weights) != count:
        problem = f"{shown(weights)} is not a list of {count} numbers, one for each value"
        raise FieldError(f"{field}.weights", problem)
    return np.array([number(f"{field}.weights", weight, 0.0, 1e9) for weight in weights])
