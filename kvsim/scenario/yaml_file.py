"""YAML text to plain values, remembering on which line each key stands."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from kvsim.errors import KvsimError
from kvsim.workload.checks import shown

Path_ = tuple[str, ...]
MAX_VALUES = 100_000  # a scenario has a few dozen; this stops aliases that multiply without end
_SCALARS = (bool, int, float, str)


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


def _load(text: str, source: str) -> Any:
    try:
        return YAML(typ="rt", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" line {mark.line + 1} column {mark.column + 1}" if mark else ""
        problem = " ".join(str(error.problem or error.context or "cannot be parsed").split())
        raise KvsimError(f"{source}{where}: broken YAML: {problem}") from None
    except RecursionError:
        raise KvsimError(f"{source}: broken YAML: nested too deeply") from None
    except (YAMLError, ValueError) as error:
        problem = " ".join(str(error).split())[:120]
        raise KvsimError(f"{source}: broken YAML: {problem}") from None


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
        for scalar in _SCALARS:
            if isinstance(node, scalar):
                return bool(node) if _is_bool(node) else scalar(node)
        return None if node is None else str(node)

    def mapping(self, node: Mapping[Any, Any], path: Path_) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for key, item in node.items():
            name = str(key).replace("-", "_")
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
