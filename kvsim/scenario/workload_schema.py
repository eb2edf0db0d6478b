"""JSON Schema of the scenario's `workload` section: keys, meanings and ranges of each type.

The descriptions in kvsim.workload check themselves; this says the same to editors. Tests hold the two
together: the same keys, and the same answer to values in and out of range.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from kvsim.scenario.workload import TYPES
from kvsim.workload.arrivals import PROCESSES
from kvsim.workload.checks import MAX_TOKENS
from kvsim.workload.generated import MAX_CHOICES, MAX_CONCURRENCY, MAX_RATE, MAX_REQUESTS
from kvsim.workload.image import MAX_IMAGES_PER_REQUEST, POSITIONS
from kvsim.workload.image_tokens import MAX_SIDE, PROCESSORS
from kvsim.workload.popularity import POPULARITIES

JsonSchema = dict[str, Any]

_LARGEST_FLOAT = 1.7976931348623157e308  # only infinity is above
LENGTH_RANGES = {  # name of the definition -> least and greatest value
    "Length": (0, MAX_TOKENS),
    "LengthFromOne": (1, MAX_TOKENS),
    "ImageCount": (0, MAX_IMAGES_PER_REQUEST),
    "Priority": (-(2**31), 2**31 - 1),
}
_PAIR = {
    "type": "array",
    "items": {"type": "integer", "minimum": 1, "maximum": MAX_SIDE},
    "minItems": 2,
    "maxItems": 2,
}


def whole(low: int, high: int) -> JsonSchema:
    return {"type": "integer", "minimum": low, "maximum": high}


def number(above: float, high: float) -> JsonSchema:
    return {"type": "number", "exclusiveMinimum": above, "maximum": high}


def optional(schema: JsonSchema) -> JsonSchema:
    return {"anyOf": [schema, {"type": "null"}]}


def _ref(name: str) -> JsonSchema:
    return {"allOf": [{"$ref": f"#/$defs/{name}"}]}  # draft 7 ignores what stands beside a plain $ref


_INFINITY = [{"const": "inf"}, {"type": "number", "exclusiveMinimum": _LARGEST_FLOAT}]
_RATE = {"anyOf": [number(0, MAX_RATE), *_INFINITY]}
_NUM_REQUESTS = optional(whole(1, MAX_REQUESTS))
_MAX_CONCURRENCY = (
    optional(whole(1, MAX_CONCURRENCY)),
    "requests under way at most, the next goes out when one ends; no limit if absent",
    "requests",
)

# key -> (schema, meaning, unit)
_GENERATED: dict[str, tuple[JsonSchema, str, str | None]] = {
    "rate": (
        _RATE,
        "requests per second; inf sends all at time 0, or as max_concurrency lets them; needed without it",
        "requests per second",
    ),
    "num_requests": (_NUM_REQUESTS, "how many requests; needed if there is no horizon", "requests"),
    "max_concurrency": _MAX_CONCURRENCY,
    "arrival": ({"enum": list(PROCESSES)}, "gaps between requests", None),
    "burstiness": (
        number(0, 1e6),
        "of the gaps: 1 is Poisson traffic, less is burstier, more is steadier",
        None,
    ),
    "output_len": (_ref("LengthFromOne"), "tokens that the model will say, at least 1", "tokens"),
    "max_tokens": (
        optional(whole(1, MAX_TOKENS)),
        "the client's limit; the output's own length if absent",
        "tokens",
    ),
    "num_tenants": (
        whole(0, MAX_CHOICES),
        "requests carry one of so many cache salts, taken evenly; 0 for none",
        None,
    ),
    "num_loras": (
        whole(0, MAX_CHOICES),
        "requests use one of so many LoRA adapters, taken evenly; 0 for none",
        None,
    ),
    "priority": (_ref("Priority"), "lower goes first under the priority policy; may be negative", None),
}
_POPULARITY: dict[str, tuple[JsonSchema, str, str | None]] = {
    "popularity": (
        {"enum": list(POPULARITIES)},
        "how groups or pictures are picked; cycle takes them in turn",
        None,
    ),
    "zipf_alpha": (number(0, 100), "exponent for popularity zipf: number i has weight 1 / i^alpha", None),
}
_KEYS: dict[str, dict[str, tuple[JsonSchema, str, str | None]]] = {
    "shared_prefix": _GENERATED
    | _POPULARITY
    | {
        "num_prefixes": (whole(1, MAX_CHOICES), "number of groups", "groups"),
        "prefix_len": (_ref("Length"), "tokens of a prefix, drawn once for each group", "tokens"),
        "suffix_len": (_ref("Length"), "tokens of a request's own text, drawn for each request", "tokens"),
    },
    "image": _GENERATED
    | _POPULARITY
    | {
        "num_images": (
            whole(0, MAX_CHOICES),
            "pictures in the catalogue; 0 makes every picture a new one",
            "pictures",
        ),
        "images_per_request": (_ref("ImageCount"), "pictures of a request, at most 10,000", "pictures"),
        "image_size": (
            optional({"anyOf": [_PAIR, {"type": "array", "items": _PAIR, "minItems": 1}]}),
            "[width, height] in pixels, or a list of such pairs, one drawn for each picture",
            "pixels",
        ),
        "image_tokens": (
            optional(_ref("LengthFromOne")),
            "instead of a size: tokens of a picture, at least 1, drawn for each picture",
            "tokens",
        ),
        "min_pixels": (optional(whole(1, 10**12)), "replaces the processor's least area", "pixels"),
        "max_pixels": (
            optional(whole(1, 10**12)),
            "replaces the processor's greatest area; a smaller one leaves more memory to the KV cache",
            "pixels",
        ),
        "processor": (
            optional({"enum": list(PROCESSORS)}),
            "how pixels become tokens; by the model's name if absent",
            None,
        ),
        "image_position": ({"enum": list(POSITIONS)}, "pictures and instruction, which is first", None),
        "text_before": (whole(0, MAX_TOKENS), "template tokens before everything", "tokens"),
        "tokens_between": (whole(0, MAX_TOKENS), "template tokens between two pictures", "tokens"),
        "instruction_len": (_ref("Length"), "tokens of an instruction", "tokens"),
        "num_instructions": (
            whole(0, MAX_CHOICES),
            "different instructions, taken evenly; 0 gives every request its own",
            None,
        ),
        "text_after": (whole(0, MAX_TOKENS), "template tokens after everything", "tokens"),
    },
    "trace": {
        "path": (
            {"type": "string", "minLength": 1},
            "the file, sought beside the scenario first; `--trace` replaces it, and is needed without",
            None,
        ),
        "trace_block_size": (
            optional(whole(1, MAX_TOKENS)),
            "tokens an id; the format's own if absent (Mooncake 512, Bailian 16)",
            "tokens",
        ),
        "num_requests": (_NUM_REQUESTS, "at most so many rows; all if absent", "requests"),
        "start": (
            {"type": "number", "minimum": 0, "maximum": 1e12},
            "rows before this time of the trace are left out, and it becomes time 0",
            "seconds",
        ),
        "time_scale": (number(0, 1e9), "factor on all times; 0.5 is twice the traffic", None),
        "rate": (
            optional(_RATE),
            "instead of time_scale, the mean requests per second wanted; inf sends all at time 0",
            "requests per second",
        ),
        "max_concurrency": _MAX_CONCURRENCY,
        "sha256": (
            optional({"type": "string", "pattern": "^[0-9a-f]{64}$"}),
            "of the rows: refuse any others",
            None,
        ),
    },
}
_TITLES = {
    "shared_prefix": "Requests in groups that start alike",
    "image": "Requests with pictures drawn from a catalogue",
    "trace": "Replay of a recorded trace",
}


def workload_definitions() -> dict[str, JsonSchema]:
    """`$defs`: `Workload`, one section for each type, and the lengths."""
    sections = {section_name(name): _section(name) for name in TYPES}
    lengths = {name: _length(name, low, high) for name, (low, high) in LENGTH_RANGES.items()}
    choices = [{"$ref": f"#/$defs/{name}"} for name in sections]
    return {"Workload": {"title": "Workload", "oneOf": choices}, **sections, **lengths}


def section_name(kind: str) -> str:
    """`SharedPrefixWorkload` for shared_prefix."""
    return TYPES[kind].__name__


def _section(kind: str) -> JsonSchema:
    rows, needed = _KEYS[kind], ["type"]
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
        "description": _TITLES[kind],
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
    at_once = {"required": ["rate"], "properties": {"rate": {"anyOf": _INFINITY}}}
    limited = given("max_concurrency")
    counted: JsonSchema = {"anyOf": [given("num_requests"), limited, {"not": at_once}]}
    paced: JsonSchema = {"anyOf": [{"required": ["rate"]}, limited]}
    whole_section: JsonSchema = {"allOf": [counted, paced]}
    if kind == "image":
        whole_section["oneOf"] = [given("image_size"), given("image_tokens")]
    return whole_section


def given(key: str) -> JsonSchema:
    """The key is there, and is not null."""
    return {"required": [key], "properties": {key: {"not": {"type": "null"}}}}


def _length(name: str, low: int, high: int) -> JsonSchema:
    one = whole(low, high)
    weights = {"type": "array", "items": number(0, 1e9), "minItems": 1}
    forms: list[tuple[str, Mapping[str, JsonSchema], list[str]]] = [
        ("constant", {"value": one}, ["value"]),
        ("uniform", {}, ["min", "max"]),
        ("lognormal", {"average": number(0, MAX_TOKENS), "median_ratio": number(0, 1)}, ["average"]),
        ("lognormal", {"mean": number(-21.5, 21.5), "sigma": number(0, 10)}, ["mean", "sigma"]),
        ("normal", {"mean": number(-MAX_TOKENS, MAX_TOKENS), "std": number(0, MAX_TOKENS)}, ["mean", "std"]),
        ("poisson", {"alpha": number(0, MAX_TOKENS)}, ["alpha"]),
        ("zipf", {"alpha": number(1.01, 1000)}, ["alpha"]),
        (
            "choice",
            {"values": {"type": "array", "items": one, "minItems": 1}, "weights": optional(weights)},
            ["values"],
        ),
    ]
    bounds = {"min": one, "max": one}
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
