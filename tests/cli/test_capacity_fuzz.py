"""Whatever `kvsim capacity` is given, it answers, or ends with one clear line and exit code 2, at once."""

import json
import os
import time

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kvsim.cli.main import main

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
    "layer_types": ["full_attention"] * 28,
    "sliding_window": None,
    "num_experts": 0,
    "moe_intermediate_size": 0,
    "num_experts_per_tok": 0,
    "kv_lora_rank": 0,
    "rope_parameters": {"partial_rotary_factor": 1.0},
    "vision_config": {
        "depth": 2,
        "hidden_size": 64,
        "num_heads": 4,
        "patch_size": 14,
        "spatial_merge_size": 2,
    },
    "quantization_config": {"quant_method": "fp8"},
    "linear_num_key_heads": 0,
    "mamba_ssm_dtype": "float32",
}
PROFILE = {
    "kvsim_profile": 1,
    "parts_gib": {"weights": 1.5, "non_torch": 0.1},
    "observed_with": {"version": "0.9"},
}
HEADER = (
    "id,engine,version,arch_class,model,quant,kv_dtype,gpu,total_gib,tp,gpu_memory_utilization,max_model_len,"
    "max_num_seqs,max_num_batched_tokens,enforce_eager,block_size,available_kv_gib,num_gpu_blocks,kv_tokens,"
    "max_concurrency,needed_gib,est_max_len,status"
)
ROW = (
    "a,v1,0.19.0,dense-gqa,Qwen/Qwen3-8B,,,RTX 4090,23.516,1,0.9,8192,256,2048,0,16,5.05,2300,36800,4.5,,,ok"
)

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-1, 40),
    st.floats(),
    st.text(max_size=6),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.sampled_from(["depth", "hidden_size", "x"]), st.integers(-2, 10**9), max_size=3),
)
ABSURD = st.sampled_from(
    [
        "",
        "-1",
        "0",
        "1",
        "nan",
        "inf",
        "-inf",
        "1e308",
        "9" * 400,
        "{}",
        "[]",
        '{"image": -1}',
        "true",
        "auto",
        "\x00",
        "é",
    ]
)
FLAGS = st.sampled_from(
    [
        *(
            "--max-model-len",
            "--max-num-seqs",
            "--max-num-batched-tokens",
            "--tensor-parallel-size",
            "-tp",
            "-pp",
        ),
        *("--gpu-memory-utilization", "--block-size", "--num-gpu-blocks-override", "--kv-cache-memory-bytes"),
        *("--kv-cache-dtype", "--quantization", "--dtype", "--limit-mm-per-prompt", "--mm-processor-kwargs"),
        *(
            "--speculative-config",
            "--hf-overrides",
            "--cpu-offload-gb",
            "--max-loras",
            "-dp",
            "-dcp",
            "--config",
        ),
        *(
            "--gpu-memory-gib",
            "--used-by-others-gib",
            "--vllm-version",
            "--profile",
            "--sweep",
            "--gpu",
            "--log",
        ),
    ]
)
FUZZ = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def ends_well(capsys, *args):
    """Runs it; the exit code, after checking that a refusal is one line and quick."""
    started = time.monotonic()
    with pytest.raises(SystemExit) as end:
        main(["capacity", *map(str, args)])
    out, err = capsys.readouterr()
    assert end.value.code in (0, 2)
    assert time.monotonic() - started < 2
    if end.value.code == 2:
        assert out == ""
        assert len(err.splitlines()) == 1
        assert err.startswith("kvsim: ")
        assert len(err) < 1500
    else:
        assert err == ""
    return end.value.code


