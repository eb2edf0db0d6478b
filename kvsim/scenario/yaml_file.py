"""YAML text to plain values, remembering on which line each key stands."""

import io
import re
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.constructor import ConstructorError, RoundTripConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.reader import ReaderError

from kvsim.errors import KvsimError
from kvsim.workload.checks import shown

Path_ = tuple[str, ...]
MAX_LETTERS = 1 << 18
MAX_DEPTH = 100
_TOO_DEEP = "nested too deeply"
MAX_VALUES = 100_000  # a scenario has a few dozen; this stops aliases that multiply without end
_SCALARS = (bool, int, float)


def read_text(path: Path) -> str:
    """The file's text; raises KvsimError if it is not there or not UTF-8."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = f"byte 0x{error.object[error.start]:02x} at position {error.start}"
        raise KvsimError(f"{path}: not UTF-8 text ({byte})") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise KvsimError(f"{path}: cannot be read: {reason}") from None


def parse_mapping(text: str, source: str) -> "tuple[dict[str, Any], Lines]":
    """The top mapping of a YAML document and its key lines; raises KvsimError naming `source`."""
    document = _load(text, source)
    if document is None:
        raise KvsimError(f"{source}: empty; a scenario needs model, gpu and workload")
    if not isinstance(document, CommentedMap):
        raise KvsimError(f"{source}: not a mapping of keys to values but {shown(_brief(document))}")
    lines = Lines()
    return _Plain(source, lines).mapping(document, ()), lines


def parse_value(text: str, source: str) -> Any:
    """One YAML value, as after the = of an override."""
    return _Plain(source, Lines()).value(_load(text, source), ())


class _Constructor(RoundTripConstructor):
    """Tells where a value stands that YAML's rules, or a tag, make a number or a date but is none."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except ValueError:
            tag = str(node.tag).rpartition(":")[2]
            kind = {"int": "a whole number", "float": "a number", "timestamp": "a date"}.get(tag, tag)
            problem = f"{shown(node.value)} cannot be read as {kind}; if it is text, put it in quotes"
            raise ConstructorError(None, None, problem, node.start_mark) from None


def _load(text: str, source: str) -> Any:
    _check_size(text, source)
    yaml = YAML(typ="rt", pure=True)
    yaml.Constructor = _Constructor
    try:
        return yaml.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(error.problem or error.context or "cannot be parsed").split())
        raise _broken(source, problem, (mark.line + 1, mark.column + 1) if mark else None) from None
    except ReaderError as error:
        before = text[: error.position]
        place = before.count("\n") + 1, error.position - before.rfind("\n")
        letter = ord(text[error.position])
        raise _broken(source, f"the control character U+{letter:04X}; delete it", place) from None
    except RecursionError:
        raise _broken(source, _TOO_DEEP) from None
    except (YAMLError, ValueError) as error:
        raise _broken(source, " ".join(str(error).split())[:120]) from None


def _broken(source: str, problem: str, place: tuple[int, int] | None = None) -> KvsimError:
    """`place`: line and column, from 1; an override, which is one line, needs the column alone."""
    where = f" line {place[0]} column {place[1]}" if place else ""
    if source.startswith("--set ") and place:
        where = f": column {place[1]} of the value"
    return KvsimError(f"{source}{where}: broken YAML: {problem}")


def _check_size(text: str, source: str) -> None:
    """The parser takes seconds to find out that it cannot go so deep, and minutes over megabytes."""
    if len(text) > MAX_LETTERS:
        raise KvsimError(f"{source}: {len(text):,} letters are too many for a scenario")
    if _depth_in_brackets(text) > MAX_DEPTH or _depth_in_lines(text) > MAX_DEPTH:
        raise _broken(source, _TOO_DEEP)


def _depth_in_brackets(text: str) -> int:
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = max(depth + (1 if bracket in "[{" else -1), 0)
        deepest = max(deepest, depth)
    return deepest


def _depth_in_lines(text: str) -> int:
    """Of sections by indentation, and of lists in lists ("- - - 1")."""
    levels: list[int] = []
    deepest = 0
    for line in text.splitlines():
        lead = re.match(r"[ \t]*((?:[-?:][ \t]+)*)", line)
        indent = len(line) - len(line.lstrip())
        while levels and levels[-1] >= indent:
            levels.pop()
        levels.append(indent)
        levels += range(indent + 1, indent + 1 + len((lead[1] if lead else "").split()))
        deepest = max(deepest, len(levels))
    return deepest


def _brief(document: Any) -> Any:
    return list(document) if isinstance(document, list) else document


class Lines:
    """Line numbers, counted from 1, of keys by their path of canonical names."""

    def __init__(self) -> None:
        self._of: dict[Path_, int] = {}

    def put(self, path: Path_, line: int) -> None:
        self._of[path] = line

    def find(self, path: Path_) -> int | None:
        """The line of the key, or else of the nearest section around it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._of:
                return self._of[path[:length]]
        return None


class _Plain:
    """Turns ruamel's types into plain ones; keys get underscores for dashes."""

    def __init__(self, source: str, lines: Lines) -> None:
        self._source, self._lines, self._num_values = source, lines, 0

    def value(self, node: Any, path: Path_) -> Any:
        self._num_values += 1
        if self._num_values > MAX_VALUES or len(path) > 20:
            raise KvsimError(f"{self._source}: too many values or nested too deeply for a scenario")
        if isinstance(node, Mapping):
            return self.mapping(node, path)
        if isinstance(node, list):
            return [self.value(item, (*path, str(i))) for i, item in enumerate(node)]
        if isinstance(node, Set):  # !!set
            return {self._text(key, path): None for key in node}
        for scalar in _SCALARS:
            if isinstance(node, scalar):
                return bool(node) if _is_bool(node) else scalar(node)
        if isinstance(node, bytes):
            raise KvsimError(f"{self._place(path)}: binary data has no place in a scenario")
        return None if node is None else self._text(node, path)

    def _text(self, node: Any, path: Path_) -> str:
        """JSON escapes make one character of two halves; half a character is refused."""
        try:
            return str(node).encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise KvsimError(f"{self._place(path)}: half a character (a lone surrogate) is no text") from None

    def _place(self, path: Path_) -> str:
        line = self._lines.find(path)
        return f"{self._source} line {line}: {'.'.join(path)}" if line else self._source

    def mapping(self, node: Mapping[Any, Any], path: Path_) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for key, item in node.items():
            name = self._text(key, path).replace("-", "_")
            line = self._line_of(node, key)
            if name in plain:
                where = f" line {line}" if line else ""
                dotted = ".".join((*path, name))
                raise KvsimError(f"{self._source}{where}: {dotted}: given twice, with dash and underscore")
            if line:
                self._lines.put((*path, name), line)
            plain[name] = self.value(item, (*path, name))
        return plain

    @staticmethod
    def _line_of(node: Mapping[Any, Any], key: Any) -> int | None:
        data = getattr(getattr(node, "lc", None), "data", None) or {}
        return data[key][0] + 1 if key in data else None


def _is_bool(node: Any) -> bool:
    return isinstance(node, bool) or type(node).__name__ == "ScalarBoolean"


def dump(values: Mapping[str, Any]) -> str:
    """Plain values as YAML text, in the order given."""
    out = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.dump(dict(values), out)
    return out.getvalue()
