"""JSON Schema of a scenario file, for editors: the pydantic models' own, and what the file's reader adds.

The reader takes dashes for underscores in keys and lends a file without `name` its own. What no schema can
say is left to `load_scenario`: catalog names in all their spellings, `16.0` for a whole number, one key's
range by another's value.
"""

import itertools
import re
from collections.abc import Iterator
from typing import Any

from kvsim.scenario.cluster_schema import complete_cluster
from kvsim.scenario.schema import Scenario
from kvsim.scenario.sweep_block import SweepSection
from kvsim.scenario.workload_schema import JsonSchema, counted, given, workload_definitions

DIALECT = "http://json-schema.org/draft-07/schema#"  # what editors know best


def json_schema() -> JsonSchema:
    """The schema; plain values, in a fixed order."""
    raw = Scenario.model_json_schema()
    definitions = raw.pop("$defs") | workload_definitions()
    complete_cluster(definitions)
    definitions["SweepSection"] = SweepSection.model_json_schema()
    properties = raw.pop("properties")
    properties["sweep"] = {
        "description": "what kvsim sweep varies",
        "anyOf": [{"$ref": "#/$defs/SweepSection"}, {"type": "null"}],
    }
    properties["workload"] |= {"allOf": [{"$ref": "#/$defs/Workload"}]}
    definitions["SloSection"]["anyOf"] = [given(limit) for limit in definitions["SloSection"]["properties"]]
    schema = {
        "$schema": DIALECT,
        "title": "kvsim scenario",
        "description": "A run of kvsim. Times in seconds, sizes in bytes, lengths in tokens.",
        "type": "object",
        "properties": properties,
        "required": [key for key in raw["required"] if key != "name"],
        "additionalProperties": False,
        "anyOf": [given("horizon"), {"properties": {"workload": counted()}}],
        "$defs": definitions,
    }
    for place, section in list(_objects(schema, "#")):
        _allow_dashes(section, place)
        if "description" in section:  # a docstring's lines
            section["description"] = " ".join(section["description"].split())
    return schema


def _objects(schema: Any, place: str) -> Iterator[tuple[str, JsonSchema]]:
    """Every part of a schema that speaks of keys, with its JSON pointer."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            yield place, schema
        for key, inner in schema.items():
            yield from _objects(inner, f"{place}/{key}")
    elif isinstance(schema, list):
        for index, inner in enumerate(schema):
            yield from _objects(inner, f"{place}/{index}")


def _allow_dashes(section: JsonSchema, place: str) -> None:
    """Other spellings of the keys: checked as well, but not offered."""
    several = [key for key in section["properties"] if "_" in key]
    if several:
        section["patternProperties"] = {
            f"^(?!{key}$){key.replace('_', '[-_]')}$": {"$ref": f"{place}/properties/{key}"}
            for key in several
        }
    needed = [key for key in section.get("required", ()) if "_" in key]
    if needed:
        section["required"] = [key for key in section["required"] if key not in needed]
        choices = [{"anyOf": [{"required": [spelling]} for spelling in spellings(key)]} for key in needed]
        section["allOf"] = [*section.get("allOf", ()), *choices]


def spellings(key: str) -> list[str]:
    """A key with underscores or dashes, the plain one first."""
    words = re.split("_", key)
    marks = itertools.product("_-", repeat=len(words) - 1)
    return ["".join(itertools.chain(*zip(words, [*between, ""], strict=True))) for between in marks]
