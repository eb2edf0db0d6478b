"""docs/scenario.md: every key of a scenario file, from the JSON Schema that editors get."""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from kvsim.cluster.policy import Policy
from kvsim.scenario.cluster_schema import USER_SECTION, router_section_name
from kvsim.scenario.json_schema import json_schema
from kvsim.scenario.policy_section import RouterKeys
from kvsim.scenario.router import policy_types
from kvsim.scenario.workload import PARTS, TYPES
from kvsim.scenario.workload_keys import LENGTH_RANGES
from kvsim.scenario.workload_schema import section_name
from kvsim.workload import durations, lengths

JsonSchema = dict[str, Any]

HEAD = """\
# Scenario files

A scenario is one YAML file. Keys may be written with dashes or underscores, unknown keys are refused, and
text is never taken for a number (write `1000`, not `1e3`, for a count). `--set section.key=value` replaces a
value for one run. The resolved scenario beside the results holds every default filled in.

This page is written by `kvsim schema --markdown -o docs/scenario.md`; a test holds it to the code.

## In an editor

`kvsim schema -o kvsim.schema.json` writes all this as JSON Schema (draft 7). An editor with a YAML language
server (VS Code's YAML extension, Neovim, JetBrains) then completes keys, shows what they mean and underlines
what kvsim would refuse. Name the schema in a scenario's comments, with a path beside it or a full one:

    # yaml-language-server: $schema=kvsim.schema.json

or once for all of them, in VS Code's `settings.json`:

    "yaml.schemas": {"kvsim.schema.json": "scenarios/*.yaml"}

What no schema can say, kvsim says when it reads the file: names that the catalog lacks, and keys that do not
go together.
"""

CHAT = """\
The prompts of a session; an answer stands there as far as it was given:

    turn 1        system prompt | context | question 1
    turn 2        system prompt | context | question 1 | answer 1 | question 2
    turn 3        system prompt | context | question 1 | answer 1 | question 2 | answer 2 | question 3

An output is `reasoning_len` and `output_len` tokens. Answers have the same tokens in later prompts, so the
next turn finds the blocks of the prompt and the answer before it, but for the last token said, which never
went through the model. A turn that the server refuses, such as one that has grown beyond `max_model_len`,
ends its session.
"""

MIX = """\
    workload:
      type: mix
      rate: 4
      parts:
        assistant: {type: chat, weight: 3, num_turns: 6, think_time: 10}
        invoices: {type: image, weight: 1, image_size: [1280, 960]}

Each arrival is drawn to belong to one part, by weight; names of parts stand before ids, as in
`assistant/session-0`. A part has the keys of its type but those above, and:
"""

LENGTHS = """\
## Lengths

A length is a number, or a distribution; `min` and `max` bound what it draws:
"""

DURATIONS = """\
## Durations

A duration is a number of seconds, or a distribution; `min` and `max` bound what it draws:
"""

TRACES = """\
## Rows of a trace

One JSON object a line, plain or gzip: `timestamp` (ms; s where the row has `chat_id`), `input_length`,
`output_length`, `hash_ids` (one for each 512 tokens begun; 16 with `chat_id`; `trace_block_size` replaces
both). Rows are in order of time.

Id k stands for the same tokens in every row. A prefix cache shares beginnings only, so rows with `[1, 2]` and
`[3, 2]` share nothing, although the second ids are equal: such rows are valid. An `output_length` of 0 is
replayed as 1, since vLLM generates at least one token. Outputs carry no ids: each has tokens of its own.

## Recorded sessions

A trace may record sessions, whose next request is sent when the simulated answer before has ended and the
recorded pause is over. kvsim knows such files by their fields.

Agent sessions (kv-cache-tester, AIPerf's `weka_trace`): one session a line, with `id`, `block_size`,
`hash_id_scope` (`local`, or missing: ids are the session's own; `global`) and `requests`, each with `t` (s),
`type` (`n`, `s`, `subagent`), `in`, `out`, `hash_ids` (one for each full block; tokens behind them, or all
without ids, are the request's own),
`think_time` (s before the request; if it is missing, `t` less `t` and `api_time` of the request before).
The requests of a `subagent` are replayed in its place, one after another, also where several ran at once; the
pause behind them counts from their recorded end. `t` of a session's first request is when it begins; in
recorded files that is 0 for all, so give `rate` (sessions per second) or `max_concurrency`. Files with one
session each become one trace by `jq -c . traces/*.json > sessions.jsonl`.

Rows as above that belong together by `session_id` (AIPerf's and Dynamo's `mooncake_trace`): the first row of
a session may have a `timestamp`, the later ones have a `delay` (ms after the answer before; none is 0). In a
row with both a later one goes by its `delay`, a first one by its `timestamp`. `hash_ids` are
those of the whole prompt, and `input_length` is its length; a row without them holds what is new: its prompt
is the one before, the answer, and `input_length` tokens of its own. A file whose rows all have a `timestamp`
and no `delay` is replayed at those times, with or without sessions; so are rows with `chat_id`.
"""

