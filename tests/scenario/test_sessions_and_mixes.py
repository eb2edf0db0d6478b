"""Scenarios of chats and mixes: what is read, what is said of bad ones, what a resolved one holds."""

import json

import pytest
from ruamel.yaml import YAML

from kvsim.errors import KvsimError
from kvsim.scenario import load_scenario
from kvsim.scenario.workload import shortened, workload_section
from kvsim.workload import ChatWorkload, ImageWorkload, MixWorkload

CHAT = """\
model: Qwen/Qwen3-VL-2B-Instruct
gpu: rtx-4090
horizon: 60
workload:
  type: chat
  rate: 2
  num_turns: {distribution: uniform, min: 1, max: 9}
  think-time: {distribution: exponential, mean: 5}
  keep_answers: true
"""
MIX = """\
model: Qwen/Qwen3-VL-2B-Instruct
gpu: rtx-4090
workload:
  type: mix
  rate: 4
  num_arrivals: 100
  parts:
    assistant:
      type: chat
      weight: 3
      num_loras: 2
    invoices:
      type: image
      image_size: [640, 480]
"""


@pytest.fixture
def load(tmp_path):
    def loaded(text, *overrides):
        path = tmp_path / "case.yaml"
        path.write_text(text)
        return load_scenario(path, overrides)

    return loaded


@pytest.fixture
def complaint(load):
    def said(text, *overrides):
        with pytest.raises(KvsimError) as caught:
            load(text, *overrides)
        assert "\n" not in str(caught.value)
        return str(caught.value).rpartition("case.yaml ")[2]

    return said


def test_a_chat(load):
    workload = load(CHAT).workload
    assert isinstance(workload, ChatWorkload)
    assert workload.rate == 2
    assert workload.think_time == {"distribution": "exponential", "mean": 5}


def test_a_mix(load):
    scenario = load(MIX, "workload.parts.assistant.weight=5")
    mix = scenario.workload
    assert isinstance(mix, MixWorkload)
    assert {name: part.weight for name, part in mix.parts.items()} == {"assistant": 5, "invoices": 1.0}
    invoices = mix.parts["invoices"].workload
    assert isinstance(invoices, ImageWorkload)
    assert invoices.processor == "qwen3-vl"
    assert sum(1 for _ in scenario.build_workload().requests(scenario.seed)) == 100


def test_the_largest_picture_of_a_mix_counts(load):
    assert load(MIX).image_pixels is None
    limited = load(MIX, "workload.parts.invoices.max_pixels=1000000")
    assert limited.image_pixels == 1_000_000


@pytest.mark.parametrize("text", [CHAT, MIX])
def test_a_resolved_scenario_is_read_back(text, load):
    scenario = load(text)
    again = load(scenario.to_yaml())
    assert again.resolved() == scenario.resolved()
    assert again.scenario_hash == scenario.scenario_hash


def test_the_parts_of_a_resolved_mix_hold_their_defaults_but_no_pace(load):
    parts = YAML(typ="safe").load(load(MIX).to_yaml())["workload"]["parts"]
    assert (parts["assistant"]["type"], parts["assistant"]["question_len"]) == ("chat", 64)
    assert "rate" not in parts["assistant"]


def test_a_replay_that_gives_no_later_key_is_what_it_was(load, tmp_path):
    row = {"timestamp": 0, "input_length": 20, "output_length": 2, "hash_ids": [4]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    text = "model: qwen3-8b\ngpu: l4\nworkload: {type: trace, path: rows.jsonl}\n"
    resolved = load(text).resolved()["workload"]
    assert "num_sessions" not in resolved
    assert load(text, "workload.num_sessions=3").resolved()["workload"]["num_sessions"] == 3


@pytest.mark.parametrize(
    ("kind", "key"), [("shared_prefix", "num_requests"), ("chat", "num_sessions"), ("mix", "num_arrivals")]
)
def test_fewer_of_the_same(kind, key):
    parts = {"parts": {"a": {"type": "chat"}}} if kind == "mix" else {}
    spec = workload_section({"type": kind, "rate": 1, key: 50, **parts})
    assert getattr(shortened(spec, 3), key) == 3


@pytest.mark.parametrize(
    ("text", "old", "new", "says"),
    [
        (CHAT, "rate: 2", "rat: 2", "line 6: workload.rat: unknown key; did you mean rate?"),
        (CHAT, "  rate: 2\n", "", "line 4: workload.rate: missing; give sessions per second, or inf"),
        (CHAT, "rate: 2", "num_requests: 2", "line 6: workload.num_requests: not a key of type chat but of"),
        (CHAT, "horizon: 60\n", "", "line 3: workload.num_sessions: missing; say how many, or give horizon"),
        (CHAT, "min: 1", "min: 0", "line 7: workload.num_turns.min: 0 is out of range; give at least 1"),
        (CHAT, "mean: 5", "mean: -5", "line 8: workload.think_time.mean: -5 is out of range"),
        (CHAT, "mean: 5", "alpha: 5", "line 8: workload.think_time.alpha: unknown key; exponential takes"),
        (CHAT, "keep_answers: true", "keep_answers: 3", "line 9: workload.keep_answers: 3 is neither true"),
        (MIX, "  num_arrivals: 100\n", "", "line 3: workload.num_arrivals: missing; say how many"),
        (MIX, "weight: 3", "weight: 0", "line 10: workload.parts.assistant.weight: 0 is out of range"),
        (MIX, "weight: 3", "rate: 3", "line 10: workload.parts.assistant.rate: the mix says this for all"),
        (
            MIX,
            "weight: 3",
            "prefix_len: 3",
            "line 10: workload.parts.assistant.prefix_len: not a key of type",
        ),
        (
            MIX,
            "      type: chat\n",
            "",
            "line 8: workload.parts.assistant.type: missing; one of shared_prefix",
        ),
        (
            MIX,
            "type: chat",
            "type: trace",
            "line 9: workload.parts.assistant.type: 'trace' is not known; one",
        ),
        (MIX, "type: chat", "type: mix", "line 9: workload.parts.assistant.type: 'mix' is not known; one of"),
        (MIX, "[640, 480]", "[0, 480]", "line 14: workload.parts.invoices.image_size: [0, 480] is not"),
        (
            MIX,
            "Qwen/Qwen3-VL-2B-Instruct",
            "qwen3-8b",
            "line 14: workload.parts.invoices.image_size: not known",
        ),
    ],
)
def test_bad_ones(text, old, new, says, complaint):
    assert old in text
    assert complaint(text.replace(old, new)).startswith(says)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ("{}", "parts: {} is not a mapping of names to workloads"),
        ("[]", "parts: [] is not a mapping of names to workloads"),
        ("5", "parts: 5 is not a mapping of names to workloads"),
        ("{a: 5}", "parts.a: 5 is not a mapping of keys to values"),
    ],
)
def test_parts_that_are_none(parts, says, complaint):
    assert complaint(MIX, f"workload.parts={parts}").endswith(f"workload.{says}")
