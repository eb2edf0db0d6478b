"""What helps after a refusal: every way is right about fitting, and none makes things worse."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvsim
from kvsim.gpu import catalog
from kvsim.gpu.memory_extras import lora_bytes
from kvsim.gpu.memory_setup import MemorySetup

FLAG_NAMES = {
    "--gpu-memory-utilization": ("gpu_memory_utilization", float),
    "--kv-cache-dtype": ("kv_cache_dtype", str),
    "--tensor-parallel-size": ("tensor_parallel_size", int),
    "--num-gpu-blocks-override": ("num_gpu_blocks_override", int),
    "--max-model-len": ("max_model_len", int),
    "--max-num-batched-tokens": ("max_num_batched_tokens", int),
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": ("allow_long_max_model_len", bool),
}


def changed(question, way):
    words = way.flags.replace("=", " ").split()
    for flag, value in zip(words[::2], words[1::2], strict=True):
        key, kind = FLAG_NAMES[flag]
        question = question | {key: kind(value)}
    return question


@settings(max_examples=60, deadline=None)
@given(
    model=st.sampled_from(
        ["Llama-3.1-8B", "Qwen3-32B", "gemma-3-27b-it", "DeepSeek-V2-Lite", "Qwen3-30B-A3B"]
    ),
    gpu=st.sampled_from(["L4", "RTX 4090", "A100 80GB", "H100"]),
    version=st.sampled_from(["0.6.6", "0.7.3", "0.10.2", "0.16", "0.24", "0.33"]),
    length=st.sampled_from([4096, 30_000, 131_072, 1_000_000]),
    utilization=st.sampled_from([0.5, 0.9, 0.98, 1.0]),
    stages=st.sampled_from([1, 2]),
    others=st.sampled_from([0.0, 5.0]),
)
def test_every_way_says_the_truth(model, gpu, version, length, utilization, stages, others):
    question = {
        "model": model,
        "gpu": gpu,
        "vllm_version": version,
        "max_model_len": length,
        "gpu_memory_utilization": utilization,
        "pipeline_parallel_size": stages,
        "used_by_others_gib": others,
        "max_num_seqs": 64,
    }
    plan = kvsim.plan_capacity(**question)
    for way in plan.ways_out:
        assert way.longest >= (0 if plan.refused == "free memory" else plan.longest)
        if not way.flags:
            assert not way.fits
            continue
        after = kvsim.plan_capacity(**changed(question, way))
        assert (after.refusal is None) == way.fits, (way, after.refusal)
        assert way.fits or after.longest == way.longest
    if plan.refused in ("length", "configuration") and plan.longest:
        assert kvsim.plan_capacity(**question | {"max_model_len": plan.longest}).refusal is None


def test_a_utilization_beyond_the_card_is_said():
    way = kvsim.plan_capacity("Llama-3.1-8B", "RTX 4090", max_model_len=131_072).ways_out[0]
    assert (way.flags, way.fits) == ("--gpu-memory-utilization 0.98", False)
    assert "131,072 tokens are impossible on this card, " in way.price
    assert way.price.endswith("GiB short")
    at_most = kvsim.plan_capacity("Llama-3.1-8B", "4090", max_model_len=131_072, gpu_memory_utilization=0.99)
    assert at_most.ways_out[0].flags == ""
    assert "0.99 is the most that this card allows" in at_most.ways_out[0].price


def test_blocks_by_hand_need_more_blocks():
    plan = kvsim.plan_capacity("Qwen3-8B", "H100", max_model_len=40_960, num_gpu_blocks_override=1000)
    assert [way.flags for way in plan.ways_out] == ["--num-gpu-blocks-override 2561"]
    assert not plan.estimated
    older = kvsim.plan_capacity(
        "Qwen3-8B", "H100", vllm_version="0.16", max_model_len=40_960, num_gpu_blocks_override=1000
    )
    assert (older.refusal, older.num_gpu_blocks, older.estimated) == (None, 1000, False)


def test_more_blocks_than_the_card_holds_are_noted():
    plan = kvsim.plan_capacity("Qwen3-8B", "L4", max_model_len=8192, num_gpu_blocks_override=100_000)
    assert "vLLM would run out of memory" in plan.notes[-1]


@pytest.mark.parametrize(
    ("version", "engine", "lines"),
    [
        (
            "0.7.3",
            "V0",
            ("the rest of the memory reserved", "# cuda blocks: ", "Maximum concurrency for 8192 "),
        ),
        ("0.7.3", "V1", ("# GPU blocks: ", "Maximum concurrency for 8192 ")),
        ("0.8.5", "", ("GPU KV cache size: ", "Maximum concurrency for 8,192 ")),
        ("0.27", "", ("Available KV cache memory: ", "GPU KV cache size: ", "Maximum concurrency for ")),
        ("0.28", "", ("Available KV cache memory: ", "GPU KV cache size: ")),
    ],
)
def test_lines_of_each_generation(version, engine, lines):
    plan = kvsim.plan_capacity("Qwen3-8B", "H100", max_model_len=8192, vllm_version=version, engine=engine)
    assert len(plan.lines) == len(lines)
    assert all(line.startswith(start) for line, start in zip(plan.lines, lines, strict=True))


@pytest.mark.parametrize(
    ("version", "engine", "text"),
    [
        ("0.8", "V0", "The model's max seq len (131072) is larger than the maximum number of tokens"),
        ("0.21", "", "with the models's max seq len (131072), (16.0 GiB"),
        ("0.22", "", "with the model's max seq len (131072), (16.0 GiB"),
    ],
)
def test_words_of_each_generation(version, engine, text):
    plan = kvsim.plan_capacity(
        "Llama-3.1-8B", "4090", max_model_len=131_072, vllm_version=version, engine=engine
    )
    assert text in plan.refusal
    assert ("conserving_memory" in plan.refusal) == (not engine)


def test_slots_for_adapters_are_counted():
    setup = MemorySetup(80 << 30, "H100", 0.9, 8192, 256, 8192)
    llama = catalog.model("Llama-3.1-8B")
    # qkv, output, gate and up, down: values of A and B for each unit of rank, in one layer
    assert lora_bytes(llama, setup, 1, 16) == 16 * 32 * 2 * (18_432 + 8192 + 36_864 + 18_432)
    plain = kvsim.plan_capacity("Llama-3.1-8B", "H100", max_model_len=8192)
    tuned = kvsim.plan_capacity("Llama-3.1-8B", "H100", max_model_len=8192, enable_lora=True, max_loras=4)
    assert plain.available - tuned.available == tuned.extras[0].size == lora_bytes(llama, setup, 4, 16)


def test_offloaded_weights_and_experts_on_other_replicas_give_room():
    plain = kvsim.plan_capacity("Qwen3-30B-A3B", "H100")
    away = kvsim.plan_capacity("Qwen3-30B-A3B", "H100", cpu_offload_gb=10)
    assert away.available - plain.available == 10 << 30
    shared = kvsim.plan_capacity("Qwen3-30B-A3B", "H100", data_parallel_size=2)
    assert shared.available - plain.available == pytest.approx(27 * (1 << 30), rel=0.01)
    assert "every replica" in shared.notes[-1]
    dense = kvsim.plan_capacity("Qwen3-8B", "H100", data_parallel_size=2)
    assert dense.available == kvsim.plan_capacity("Qwen3-8B", "H100").available


def test_what_stands_in_the_way_is_named():
    def price(**more):
        return kvsim.plan_capacity("Llama-3.1-8B", "4090", **more).ways_out[0].price

    assert "impossible on these cards" in price(
        max_model_len=900_000, tensor_parallel_size=2, allow_long_max_model_len=True
    )
    crowded = price(max_model_len=60_000, used_by_others_gib=4)
    assert "GiB short beside the 4.00 GiB of other processes" in crowded
    assert "than the driver leaves" in price(max_model_len=62_000)


@pytest.mark.parametrize(("model", "share"), [("Llama-3.1-8B", "50%"), ("Qwen3.5-9B", "51%")])
def test_an_fp8_cache_is_priced_for_the_model_at_hand(model, share):
    plan = kvsim.plan_capacity(model, "L4", max_model_len=262_144 if "Qwen" in model else 131_072)
    way = next(way for way in plan.ways_out if way.name == "fp8 KV cache")
    assert f"takes {share} of the bytes" in way.price
