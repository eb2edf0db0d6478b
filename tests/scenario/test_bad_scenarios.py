"""Bad input: one line that names file, line, key and value, and says what would be right."""

import json
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import KvsimError
from kvsim.scenario import load_scenario
from kvsim.scenario.yaml_file import parse_mapping

GOOD = """\
seed: 1
model: Qwen/Qwen3-VL-2B-Instruct
gpu: rtx-4090
engine:
  block_size: 16
  max_model_len: 4096
workload:
  type: shared_prefix
  rate: 10
  num_requests: 5
  suffix_len: {distribution: uniform, min: 1, max: 9}
"""


def complaint(path, overrides=(), trace=None) -> str:
    with pytest.raises(KvsimError) as caught:
        load_scenario(path, overrides, trace)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.fixture
def complain(tmp_path):
    def about(content, *overrides, trace=None) -> str:
        path = tmp_path / "bad.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return complaint(path, overrides, trace).replace(str(tmp_path), "DIR")

    return about


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "block_size: 16",
            "block_sise: 16",
            "line 5: engine.block_sise: unknown key; did you mean block_size?",
        ),
        ("engine:", "engin:", "line 4: engin: unknown key; did you mean engine?"),
        ("  rate", "  rat", "line 9: workload.rat: unknown key; did you mean rate?"),
        (
            "gpu:",
            "zzzz:",
            "line 3: zzzz: unknown key; known are name, seed, vllm_version, model, model_sha256, gpu",
        ),
        ("seed: 1", "seed: one", "line 1: seed: 'one' is not a whole number"),
        ("seed: 1", "seed: 1.5", "line 1: seed: 1.5 is not a whole number"),
        ("seed: 1", "seed: -1", "line 1: seed: -1 is out of range; give at least 0"),
        ("seed: 1", "seed: 99999999999999999999", "line 1: seed: 99999999999999999999 is out of range"),
        ("seed: 1", "vllm_version: 0.5", "line 1: vllm_version: '0.5' is not known; known are"),
        ("seed: 1", "vllm_version: new", "line 1: vllm_version: 'new' is not known; known are"),
        ("seed: 1", "vllm_version: true", "line 1: vllm_version: true is not a release"),
        ("seed: 1", "name: ../up", "line 1: name: '../up' cannot name a folder"),
        ("seed: 1", "name: 17", "line 1: name: 17 is not text; put it in quotes"),
        ("seed: 1", "horizon: -1", "line 1: horizon: -1 is out of range; give above 0"),
        ("seed: 1", "horizon: .nan", "line 1: horizon: nan is not a finite number"),
        ("seed: 1", "horizon: .inf", "line 1: horizon: inf is not a finite number"),
        ("seed: 1", "horizon: 1e30", "line 1: horizon: 1e+30 is out of range; give at most"),
        ("seed: 1", "horizon: 5 min", "line 1: horizon: '5 min' is not a number"),
        (
            "seed: 1",
            "cluster: {replicas: 0}",
            "line 1: cluster.replicas: 0 is out of range; give at least 1",
        ),
        (
            "seed: 1",
            "cluster: {router: randm}",
            "line 1: cluster.router: 'randm' is not known; did you mean random? One of random, round_robin, ",
        ),
        ("rtx-4090", "rtx-4070x", "line 3: gpu: 'rtx-4070x' is not in the catalog; nearest: RTX 40"),
        ("rtx-4090", "", "line 3: gpu: missing; give a catalog name"),
        ("Qwen/Qwen3-VL-2B-Instruct", "Qwen3-VL-3B", "line 2: model: 'Qwen3-VL-3B' is not in the catalog"),
        ("block_size: 16", "block_size: 0", "line 5: engine.block_size: 0 is out of range; give at least 1"),
        (
            "block_size: 16",
            "block_size: -16",
            "line 5: engine.block_size: -16 is out of range; give at least 1",
        ),
        (
            "block_size: 16",
            "block_size: 15",
            "line 5: engine.block_size: 15 is not a block size; give a multiple",
        ),
        ("block_size: 16", "block_size: 1e30", "line 5: engine.block_size: 1e+30 is not a whole number"),
        (
            "block_size: 16",
            "block_size: 16.0",
            "line 5: engine.block_size: 16.0 is not a whole number; write 16",
        ),
        ("block_size: 16", "block_size: '16'", "line 5: engine.block_size: '16' is not a whole number"),
        ("block_size: 16", "block_size: true", "line 5: engine.block_size: true is not a whole number"),
        ("block_size: 16", "watermark: 1", "line 5: engine.watermark: 1 is out of range; give below 1"),
        (
            "block_size: 16",
            "gpu_memory_utilization: 0",
            "line 5: engine.gpu_memory_utilization: 0 is out of range",
        ),
        (
            "block_size: 16",
            "gpu_memory_utilization: 90",
            "line 5: engine.gpu_memory_utilization: 90 is out of range",
        ),
        (
            "block_size: 16",
            "gpu_memory_utilization: .nan",
            "line 5: engine.gpu_memory_utilization: nan is not a",
        ),
        (
            "block_size: 16",
            "async_scheduling: yes",
            "line 5: engine.async_scheduling: 'yes' is not true or false",
        ),
        ("block_size: 16", "async-scheduling: 1", "line 5: engine.async_scheduling: 1 is not true or false"),
        (
            "block_size: 16",
            "scheduling_policy: sjf",
            "line 5: engine.scheduling_policy: sjf is not known; one of",
        ),
        (
            "block_size: 16",
            "kv_cache_dtype: fp4",
            "line 5: engine.kv_cache_dtype: fp4 is not known; one of auto",
        ),
        (
            "block_size: 16",
            "max_num_seqs: 4\n  max_num_batched_tokens: 2",
            "line 6: engine.max_num_batched_tokens: 2",
        ),
        (
            "block_size: 16",
            "speculative_config: {method: ngram}",
            "line 5: engine.speculative_config.num_speculative",
        ),
        (
            "block_size: 16",
            "speculative_config: ngram",
            "line 5: engine.speculative_config: 'ngram' is not a mapping",
        ),
        (
            "block_size: 16",
            "num_gpu_blocks_override: 0",
            "line 5: engine.num_gpu_blocks_override: 0 is out of range",
        ),
        ("4096", "-1", "line 6: engine.max_model_len: -1 is neither a whole number from 1"),
        ("4096", "long", "line 6: engine.max_model_len: 'long' is neither a whole number"),
        (
            "  type: shared_prefix\n",
            "",
            "line 7: workload.type: missing; one of shared_prefix, image, chat",
        ),
        ("shared_prefix", "shared_prefixes", "line 8: workload.type: 'shared_prefixes' is not known; one of"),
        ("  rate: 10\n", "", "line 7: workload.rate: missing; give requests per second, or inf"),
        (
            "rate: 10",
            "rate: 0",
            "line 9: workload.rate: 0 is out of range; give a number above 0, up to 1e+09, or inf",
        ),
        ("rate: 10", "rate: fast", "line 9: workload.rate: 'fast' is not a number"),
        ("rate: 10", "rate: .nan", "line 9: workload.rate: nan is out of range"),
        ("  num_requests: 5\n", "", "line 7: workload.num_requests: missing; say how many, or give horizon"),
        (
            "num_requests: 5",
            "num_requests: 1e3",
            "line 10: workload.num_requests: 1000.0 is not a whole number; write 1000",
        ),
        ("max: 9", "max: 0", "line 11: workload.suffix_len.min: 1 is above max, 0"),
        ("max: 9", "mx: 9", "line 11: workload.suffix_len.mx: unknown key; uniform takes"),
        (
            "distribution: uniform",
            "distribution: u",
            "line 11: workload.suffix_len.distribution: 'u' is not known",
        ),
    ],
)
def test_bad_values(complain, old, new, says):
    text = complain(GOOD.replace(old, new, 1))
    assert text.startswith(f"DIR/bad.yaml {says}"), text


