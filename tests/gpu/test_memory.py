"""Exact numbers: the founding study's server, public reports, and the rules where the releases differ."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.cases import observe_capacity, observe_memory
from kvsim.gpu.kv_cache_groups import padding_layers
from kvsim.gpu.layers import layers_per_stage
from kvsim.gpu.memory import KVCacheOptions, KVCacheTooSmallError, plan_for_model
from kvsim.gpu.startup import estimate_available
from kvsim.gpu.weights import loaded_bytes
from kvsim.rules import rules_for

GIB = 1 << 30
VERSIONS = ("0.33", "0.16")
QWEN3_VL_2B = {"num_hidden_layers": 28, "num_key_value_heads": 8, "head_dim": 128, "dtype": "bfloat16"}
LLAMA_8B = {"num_hidden_layers": 32, "num_key_value_heads": 8, "head_dim": 128, "dtype": "bfloat16"}
GEMMA_3_1B = {
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
}


def qwen(available, max_model_len=4096, version="0.33", **options):
    return plan_for_model(
        QWEN3_VL_2B, available, KVCacheOptions(max_model_len=max_model_len, **options), version
    )


# ---- the founding study's Qwen3-VL-2B server ----


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("max_model_len", [4096, 8192])
def test_founding_server(version, max_model_len):
    plan = qwen(18_115_198_976, max_model_len, version)
    assert plan.bytes_per_token == 114_688
    assert (plan.num_gpu_blocks, plan.kv_cache_size_tokens) == (9_872, 157_952)
    assert plan.log_lines()[0] == "Available KV cache memory: 16.87 GiB"


@pytest.mark.parametrize("version", VERSIONS)
def test_founding_server_with_more_batched_tokens(version):
    plan = qwen(9_706 * 1_835_008, version=version, max_num_batched_tokens=4096)
    assert plan.kv_cache_size_tokens == 155_296
    assert plan.log_lines()[0] == "Available KV cache memory: 16.59 GiB"


def test_founding_tensor_shape():
    plan = qwen(8_243 * 1_835_008, version="0.16")
    shapes = plan.tensor_shapes()
    assert len(shapes) == 28
    assert set(shapes.values()) == {(2, 8_243, 16, 8, 128)}
    assert set(qwen(8_243 * 1_835_008).tensor_shapes().values()) == {(8_243, 8, 16, 256)}


def test_catalog_model_is_the_founding_model():
    model = catalog.model("Qwen3-VL-2B")
    plan = plan_for_model(model, 18_115_198_976, KVCacheOptions(max_model_len=32_768))
    assert plan.log_lines()[1] == (
        "GPU KV cache size: 157,952 tokens, Maximum concurrency for 32,768 tokens per request: 4.82x"
    )
    assert loaded_bytes(model) / GIB == pytest.approx(3.963, abs=0.001)


def test_log_lines_of_the_older_release():
    assert qwen(18_115_198_976, 32_768, "0.16").log_lines() == (
        "Available KV cache memory: 16.87 GiB",
        "GPU KV cache size: 157,952 tokens",
        "Maximum concurrency for 32,768 tokens per request: 4.82x",
    )


# ---- refusals and automatic length ----


def test_refusal_states_need_have_and_longest_length():
    with pytest.raises(KVCacheTooSmallError) as refusal:
        plan_for_model(LLAMA_8B, 3_099_590_656, KVCacheOptions(max_model_len=29_000))
    error = refusal.value
    assert error.estimated_max_model_len == 23_632
    assert "(3.54 GiB KV cache is needed" in str(error)
    assert "estimated maximum model length is 23632" in str(error)


@pytest.mark.parametrize(("version", "length"), [("0.33", 157_936), ("0.16", 157_952)])
def test_automatic_length_holds_back_the_null_block(version, length):
    plan = plan_for_model(
        {**QWEN3_VL_2B, "max_position_embeddings": 262_144},
        18_115_198_976,
        KVCacheOptions(max_model_len=-1),
        version,
    )
    assert plan.max_model_len == length


def test_automatic_length_stops_at_the_models_own():
    model = {**QWEN3_VL_2B, "max_position_embeddings": 32_768}
    assert plan_for_model(model, 40 * GIB, KVCacheOptions(max_model_len=-1)).max_model_len == 32_768


@pytest.mark.parametrize("available", [0, -GIB, 1_835_008])
def test_no_memory_has_its_own_message(available):
    with pytest.raises(KVCacheTooSmallError, match="No available memory for the cache blocks"):
        qwen(available)


def test_one_block_is_too_little_for_automatic_length():
    with pytest.raises(KVCacheTooSmallError, match="Cannot auto-fit max_model_len"):
        plan_for_model(
            {**QWEN3_VL_2B, "max_position_embeddings": 4096}, 1_835_008, KVCacheOptions(max_model_len=-1)
        )


@settings(deadline=None)
@given(st.integers(1, 1 << 36), st.sampled_from(VERSIONS))
def test_the_longest_length_fits_and_one_more_does_not(available, version):
    options = KVCacheOptions(max_model_len=-1)
    model = {**GEMMA_3_1B, "max_position_embeddings": 1 << 20}
    try:
        plan = plan_for_model(model, available, options, version)
    except KVCacheTooSmallError:
        return
    assert plan_for_model(model, available, KVCacheOptions(max_model_len=plan.max_model_len), version)
    if plan.max_model_len < 1 << 20:
        with pytest.raises(KVCacheTooSmallError):
            plan_for_model(model, available, KVCacheOptions(max_model_len=plan.max_model_len + 1), version)


# ---- overrides ----


def test_block_override_replaces_the_memory_too():
    plan = qwen(GIB, num_gpu_blocks_override=9_872)
    assert (plan.num_gpu_blocks, plan.kv_cache_size_tokens) == (9_872, 157_952)
    with pytest.raises(KVCacheTooSmallError, match="estimated maximum model length is 1584"):
        qwen(40 * GIB, num_gpu_blocks_override=100)


def test_block_override_in_the_older_release_is_not_checked():
    assert qwen(40 * GIB, version="0.16", num_gpu_blocks_override=100).num_gpu_blocks == 100
    with pytest.raises(KVCacheTooSmallError):
        qwen(GIB // 4, version="0.16", num_gpu_blocks_override=9_872)


# ---- splits ----


def test_tensor_parallel_ranks_beyond_the_heads_hold_copies():
    blocks = {
        tp: plan_for_model(
            LLAMA_8B, 10 * GIB, KVCacheOptions(max_model_len=8192, tensor_parallel_size=tp)
        ).num_gpu_blocks
        for tp in (1, 2, 8, 16)
    }
    assert blocks == {1: 5_120, 2: 10_240, 8: 40_960, 16: 40_960}


def test_mla_is_the_same_on_every_rank():
    model = catalog.model("DeepSeek-R1")
    plans = [
        plan_for_model(model, 40 * GIB, KVCacheOptions(max_model_len=8192, tensor_parallel_size=tp))
        for tp in (1, 8)
    ]
    assert plans[0].bytes_per_token == plans[1].bytes_per_token == 61 * 576 * 2


def test_sparse_mla_adds_the_indexers_keys():
    model = catalog.model("zai-org/GLM-5")
    assert plan_for_model(model, 40 * GIB, KVCacheOptions(max_model_len=8192)).bytes_per_token == 100_152


def test_fp8_cache_halves_a_token():
    assert qwen(GIB, kv_cache_dtype="fp8").bytes_per_token == 57_344


@pytest.mark.parametrize(
    ("layers", "stages", "counts"), [(32, 2, [16, 16]), (61, 4, [15, 15, 16, 15]), (5, 3, [2, 2, 1])]
)
def test_pipeline_split_is_vllms(layers, stages, counts):
    assert layers_per_stage(layers, stages) == counts


def test_stages_take_the_smallest_block_count():
    plan = plan_for_model(LLAMA_8B, 20 * GIB, KVCacheOptions(max_model_len=8192), stages=[17, 15])
    assert plan.bytes_per_block == (1_114_112, 983_040)
    assert plan.num_gpu_blocks == 19_275


def test_context_parallel_ranks_share_the_tokens():
    model = {**LLAMA_8B, "num_key_value_heads": 4}
    options = KVCacheOptions(max_model_len=8192, tensor_parallel_size=8, decode_context_parallel_size=2)
    plan = plan_for_model(model, 10 * GIB, options)
    assert plan.kv_cache_size_tokens == plan.num_gpu_blocks * 32
    with pytest.raises(KvsimError, match="decode_context_parallel_size: 2 is more than"):
        plan_for_model(LLAMA_8B, GIB, KVCacheOptions(tensor_parallel_size=8, decode_context_parallel_size=2))


# ---- hybrids ----


def test_published_gemma_log():
    """A published 0.14 start-up log: 25.39 GiB, 7 groups of 4, 461.21x at 2,048 tokens."""
    options = KVCacheOptions(max_model_len=2048, max_num_batched_tokens=8192)
    plan = plan_for_model(GEMMA_3_1B, round(25.39 * GIB), options, "0.16")
    assert len(plan.groups) == 7
    assert list(dict.fromkeys(plan.kv_groups)) == [("sliding_window", 16, 512), ("full", 16, None)]
    assert plan.blocks_per_request == 902
    assert plan.kv_cache_size_tokens == pytest.approx(950_864, abs=200)
    assert plan.max_concurrency == pytest.approx(461.21, abs=0.05)
    assert padding_layers(plan.groups) == 2


@pytest.mark.parametrize(("version", "groups"), [("0.33", 2), ("0.16", 3)])
def test_group_size_heuristic(version, groups):
    kinds = ["sliding_attention"] * 14 + ["full_attention"] * 10
    model = {"num_hidden_layers": 24, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128}
    plan = plan_for_model(
        {**model, "layer_types": kinds}, 20 * GIB, KVCacheOptions(max_model_len=8192), version
    )
    assert len(plan.groups) == groups


def test_pages_that_do_not_divide_are_padded_or_refused():
    model = {
        "num_hidden_layers": 2,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "global_head_dim": 128,
        "num_global_key_value_heads": 4,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 128,
    }
    plan = plan_for_model(model, GIB, KVCacheOptions(max_model_len=8192))
    assert {group.spec.page_size_bytes for group in plan.groups} == {16 * 4 * 256 * 2}
    with pytest.raises(KvsimError, match="cannot pad"):
        plan_for_model(model, GIB, KVCacheOptions(max_model_len=8192), "0.16")


def test_linear_attention_is_refused_by_name():
    with pytest.raises(KvsimError, match="linear attention"):
        plan_for_model(catalog.model("Qwen3.5-27B"), 40 * GIB)


# ---- public cases, start-up memory ----


def test_case_runner_reports_all_figures():
    seen = observe_capacity(
        {
            "model": LLAMA_8B,
            "available_kv_cache_bytes": 4_093_640_704,
            "block_size": 16,
            "max_model_len": 20_000,
        }
    )
    assert (seen["num_gpu_blocks"], seen["kv_cache_size_tokens"], seen["max_concurrency"]) == (
        1952,
        31_232,
        1.56,
    )
    assert seen["refused"] is False
    seen = observe_capacity(
        {"model": LLAMA_8B, "available_kv_cache_bytes": 3_099_590_656, "max_model_len": 23_633}
    )
    assert (seen["refused"], seen["estimated_max_model_len"], seen["num_gpu_blocks"]) == (True, 23_632, None)


def test_case_stages_in_every_form():
    stages = [
        {"num_hidden_layers": 16, "available_kv_cache_bytes": 20 * GIB},
        {"num_hidden_layers": 16, "available_kv_cache_bytes": round(18.5 * GIB)},
    ]
    shape = {k: v for k, v in LLAMA_8B.items() if k != "num_hidden_layers"}
    seen = observe_capacity({"model": shape, "stages": stages, "max_model_len": 8192})
    assert seen["num_gpu_blocks"] == 18_944
    counts = {"model": shape, "stages": [17, 15], "available_kv_cache_bytes": 20 * GIB, "max_model_len": 8192}
    assert observe_capacity(counts)["num_gpu_blocks"] == 19_275


@pytest.mark.parametrize(
    ("utilization", "refused", "requested", "available"),
    [(0.9, True, 72, None), (0.85, False, 68, 51), (0.5, False, 40, 23), (0.2, True, 16, -1)],
)
def test_another_process_on_the_card(utilization, refused, requested, available):
    seen = observe_memory(
        {
            "gpu": {"total_gib": 80, "used_by_others_gib": 10},
            "engine_use": {"weights_and_runtime_gib": 15, "peak_activation_gib": 2, "cudagraph_gib": 0},
            "gpu_memory_utilization": utilization,
        }
    )
    assert (seen["refused"], seen["requested_gib"], seen["free_gib"]) == (refused, requested, 70)
    assert seen["available_kv_gib"] == available


@pytest.mark.parametrize(("version", "available"), [("0.33", 56), ("0.16", 57)])
def test_cuda_graphs_are_counted_by_the_newer_release(version, available):
    case = {
        "gpu": {"total_gib": 80},
        "engine_use": {"weights_and_runtime_gib": 15, "cudagraph_gib": 1},
        "gpu_memory_utilization": 0.9,
    }
    assert observe_memory(case, version)["available_kv_gib"] == available


def test_explicit_cache_memory_passes_over_the_budget():
    case = {
        "gpu": {"total_gib": 80},
        "engine_use": {"weights_and_runtime_gib": 79},
        "kv_cache_memory_bytes": 20 * GIB,
    }
    assert observe_memory(case)["available_kv_gib"] == 20


def test_estimate_says_that_it_is_one():
    estimate = estimate_available(catalog.model("Qwen3-8B"), catalog.gpu("rtx-4090"), rules_for("0.33"))
    assert estimate.text.startswith("Predicted, not measured: 0.92 x 23.52 GiB - 15.27 GiB weights")
    assert 5 * GIB < estimate.available_bytes < 6 * GIB
    with pytest.raises(KVCacheTooSmallError, match="does not fit on RTX 4090"):
        estimate_available(catalog.model("Llama-3.1-70B"), catalog.gpu("4090"), rules_for("0.33"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_size", 0),
        ("block_size", True),
        ("max_model_len", 0),
        ("max_model_len", -2),
        ("tensor_parallel_size", 1.5),
        ("num_gpu_blocks_override", -1),
    ],
)
def test_absurd_options_are_named(key, value):
    with pytest.raises(KvsimError, match=key):
        KVCacheOptions(**{key: value})


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            {"tensor_parallel_size": 3},
            "tensor_parallel_size: 3 does not divide the 16 attention heads of Qwen/Qwen3-VL-2B-Instruct; "
            "give one of 1, 2, 4, 8, 16",
        ),
        (
            {"pipeline_parallel_size": 100},
            "pipeline_parallel_size: 100 is more than the model's layers; give 1 to 28",
        ),
        (
            {"decode_context_parallel_size": 3},
            "decode_context_parallel_size: 3 does not divide tensor_parallel_size, 1, whose ranks it shares; "
            "give a divisor",
        ),
        (
            {"decode_context_parallel_size": 2, "tensor_parallel_size": 2},
            "decode_context_parallel_size: 2 is more than the copies that tensor_parallel_size 2 makes of "
            "each of the 8 KV heads; give at most 1, or tensor_parallel_size 16 or more",
        ),
    ],
)
def test_wrong_splits_name_the_flag_and_what_would_be_right(flags, says):
    with pytest.raises(KvsimError) as refusal:
        plan_for_model(catalog.model("Qwen3-VL-2B"), GIB, KVCacheOptions(max_model_len=1024, **flags))
    assert str(refusal.value) == says


def test_refusals_name_the_key_that_mends_them():
    def refusal(available, version="0.33", **flags):
        with pytest.raises(KVCacheTooSmallError) as caught:
            plan_for_model(LLAMA_8B, available, KVCacheOptions(**{"max_model_len": 8192, **flags}), version)
        assert "CPU" not in str(caught.value)
        return str(caught.value)

    text = refusal(GIB // 2)
    assert text.startswith(
        "engine.max_model_len: To serve at least one request with the model's max seq len (8192)"
    )
    assert "Give at most 4080, or raise engine.available_kv_cache_bytes, engine.kv_cache_memory_bytes" in text
    assert refusal(GIB, num_gpu_blocks_override=9).endswith("or raise engine.num_gpu_blocks_override")
    assert "engine.num_gpu_blocks_override" not in refusal(GIB // 2, "0.16", num_gpu_blocks_override=9)
    assert refusal(1).startswith(
        "engine: No available memory for the cache blocks; raise engine.available_kv"
    )


@pytest.mark.parametrize(("available", "override"), [(1 << 60, None), (GIB, 2**31 - 1)])
def test_more_blocks_than_any_machine_has(available, override):
    options = KVCacheOptions(max_model_len=8192, num_gpu_blocks_override=override)
    with pytest.raises(
        KvsimError, match=r"engine: [0-9,]+ KV blocks are more than 100,000,000; lower engine\."
    ):
        plan_for_model(LLAMA_8B, available, options)


def test_no_room_for_the_weights_names_what_would_mend_it():
    with pytest.raises(KVCacheTooSmallError, match=r"^gpu: .* does not fit on RTX 4090.*take a larger one"):
        estimate_available(catalog.model("Llama-3.1-70B"), catalog.gpu("4090"), rules_for("0.33"))
    with pytest.raises(KVCacheTooSmallError, match=r"^engine.gpu_memory_utilization: .*; raise it"):
        estimate_available(
            catalog.model("Qwen3-8B"), catalog.gpu("4090"), rules_for("0.33"), gpu_memory_utilization=0.5
        )


def test_ranks_that_cannot_share_kv_heads_equally_are_refused():
    """40 heads divide by 10, but 8 KV heads are neither dealt out to 10 ranks nor copied equally."""
    with pytest.raises(KvsimError) as refusal:
        plan_for_model(catalog.model("Qwen3-14B"), GIB, KVCacheOptions(tensor_parallel_size=10))
    assert str(refusal.value) == (
        "tensor_parallel_size: 10 does not divide the 8 KV heads of Qwen/Qwen3-14B; "
        "give one of 1, 2, 4, 8, 40"
    )
