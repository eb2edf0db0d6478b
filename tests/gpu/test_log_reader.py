"""`kvsim capacity --log`: start-up logs of several releases, broken ones, and saved profiles."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvsim
from kvsim.errors import KvsimError
from kvsim.gpu.log_comparison import (
    adds_up,
    cache_differences,
    card_doubt,
    differences,
    logged_tokens,
    missing_parts,
    tokens_cause,
)
from kvsim.gpu.log_facts import facts_of
from kvsim.gpu.log_reader import read_log
from kvsim.gpu.profile_file import read_profile, save_profile
from kvsim.gpu.profiles import profile_of

V0 = """\
INFO 11-20 12:00:00 llm_engine.py:237] Initializing an LLM engine (v0.6.4) with config: model='meta-llama/\
Llama-3.1-8B-Instruct', speculative_config=None, max_seq_len=20000, tensor_parallel_size=1, \
quantization=None, enforce_eager=False, kv_cache_dtype=auto
INFO 11-20 12:00:10 model_runner.py:1077] Loading model weights took 14.9888 GB
INFO 11-20 12:00:13 worker.py:232] Memory profiling results: total_gpu_memory=23.58GiB \
initial_memory_usage=15.44GiB peak_torch_memory=17.06GiB memory_usage_post_profile=15.51GiB \
non_torch_memory=0.35GiB kv_cache_size=3.81GiB gpu_memory_utilization=0.90
INFO 11-20 12:00:13 gpu_executor.py:113] # GPU blocks: 1952, # CPU blocks: 2048
INFO 11-20 12:00:13 gpu_executor.py:117] Maximum concurrency for 20000 tokens per request: 1.56x
"""
V0_LATE = """\
the current vLLM instance can use total_gpu_memory (14.56GiB) x gpu_memory_utilization (0.50) = 7.28GiB
model weights take 2.89GiB; non_torch_memory takes 0.01GiB; PyTorch activation peak memory takes 2.02GiB; \
the rest of the memory reserved for KV Cache is 2.36GiB.
# cuda blocks: 5517, # CPU blocks: 9362
"""
V1 = """\
\x1b[1;36m(EngineCore_DP0 pid=1)\x1b[0;0m INFO core.py:97] Initializing a V1 LLM engine (v0.30.0) with \
config: model='meta-llama/Llama-3.1-8B-Instruct', max_seq_len=131072, \
tensor_parallel_size=1, enforce_eager=False
INFO gpu_model_runner.py:5089] Model loading took 15.0 GiB memory and 3.100000 seconds
INFO gpu_model_runner.py:6410] Estimated CUDA graph memory: 0.23 GiB total
INFO gpu_worker.py:773] Available KV cache memory: 56.21 GiB
INFO kv_cache_utils.py:1149] GPU KV cache size: 460,496 tokens, Maximum concurrency for 131,072 tokens per \
request: 3.51x
INFO gpu_worker.py] Free memory on device (78.8/79.25 GiB) on startup. Desired GPU memory utilization is \
(0.92, 72.91 GiB). Actual usage is 15.26 GiB for consumed memory (weights + non-torch), 1.44 GiB for peak \
activation, and 0.23 GiB for CUDAGraph memory.
"""


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (V0, {"version": "0.6.4", "activation_gib": 2.0712, "num_gpu_blocks": 1952, "total_gib": 23.58}),
        (
            V0_LATE,
            {"weights_gib": 2.89, "available_gib": 2.36, "num_gpu_blocks": 5517, "requested_gib": 7.28},
        ),
        (V1, {"version": "0.30.0", "consumed_gib": 15.26, "kv_tokens": 460_496, "max_model_len": 131_072}),
    ],
)
def test_every_generation_of_logs(text, facts):
    seen = facts_of(text)
    assert {key: getattr(seen, key) for key in facts} == facts
    left, rounding = adds_up(seen)
    assert abs(left) <= rounding


def test_a_refusal_in_a_log():
    seen = facts_of(
        "ValueError: To serve at least one request with the models's max seq len (29000), (3.54 GiB KV cache "
        "is needed, which is larger than the available KV cache memory (2.89 GiB). Based on the available "
        "memory, the estimated maximum model length is 23632."
    )
    assert (seen.needed_gib, seen.longest) == (3.54, 23_632)


def test_parts_beside_the_prediction():
    seen = facts_of(V1)
    plan = kvsim.plan_capacity("Llama-3.1-8B", "A100 80GB", vllm_version="0.30", **seen.flags())
    found = {row.part: row for row in differences(seen, plan.prediction)}
    assert found["activation"].printed_gib == pytest.approx(1.21)
    assert found["non-torch"].printed_gib == pytest.approx(0.26)
    assert "max_num_seqs" in found["activation"].cause


def test_parts_that_do_not_add_up_are_told():
    left, rounding = adds_up(facts_of(V1.replace("56.21 GiB", "54.21 GiB")))
    assert left == pytest.approx(2, abs=rounding)


def test_a_saved_profile_replaces_the_prediction(tmp_path):
    path = tmp_path / "profile.json"
    seen = facts_of(V1)
    save_profile(profile_of(seen), path)
    observed = read_profile(path).parts
    plan = kvsim.plan_capacity(
        "Llama-3.1-8B", "A100 80GB", vllm_version="0.30", observed=observed, **seen.flags()
    )
    assert plan.lines[0] == "Available KV cache memory: 56.21 GiB"
    assert plan.kv_cache_size_tokens == pytest.approx(460_496, rel=0.001)
    assert profile_of(seen)["observed_with"]["version"] == "0.30.0"


@pytest.mark.parametrize(
    "text",
    ["", "[", "[]", "{}", '{"parts_gib": {}}', '{"parts_gib": {"x": 1}}', '{"parts_gib": {"weights": -1}}'],
)
def test_a_broken_profile_is_one_line(tmp_path, text):
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(KvsimError, match=r"profile\.json") as refusal:
        read_profile(path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\x00\xff" * 1000, json.dumps({}).encode()])
def test_what_is_no_log_is_one_line(tmp_path, content):
    path = tmp_path / "start.log"
    path.write_bytes(content)
    with pytest.raises(KvsimError, match="no line of a vLLM start-up log"):
        read_log(path)
    with pytest.raises(KvsimError, match=r"absent\.log"):
        read_log(tmp_path / "absent.log")


@given(st.integers(0, len(V1)), st.integers(0, len(V1)), st.text(max_size=20))
def test_a_damaged_log_never_breaks_the_reader(start, end, noise):
    facts_of(V1[:start] + noise + V1[end:])


def test_figures_that_no_server_has_are_not_believed():
    seen = facts_of(
        V1.replace("took 15.0 GiB", "took -15.0 GiB").replace("56.21 GiB", "1" + 19 * "0" + " GiB")
    )
    assert seen.doubted == ("weights -15", "available 1e+19")
    assert (seen.weights_gib, seen.available_gib) == (None, None)
    assert (seen.kv_tokens, seen.requested_gib) == (460_496, 72.91)
    assert facts_of(V1.replace("(0.92, ", "(92, ")).doubted == ("gpu_memory_utilization 92",)
    short = facts_of("Available KV cache memory: -1.25 GiB\nnon_torch_memory takes -0.01GiB")
    assert (short.available_gib, short.non_torch_gib, short.doubted) == (-1.25, -0.01, ())


def test_parts_that_a_log_lacks_are_named():
    assert missing_parts(facts_of(V1)) == []
    assert missing_parts(
        facts_of("Model loading took 15.0 GiB memory\nAvailable KV cache memory: 5.0 GiB")
    ) == [
        "the card's memory and utilization",
        "non-torch",
        "activation peak",
    ]


def test_tokens_of_a_log_that_prints_blocks_alone():
    assert logged_tokens(facts_of(V0)) == 1952 * 16
    assert logged_tokens(facts_of(V0_LATE)) == 5517 * 16
    assert logged_tokens(facts_of("GPU KV cache size: 1,024 tokens")) == 1024
    assert logged_tokens(facts_of("EngineCore (v0.16.0) num_gpu_blocks is 100")) is None


def test_every_difference_has_a_cause():
    def causes(text, **more):
        seen = facts_of(text)
        plan = kvsim.plan_capacity("Llama-3.1-8B", **{"gpu_memory_gib": 79.25, "vllm_version": "0.30"} | more)
        cache = cache_differences(seen, plan.prediction, plan.available)
        doubt = card_doubt(seen, plan.prediction, plan.gpu)
        return cache and cache[2], tokens_cause(seen, plan.available, plan.kv_cache_size_tokens), doubt

    cache, tokens, doubt = causes(V1)
    assert (cache, doubt) == ("mostly activation, +0.37 GiB as printed", None)
    assert tokens == "follows from the KV cache memory"
    cache, _, doubt = causes(V1, gpu_memory_gib=None, gpu="RTX 4090")
    assert cache.startswith("another card: vLLM may use 51.27 GiB more")
    assert doubt == "The log is of a card of 79.25 GiB; RTX 4090 has 23.52 GiB"
    cache, _, _ = causes(V1, gpu_memory_utilization=0.5)
    assert cache.startswith("another utilization")
    assert causes(V1, kv_cache_dtype="fp8")[1].endswith(
        "cache format, block size, draft layers or max_model_len"
    )
    near = "Available KV cache memory: 56.1 GiB\nModel loading took 14.99 GiB"  # weights as predicted
    assert causes(near)[0] == "non-torch or activation peak, which the log does not print"
    cache, _, _ = causes("Available KV cache memory: 50.0 GiB\nModel loading took 15.0 GiB memory")
    assert cache == "non-torch or activation peak, which the log does not print"
    assert causes("GPU KV cache size: 1,024 tokens")[:2] == (None, "the KV cache memory, which decides")