@pytest.mark.parametrize("section", ["model", "gpu", "workload"])
def test_missing_sections(complain, section):
    kept = {"model": "model: qwen3-8b\n", "gpu": "gpu: l4\n", "workload": GOOD[GOOD.index("workload:") :]}
    text = complain("".join(part for name, part in kept.items() if name != section))
    assert text.startswith(f"DIR/bad.yaml: {section}: missing; give ")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", ": empty; a scenario needs model, gpu and workload"),
        (b"# only a comment\n", ": empty; a scenario needs"),
        (b"- 1\n- 2\n", ": not a mapping of keys to values but [1, 2]"),
        (b"hello", ": not a mapping of keys to values but 'hello'"),
        (b"seed: [1\n", " line 2 column 1: broken YAML: expected ',' or ']'"),
        (b"seed: 1\nmodel: a: b\n", " line 2 column 9: broken YAML: mapping values are not allowed here"),
        (b"engine:\n\tblock_size: 1\n", " line 2 column 1: broken YAML:"),
        (b"seed: 1\nseed: 2\n", ' line 2 column 1: broken YAML: found duplicate key "seed"'),
        (b"engine: {max-model-len: 1, max_model_len: 2}", " line 1: engine.max_model_len: given twice"),
        (b"seed: 1\n---\nseed: 2\n", " line 2 column 1: broken YAML: but found another document"),
        (b"seed: *nowhere\n", " line 1 column 7: broken YAML: found undefined alias"),
        (b"model: caf\xe9\n", ": not UTF-8 text (byte 0xe9 at position 10)"),
        (b"\xff\xfeg\x00p\x00", ": not UTF-8 text (byte 0xff at position 0)"),
        (b"seed: 1\nmodel: \x00\n", " line 2 column 8: broken YAML: the control character U+0000; delete it"),
        (
            b"rate: !!int abc\n",
            " line 1 column 7: broken YAML: 'abc' cannot be read as a whole number; if it is",
        ),
        (
            b"seed: 1\nname: 2024-99-99\n",
            " line 2 column 7: broken YAML: '2024-99-99' cannot be read as a date",
        ),
        (b"seed: !!binary aGVsbG8=\n", " line 1: seed: binary data has no place in a scenario"),
        (b"seed: !!set {a}\n", " line 1: seed: {a: null} is not a whole number"),
        (b"a: &a {b: *a}\n", " line 1: a: unknown key"),
        (b"[" * 100_000, ": broken YAML: nested too deeply"),
        (b"- " * 5000, ": broken YAML: nested too deeply"),
        ("".join(f"{' ' * i}a:\n" for i in range(300)).encode(), ": broken YAML: nested too deeply"),
        (b"#" * (1 << 21), ": 2,097,152 letters are too many for a scenario"),
        (b"seed: " + b"9" * 5000, " line 1 column 7: broken YAML: '9999"),
    ],
)
def test_broken_files(complain, content, says):
    begun = time.perf_counter()
    text = complain(content)
    assert time.perf_counter() - begun < 1
    assert text.startswith(f"DIR/bad.yaml{says}"), text


