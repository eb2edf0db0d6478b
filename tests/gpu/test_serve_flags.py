"""vLLM command lines as people write them."""

import shlex
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import KvsimError
from kvsim.gpu.serve_flags import known_flags, read_command, words_of_config

MODEL = "Qwen/Qwen3-8B"


def values(text):
    return read_command(shlex.split(text)).values


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("-tp 2 -pp 2 -dcp 2 -dp 4 -ep", (2, 2, 2, 4, True)),
        ("-tp=2 -pp=2 -dcp=2 -dp=4 --enable_expert_parallel", (2, 2, 2, 4, True)),
    ],
)
def test_short_forms(text, found):
    names = ("tensor", "pipeline", "decode_context", "data")
    keys = [f"{name}_parallel_size" for name in names] + ["enable_expert_parallel"]
    assert values(f"vllm serve {MODEL} {text}") == dict(zip(keys, found, strict=True))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("32k", 32_000), ("32K", 32_768), ("1M", 1 << 20), ("25.6k", 25_600), ("auto", -1), ("-1", -1)],
)
def test_numbers_with_suffixes(text, tokens):
    assert values(f"vllm serve {MODEL} --max-model-len {text}") == {"max_model_len": tokens}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("--no-enable-prefix-caching", {"enable_prefix_caching": False}),
        ("--disable-prefix-caching", {"enable_prefix_caching": False}),
        ("--enable-prefix-caching=false", {"enable_prefix_caching": False}),
        ("--disable-hybrid-kv-cache-manager", {"disable_hybrid_kv_cache_manager": True}),
        ("--no-disable-hybrid-kv-cache-manager", {"disable_hybrid_kv_cache_manager": False}),
        ("--no-async-scheduling", {"async_scheduling": False}),
        ("--no-enforce-eager", {"enforce_eager": False}),
        ("-O0", {"enforce_eager": True}),
        ("-O 3", {}),
        ("-cc.cudagraph_mode=NONE", {"enforce_eager": True}),
        ("""-cc '{"cudagraph_mode": "PIECEWISE"}'""", {}),
        ("--kv-cache-memory=10G", {"kv_cache_memory_bytes": 10 << 30}),
        ("--device-memory-utilization 0.5", {"gpu_memory_utilization": 0.5}),
        ("--max-num-batched 4096", {"max_num_batched_tokens": 4096}),
        (
            "--hf-overrides.max_position_embeddings 65536",
            {"hf_overrides": {"max_position_embeddings": 65_536}},
        ),
        (
            "--speculative-config.method mtp --speculative_config.num_speculative_tokens=2",
            {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}},
        ),
        (
            "--spec-method eagle3 --spec-tokens 3",
            {"speculative_config": {"method": "eagle3", "num_speculative_tokens": 3}},
        ),
        (
            """--limit-mm-per-prompt '{"image": {"count": 1}}'""",
            {"limit_mm_per_prompt": {"image": {"count": 1}}},
        ),
        ("--limit-mm-per-prompt.image 2", {"limit_mm_per_prompt": {"image": 2}}),
        ("--enable-lora --max-loras 4", {"enable_lora": True, "max_loras": 4}),
    ],
)
def test_ways_to_write_a_flag(text, found):
    read = read_command(shlex.split(f"vllm serve {MODEL} {text}"))
    assert (read.model, read.values, read.unknown) == (MODEL, found, ())


@pytest.mark.parametrize(
    ("text", "version", "found"),
    [
        (f"vllm serve {MODEL}", None, {}),
        (f"CUDA_VISIBLE_DEVICES=0 VLLM_USE_V1=0 vllm serve {MODEL} > log.txt 2>&1 &", None, {"engine": "V0"}),
        (f"nohup uv run --with vllm vllm serve --model {MODEL} | tee log", None, {}),
        (f"python -m vllm.entrypoints.openai.api_server --model {MODEL}", None, {}),
        (f"vllm bench throughput --model {MODEL} --input-len 128", None, {"offline": True}),
        (f"vllm bench serve --model {MODEL}", None, {}),
        (
            "docker run --gpus all -v ~/.cache/huggingface:/root/.cache -p 8000:8000 --ipc=host "
            f"vllm/vllm-openai:v0.11.0 --model {MODEL}",
            "0.11.0",
            {},
        ),
        (
            f"podman run -e VLLM_USE_V1=0 docker.io/vllm/vllm-openai:v0.8.5.post1 --model {MODEL}",
            "0.8.5.post1",
            {"engine": "V0"},
        ),
        (f"docker run --rm vllm/vllm-openai:latest {MODEL}", None, {}),
        (f"docker run -it rocm/vllm:rocm7 vllm serve {MODEL}", None, {}),
    ],
)
def test_programs_around_it(text, version, found):
    for words in ([text], shlex.split(text)):
        read = read_command(words)
        assert (read.model, read.version, read.values) == (MODEL, version, found)


def test_lines_that_go_on():
    text = f"vllm serve {MODEL} \\\n    --max-model-len 8192 \\\r\n    --port 8000\n"
    read = read_command([text])
    assert (read.values, read.ignored) == ({"max_model_len": 8192}, ("--port 8000",))


