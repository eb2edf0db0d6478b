"""From a YAML file and overrides to a scenario, or to one line that says what is wrong."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from kvsim.errors import KvsimError
from kvsim.scenario.problems import Where, first_problem, locate
from kvsim.scenario.router import RouterSection
from kvsim.scenario.schema import Scenario, with_trace
from kvsim.scenario.sweep_block import SweepSection
from kvsim.scenario.workload import WorkloadSpec, plain_section
from kvsim.scenario.yaml_file import Lines, parse_mapping, parse_value, read_text
from kvsim.workload.checks import FieldError, shown

S = TypeVar("S", bound=BaseModel)

_NAME_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"


class ScenarioError(KvsimError):
    """A scenario that the schema refuses; `where` is the path of the key that is wrong."""

    def __init__(self, text: str, where: Where = ()) -> None:
        super().__init__(text)
        self.where = where


class Override(NamedTuple):
    """A value put in place of the file's: path of the key, plain value, and the option as typed."""

    where: Where
    value: Any
    option: str


def load_scenario(
    path: str | Path,
    overrides: Sequence[str | Override] = (),
    trace: str | Path | None = None,
) -> Scenario:
    """Read a scenario file.

    `overrides` are "section.key=value" with YAML values; `trace` replaces workload.path.
    Raises KvsimError, one line naming file, line, key, value and what would be right.
    """
    return read_template(path, trace).scenario(overrides)


def read_template(path: str | Path, trace: str | Path | None = None) -> "Template":
    """Read a scenario file from which several scenarios are to be made; raises as `load_scenario`."""
    path = Path(path)
    values, lines = parse_mapping(read_text(path), str(path))
    values.setdefault("name", _default_name(path))
    source = _Source(path, lines)
    block = values.pop("sweep", None)
    sweep = None if block is None else _validated(SweepSection, block, source, ("sweep",))
    return Template(values, source, None if trace is None else str(trace), sweep)


def template_of(scenario: Scenario) -> "Template":
    """The template of a scenario in hand: its values as they were given, before defaults were filled in."""
    trace = scenario.given_trace
    source = _Source(scenario.folder / "the scenario")
    return Template(
        _plain(scenario.given), source, None if trace is None else str(trace), scenario.sweep_block
    )


@dataclass
class _Source:
    """Where each value comes from; `overridden` holds the option that set a path, as typed."""

    path: Path
    lines: Lines = field(default_factory=Lines)
    overridden: dict[Where, str] = field(default_factory=dict)

    def place(self, where: Where) -> str:
        """The override or the file and line that a value stands in."""
        for length in range(len(where), 0, -1):
            if where[:length] in self.overridden:
                return self.overridden[where[:length]]
        line = self.lines.find(where)
        if line:
            return f"{self.path} line {line}"
        below = (option for path, option in self.overridden.items() if path[: len(where)] == where)
        return next(below, str(self.path)) if where else str(self.path)


@dataclass(frozen=True)
class Template:
    """Plain values of a scenario without the `sweep:` block, which stands apart in `sweep`."""

    values: Mapping[str, Any]
    source: _Source
    trace: str | None = None
    sweep: SweepSection | None = None

    def place(self, where: Where) -> str:
        """The file, and the line as far as it is known, in which a key stands."""
        return self.source.place(where)

    def scenario(self, overrides: Sequence[str | Override] = ()) -> Scenario:
        """With some values replaced; raises as `load_scenario`, a `ScenarioError` where a key is to blame."""
        values = copy.deepcopy(dict(self.values))
        source = _Source(self.source.path, self.source.lines)
        read = [read_override(each) if isinstance(each, str) else each for each in overrides]
        for where, value, option in sorted(read, key=_depth):
            if where[0] == "sweep":
                raise ScenarioError(
                    f"{option}: the sweep: block is no part of a scenario; kvsim sweep has an option "
                    "for each of its words, such as --seed N",
                    where,
                )
            if where in source.overridden:
                raise KvsimError(f"{option}: {'.'.join(where)} is set twice; give it once")
            _apply(values, where, copy.deepcopy(value), option)
            source.overridden[where] = option
        if self.trace is not None:
            _put_trace(values, self.trace, source)
        scenario = _checked(values, source, None if self.trace is None else Path(self.trace))
        scenario._sweep = self.sweep
        return scenario