def test_aliases_that_multiply(complain):
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    assert "too many values" in complain("\n".join(lines))


def test_missing_file_and_folder(tmp_path):
    assert complaint(tmp_path / "no.yaml").endswith("no.yaml: cannot be read: No such file or directory")
    assert complaint(tmp_path).endswith(": cannot be read: Is a directory")


def test_further_problems_are_counted(complain):
    text = complain("seed: x\nhorizon: -1\nmodel: qwen3-8b\ngpu: l4\nzzz: 1\n")
    assert text.startswith("DIR/bad.yaml line 5: zzz: unknown key")
    assert text.endswith("(+3 more)")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("seed", "--set seed: write section.key=value"),
        ("=3", "--set =3: write section.key=value"),
        ("engine..x=3", "--set engine..x=3: write section.key=value"),
        ("seed.x=3", "--set seed.x=3: seed is 1, not a section with keys"),
        (
            "engine.block_sise=3",
            "--set engine.block_sise=3: engine.block_sise: unknown key; did you mean block_size",
        ),
        ("engine.block-size=17", "--set engine.block-size=17: engine.block_size: 17 is not a block size"),
        ("engine=3", "--set engine=3: engine: 3 is not a mapping"),
        ("seed=[", "--set seed=[: column 2 of the value: broken YAML"),
        ("gpu=", "--set gpu=: gpu: missing; give a catalog name"),
        ("workload.suffix_len.max=0", "DIR/bad.yaml line 11: workload.suffix_len.min: 1 is above max, 0"),
        (
            "workload.type=trace",
            "DIR/bad.yaml line 11: workload.suffix_len: not a key of type trace but of shared_prefix",
        ),
    ],
)
def test_bad_overrides(complain, override, says):
    assert complain(GOOD, override).startswith(says)


