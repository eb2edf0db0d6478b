"""From a YAML file and overrides to a scenario, or to one line that says what is wrong."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from kvsim.errors import KvsimError
from kvsim.scenario.problems import Where, first_problem, locate
from kvsim.scenario.schema import Scenario, with_trace
from kvsim.scenario.yaml_file import Lines, parse_mapping, parse_value, read_text
from kvsim.workload.checks import FieldError, shown

_NAME_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"


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
    path = Path(path)
    source = _Source(path)
    values, source.lines = parse_mapping(read_text(path), str(path))
    for each in overrides:
        where, value, option = _override(each) if isinstance(each, str) else each
        if where in source.overridden:
            raise KvsimError(f"{option}: {'.'.join(where)} is set twice; give it once")
        _apply(values, where, value, option)
        source.overridden[where] = option
    if trace is not None:
        _put_trace(values, str(trace), source)
    values.setdefault("name", _default_name(path))
    return _checked(values, source, None if trace is None else Path(trace))


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
        return f"{self.path} line {line}" if line else str(self.path)


def _checked(values: dict[str, Any], source: _Source, trace: Path | None) -> Scenario:
    try:
        scenario = Scenario.model_validate(values, context={"folder": source.path.parent})
    except ValidationError as error:
        where, problem, further = first_problem(error, Scenario)
        raise KvsimError(locate(where, problem, further, source.place)) from None
    try:
        return with_trace(scenario, source.path.parent, trace)
    except FieldError as error:
        where = ("workload", *error.field.split("."))
        raise KvsimError(locate(where, error.problem, 0, source.place)) from None


def _override(text: str) -> Override:
    """ "section.key=value" of a --set."""
    key, equals, value = text.partition("=")
    where = tuple(part.strip().replace("-", "_") for part in key.split("."))
    if not equals or not all(where):
        raise KvsimError(f"--set {text}: write section.key=value, such as engine.block_size=32")
    return Override(where, parse_value(value, f"--set {text}"), f"--set {text}")


def _apply(values: dict[str, Any], where: Where, value: Any, option: str) -> None:
    section = values
    for part in where[:-1]:
        inner = section.setdefault(part, {})
        if inner is None:
            inner = section[part] = {}
        if not isinstance(inner, dict):
            raise KvsimError(f"{option}: {part} is {shown(inner)}, not a section with keys")
        section = inner
    section[where[-1]] = value


def _put_trace(values: dict[str, Any], trace: str, source: _Source) -> None:
    """`--trace` stands in for workload.path, if the workload is one that replays."""
    workload = values.get("workload")
    if isinstance(workload, dict) and workload.get("type") == "trace":
        workload["path"] = trace
        workload.pop("sha256", None)
        source.overridden["workload", "path"] = f"--trace {trace}"


def _default_name(path: Path) -> str:
    """The file's name without its ending, as far as it can name a folder."""
    name = "".join(letter if letter in _NAME_LETTERS else "-" for letter in path.stem).lstrip("._-")
    return name[:100] or "scenario"