CLUSTER = """\
Replicas that are all alike take two keys:

    cluster:
      replicas: 8
      router: {policy: dynamo_kv, kv_event_delay: 0.05}     # or the name alone: dynamo_kv

Others are groups by name. A group takes model, GPU, calibration and engine flags from the scenario and may
replace each of them, flag by flag. Replicas are named after their group: `large-0`, `large-1`; ranks of
data-parallel replicas `large-0/dp0`. In names, as in all keys, a dash counts as an underscore.

    cluster:
      links: {rack: {bandwidth: 25.0e+9, latency: 10.0e-6}}
      routers: {front: dynamo_kv}
      groups:
        large: {replicas: 4, engine: {tensor_parallel_size: 2}}
        small: {replicas: 8, gpu: l40s, link: rack}

A request is for one model, so groups of one router serve one model. Several routers are cells that share
nothing: requests are dealt to them by `share`, sessions whole. With `workload.max_concurrency` there is one
router. `--set` and sweeps reach every key: `cluster.replicas`, `cluster.router` (a name),
`cluster.router.kv_event_delay`, `cluster.groups.large.replicas`.
"""

ROUTERS = """\
A policy's name, or a mapping with these keys and the policy's own parameters:
"""

POLICIES = """\
Names are kvsim's, then those of the originals. Parameters have the originals' names and defaults.
"""

OWN_POLICY = """\
`policy: FILE.py:CLASS` takes a class of your own; the file is sought beside the scenario first, and its
content is part of the scenario's hash. Further keys of the mapping are keyword arguments of the class.
"""

_COLUMNS = ("key", "default", "unit", "range", "meaning")
_REFERENCES = {
    "Duration": "a [duration](#durations)",
    "EngineSection": "see [engine](#engine)",  # stands in two sections
}
_BOUNDS = {
    "minimum": "from {}",
    "exclusiveMinimum": "above {}",
    "maximum": "to {}",
    "exclusiveMaximum": "below {}",
}


def scenario_page() -> str:
    """The page, as Markdown."""
    schema = json_schema()
    parts = [HEAD, "## Top level\n", _table(schema)]
    for key, name in _sections(schema, schema):
        parts += [f"## {key}\n", *_described(schema["$defs"][name])]
        parts += _cluster(schema) if key == "cluster" else []
        for inner, further in _sections(schema["$defs"][name], schema):
            parts += [f"### {key}.{inner}\n", *_described(schema["$defs"][further])]
            parts += _example(key, inner, schema["$defs"][name]["properties"][inner])
    parts.append("## workload\n")
    for kind in TYPES:
        section = schema["$defs"][section_name(kind)]
        parts += [f"### type: {kind}\n", *_described(section)]
        if kind == "chat":
            parts.append(CHAT)
        if kind == "mix":
            weight = schema["$defs"][f"{section_name(PARTS[0])}Part"]["properties"]["weight"]
            parts += [MIX, _table({"properties": {"weight": weight}})]
    return "\n".join([*parts, LENGTHS, _forms(lengths), DURATIONS, _forms(durations), TRACES])


def _forms(module: ModuleType) -> str:
    """The spellings that stand indented in a module's docstring."""
    return re.sub(r"(?ms)^.*?:\n\n|\n\n^All.*", "", module.__doc__ or "") + "\n"