@FUZZ
@given(
    key=st.sampled_from(sorted(CONFIG)),
    value=VALUES,
    dropped=st.sampled_from(["", *sorted(CONFIG)]),
    nested=st.booleans(),
)
@example(key="num_attention_heads", value=0, dropped="", nested=False)
@example(key="hidden_size", value=2**40, dropped="", nested=False)
@example(key="num_hidden_layers", value=10**9, dropped="", nested=True)
@example(key="layer_types", value=["x"], dropped="", nested=False)
def test_any_config(capsys, tmp_path, key, value, dropped, nested):
    config = {**CONFIG, key: value}
    config.pop(dropped, None)
    config = {"model_type": "vl", "text_config": config} if nested else config
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    ends_well(capsys, path, "--gpu", "H100")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff\xfe",
        b"[]",
        b"null",
        b'"text"',
        b"NaN",
        b'{"num_hidden_layers": NaN}',
        b'{"num_hidden_layers": 1e400}',
        b'{"a":' * 5000,
        b"[" * 100_000,
        b'{"num_hidden_layers": ' + b"9" * 10_000 + b"}",
        b'{"text_config": []}',
        b'{"text_config": {"text_config": {}}}',
        json.dumps(CONFIG).encode("utf-16"),
        json.dumps(CONFIG | {"num_attention_heads": 0}).encode(),
        json.dumps(CONFIG | {"layer_types": ["linear_attention"] * 28}).encode(),
    ],
)
def test_configs_that_are_none(capsys, tmp_path, content):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    assert ends_well(capsys, path, "--gpu", "H100") == 2


def test_paths_that_are_no_file(capsys, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "config.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    for path in (
        tmp_path / "folder",
        tmp_path,
        tmp_path / "config.json",
        tmp_path / "pipe.json",
        "x" * 5000,
        "/dev/zero",
    ):
        assert ends_well(capsys, path, "--gpu", "H100") == 2
        for option in ("--log", "--evaluate", "--profile", "--config"):
            assert ends_well(capsys, "Qwen3-8B", "--gpu", "H100", option, path) == 2


@FUZZ
@given(st.lists(st.tuples(FLAGS, ABSURD), max_size=3))
@example([("--num-gpu-blocks-override", "999999999999")])
@example([("--max-model-len", "999999999999"), ("--max-num-batched-tokens", "1")])
@example([("--tensor-parallel-size", "99999999999")])
@example([("-pp", "28"), ("--speculative-config", '{"num_speculative_tokens": 1, "method": "mtp"}')])
@example([("--sweep", "block_size=16:9999999:16")])
@example([("--sweep", "max_model_len=1:2:nan")])
def test_any_flags(capsys, pairs):
    ends_well(capsys, "Qwen3-8B", "--gpu", "H100", *(word for pair in pairs for word in pair))


@FUZZ
@given(column=st.integers(0, 22), value=st.one_of(ABSURD, st.text(max_size=8)), header=st.booleans())
def test_any_collection(capsys, tmp_path, column, value, header):
    lines = [HEADER.split(","), ROW.split(",")]
    lines[0 if header else 1][column] = value
    path = tmp_path / "logs.csv"
    path.write_bytes("\n".join(",".join(line) for line in lines).encode("utf-8", "surrogatepass"))
    ends_well(capsys, "--evaluate", path)


@FUZZ
@given(part=st.sampled_from(["kvsim_profile", "parts_gib", "observed_with", "weights"]), value=VALUES)
def test_any_profile(capsys, tmp_path, part, value):
    content = json.loads(json.dumps(PROFILE))
    target = content["parts_gib"] if part == "weights" else content
    target[part] = value
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(content))
    ends_well(capsys, "Qwen3-8B", "--gpu", "H100", "--profile", path)


@FUZZ
@given(st.binary(max_size=200), st.booleans())
def test_any_log(capsys, tmp_path, content, known):
    path = tmp_path / "start.log"
    start = (
        b"Initializing a V1 LLM engine (v0.99.7) with config: model='no/model', max_seq_len=99999999999999\n"
    )
    path.write_bytes((start if known else b"") + content + b"\nAvailable KV cache memory: 5.0 GiB\n")
    ends_well(capsys, "--log", path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: [",
        "- 1",
        "max-model-len: {a: 1}",
        "max_model_len: x",
        "nested: {a: {b: 1}}",
        "\x00",
        "gpu-memory-utilization: 7",
    ],
)
def test_any_config_file_of_vllm(capsys, tmp_path, text):
    path = tmp_path / "serve.yaml"
    path.write_text(text)
    code = ends_well(capsys, "--gpu", "H100", "--", "vllm", "serve", "Qwen3-8B", "--config", path)
    assert code == (0 if text.startswith("nested") else 2)
