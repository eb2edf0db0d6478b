"""The JSON Schema says what `load_scenario` does, and docs/scenario.md is written from it."""

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator
from jsonschema.validators import validator_for
from ruamel.yaml import YAML

from kvsim.errors import KvsimError
from kvsim.report.scenario_page import scenario_page
from kvsim.rules import releases, rules_for
from kvsim.scenario import load_scenario
from kvsim.scenario.cluster_schema import router_section_name
from kvsim.scenario.json_schema import json_schema, spellings
from kvsim.scenario.router import policy_types
from kvsim.scenario.workload import TYPES, workload_section
from kvsim.scenario.workload_keys import LENGTH_RANGES
from kvsim.scenario.workload_schema import section_name
from kvsim.scenario.yaml_file import dump
from kvsim.workload.checks import FieldError

ROOT = Path(__file__).parents[2]
ROW = {"timestamp": 0, "input_length": 20, "output_length": 2, "hash_ids": [4]}
BASE = {"name": "a", "model": "Qwen/Qwen3-VL-2B-Instruct", "gpu": "RTX 4090", "horizon": 10}
WORKLOADS: dict[str, dict[str, Any]] = {
    "shared_prefix": {"type": "shared_prefix", "rate": 1, "num_requests": 4},
    "image": {"type": "image", "rate": 1, "num_requests": 4, "image_size": [64, 64]},
    "chat": {"type": "chat", "rate": 1, "num_sessions": 4},
    "mix": {
        "type": "mix",
        "rate": 1,
        "num_arrivals": 4,
        "parts": {"a": {"type": "chat", "weight": 3}, "b": {"type": "image", "image_tokens": 9}},
    },
    "trace": {"type": "trace", "path": "rows.jsonl"},
}
SPECULATION = {"method": "eagle", "num_speculative_tokens": 2, "acceptance": 0.5}
SECTIONS = {
    "engine": "EngineSection",
    "cluster": "ClusterSection",
    "slo": "SloSection",
    "record": "RecordSection",
    "sweep": "SweepSection",
}
VALUES: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 15, 16, 0.5, -0.5, math.inf, 2**31, 2**64),
    *("x", "", "auto", [], [4, 4], [[4, 4]], {}, {"x": 1}),
    {"distribution": "uniform", "min": 1, "max": 2},
    {"distribution": "lognormal", "average": 3, "median-ratio": 0.5},
]
# What is told only when the file is read: names, and what one key demands of another.
ONLY_KVSIM = (
    "is not in the catalog",
    "leave nothing to measure before horizon",
    "divide",
    "is not a method of vLLM",
    "is not there",
    "is not a regular file",
    "goes with a calibration",
    "goes with a config.json",
    "is not there; one of",
    "there are none; name it",
    "goes with a data_parallel_size above 1",
    "has no experts",
    "is no scorer of",
    "empty; give at least one of",
    "is named twice",
    "is not below client_count",
    "is not a finite number",
    "missing; name the trace here or give --trace",
)


@cache
def validator() -> Draft7Validator:
    return Draft7Validator(json_schema())


@cache
def section(name: str) -> dict[str, Any]:
    return json_schema()["$defs"][name]


@pytest.fixture(scope="module")
def complaint(tmp_path_factory):
    """What `load_scenario` says against plain values; None if it takes them."""
    folder = tmp_path_factory.mktemp("schema")
    (folder / "rows.jsonl").write_text(json.dumps(ROW) + "\n")

    def said(values: dict[str, Any]) -> str | None:
        (folder / "case.yaml").write_text(dump(values))
        try:
            load_scenario(folder / "case.yaml")
        except KvsimError as error:
            return str(error)
        return None

    return said


def plain(path: Path) -> Any:
    return YAML(typ="safe").load(path)


def top_level() -> Iterator[dict[str, Any]]:
    good = BASE | {"workload": WORKLOADS["shared_prefix"]}
    for key in [*json_schema()["properties"], "zz"]:
        yield {name: value for name, value in good.items() if name != key}
        yield from (good | {key: value} for value in VALUES)


