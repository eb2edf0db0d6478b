"""Good scenarios: what is read, filled in, hashed and handed on."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.weights import loaded_bytes
from kvsim.rules import rules_for
from kvsim.scenario import Scenario, load_scenario
from kvsim.scenario.defaults import batch_defaults
from kvsim.scenario.yaml_file import parse_mapping

SCENARIOS = Path(__file__).parent.parent.parent / "scenarios"
MINIMAL = """\
model: Qwen/Qwen3-VL-2B-Instruct
gpu: rtx-4090
workload:
  type: shared_prefix
  rate: 10
  num_requests: 5
"""
ROW = {"timestamp": 0, "input_length": 20, "output_length": 2, "hash_ids": [4]}


@pytest.fixture
def load(tmp_path):
    def loaded(text, *overrides, name="case.yaml", **options) -> Scenario:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return load_scenario(path, overrides, **options)

    return loaded


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n")
    return path


def test_defaults(load):
    scenario = load(MINIMAL)
    assert (scenario.name, scenario.seed, scenario.vllm_version) == ("case", 0, "0.33")
    assert scenario.engine.block_size == 16
    assert scenario.engine.async_scheduling is True
    assert scenario.engine.gpu_memory_utilization == 0.92
    assert (scenario.engine.max_num_batched_tokens, scenario.engine.max_num_seqs) == (2048, 256)
    assert (scenario.cluster.replicas, scenario.cluster.router.policy) == (1, "round_robin")
    assert scenario.horizon is None


@pytest.mark.parametrize("version", ["0.16", "'0.16'", "0.16.0", "'0.16.0'"])
def test_release_may_be_a_number(load, version):
    scenario = load(f"vllm_version: {version}\n{MINIMAL}")
    assert scenario.vllm_version == "0.16"
    assert scenario.engine.gpu_memory_utilization == 0.9


@pytest.mark.parametrize(
    ("gpu", "version", "expected"),
    [
        ("rtx-4090", "0.33", (2048, 256)),
        ("A100-80GB SXM", "0.33", (2048, 256)),
        ("H100 SXM", "0.33", (8192, 1024)),
        ("H100 SXM", "0.16", (8192, 1024)),
        ("B200", "0.33", (16384, 1024)),
        ("B200", "0.16", (8192, 1024)),
        ("GB10", "0.33", (2048, 256)),
    ],
)
def test_batch_defaults_of_the_api_server(gpu, version, expected):
    assert batch_defaults(catalog.gpu(gpu), rules_for(version)) == expected


def test_default_batch_fits_what_is_given(load):
    few = load(MINIMAL, "engine.max_num_seqs=2", "engine.max_model_len=100").engine
    assert (few.max_num_batched_tokens, few.max_num_seqs) == (200, 2)
    whole = load(MINIMAL, "engine.enable_chunked_prefill=false", "engine.max_model_len=9000").engine
    assert whole.max_num_batched_tokens == 9000
    small = load(MINIMAL, "engine.max_num_batched_tokens=64").engine
    assert (small.max_num_batched_tokens, small.max_num_seqs) == (64, 64)


def test_dashes_and_underscores_are_one(load):
    dashed = load(
        f"{MINIMAL}engine: {{max-model-len: 4096, speculative-config: {{method: ngram,"
        " num-speculative-tokens: 3, acceptance: 0.5}}\n"
    )
    under = load(
        f"{MINIMAL}engine: {{max_model_len: 4096, speculative_config: {{method: ngram,"
        " num_speculative_tokens: 3, acceptance: 0.5}}\n"
    )
    assert dashed == under
    assert dashed.scenario_hash == under.scenario_hash
    assert load(MINIMAL, "engine.max-model-len=4096", "workload.num-requests=6").workload.num_requests == 6


def test_names_are_forgiven(load):
    loose = load(MINIMAL.replace("rtx-4090", "RTX_4090").replace("Qwen/Qwen3-VL-2B-Instruct", "qwen3.vl.2b"))
    assert loose.scenario_hash == load(MINIMAL).scenario_hash


def test_overrides(load):
    scenario = load(
        MINIMAL,
        "seed=7",
        "engine.block_size=32",
        "workload.rate=inf",
        "workload.output_len={distribution: uniform, min: 1, max: 9}",
        "engine.speculative_config.method=eagle",
        "engine.speculative_config.num_speculative_tokens=2",
        "engine.speculative_config.acceptance=0.8",
        "horizon=60",
    )
    assert (scenario.seed, scenario.engine.block_size, scenario.horizon) == (7, 32, 60.0)
    assert scenario.workload.rate == math.inf
    assert scenario.workload.output_len == {"distribution": "uniform", "min": 1, "max": 9}
    assert scenario.engine.speculative_config.acceptance == 0.8


def test_a_key_is_overridden_once(load):
    with pytest.raises(KvsimError, match=r"^--set engine\.block-size=32: engine\.block_size is set twice"):
        load(MINIMAL, "engine.block_size=16", "engine.block-size=32")


def test_adapters_give_vllms_default_of_one_slot(load):
    assert load(MINIMAL).engine.max_loras is None
    assert load(MINIMAL, "workload.num_loras=3").engine.max_loras == 1
    assert load(MINIMAL, "workload.num_loras=3", "engine.max_loras=2").engine.max_loras == 2


def test_numbers_written_with_underscores_and_exponents(load):
    scenario = load(MINIMAL, "engine.available_kv_cache_bytes=18_115_198_976", "workload.rate=1e1")
    assert scenario.engine.available_kv_cache_bytes == 18115198976
    assert (
        scenario.scenario_hash == load(MINIMAL, "engine.available_kv_cache_bytes=18115198976").scenario_hash
    )


def test_byte_order_mark_comments_and_anchors(load):
    text = "\ufeff# a question\n" + MINIMAL.replace("rate: 10", "rate: &rate 10") + "horizon: *rate\n"
    assert load(text).horizon == 10.0


def test_pixels_take_the_models_processor(load):
    image = "{type: image, rate: 1, num_requests: 2, image_size: [1152, 864]}"
    scenario = load(f"model: qwen3-vl-2b\ngpu: rtx-4090\nworkload: {image}\n")
    assert scenario.workload.processor == "qwen3-vl"
    assert next(scenario.build_workload().requests(0)).num_prompt_tokens == 997


def test_resolved_is_a_scenario_again(load, tmp_path, trace):
    for text in (MINIMAL, MINIMAL.replace("rate: 10", "rate: inf")):
        first = load(text, "workload.suffix_len={distribution: choice, values: [1, 2]}")
        again = load(first.to_yaml(), name="again.yaml")
        assert again.resolved() == first.resolved()
        assert again.scenario_hash == first.scenario_hash
    replay = load("model: llama-3.1-8b\ngpu: h100-sxm\nworkload: {type: trace}\n", trace=trace)
    again = load(replay.to_yaml(), name="again.yaml")
    assert again.resolved() == replay.resolved()
    json.dumps(replay.resolved(), allow_nan=False)


def test_hash_is_of_what_is_simulated(load):
    plain = load(MINIMAL).scenario_hash
    assert load(MINIMAL, "seed=0", "engine.block_size=16", "workload.rate=10.0").scenario_hash == plain
    assert load(f"# why\n{MINIMAL}").scenario_hash == plain
    reordered = "\n".join(reversed(MINIMAL.splitlines()[:2])) + "\n" + "\n".join(MINIMAL.splitlines()[2:])
    assert load(reordered).scenario_hash == plain
    changed = [
        load(MINIMAL, override).scenario_hash
        for override in ("seed=1", "name=other", "engine.block_size=32", "workload.rate=11", "horizon=9")
    ]
    assert len({plain, *changed}) == 6


def test_hash_is_the_same_in_another_process_and_folder(load, tmp_path):
    scenario = load(MINIMAL)
    moved = tmp_path / "elsewhere" / "case.yaml"
    moved.parent.mkdir()
    moved.write_text(MINIMAL)
    script = "import kvsim; print(kvsim.load_scenario('case.yaml').scenario_hash)"
    printed = subprocess.run(
        [sys.executable, "-c", script],
        cwd=moved.parent,
        env={**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert printed == scenario.scenario_hash


REPLAY = "name: replay\nmodel: llama-3.1-8b\ngpu: h100-sxm\nworkload: {type: trace, path: rows.jsonl}\n"


def test_trace_beside_the_file_or_in_the_working_folder(load, trace, tmp_path, monkeypatch):
    beside = load(REPLAY)
    assert beside.trace_path == trace
    assert beside.workload.path == "rows.jsonl"
    assert beside.build_workload().num_requests == 1
    elsewhere = tmp_path / "sub"
    elsewhere.mkdir()
    (elsewhere / "case.yaml").write_text(REPLAY)
    monkeypatch.chdir(tmp_path)
    assert load_scenario("sub/case.yaml").scenario_hash == beside.scenario_hash


def test_trace_counts_by_its_content(load, trace, tmp_path):
    first = load(REPLAY)
    copy = tmp_path / "copy.jsonl"
    copy.write_text(trace.read_text() + "\n\n")
    assert load(REPLAY, trace=copy).scenario_hash == first.scenario_hash
    copy.write_text(json.dumps({**ROW, "output_length": 3}) + "\n")
    assert load(REPLAY, trace=copy).scenario_hash != first.scenario_hash
    assert load(REPLAY, trace=copy).build_workload().path == str(copy)


def test_trace_may_be_pinned(load, trace):
    pin = load(REPLAY).workload.sha256
    pinned = REPLAY.replace("rows.jsonl", f"rows.jsonl, sha256: {pin}")
    assert load(pinned).workload.sha256 == pin
    assert load(REPLAY, f"workload.sha256={pin}").workload.sha256 == pin


def test_scenario_from_python():
    workload = {"type": "shared_prefix", "rate": 5.0, "num_requests": 3}
    scenario = Scenario(name="mine", model="qwen3-8b", gpu="l4", workload=workload)
    assert [request.request_id for request in scenario.build_workload().requests(0)] == [
        "req-0",
        "req-1",
        "req-2",
    ]


@given(st.integers(0, 2**63 - 1), st.floats(0.001, 1e6), st.sampled_from([16, 32, 64, 528]))
def test_any_good_scenario_survives_its_own_text(seed, rate, block_size):
    workload = {"type": "shared_prefix", "rate": rate, "num_requests": 3}
    engine = {"block_size": block_size}
    scenario = Scenario(name="x", seed=seed, model="qwen3-8b", gpu="l4", workload=workload, engine=engine)
    values, _ = parse_mapping(scenario.to_yaml(), "text")
    assert Scenario.model_validate(values).scenario_hash == scenario.scenario_hash


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_scenarios(path, trace):
    assert path.read_text().startswith("# ")
    assert path.read_text().splitlines()[0].endswith("?")
    needs_trace = path.stem in ("mooncake_conversation", "mooncake_routers")
    scenario = load_scenario(path, trace=trace if needs_trace else None)
    assert scenario.name == path.stem.replace("_", "-")
    request = next(scenario.build_workload().requests(scenario.seed))
    length = scenario.engine.max_model_len
    assert request.num_prompt_tokens + request.max_tokens <= length


def test_made_trace_is_whole_and_reused():
    scenario = load_scenario(SCENARIOS / "mooncake_small.yaml")
    requests = list(scenario.build_workload().requests(0))
    assert len(requests) == 254
    seen: set[int] = set()
    known = 0
    for request in requests:
        streams = request.prompt[:, 0].tolist()
        known += sum(stream in seen for stream in streams)
        seen.update(streams)
    assert known > len(seen)


@pytest.mark.parametrize(
    ("version", "method", "expected"),
    [("0.33", None, True), ("0.33", "ngram", True), ("0.16", "ngram", False), ("0.16", "eagle", True)],
)
def test_async_scheduling_is_on_where_the_release_can(
    tmp_path: Path, version: str, method: str | None, expected: bool
) -> None:
    drafts = f"{{method: {method}, num_speculative_tokens: 2, acceptance: 0.5}}" if method else "null"
    path = tmp_path / "drafts.yaml"
    path.write_text(
        f"name: drafts\nvllm_version: {version}\nmodel: Qwen3-8B\ngpu: h100\n"
        f"engine: {{speculative_config: {drafts}}}\n"
        "workload: {type: shared_prefix, rate: 1, num_requests: 1}\n"
    )
    assert load_scenario(path).engine.async_scheduling is expected
    if not expected:
        with pytest.raises(KvsimError, match=r"engine\.async_scheduling: true does not go with ngram"):
            load_scenario(path, ["engine.async_scheduling=true"])


CONFIG = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 999}


def test_a_config_file_counts_by_its_content(load, tmp_path, monkeypatch):
    text = MINIMAL.replace("Qwen/Qwen3-VL-2B-Instruct", "model/config.json")
    config = tmp_path / "model" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(CONFIG))
    first = load(text)
    assert (first.model, first.model_spec.num_hidden_layers) == ("model/config.json", 2)
    monkeypatch.chdir(tmp_path)
    again = load(first.to_yaml(), name="again.yaml")
    assert (again.resolved(), again.scenario_hash) == (first.resolved(), first.scenario_hash)
    (tmp_path / "copy.json").write_text(config.read_text())
    assert load(text, "model=copy.json", name="case.yaml").scenario_hash == first.scenario_hash
    config.write_text(json.dumps({**CONFIG, "num_hidden_layers": 3}))
    assert load(text).scenario_hash != first.scenario_hash


def test_a_model_beside_the_scenario_goes_before_one_in_the_working_folder(tmp_path, monkeypatch):
    for folder, layers in ((tmp_path, 2), (tmp_path / "sub", 3)):
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": layers}))
    text = MINIMAL.replace("Qwen/Qwen3-VL-2B-Instruct", "config.json")
    (tmp_path / "sub" / "case.yaml").write_text(text)
    for place in (tmp_path, tmp_path / "sub"):
        monkeypatch.chdir(place)
        assert load_scenario(tmp_path / "sub" / "case.yaml").model_spec.num_hidden_layers == 3


def test_quantization_and_dtype_reach_the_model(load):
    plain = load(MINIMAL).model_spec
    assert loaded_bytes(load(MINIMAL, "engine.quantization=fp8").model_spec) < loaded_bytes(plain)
    assert loaded_bytes(load(MINIMAL, "engine.dtype=float32").model_spec) == 2 * loaded_bytes(plain)
