"""What a sweep was asked: axes, listed points, samples, a search. From options and the `sweep:` block."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvsim.errors import KvsimError
from kvsim.scenario import SweepSection
from kvsim.scenario.loader import key_path, read_override
from kvsim.scenario.sweep_block import MAX_POINTS
from kvsim.sweep.axes import Axis, axis_of, read_axes
from kvsim.sweep.constraints import Constraint, read_constraint
from kvsim.sweep.search import Find, read_find

Values = dict[str, Any]  # dotted key -> value

Place = Callable[[tuple[str, ...]], str]  # path of a key of the file -> where it stands

_UNSWEPT = {
    "name": "the name changes nothing but the folder",
    "record": "a sweep keeps summaries only",
}


_UNSEARCHED = {**_UNSWEPT, "seed": "a seed names random draws and orders nothing"}


@dataclass(frozen=True)
class Asked:
    """A sweep, described. `axes` and `points` are multiplied; `sample` draws from the axes instead.

    `options`: key -> the option or the place in the file that gave it, for what is said of its values.
    `meanings`: key -> short name -> the value that stands in the scenario where tables have the name.
    """

    axes: tuple[Axis, ...] = ()
    points: tuple[Values, ...] = ()
    sample: tuple[str, int] | None = None
    seed: int = 0
    find: Find | None = None
    constraints: tuple[Constraint, ...] = ()
    tolerance: float | None = None
    max_points: int = MAX_POINTS
    options: Mapping[str, str] = field(default_factory=dict, compare=False)
    meanings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

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


@dataclass(frozen=True)
class _Block:
    """The `sweep:` block and where its words stand."""

    words: SweepSection
    place: Place

    def option(self, word: str, *more: str) -> str:
        """How what is said of a word of the block begins."""
        return f"{self.place(('sweep', word, *more))}: sweep.{word}"

    def pick(self, word: str, typed: Any) -> tuple[Any, str]:
        """What was typed, else the block's; and what is said of it begins with."""
        if typed is not None and typed != []:
            return typed, f"--{word.replace('_', '-')}"
        return getattr(self.words, word), f"{self.option(word)}:"


def asked(
    block: SweepSection | None,
    *,
    place: Place = lambda where: "the scenario",
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
    constraints of the options replace those of the block, and so does every single word. `place` says where
    a key of the block stands.
    """
    given = _Block(block or SweepSection(), place)
    most = max_points or given.words.max_points
    axes, options = _axes(given, set_, most)
    listed, point_option = _points(given, list(points))
    options |= {key: point_option for point in listed for key in point}
    sampled, sample_option = given.pick("sample", sample)
    searched, find_option = given.pick("find", find)
    limits, limit_option = given.pick("subject_to", list(subject_to))
    near, near_option = given.pick("tolerance", tolerance)
    wanted = None if searched is None else read_find(searched, f"{find_option} {searched}")
    if wanted is not None:
        options[wanted.key] = f"{find_option} {searched}"
    result = Asked(
        axes,
        listed,
        None if sampled is None else _sample(sampled, f"{sample_option} {sampled}"),
        given.words.seed if seed is None else seed,
        wanted,
        tuple(read_constraint(text, f"{limit_option} {text}") for text in limits),
        None if near is None else _share(near, f"{near_option} {near}"),
        most,
        options,
    )
    _check(result, f"{sample_option} {sampled}", f"{find_option} {searched}")
    if result.find is None and limits:
        raise KvsimError(f"{limit_option} {limits[0]}: goes with --find max:KEY or --find min:KEY")
    if result.find is None and near is not None:
        raise KvsimError(f"{near_option} {near:g}: goes with --find max:KEY or --find min:KEY")
    if result.sample is None and seed is not None:
        raise KvsimError(
            f"--seed {seed}: goes with --sample; the seed of the requests is swept with --set seed=A,B"
        )
    if result.find is None and not result.keys:
        raise KvsimError("nothing to sweep: give --set KEY=VALUES, --find, or a sweep: block in the scenario")
    return result


def _axes(block: _Block, typed: Sequence[str | Axis], most: int) -> tuple[tuple[Axis, ...], dict[str, str]]:
    """The block's axes with the typed ones on top, and the option of each key."""
    in_block = [
        axis_of(_key(key), values, f"{block.option('set', key)}.{key}", most=most)
        for key, values in block.words.set.items()
    ]
    options = {axis.key: axis.option for axis in in_block}
    texts = read_axes([text for text in typed if isinstance(text, str)], most=most)
    made = [axis for axis in typed if isinstance(axis, Axis)]
    options |= {axis.key: "--set" for axis in texts} | {axis.key: "" for axis in made}
    return tuple({axis.key: axis for axis in [*in_block, *texts, *made]}.values()), options


def _check(given: Asked, sample_option: str, find_option: str) -> None:
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
        raise KvsimError(f"{sample_option}: does not go with listed points; give one of the two")
    if given.sample and not given.axes:
        raise KvsimError(f"{sample_option}: draws from ranges; give them with --set KEY=FROM:TO")
    if given.sample and all(axis.bounds is None and len(axis.values) == 1 for axis in given.axes):
        raise KvsimError(
            f"{sample_option}: every key has a single value, so all points would be the same; "
            "give a range with --set KEY=FROM:TO"
        )
    if given.find is None:
        return
    if not given.constraints:
        raise KvsimError(f"{find_option}: needs a limit, such as --subject-to 'ttft_p99<=2s'")
    if given.find.key in given.keys:
        raise KvsimError(f"{find_option}: {given.find.key} is swept, too; search it or sweep it")
    if (why := _UNSEARCHED.get(given.find.key.split(".")[0])) is not None:
        raise KvsimError(f"{find_option}: {given.find.key} cannot be searched, {why}")


def _key(key: str) -> str:
    return ".".join(key_path(key))


def _share(value: float, option: str) -> float:
    if not 0 < value <= 1 or math.isnan(value):
        raise KvsimError(f"{option}: is out of range; give a share above 0, at most 1")
    return value


def _points(block: _Block, typed: Sequence[str | Values]) -> tuple[tuple[Values, ...], str]:
    """The typed points, else the block's, and their option; raises KvsimError for one given twice.

    Each is a mapping, or "KEY=VALUE; KEY=VALUE" of a --point.
    """
    option = "--point" if typed else block.option("points")
    points: list[Values] = []
    for each in typed or block.words.points:
        point = _typed_point(each) if isinstance(each, str) else {_key(key): v for key, v in each.items()}
        if not point:
            raise KvsimError(f"{option}: empty; write KEY=VALUE; KEY=VALUE")
        if point in points:
            raise KvsimError(f"{option}: {_shown(point)} is given twice; give it once")
        points.append(point)
    return tuple(points), option if not typed or any(isinstance(each, str) for each in typed) else ""


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


def _sample(text: str, option: str) -> tuple[str, int]:
    kind, _, count = text.partition(":")
    if kind not in ("random", "latin") or not count.isdecimal() or int(count) < 1:
        raise KvsimError(f"{option}: write random:N or latin:N with N points, such as latin:40")
    return kind, int(count)


def _axis_words(axis: Axis) -> Any:
    if axis.bounds is None:
        return list(axis.values)
    low, high = (int(end) if axis.bounds.whole else end for end in (axis.bounds.low, axis.bounds.high))
    return f"{low}:{high}" + (":log" if axis.bounds.log else "")