IMAGE = "model: qwen3-8b\ngpu: l4\nworkload: {type: image, rate: 1, num_requests: 2, image_size: [64, 64]}\n"


def test_pixels_of_a_model_without_a_known_processor(complain):
    text = complain(IMAGE)
    assert text.startswith(
        "DIR/bad.yaml line 3: workload.image_size: not known how Qwen/Qwen3-8B turns pixels"
    )


REPLAY = "model: llama-3.1-8b\ngpu: h100-sxm\nworkload: {type: trace, path: rows.jsonl}\n"


def test_trace_that_is_not_there(complain, tmp_path):
    text = complain(REPLAY)
    expected = (
        "DIR/bad.yaml line 3: workload.path: 'rows.jsonl' is not there (tried DIR/rows.jsonl and rows.jsonl)"
    )
    assert text == expected
    assert (
        complain(REPLAY, trace=tmp_path / "x.jsonl")
        == "DIR/x.jsonl: cannot be read: No such file or directory"
    )
    text = complain(REPLAY.replace(", path: rows.jsonl", ""))
    assert text == "DIR/bad.yaml line 3: workload.path: missing; name the trace here or give --trace PATH"


def test_trace_that_is_empty_or_another(complain, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n")
    assert complain(REPLAY) == "DIR/rows.jsonl: empty; a trace needs at least one row"
    rows.write_text(json.dumps({"timestamp": 0}) + "\n")
    text = complain(REPLAY.replace("rows.jsonl", f"rows.jsonl, sha256: {'a' * 64}"))
    assert text.startswith("DIR/bad.yaml line 3: workload.sha256: DIR/rows.jsonl holds other rows")


def test_trace_for_another_workload(complain, tmp_path):
    text = complain(GOOD, trace=tmp_path / "rows.jsonl")
    assert (
        text
        == "DIR/bad.yaml line 8: workload.type: shared_prefix replays no trace; --trace needs type: trace"
    )


@given(st.binary(max_size=200))
def test_any_bytes_give_a_scenario_or_one_line(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content)
    complaint(path)


yaml_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(
    [
        "seed",
        "name",
        "model",
        "gpu",
        "horizon",
        "vllm_version",
        "engine",
        "workload",
        "cluster",
        "extra",
        "engine.block_size",
        "engine.max_model_len",
        "engine.speculative_config",
        "workload.type",
        "workload.rate",
        "workload.suffix_len",
        "workload.num_requests",
        "cluster.replicas",
        "cluster.router",
        "cluster.router.policy",
        "cluster.router.share",
        "cluster.routers",
        "cluster.links",
        "cluster.groups",
        "cluster.groups.a",
    ]
)


@given(keys, yaml_like)
def test_any_value_anywhere_gives_a_scenario_or_one_line(tmp_path_factory, key, value):
    path = tmp_path_factory.getbasetemp() / "good.yaml"
    path.write_text(GOOD)
    try:
        load_scenario(path, [f"{key}={json.dumps(value)}"])
        said = ""
    except KvsimError as error:
        said = str(error)
    assert "\n" not in said


printable = st.characters(exclude_categories=["C", "Z"], exclude_characters="-")


@given(st.dictionaries(st.text(printable, max_size=8), st.none() | st.integers(), max_size=3))
def test_what_is_read_is_what_was_written(values):
    read, _ = parse_mapping(json.dumps(values, ensure_ascii=False), "text")
    assert read == values


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (
            ["engine.quantization=banana"],
            "engine.quantization: 'banana' is not a method of vLLM 0.33; one of fp8, ",
        ),
        (
            ["engine.quantization=awq", "model=qwen3-8b-fp8"],
            "engine.quantization: awq contradicts qwen3-8b-fp8",
        ),
        (
            ["engine.tensor_parallel_size=3"],
            "engine.tensor_parallel_size: 3 does not divide the 16 attention",
        ),
        (
            ["engine.max_num_seqs=5000"],
            "engine.max_num_seqs: 5000 is above max_num_batched_tokens, 2048; a step must",
        ),
        (
            ["engine.pipeline_parallel_size=100"],
            "engine.pipeline_parallel_size: 100 is more than the model's",
        ),
        (
            ["engine.decode_context_parallel_size=3"],
            "engine.decode_context_parallel_size: 3 does not divide",
        ),
        (
            ["engine.num_gpu_blocks_override=2147483647"],
            "engine.num_gpu_blocks_override: 2147483647 is out of range; give at most 100000000",
        ),
        (
            ["engine.max_model_len=2000000000", "engine.max_num_seqs=1000"],
            "engine.max_model_len: 1,000 sequences of 2,000,000,000 tokens "
            "take a block table of 125,000,000,000 entries",
        ),
    ],
)
def test_flags_that_do_not_go_together(complain, overrides, says):
    assert complain(GOOD, *overrides).startswith(f"--set {overrides[0]}: {says}")


