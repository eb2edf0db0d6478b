"""kvsim plans whole models as vLLM's own planner did (recorded from 0.33.0 by record_layouts.py)."""

import json
from pathlib import Path

import pytest

from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.layout import cache_layout, state_bytes
from kvsim.gpu.memory import KVCacheOptions, KVCacheTooSmallError, plan_for_model
from kvsim.gpu.model import ModelSpec
from kvsim.gpu.releases import release

GIB = 1 << 30
VECTORS = json.loads((Path(__file__).parent / "data" / "layout_vectors.json").read_text())["vectors"]
NAMED = [pytest.param(v["case"], v["result"], id=v["case"]["name"]) for v in VECTORS]
COMPRESSED = [p for p in NAMED if "ratios" in p.values[0]]
RECURRENT = [p for p in NAMED if "layers" in p.values[0]]


def options(case, **more):
    keys = ("max_model_len", "max_num_batched_tokens")
    return KVCacheOptions(**{key: case[key] for key in keys} | more)


def compressed(case):
    return ModelSpec.from_config(
        {
            "model_type": "deepseek_v4",
            "num_hidden_layers": len(case["ratios"]),
            "num_attention_heads": 64,
            "num_key_value_heads": 1,
            "head_dim": 512,
            "index_head_dim": 128,
            "sliding_window": 128,
            "compress_ratios": case["ratios"],
        }
    )


@pytest.mark.parametrize(("case", "recorded"), COMPRESSED)
def test_compressed_latents_are_planned_like_vllms(case, recorded):
    if "error" in recorded:
        with pytest.raises(KVCacheTooSmallError) as refusal:
            plan_for_model(compressed(case), case["available_bytes"], options(case))
        assert refusal.value.vllm_message == recorded["error"]
        return
    plan = plan_for_model(compressed(case), case["available_bytes"], options(case))
    assert {
        "groups": len(plan.groups),
        "bytes_per_block": plan.bytes_per_block[0],
        "num_gpu_blocks": plan.num_gpu_blocks,
        "kv_cache_size_tokens": plan.kv_cache_size_tokens,
        "max_concurrency": plan.max_concurrency,
    } == recorded
    layout = cache_layout(compressed(case), options(case), release("0.33"))
    assert (layout.block_bytes, layout.num_groups) == (plan.bytes_per_block[0], len(plan.groups))
    assert layout.printed_tokens(plan.num_gpu_blocks, case["max_model_len"]) == plan.kv_cache_size_tokens


def recurrent(case):
    arguments = case["shape_arguments"]
    if case["shape"] == "gated_delta_net_state_shape":
        state = {
            "linear_num_key_heads": arguments["num_k_heads"],
            "linear_num_value_heads": arguments["num_v_heads"],
            "linear_key_head_dim": arguments["head_k_dim"],
            "linear_value_head_dim": arguments["head_v_dim"],
            "linear_conv_kernel_dim": arguments["conv_kernel_size"],
        }
    else:
        state = {
            "mamba_n_heads": arguments["num_heads"],
            "mamba_d_head": arguments["head_dim"],
            "mamba_d_state": arguments["state_size"],
            "mamba_n_groups": arguments["n_groups"],
            "mamba_d_conv": arguments["conv_kernel"],
        }
    tp = arguments["tp_world_size"]
    kinds = {"full": "attention", "linear": "mamba", "none": "mlp"}
    config = {
        "num_hidden_layers": len(case["layers"]),
        "layer_types": [kinds[kind] for kind in case["layers"]],
        "num_attention_heads": 32,
        "num_key_value_heads": case["kv_heads"] * tp,
        "head_dim": case["head_dim"],
        "mamba_ssm_dtype": case["dtypes"][1],
    }
    return ModelSpec.from_config(config | state), tp


@pytest.mark.parametrize(("case", "recorded"), RECURRENT)
def test_recurrent_states_are_planned_like_vllms(case, recorded):
    model, tp = recurrent(case)
    assert state_bytes(model.linear, tp, 0, "bfloat16") == recorded["state_bytes"]
    flags = options(case, tensor_parallel_size=tp, kv_cache_dtype="fp8" if case["kv_bytes"] == 1 else "auto")
    layout = cache_layout(model, flags, release("0.33"), mamba_mode=case["mamba_mode"])
    blocks = layout.blocks(case["available_bytes"])
    assert {
        "groups": layout.num_groups,
        "bytes_per_block": layout.block_bytes,
        "num_gpu_blocks": blocks,
        "kv_cache_size_tokens": layout.printed_tokens(blocks, case["max_model_len"]),
        "max_concurrency": layout.concurrency(blocks, case["max_model_len"]),
        "state_bytes": recorded["state_bytes"],
        "block_size": layout.block_size,
    } == recorded


@pytest.mark.parametrize(
    ("version", "block_bytes", "printed"),
    [("0.22", 47_808 * 22, 3993), ("0.24", 1_039_680, 3993), ("0.28", 1_002_240, 4378)],
)
def test_releases_cut_compressed_blocks_differently(version, block_bytes, printed):
    """0.24: what a published log prints, 33,134 blocks for 2,175,276 tokens at 262,144 (8.30x)."""
    flags = KVCacheOptions(max_num_batched_tokens=8192, async_scheduling=False)
    layout = cache_layout(catalog.model("DeepSeek-V4-Flash"), flags, release(version))
    assert (layout.block_bytes, layout.blocks_per_request(262_144)) == (block_bytes, printed)
    assert layout.checked_blocks(262_144) == 4378
    if version == "0.24":
        assert layout.printed_tokens(33_134, 262_144) == 2_175_276


def test_the_start_up_check_of_compressed_latents():
    """A published refusal of 0.22: 30,000 tokens at 16,384 batched need 6.66 GiB, 5.44 hold 13,528."""
    flags = KVCacheOptions(max_num_batched_tokens=16_384)
    layout = cache_layout(catalog.model("DeepSeek-V4-Flash"), flags, release("0.22"))
    assert layout.needed_bytes(30_000) / GIB == pytest.approx(6.66, abs=0.005)
    assert layout.longest(5.44 * GIB, 30_000) == pytest.approx(13_528, abs=20)


def test_compressed_latents_are_refused_where_vllm_does():
    model = catalog.model("DeepSeek-V4-Flash")
    with pytest.raises(KvsimError, match=r"vllm_version: 0\.16\.0 does not know DeepSeek V4; give 0\.20"):
        cache_layout(model, KVCacheOptions(), release("0.16"))
    with pytest.raises(KvsimError, match="kv_cache_dtype: 'float16' does not go with"):
        cache_layout(model, KVCacheOptions(kv_cache_dtype="float16"), release("0.33"))
    with pytest.raises(KvsimError, match="compress_ratios has 2 entries for 3 layers"):
        ModelSpec.from_config({"num_hidden_layers": 3, "compress_ratios": [4, 128]})
    with pytest.raises(KvsimError, match="compress_ratios holds 7"):
        ModelSpec.from_config({"num_hidden_layers": 1, "compress_ratios": [7]})