def sections() -> Iterator[dict[str, Any]]:
    good = BASE | {"workload": WORKLOADS["shared_prefix"]}
    for name, definition in SECTIONS.items():
        for key in [*section(definition)["properties"], "zz"]:
            yield from (good | {name: {key: value}} for value in VALUES)
    for key in section("SpeculativeSection")["properties"]:
        yield good | {"engine": {"speculative_config": {k: v for k, v in SPECULATION.items() if k != key}}}
        for value in VALUES:
            yield good | {"engine": {"speculative_config": SPECULATION | {key: value}}}


def clusters() -> Iterator[dict[str, Any]]:
    good = BASE | {"workload": WORKLOADS["shared_prefix"]}
    for policy in policy_types():
        keys = section(router_section_name(policy))["properties"]
        for key in [*keys, "zz"]:
            for value in VALUES:
                yield good | {"cluster": {"router": {"policy": policy.names[0], key: value}}}
    for key in [*section("GroupSection")["properties"], "zz"]:
        for value in VALUES:
            groups = {"some": {key: value}, "more-of": {}}
            yield good | {"cluster": {"routers": {"a": "random"}, "groups": groups}}
    for key in [*section("LinkSection")["properties"], "zz"]:
        for value in VALUES:
            links = {"rack": {"bandwidth": 1e9, key: value}}
            groups = {"some": {"link": "rack"}}
            yield good | {"cluster": {"links": links, "routers": {"a": "random"}, "groups": groups}}
    for left_out in ("routers", "groups"):
        whole = {"routers": {"a": "random"}, "groups": {"b": {}}}
        yield good | {"cluster": {key: value for key, value in whole.items() if key != left_out}}
        for short in ({"replicas": 2}, {"router": "random"}):
            yield good | {"cluster": whole | short}
        for name in ("_a", "a.b", "", "a b", "9"):
            yield good | {"cluster": whole | {left_out: {name: next(iter(whole[left_out].values()))}}}


def workloads(kind: str) -> Iterator[dict[str, Any]]:
    good = WORKLOADS[kind]
    for key in [*section(section_name(kind))["properties"], "zz"]:
        yield BASE | {"workload": {name: value for name, value in good.items() if name != key}}
        yield from (BASE | {"workload": good | {key: value}} for value in VALUES)


CASES = {"top level": top_level, "sections": sections, "clusters": clusters} | {
    kind: (lambda kind=kind: workloads(kind)) for kind in WORKLOADS
}


@pytest.mark.parametrize("part", CASES)
def test_each_key_and_value_is_taken_by_both_or_by_neither(part, complaint):
    verdicts = set()
    for values in CASES[part]():
        said, valid = complaint(values), validator().is_valid(values)
        verdicts.add(valid)
        if said is None:
            assert valid, values
        elif valid:
            assert any(words in said for words in ONLY_KVSIM), (said, values)
    assert verdicts == {True, False}


NUMBERS = st.sampled_from([-(2**31), -1, 0, 1, 5, 2**31 - 1, 2**31, 0.5, 1.0, 1.01, 21.5, 1000.5, None, True])
LENGTHS = st.one_of(
    NUMBERS,
    st.fixed_dictionaries(
        {"distribution": st.sampled_from(["constant", "uniform", "lognormal", "normal", "zipf", "choice"])},
        optional={
            "min": st.sampled_from([0, 1, -5]),
            "max": st.sampled_from([5, 2**31]),
            **dict.fromkeys(("value", "average", "mean", "sigma", "std", "alpha", "median_ratio"), NUMBERS),
            "values": st.sampled_from([[], [1], [1, 5], [1, 2**31], 5, None]),
            "weights": st.sampled_from([[1], [1, 0.5], [1, 0], None]),
        },
    ),
)


@given(LENGTHS, st.sampled_from(["output_len", "suffix_len", "priority"]))
def test_lengths_are_taken_by_both_or_by_neither(value, key):
    workload = WORKLOADS["shared_prefix"] | {key: value}
    valid = validator().is_valid(BASE | {"workload": workload})
    said = refusal(workload)
    if said is None:
        assert valid
    elif valid:
        assert re.search(r"min: .* is above max|weights: .* is not a list|out of range|write \d", said), said


def refusal(workload: dict[str, Any]) -> str | None:
    try:
        workload_section(workload)
    except FieldError as error:
        return str(error)
    return None


