"""Units of a scenario's keys, read off its JSON Schema."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from kvsim.scenario.json_schema import json_schema
from kvsim.scenario.workload_schema import JsonSchema


def unit_of(key: str, scenario: Mapping[str, Any] | None = None) -> str:
    """The unit of a dotted key, such as "seconds"; empty for none, and for a key that no section has.

    scenario: its plain values, by which the types of workloads and the policies are told apart. Where units
    still differ, what they end in alike ("per second"). vLLM's flags may stand without `engine.`.
    """
    path = key.replace("-", "_").split(".")
    values = scenario or {}
    for where, given in ((path, values), (path, {}), (["engine", *path], {})):
        found = _units(_schema(), where, given)
        if found:
            return _alike(found - {""})
    return ""


@cache
def _schema() -> JsonSchema:
    return json_schema()


def _units(node: JsonSchema, path: Sequence[str], value: Any) -> set[str]:
    """The units at the end of the path, in all sections that the value may be; "" for a key without one."""
    if not path and "x-unit" in node:
        return {node["x-unit"]}
    if _excludes(node, value):
        return set()
    found = set[str]() if path else {""}
    if path:
        inner = value.get(path[0]) if isinstance(value, Mapping) else None
        for child in _children(node, path[0]):
            found |= _units(child, path[1:], inner)
    for choice in _choices(node):
        found |= _units(choice, path, value)
    return found


def _excludes(node: JsonSchema, value: Any) -> bool:
    """Whether the value says that it is another kind of section, as by its `type` or `policy`."""
    if not isinstance(value, Mapping):
        return False
    told = node.get("properties", {})
    return any(name in value and not _allows(told[name], value[name]) for name in told)


def _allows(schema: JsonSchema, value: Any) -> bool:
    if "const" in schema:
        return bool(schema["const"] == value)
    return "enum" not in schema or value in schema["enum"]


def _children(node: JsonSchema, name: str) -> Iterator[JsonSchema]:
    """Schemas of a key; where keys are names, of any."""
    if name in node.get("properties", {}):
        yield node["properties"][name]
    elif "properties" not in node:
        named = [*node.get("patternProperties", {}).values(), node.get("additionalProperties")]
        yield from (each for each in named if isinstance(each, dict))


def _choices(node: JsonSchema) -> Iterator[JsonSchema]:
    if "$ref" in node:
        yield _schema()["$defs"][node["$ref"].removeprefix("#/$defs/")]
    for word in ("allOf", "anyOf", "oneOf"):
        yield from node.get(word, ())


def _alike(units: Iterable[str]) -> str:
    """The words in which all end."""
    kept: list[str] = []
    for words in zip(*(reversed(unit.split()) for unit in units), strict=False):
        if len(set(words)) > 1:
            break
        kept.insert(0, words[0])
    return " ".join(kept)