def _sections(section: JsonSchema, schema: JsonSchema) -> Iterator[tuple[str, str]]:
    """Keys that hold a section, with the name of its definition; the workload has several."""
    for key, described in section["properties"].items():
        name = _definition(described)
        if name and "properties" in schema["$defs"][name]:
            yield key, name


def _cluster(schema: JsonSchema) -> Iterator[str]:
    """The two forms, and the routers."""
    definitions = schema["$defs"]
    own = definitions[USER_SECTION]
    policy_key = {"policy": {"description": "a name below, or FILE.py:CLASS"}}
    keys = policy_key | {key: own["properties"][key] for key in RouterKeys.model_fields}
    table = _table({"properties": keys, "required": ["policy"]})
    yield from (CLUSTER, "### cluster.router\n", ROUTERS, table, POLICIES)
    for policy in policy_types():
        section = definitions[router_section_name(policy)]
        yield f"#### {', '.join(policy.names)}\n"
        yield section["description"] + "\n"
        parameters = {key: item for key, item in section["properties"].items() if key in _parameters(policy)}
        if parameters:
            told = {word for item in parameters.values() for word in item}
            always, optional = {"key", "default", "range"}, {"unit": "x-unit", "meaning": "description"}
            shown = always | {column for column, word in optional.items() if word in told}
            yield _table({"properties": parameters}, [column for column in _COLUMNS if column in shown])
    yield "#### A policy of your own\n"
    yield OWN_POLICY
    yield _table({"properties": {"policy_sha256": own["properties"]["policy_sha256"]}})


def _parameters(policy: type[Policy]) -> list[str]:
    """Beside the keys of any router."""
    return [field.name for field in dataclasses.fields(policy) if field.name not in RouterKeys.model_fields]


def _definition(described: JsonSchema) -> str | None:
    """The name of the definition that a key's schema refers to, itself or for each name."""
    by_name = described.get("patternProperties", {}).values()
    choices = [described, *described.get("anyOf", ()), *described.get("allOf", ()), *by_name]
    inner = [choice for part in choices for choice in (part, *part.get("allOf", ()))]
    return next((choice["$ref"].rpartition("/")[2] for choice in inner if "$ref" in choice), None)


def _described(section: JsonSchema) -> list[str]:
    return [section["description"].rstrip(".") + ".\n", _table(section)]


def _example(key: str, inner: str, described: JsonSchema) -> list[str]:
    values = described.get("examples", [{}])[0]
    flow = ", ".join(f"{name}: {value}" for name, value in values.items())
    return [f"    {key}:\n      {inner}: {{{flow}}}\n"] if values else []


def _table(section: JsonSchema, columns: Sequence[str] = _COLUMNS) -> str:
    needed = _needed(section)
    rows = [
        {
            "key": f"`{key}`",
            "default": "needed" if key in needed else _shown(described.get("default")),
            "unit": described.get("x-unit", ""),
            "range": _range(described),
            "meaning": described.get("description", "").replace("|", r"\|"),
        }
        for key, described in section["properties"].items()
    ]
    lines = [columns, ("---",) * len(columns), *(tuple(row[name] for name in columns) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _needed(section: JsonSchema) -> set[str]:
    """Required keys; those with underscores are required in any one spelling."""
    spelled = [part["anyOf"][0] for part in section.get("allOf", ()) if "anyOf" in part]
    return {*section.get("required", ())} | {key for part in spelled for key in part.get("required", ())}


def _shown(value: Any) -> str:
    if value is None or value in ({}, []):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value >= 10_000:
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _range(described: JsonSchema) -> str:
    """Names, or bounds; empty where the meaning says it."""
    if "const" in described:
        return _shown(described["const"])
    if "enum" in described:
        return ", ".join(map(_shown, described["enum"]))
    if described.get("type") == "boolean":
        return "true, false"
    name = _definition(described)
    if name:
        known = dict.fromkeys(LENGTH_RANGES, "a [length](#lengths)") | _REFERENCES
        return known.get(name, "see below")
    found = [words.format(_bound(described[key])) for key, words in _BOUNDS.items() if key in described]
    if found and described.get("exclusiveMinimum", 0) < 1e300:  # else: infinity
        return " ".join(found)
    return " or ".join(filter(None, map(_range, described.get("anyOf", ()))))


def _bound(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