@pytest.mark.parametrize("path", sorted((ROOT / "scenarios").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_scenario_is_valid(path):
    assert [error.message for error in validator().iter_errors(plain(path))] == []


def test_a_resolved_scenario_is_valid():
    scenario = load_scenario(ROOT / "scenarios" / "image.yaml")
    assert validator().is_valid(scenario.resolved())


def test_the_schema_is_valid_itself():
    schema = json_schema()
    assert validator_for(schema) is Draft7Validator
    Draft7Validator.check_schema(schema)
    assert json.loads(json.dumps(schema, allow_nan=False)) == schema


def test_dashes_may_stand_for_underscores(complaint):
    dashed = {
        "type": "shared_prefix",
        "rate": 1,
        "num-requests": 4,
        "suffix-len": {"distribution": "uniform"},
    }
    values = {"model": BASE["model"], "gpu": "RTX 4090", "workload": dashed}
    assert not validator().is_valid(values)
    dashed["suffix-len"] |= {"min": 1, "max": 3}
    assert validator().is_valid(values)
    assert complaint(values) is None
    values["engine"] = {
        "speculative-config": {key.replace("_", "-"): SPECULATION[key] for key in SPECULATION}
    }
    assert validator().is_valid(values)
    assert complaint(values) is None
    assert spellings("a_b_c") == ["a_b_c", "a_b-c", "a-b_c", "a-b-c"]


@pytest.mark.parametrize("release", releases())
def test_releases(release, complaint):
    for spelled in (release, f"{release}.0", float(release)):
        values = BASE | {"vllm_version": spelled, "workload": WORKLOADS["trace"]}
        assert validator().is_valid(values)
        assert complaint(values) is None
    assert rules_for(release).version == release


def test_every_key_tells_what_it_means_and_its_default():
    parts = [json_schema(), *map(section, [*SECTIONS.values(), "SpeculativeSection"])]
    for part in [*parts, *(section(section_name(kind)) for kind in TYPES)]:
        assert part["title"]
        assert part["description"]
        for key, described in part["properties"].items():
            assert described["description"], key
    for kind, described in TYPES.items():
        properties = dict(section(section_name(kind))["properties"])
        assert properties.pop("type")["const"] == kind
        assert list(properties) == [field.name for field in dataclasses.fields(described)]
        for field in dataclasses.fields(described):
            if field.default is not dataclasses.MISSING:
                assert properties[field.name]["default"] == field.default


def test_the_page_is_what_the_schema_says():
    text = (ROOT / "docs" / "scenario.md").read_text(encoding="utf-8")
    assert text == scenario_page(), "run kvsim schema --markdown -o docs/scenario.md"
    parts = [json_schema(), *json_schema()["$defs"].values()]
    keys = {key for part in parts if "required" in part and "x" not in part for key in part["properties"]}
    assert all(f"| `{key}` |" in text for key in keys)


def whole_ranges(kind: str) -> Iterator[tuple[str, int, int]]:
    for key, described in section(section_name(kind))["properties"].items():
        for part in (described, *described.get("anyOf", ())):
            if part.get("type") == "integer":
                yield key, part["minimum"], part["maximum"]


@pytest.mark.parametrize("kind", TYPES)
def test_what_lies_beyond_a_range_is_refused(kind):
    ranges = list(whole_ranges(kind))
    assert ranges
    for key, low, high in ranges:
        workload_section({**WORKLOADS[kind], key: low})
        for beyond in (low - 1, high + 1):
            with pytest.raises(FieldError, match=rf"^{key}: {beyond} is out of range"):
                workload_section({**WORKLOADS[kind], key: beyond})


@pytest.mark.parametrize(
    ("kind", "key", "name"),
    [
        ("shared_prefix", "output_len", "LengthFromOne"),
        ("shared_prefix", "suffix_len", "Length"),
        ("shared_prefix", "priority", "Priority"),
        ("image", "images_per_request", "ImageCount"),
    ],
)
def test_ranges_of_lengths(kind, key, name):
    low, high = LENGTH_RANGES[name]
    assert re.search(name + '"', json.dumps(section(section_name(kind))["properties"][key]))
    for value, good in ((low, True), (high, True), (low - 1, False), (high + 1, False)):
        workload = WORKLOADS[kind] | {key: value}
        assert validator().is_valid(BASE | {"workload": workload}) is good
        if good:
            workload_section(workload)
        else:
            with pytest.raises(FieldError, match=key):
                workload_section(workload)
