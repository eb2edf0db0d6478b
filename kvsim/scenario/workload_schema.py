"""JSON Schema of the scenario's `workload` section: keys, meanings and ranges of each type.

The descriptions in kvsim.workload check themselves; this says the same to editors. Tests hold the two
together: the same keys, and the same answer to values in and out of range.
"""

import dataclasses
from collections.abc import Mapping

from kvsim.scenario.workload import COUNTS, PARTS, TYPES
from kvsim.scenario.workload_keys import (
    INFINITY,
    KEYS,
    LENGTH_RANGES,
    LENGTH_UNITS,
    TITLES,
    JsonSchema,
    number,
    optional,
    seconds,
    whole,
)
from kvsim.workload.checks import MAX_TOKENS
from kvsim.workload.durations import MAX_SECONDS
from kvsim.workload.mix import PACE


def workload_definitions() -> dict[str, JsonSchema]:
    """`$defs`: `Workload`, one section for each type and each part of a mix, lengths and durations."""
    sections = {section_name(name): _section(name) for name in TYPES}
    parts = {f"{section_name(name)}Part": _part(name) for name in PARTS}
    lengths = {name: _length(name, low, high) for name, (low, high) in LENGTH_RANGES.items()}
    choices = [{"$ref": f"#/$defs/{name}"} for name in sections]
    workload = {"title": "Workload", "oneOf": choices}
    return {"Workload": workload, **sections, **parts, **lengths, "Duration": _duration()}


def counted() -> JsonSchema:
    """A workload that ends by itself."""
    counts = [given(key) for key in sorted({"num_requests", *COUNTS.values()})]
    return {"anyOf": [*counts, {"properties": {"type": {"const": "trace"}}}]}


def section_name(kind: str) -> str:
    """`SharedPrefixWorkload` for shared_prefix."""
    return TYPES[kind].__name__


def _part(kind: str) -> JsonSchema:
    """A section within a mix."""
    section = _section(kind)
    weight = {"title": "Weight", "description": "its share of the arrivals, by weight", "default": 1.0}
    properties = {key: value for key, value in section["properties"].items() if key not in PACE}
    properties["weight"] = {**weight, **number(0, 1e9)}
    both: JsonSchema = {key: section[key] for key in ("oneOf", "not") if key in section}
    plain = {key: section[key] for key in ("description", "type", "additionalProperties")}
    return {
        **plain,
        "title": f"{section['title']}Part",
        "properties": properties,
        "required": ["type"],
        **both,
    }


def _section(kind: str) -> JsonSchema:
    rows, needed = KEYS[kind], ["type"]
    properties: JsonSchema = {"type": {"const": kind, "description": "what kind of traffic"}}
    for field in dataclasses.fields(TYPES[kind]):
        schema, meaning, unit = rows[field.name]
        properties[field.name] = {
            "title": field.name.replace("_", " ").title(),
            "description": meaning,
            **schema,
            **({"x-unit": unit} if unit else {}),
        }
        if field.default is not dataclasses.MISSING:
            properties[field.name]["default"] = field.default
        elif field.name not in ("path", "rate"):  # the command line can give it; see `_together`
            needed.append(field.name)
    section = {
        "title": section_name(kind),
        "description": TITLES[kind],
        "type": "object",
        "properties": properties,
        "required": needed,
        "additionalProperties": False,
    }
    return section | _together(kind)


def _together(kind: str) -> JsonSchema:
    """What no key can say alone."""
    if kind == "trace":
        scaled = {"required": ["time_scale"], "properties": {"time_scale": {"not": {"const": 1}}}}
        return {"not": {"allOf": [given("rate"), scaled]}}
    at_once = {"required": ["rate"], "properties": {"rate": {"anyOf": INFINITY}}}
    limited = given("max_concurrency")
    said: JsonSchema = {"anyOf": [given(COUNTS.get(kind, "num_requests")), limited, {"not": at_once}]}
    paced: JsonSchema = {"anyOf": [{"required": ["rate"]}, limited]}
    whole_section: JsonSchema = {"allOf": [said, paced]}
    if kind == "chat":
        forgets = {"required": ["keep_answers"], "properties": {"keep_answers": {"const": False}}}
        reasons = {"required": ["keep_reasoning"], "properties": {"keep_reasoning": {"const": True}}}
        whole_section["not"] = {"allOf": [forgets, reasons]}
    if kind == "image":
        whole_section["oneOf"] = [given("image_size"), given("image_tokens")]
    return whole_section


def given(key: str) -> JsonSchema:
    """The key is there, and is not null."""
    return {"required": [key], "properties": {key: {"not": {"type": "null"}}}}


def _length(name: str, low: int, high: int) -> JsonSchema:
    unit = {"x-unit": LENGTH_UNITS[name]} if name in LENGTH_UNITS else {}
    one = whole(low, high) | unit
    most = number(0, MAX_TOKENS)
    weights = {"type": "array", "items": number(0, 1e9), "minItems": 1}
    forms: list[tuple[str, Mapping[str, JsonSchema], list[str]]] = [
        ("constant", {"value": one}, ["value"]),
        ("uniform", {}, ["min", "max"]),
        ("lognormal", {"average": most | unit, "median_ratio": number(0, 1)}, ["average"]),
        ("lognormal", {"mean": number(-21.5, 21.5), "sigma": number(0, 10)}, ["mean", "sigma"]),
        ("normal", {"mean": number(-MAX_TOKENS, MAX_TOKENS) | unit, "std": most | unit}, ["mean", "std"]),
        ("poisson", {"alpha": most | unit}, ["alpha"]),
        ("zipf", {"alpha": number(1.01, 1000)}, ["alpha"]),
        (
            "choice",
            {"values": {"type": "array", "items": one, "minItems": 1}, "weights": optional(weights)},
            ["values"],
        ),
    ]
    bounds = {"min": one, "max": one}
    return _drawn(name, one, bounds, forms)


def _drawn(
    name: str,
    one: JsonSchema,
    bounds: Mapping[str, JsonSchema],
    forms: list[tuple[str, Mapping[str, JsonSchema], list[str]]],
) -> JsonSchema:
    """A value, or a distribution in one of its forms: (kind, parameters, needed ones)."""
    drawn = [
        {
            "type": "object",
            "title": f"Drawn: {kind}",
            "properties": {"distribution": {"const": kind}, **parameters, **bounds},
            "required": ["distribution", *needed],
            "additionalProperties": False,
        }
        for kind, parameters, needed in forms
    ]
    return {"title": name, "description": "a number, or a distribution to draw from", "anyOf": [one, *drawn]}


def _duration() -> JsonSchema:
    unit = {"x-unit": "seconds"}
    one = seconds() | unit
    forms: list[tuple[str, Mapping[str, JsonSchema], list[str]]] = [
        ("constant", {"value": one}, ["value"]),
        ("uniform", {}, ["min", "max"]),
        ("exponential", {"mean": number(0, MAX_SECONDS) | unit}, ["mean"]),
        ("lognormal", {"average": number(0, MAX_TOKENS) | unit, "median_ratio": number(0, 1)}, ["average"]),
        ("lognormal", {"mean": number(-21.5, 21.5), "sigma": number(0, 10)}, ["mean", "sigma"]),
    ]
    bounds = {"min": one, "max": one}
    return _drawn("Duration", one, bounds, forms)
