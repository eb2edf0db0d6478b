"""The points of a sweep: combinations, lists, samples; each with its scenario, checked before any runs."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kvsim.errors import KvsimError
from kvsim.scenario import Override, RecordSection, Scenario, ScenarioError, Template
from kvsim.scenario.alone import is_allowed_alone
from kvsim.sweep.asked import Asked, Values
from kvsim.sweep.axes import Axis, counted, require_values
from kvsim.workload.checks import shown
from kvsim.workload.streams import generator

_NAMED = ("groups", "routers", "links")  # of the cluster


@dataclass(frozen=True)
class Point:
    """Values of the swept keys, and the scenario with them, or the sentence why there is none."""

    values: Values
    scenario: Scenario | None
    problem: str | None = None

    @cached_property
    def hash(self) -> str:
        """Of the scenario; empty without one."""
        return self.scenario.scenario_hash if self.scenario else ""


def expand(given: Asked) -> list[Values]:
    """The swept values of every point, in a fixed order; raises KvsimError for too many points."""
    if given.sample is not None:
        kind, count = given.sample
        _check_count(count, given.max_points)
        return list(_sampled(given.axes, kind, count, given.seed))
    for axis in given.axes:
        require_values(axis)
    listed: Sequence[Values] = given.points or ({},)
    _check_count(math.prod(len(axis.values) for axis in given.axes) * len(listed), given.max_points)
    keys = [axis.key for axis in given.axes]
    grid = itertools.product(*(axis.values for axis in given.axes))
    combinations = [dict(zip(keys, values, strict=True)) for values in grid]
    return [{**point, **values} for point in listed for values in combinations]


def _check_count(count: int, most: int) -> None:
    if count > most:
        raise KvsimError(
            f"{counted(count)} points are more than {most:,}; take fewer values, draw some with "
            f"--sample latin:N, or allow them with --max-points {count}"
        )


def _sampled(axes: Sequence[Axis], kind: str, count: int, seed: int) -> Iterator[Values]:
    """Points drawn evenly; "latin" divides each axis into `count` equal parts and uses each part once.

    Every axis has a random stream of its own, named by its key: a further axis leaves the others as they are.
    """
    columns = []
    for axis in axes:
        rng = generator(seed, "sweep", kind, axis.key)
        shares = rng.random(count)
        if kind == "latin":
            shares = (rng.permutation(count) + shares) / count
        columns.append([axis.at(share) for share in shares.tolist()])
    for values in zip(*columns, strict=True):
        yield dict(zip((axis.key for axis in axes), values, strict=True))


class Resolver:
    """Makes points from values; every point has the file's requests, and records nothing but summaries."""

    def __init__(
        self,
        template: Template,
        options: Mapping[str, str] | None = None,
        meanings: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """options: key -> the option, or the place in the file, that its values come from.

        meanings: key -> short name -> value, as of `Asked`.
        """
        self._template = template
        self._options = options or {}
        self._meanings = meanings or {}

    def point(self, values: Values) -> Point:
        """A point whose values no scenario can have has a problem."""
        try:
            return Point(values, self._scenario(values))
        except ScenarioError as error:
            return Point(values, None, str(error))

    def points(self, all_values: Sequence[Values]) -> list[Point]:
        """Raises KvsimError for an unknown key or a value that is always wrong, or if no point is right."""
        points = []
        for values in all_values:
            try:
                points.append(Point(values, self._scenario(values)))
            except ScenarioError as error:
                if _is_refused_alone(error, values):
                    self._scenario(values, self._option)
                points.append(Point(values, None, str(error)))
        if points and all(point.problem for point in points):
            self._scenario(points[0].values, self._option)
        return points

    def require_number(self, point: Point, key: str) -> None:
        """Raises KvsimError unless the key of a good point is one and takes numbers."""
        known, value = self.value(point, key)
        if not known:  # the schema says what is wrong
            self._scenario({**point.values, key: 1}, self._option)
        elif isinstance(value, bool | dict | list) or (isinstance(value, str) and not _is_number_too(key)):
            raise KvsimError(
                f"{self._option(key, value)}: {key} is {shown(value)}, not a number; "
                f"sweep it with --set {key}=A,B,C"
            )

    def value(self, point: Point, key: str) -> tuple[bool, Any]:
        """Whether the resolved scenario of a point has a key, and its value there."""
        value: Any = point.scenario.resolved() if point.scenario else {}
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                return False, None
            value = value[part]
        return True, value

    def _scenario(
        self, values: Mapping[str, Any], option: Callable[[str, Any], str] | None = None
    ) -> Scenario:
        """`option` begins what is said of a value; without it that does not tell where it came from."""
        option = option or _as_typed
        for key, value in values.items():
            if not any(key.startswith(f"{other}.") for other in values):
                self._check_name(key, self._option(key, value))
        # a section before what lies in it: a router's policy, then its parameters
        overrides = [
            Override(tuple(key.split(".")), self._meaning(key, value), option(key, value))
            for key, value in sorted(values.items(), key=lambda item: item[0].count("."))
        ]
        scenario = self._template.scenario(overrides)
        return scenario.model_copy(update={"record": RecordSection()})

    def _check_name(self, key: str, option: str) -> None:
        """Raises KvsimError for a group, router or link that the scenario has not: it would be a new one."""
        section, _, rest = key.partition(".")
        kind, _, inner = rest.partition(".")
        name = inner.partition(".")[0]
        if section != "cluster" or kind not in _NAMED or not name:
            return
        known = list((self._template.values.get("cluster") or {}).get(kind) or ())
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "it has none"
            raise KvsimError(f"{option}: the scenario's cluster has no {kind[:-1]} {name}; {there}")

    def _meaning(self, key: str, value: Any) -> Any:
        named = self._meanings.get(key)
        return value if named is None else named[value]

    def _option(self, key: str, value: Any) -> str:
        option = self._options.get(key, "--set")
        if option in ("--set", "--point", ""):
            return f"{option} {_as_typed(key, value)}".strip()
        return option


def _as_typed(key: str, value: Any) -> str:
    return f"{key}={_typed(value)}"


def _is_number_too(key: str) -> bool:
    """Keys whose value may be a word as well: inf, auto."""
    return key in ("workload.rate", "engine.max_model_len")


def _typed(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _is_refused_alone(error: ScenarioError, values: Values) -> bool:
    """Whether a swept key or its value is wrong whatever else the scenario says."""
    where = ".".join(error.where)
    for key, value in values.items():
        if where == key or where.startswith(f"{key}.") or key.startswith(f"{where}."):
            return not is_allowed_alone(key, value)
    return False