CONFIG = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 999}


def test_models_from_files(complain, tmp_path):
    text = GOOD.replace("Qwen/Qwen3-VL-2B-Instruct", "mine.json")
    told = complain(text)
    assert told.startswith(
        "DIR/bad.yaml line 2: model: 'mine.json' is not a regular file (tried DIR/mine.json"
    )
    config = tmp_path / "mine.json"
    config.write_text("[" * 100_000)
    assert complain(text).startswith("DIR/bad.yaml line 2: model: DIR/mine.json: cannot be read")
    config.write_text(json.dumps({**CONFIG, "num_attention_heads": 0}))
    assert "DIR/mine.json: num_attention_heads is 0, wanted a whole number from 1" in complain(text)
    config.write_text(json.dumps({**CONFIG, "max_position_embeddings": None}))
    told = complain(text.replace("  max_model_len: 4096\n", ""))
    assert "engine.max_model_len: missing; give tokens, the maximum of" in told
    config.write_text(json.dumps(CONFIG))
    told = complain(f"{text}model_sha256: {'a' * 64}\n")
    assert told.startswith("DIR/bad.yaml line 12: model_sha256: DIR/mine.json holds another model, with ")
    told = complain(f"{GOOD}model_sha256: {'a' * 64}\n")
    assert told == "DIR/bad.yaml line 12: model_sha256: goes with a config.json as model; leave it out"


def test_a_path_that_is_no_regular_file(complain, tmp_path):
    (tmp_path / "rows.jsonl").mkdir()
    assert "workload.path: 'rows.jsonl' is not a regular file (tried DIR/rows.jsonl" in complain(REPLAY)
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path / "rows.jsonl"):
        assert complain(REPLAY, trace=place).endswith(": workload.path: not a regular file")


def test_values_are_spelled_as_in_yaml(complain):
    assert "horizon: 1e+30 is out of range; give at most 1e+12" in complain(GOOD + "horizon: 1e30\n")
    assert "workload.rate: null is not a number" in complain(GOOD, "workload.rate=null")
    assert "seed: {a: null, b: [true, 'x']} is not" in complain(GOOD, "seed={a: null, b: [true, x]}")


def test_a_key_of_another_workload_is_not_misspelt(complain):
    text = complain(GOOD, "workload.type=image", "workload.num_prefixes=3")
    assert "workload.suffix_len: not a key of type image but of shared_prefix; leave it out" in text


def test_escaped_characters(complain):
    assert "'\U00010000' cannot name a folder" in complain(GOOD + 'name: "\\ud800\\udc00"\n')
    assert (
        complain(GOOD + 'name: "\\ud800"\n')
        == "DIR/bad.yaml line 12: name: half a character (a lone surrogate) is no text"
    )