def _depth(override: Override) -> int:
    """A whole section is replaced before keys in it are, in whatever order they were typed."""
    return len(override.where)


def _checked(values: dict[str, Any], source: _Source, trace: Path | None) -> Scenario:
    folder = source.path.parent
    scenario = _validated(Scenario, values, source, context={"folder": folder})
    try:
        return with_trace(scenario, folder, trace)
    except FieldError as error:
        where = ("workload", *error.field.split("."))
        raise ScenarioError(locate(where, error.problem, 0, source.place), where) from None


def _validated(
    section: type[S], values: Any, source: _Source, prefix: Where = (), context: dict[str, Any] | None = None
) -> S:
    try:
        return section.model_validate(values, context=context)
    except ValidationError as error:
        where, problem, further = first_problem(error, section)
        where = (*prefix, *where)
        raise ScenarioError(locate(where, problem, further, source.place), where) from None


def read_override(text: str, option: str = "--set") -> Override:
    """ "section.key=value" of a --set, the value in YAML."""
    key, equals, value = text.partition("=")
    where = key_path(key)
    if not equals or not all(where):
        raise KvsimError(f"{option} {text}: write section.key=value, such as engine.block_size=32")
    return Override(where, parse_value(value, f"{option} {text}"), f"{option} {text}")


def key_path(key: str) -> Where:
    """A dotted key's parts, with underscores for dashes."""
    return tuple(part.strip().replace("-", "_") for part in key.split("."))


def _apply(values: dict[str, Any], where: Where, value: Any, option: str) -> None:
    section: Any = values
    for i, part in enumerate(where[:-1]):
        inner = _inner(section, part, option, where[: i + 1])
        if not isinstance(inner, dict | list):
            raise ScenarioError(f"{option}: {part} is {shown(inner)}, not a section with keys", where)
        section = inner
    if isinstance(section, list):
        section[_index(section, where[-1], option, where)] = value
    else:
        section[where[-1]] = value


def _inner(section: Any, part: str, option: str, where: Where) -> Any:
    """What stands at a key of a section, made if it is not there, or at an index of a list."""
    if isinstance(section, list):
        return section[_index(section, part, option, where)]
    if section.get(part) is None:
        _check_name(section, where, option)
        section[part] = {}
    elif isinstance(section[part], str) and _is_router(where):
        section[part] = {"policy": section[part]}  # a policy's name stands for this
    return section[part]


def _check_name(section: Mapping[str, Any], where: Where, option: str) -> None:
    """A key in a group, router or link that the cluster has not would make a new one, half empty."""
    if where[0] == "cluster" and len(where) == 3 and where[1] in ("groups", "routers", "links"):
        there = f"there are {', '.join(section)}" if section else "it has none"
        kind = where[1].removesuffix("s")
        raise ScenarioError(f"{option}: the scenario's cluster has no {kind} {where[2]}; {there}", where)


def _is_router(where: Where) -> bool:
    return where == ("cluster", "router") or (where[:2] == ("cluster", "routers") and len(where) == 3)


def _index(section: list[Any], part: str, option: str, where: Where) -> int:
    if not (part.isdecimal() and int(part) < len(section)):
        name = ".".join(where[:-1])
        problem = f"{name} is a list; give an index from 0 to {len(section) - 1}, not {part}"
        raise ScenarioError(f"{option}: {problem}", where)
    return int(part)


def _put_trace(values: dict[str, Any], trace: str, source: _Source) -> None:
    """`--trace` stands in for workload.path, if the workload is one that replays."""
    workload = values.get("workload")
    if isinstance(workload, dict) and workload.get("type") == "trace":
        workload["path"] = trace
        workload.pop("sha256", None)
        source.overridden["workload", "path"] = f"--trace {trace}"


def _plain(value: Any) -> Any:
    """Sections and descriptions of workloads as the mappings that a file has."""
    if isinstance(value, RouterSection):
        return _plain(value.resolved())
    if isinstance(value, BaseModel):
        return _plain({key: getattr(value, key) for key in value.model_fields_set})
    if isinstance(value, WorkloadSpec):
        return _plain(plain_section(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _default_name(path: Path) -> str:
    """The file's name without its ending, as far as it can name a folder."""
    name = "".join(letter if letter in _NAME_LETTERS else "-" for letter in path.stem).lstrip("._-")
    return name[:100] or "scenario"
