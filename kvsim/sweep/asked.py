"""What a sweep was asked: axes, listed points, samples, a search. From options and the `sweep:` block."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvsim.errors import KvsimError
from kvsim.scenario import SweepSection
from kvsim.scenario.loader import key_path, read_override
from kvsim.scenario.sweep_block import MAX_POINTS
from kvsim.sweep.axes import Axis, axis_of, read_axes
from kvsim.sweep.constraints import Constraint, read_constraint
from kvsim.sweep.search import Find, read_find

Values = dict[str, Any]  # dotted key -> value

_UNSWEPT = {
    "name": "the name changes nothing but the folder",
    "record": "a sweep keeps summaries only",
}


@dataclass(frozen=True)
class Asked:
    """A sweep, described. `axes` and `points` are multiplied; `sample` draws from the axes instead."""

    axes: tuple[Axis, ...] = ()
    points: tuple[Values, ...] = ()
    sample: tuple[str, int] | None = None
    seed: int = 0
    find: Find | None = None
    constraints: tuple[Constraint, ...] = ()
    tolerance: float | None = None
    max_points: int = MAX_POINTS

    @property
    def keys(self) -> tuple[str, ...]:
        """The swept keys, those of listed points first."""
        listed = dict.fromkeys(key for point in self.points for key in point)
        return tuple(dict.fromkeys([*listed, *(axis.key for axis in self.axes)]))

    def to_dict(self) -> dict[str, Any]:
        """Values as `sweep.json` holds them."""
        return {
            "set": {axis.key: _axis_words(axis) for axis in self.axes},
            "points": list(self.points),
            "sample": None if self.sample is None else f"{self.sample[0]}:{self.sample[1]}",
            "seed": self.seed,
            "find": self.find and self.find.text,
            "subject_to": [constraint.text for constraint in self.constraints],
            "tolerance": self.tolerance,
        }


def asked(
    block: SweepSection | None,
    *,
    file: str = "",
    set_: Sequence[str | Axis] = (),
    points: Sequence[str | Values] = (),
    sample: str | None = None,
    seed: int | None = None,
    find: str | None = None,
    subject_to: Sequence[str] = (),
    tolerance: float | None = None,
    max_points: int | None = None,
) -> Asked:
    """The block with the options on top of it; raises KvsimError.

    An option's axis replaces the block's of the same key and is added to the others; listed points and
    constraints of the options replace those of the block, and so does every single word. `file` begins what
    is said of the block's axes.
    """
    block = block or SweepSection()
    most = max_points or block.max_points
    typed = read_axes([text for text in set_ if isinstance(text, str)], most=most)
    typed += [axis for axis in set_ if isinstance(axis, Axis)]
    in_block = [
        axis_of(_key(key), values, f"{file}sweep.set.{key}", most=most) for key, values in block.set.items()
    ]
    axes = {axis.key: axis for axis in [*in_block, *typed]}
    searched = find if find is not None else block.find
    limits = list(subject_to) or block.subject_to
    result = Asked(
        tuple(axes.values()),
        _points(list(points) or block.points),
        _sample(sample if sample is not None else block.sample),
        block.seed if seed is None else seed,
        None if searched is None else read_find(searched),
        tuple(map(read_constraint, limits)),
        tolerance or block.tolerance,
        most,
    )
    _check(result)
    return result


def _check(given: Asked) -> None:
    listed = {key for point in given.points for key in point}
    for key in given.keys:
        if (why := _UNSWEPT.get(key.split(".")[0])) is not None:
            raise KvsimError(f"{key}: cannot be swept, {why}")
    for axis in given.axes:
        if axis.key in listed:
            raise KvsimError(
                f"{axis.option}: {axis.key} stands in the listed points, too; give it in one place"
            )
    if given.sample and given.points:
        raise KvsimError("--sample: does not go with listed points; give one of the two")
    if given.sample and not given.axes:
        raise KvsimError("--sample: draws from ranges; give them with --set KEY=FROM:TO")
    if given.find is None and given.constraints:
        raise KvsimError("--subject-to: goes with --find max:KEY or --find min:KEY")
    if given.find is not None and not given.constraints:
        raise KvsimError(f"--find {given.find.text}: needs a limit, such as --subject-to 'ttft_p99<=2s'")
    if given.find is not None and given.find.key in given.keys:
        raise KvsimError(f"--find {given.find.text}: {given.find.key} is swept, too; search it or sweep it")
    if given.find is None and not given.keys:
        raise KvsimError("nothing to sweep: give --set KEY=VALUES, --find, or a sweep: block in the scenario")


def _key(key: str) -> str:
    return ".".join(key_path(key))


def _points(given: Sequence[str | Values]) -> tuple[Values, ...]:
    """Each a mapping, or "KEY=VALUE; KEY=VALUE" of a --point; raises KvsimError for one given twice."""
    points: list[Values] = []
    for each in given:
        point = _typed_point(each) if isinstance(each, str) else {_key(key): v for key, v in each.items()}
        if not point:
            raise KvsimError("--point: empty; write KEY=VALUE; KEY=VALUE")
        if point in points:
            raise KvsimError(f"--point {_shown(point)}: given twice; give it once")
        points.append(point)
    return tuple(points)


def _typed_point(text: str) -> Values:
    point: Values = {}
    for part in filter(str.strip, text.split(";")):
        override = read_override(part.strip(), "--point")
        key = ".".join(override.where)
        if key in point:
            raise KvsimError(f"--point {text}: {key} is set twice; give it once")
        point[key] = override.value
    return point


def _shown(point: Values) -> str:
    return "; ".join(f"{key}={value}" for key, value in point.items())


def _sample(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    kind, _, count = text.partition(":")
    if kind not in ("random", "latin") or not count.isdecimal() or int(count) < 1:
        raise KvsimError(f"--sample {text}: write random:N or latin:N with N points, such as latin:40")
    return kind, int(count)


def _axis_words(axis: Axis) -> Any:
    if axis.bounds is None:
        return list(axis.values)
    low, high = (int(end) if axis.bounds.whole else end for end in (axis.bounds.low, axis.bounds.high))
    return f"{low}:{high}" + (":log" if axis.bounds.log else "")
