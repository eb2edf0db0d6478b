"""Keys of the scenario's `workload` section: for each type their JSON Schema, meaning and unit."""

from typing import Any

from kvsim.scenario.workload import PARTS, TYPES
from kvsim.workload.arrivals import PROCESSES
from kvsim.workload.chat import MAX_TURNS
from kvsim.workload.checks import MAX_TOKENS
from kvsim.workload.durations import MAX_SECONDS
from kvsim.workload.generated import MAX_CHOICES, MAX_CONCURRENCY, MAX_RATE, MAX_REQUESTS
from kvsim.workload.image import MAX_IMAGES_PER_REQUEST, POSITIONS
from kvsim.workload.image_tokens import MAX_SIDE, PROCESSORS
from kvsim.workload.mix import MAX_PARTS
from kvsim.workload.popularity import POPULARITIES

JsonSchema = dict[str, Any]
Row = tuple[JsonSchema, str, str | None]  # schema, meaning, unit of a key

_LARGEST_FLOAT = 1.7976931348623157e308  # only infinity is above
LENGTH_RANGES = {  # name of the definition -> least and greatest value
    "Length": (0, MAX_TOKENS),
    "LengthFromOne": (1, MAX_TOKENS),
    "Turns": (1, MAX_TURNS),
    "ImageCount": (0, MAX_IMAGES_PER_REQUEST),
    "Priority": (-(2**31), 2**31 - 1),
}
LENGTH_UNITS = dict.fromkeys(("Length", "LengthFromOne"), "tokens") | {
    "Turns": "requests",
    "ImageCount": "pictures",
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


def seconds() -> JsonSchema:
    return {"type": "number", "minimum": 0, "maximum": MAX_SECONDS}


def optional(schema: JsonSchema) -> JsonSchema:
    return {"anyOf": [schema, {"type": "null"}]}


def _ref(name: str) -> JsonSchema:
    return {"allOf": [{"$ref": f"#/$defs/{name}"}]}  # draft 7 ignores what stands beside a plain $ref


INFINITY = [{"const": "inf"}, {"type": "number", "exclusiveMinimum": _LARGEST_FLOAT}]
_RATE = {"anyOf": [number(0, MAX_RATE), *INFINITY]}
_NUM_REQUESTS = optional(whole(1, MAX_REQUESTS))
_MAX_CONCURRENCY = (
    optional(whole(1, MAX_CONCURRENCY)),
    "requests under way at most, the next goes out when one ends; no limit if absent",
    "requests",
)

# key -> (schema, meaning, unit)
_GENERATED: dict[str, Row] = {
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
_POPULARITY: dict[str, Row] = {
    "popularity": (
        {"enum": list(POPULARITIES)},
        "how groups or pictures are picked; cycle takes them in turn",
        None,
    ),
    "zipf_alpha": (number(0, 100), "exponent for popularity zipf: number i has weight 1 / i^alpha", None),
}
_ARRIVALS: dict[str, Row] = {
    "max_concurrency": (
        _MAX_CONCURRENCY[0],
        "clients, each with one session at a time, the next one when that is over; a request that nothing "
        "follows is a session of one; no limit if absent",
        "sessions",
    ),
    "arrival": _GENERATED["arrival"],
    "burstiness": _GENERATED["burstiness"],
}
_OF_SESSION = {
    "num_tenants": "sessions carry one of so many cache salts, taken evenly; 0 for none",
    "num_loras": "sessions use one of so many LoRA adapters, taken evenly; 0 for none",
}
_CHAT: dict[str, Row] = (
    _ARRIVALS
    | _POPULARITY
    | {key: (_GENERATED[key][0], meaning, None) for key, meaning in _OF_SESSION.items()}
    | {
        "rate": (
            _RATE,
            "sessions that begin per second; inf begins all at time 0, or as max_concurrency lets them; "
            "needed without it",
            "sessions per second",
        ),
        "num_sessions": (
            optional(whole(1, MAX_REQUESTS)),
            "how many sessions; needed if there is no horizon",
            "sessions",
        ),
        "num_turns": (_ref("Turns"), "requests of a session: a question and its answer each", "requests"),
        "num_system_prompts": (whole(1, MAX_CHOICES), "different system prompts", None),
        "system_prompt_len": (_ref("Length"), "tokens of a system prompt, drawn once for each", "tokens"),
        "context_len": (
            _ref("Length"),
            "a session's own text before its first question, such as a document",
            "tokens",
        ),
        "question_len": (
            _ref("LengthFromOne"),
            "tokens of a question with the template around it, at least 1, drawn for each turn",
            "tokens",
        ),
        "reasoning_len": (
            _ref("Length"),
            "tokens that the model says before its answer, drawn for each turn",
            "tokens",
        ),
        "output_len": (
            _ref("LengthFromOne"),
            "tokens of an answer, at least 1, drawn for each turn",
            "tokens",
        ),
        "keep_answers": (
            {"type": "boolean"},
            "answers, as far as they were given, stand in the prompts of later turns",
            None,
        ),
        "keep_reasoning": (
            {"type": "boolean"},
            "so does the reasoning; most chat templates drop it, and later prompts part from the cached "
            "blocks where it began",
            None,
        ),
        "think_time": (_ref("Duration"), "from the end of an answer to the next question", "seconds"),
        "max_tokens": (
            _GENERATED["max_tokens"][0],
            "the client's limit on reasoning and answer; their own length if absent",
            "tokens",
        ),
        "priority": _GENERATED["priority"],
    }
)
_MIX: dict[str, Row] = _ARRIVALS | {
    "parts": (
        {
            "type": "object",
            "minProperties": 1,
            "maxProperties": MAX_PARTS,
            "propertyNames": {"minLength": 1, "pattern": "^[^/]+$"},
            "additionalProperties": {"oneOf": [_ref(f"{TYPES[kind].__name__}Part") for kind in PARTS]},
        },
        "names and workloads: each the keys of its type but those of this table, and its `weight` (1)",
        None,
    ),
    "rate": (
        _RATE,
        "arrivals per second of all parts together, each a request or the first one of a session; inf sends "
        "all at time 0, or as max_concurrency lets them; needed without it",
        "arrivals per second",
    ),
    "num_arrivals": (
        optional(whole(1, MAX_REQUESTS)),
        "how many arrive; needed if there is no horizon",
        "arrivals",
    ),
}
KEYS: dict[str, dict[str, Row]] = {
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
    "chat": _CHAT,
    "mix": _MIX,
    "trace": {
        "path": (
            {"type": "string", "minLength": 1},
            "the file, sought beside the scenario first; `--trace` replaces it, and is needed without",
            None,
        ),
        "trace_block_size": (
            optional(whole(1, MAX_TOKENS)),
            "tokens an id; the format's own if absent (Mooncake 512, Bailian 16, agent sessions say theirs)",
            "tokens",
        ),
        "num_requests": (
            _NUM_REQUESTS,
            "at most so many requests, in the order of the file; all if absent",
            "requests",
        ),
        "start": (
            {"type": "number", "minimum": 0, "maximum": 1e12},
            "rows, or sessions that begin, before this time of the trace are left out; it becomes time 0",
            "seconds",
        ),
        "time_scale": (number(0, 1e9), "factor on all times; 0.5 is twice the traffic", None),
        "rate": (
            optional(_RATE),
            "instead of time_scale, the mean requests per second wanted; inf sends all at time 0; of "
            "recorded sessions, how many begin per second",
            "requests per second",
        ),
        "max_concurrency": (
            _MAX_CONCURRENCY[0],
            f"{_MAX_CONCURRENCY[1]}; of recorded sessions, so many at a time",
            "requests",
        ),
        "sha256": (
            optional({"type": "string", "pattern": "^[0-9a-f]{64}$"}),
            "of the rows: refuse any others",
            None,
        ),
        "num_sessions": (
            optional(whole(1, MAX_REQUESTS)),
            "of recorded sessions, at most so many; all if absent",
            "sessions",
        ),
        "max_think_time": (
            optional(seconds()),
            "longer pauses within recorded sessions are cut to this; none if absent",
            "seconds",
        ),
    },
}
TITLES = {
    "shared_prefix": "Requests in groups that start alike",
    "image": "Requests with pictures drawn from a catalogue",
    "chat": "Conversations: a turn is sent when the answer before has ended and been thought about",
    "mix": "Several workloads at once, by weight",
    "trace": "Replay of a recorded trace",
}