def test_what_is_neither_used_nor_ignored_is_listed():
    read = read_command(
        f"vllm serve {MODEL} --served-model-name a b --max-modle-len 9 --prefill-context-parallel-size 2 "
        "--zzz --swap-space 4 --enable-chunked-prefill false".split()
    )
    assert read.unknown == ("--max-modle-len 9 (nearest: --max-model-len)", "--zzz")
    assert read.unmodelled == ("--prefill-context-parallel-size 2",)
    assert read.ignored == ("--served-model-name a b",)
    assert read.values == {"enable_chunked_prefill": False, "swap_space": 4.0}


def test_a_config_file_is_overruled_by_the_command_line():
    content = {
        "model": "other/model",
        "tensor_parallel_size": 4,
        "max_model_len": "16k",
        "enforce_eager": True,
    }
    content |= {
        "speculative_config": {"method": "mtp"},
        "allowed_origins": ["*"],
        "enable_prefix_caching": False,
    }
    read = read_command(f"vllm serve {MODEL} --config c.yaml -tp 2".split(), words_of_config(content))
    assert (read.model, read.config) == (MODEL, "c.yaml")
    assert read.values["tensor_parallel_size"] == 2
    assert read.values["max_model_len"] == 16_000
    assert read.values["enforce_eager"] is True
    assert read.values["enable_prefix_caching"] is False
    assert read_command(["--config", "c.yaml"], words_of_config(content)).model == "other/model"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("--max-model-len 8.5", "--max-model-len: '8.5'"),
        ("--gpu-memory-utilization 2", "--gpu-memory-utilization: '2'"),
        ("--gpu-memory-utilization nan", "--gpu-memory-utilization: 'nan'"),
        ("--mm-processor-kwargs {", "--mm-processor-kwargs: '{'"),
        ("--tensor-parallel-size", "--tensor-parallel-size: its value is missing"),
        ("--hf-overrides.a.b 1 --hf-overrides.a.b.c 2", "b is already a value"),
    ],
)
def test_a_wrong_value_names_the_flag(text, says):
    with pytest.raises(KvsimError) as problem:
        read_command(f"vllm serve {MODEL} {text}".split())
    assert says in str(problem.value)


def test_quotes_that_do_not_end():
    with pytest.raises(KvsimError, match="no closing quotation"):
        read_command(["vllm serve 'x"])


def test_all_flags_of_vllm_are_known():
    flags = known_flags()
    assert len(flags) > 400
    for name in (
        "max-model-len",
        "kv-cache-memory-bytes",
        "swap-space",
        "enable-reasoning",
        "tool-call-parser",
    ):
        assert name in flags


WORDS = st.one_of(
    st.sampled_from([f"--{name}" for name in sorted(known_flags())]),
    st.sampled_from(
        [
            "-tp",
            "-O",
            "-cc.a.b",
            "--hf-overrides.x=",
            "{",
            "[1]",
            "auto",
            "-1",
            "vllm",
            "serve",
            "docker",
            "run",
        ]
    ),
    st.text(max_size=8),
)


@given(st.lists(WORDS, max_size=8))
def test_any_words_are_read_or_refused(words):
    with suppress(KvsimError):
        read_command(words)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("vllm serve M --enforce-eager=maybe", "--enforce-eager: 'maybe' is neither true nor false"),
        (
            "vllm serve M --compilation-config.cudagraph_mode WOW",
            "cudagraph_mode 'WOW' is not known; one of NONE",
        ),
        ("vllm serve M -O9", "-O: 9 is no level of optimization; one of 0, 1, 2, 3"),
        (
            "vllm serve M --max-model-len 99999999999999999999",
            "--max-model-len: 99999999999999999999 is too large",
        ),
        ("python3 -m sglang.launch_server --model-path M", "sglang.launch_server: not vLLM"),
        ("ollama run llama3", "ollama: not vLLM"),
        ("vllm chat --model-name M", "vllm chat: starts no server"),
    ],
)
def test_what_vllm_would_not_take(text, says):
    with pytest.raises(KvsimError) as refusal:
        read_command(text.split())
    assert says in str(refusal.value)


def test_what_a_reader_should_know_of_a_line():
    def remark(text):
        return read_command(text.split()).remarks

    twice = f"vllm serve {MODEL} --model other/model"
    assert remark(twice) == (f"--model other/model has no effect beside {MODEL}, which vLLM takes",)
    assert read_command(twice.split()).model == MODEL
    assert remark(f"vllm serve {MODEL} --model {MODEL}") == ()
    latest = remark(f"docker run vllm/vllm-openai:latest --model {MODEL}")
    assert latest[0].startswith("vllm/vllm-openai:latest: the tag latest names no release")
    assert remark(f"docker run vllm/vllm-openai:v0.11.0 --model {MODEL}") == ()
    assert "asks a server" in remark(f"vllm bench serve --model {MODEL}")[0]
    assert read_command(f"vllm serve {MODEL} stray".split()).unknown == ("stray",)
    unclear = read_command(f"vllm serve {MODEL} --max 9".split()).unknown[0]
    assert unclear.startswith("--max 9 (could be --max-")


def test_settings_before_the_command():
    read = read_command(f"VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 VLLM_USE_V1=0 vllm serve {MODEL}".split())
    assert read.values == {"engine": "V0", "allow_long_max_model_len": True}
    read = read_command(
        f"docker run -e VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm/vllm-openai:v0.9.2 {MODEL}".split()
    )
    assert read.values == {"allow_long_max_model_len": True}
