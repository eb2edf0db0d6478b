"""KV cache plans of whole models by vLLM's own code (no GPU), for tests/gpu/data/layout_vectors.json.

    python record_layouts.py layout_vectors.json

Run with vLLM 0.33. DeepSeek V4's specs come from the `get_kv_cache_spec` methods of its own layers; those
of recurrent states from `MambaStateShapeCalculator`. Groups, blocks and tokens come from the planner.
"""

import json
import os
import sys
from types import SimpleNamespace

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("PYTHONHASHSEED", "0")

import record
import scenario as scn

GIB = 1 << 30


def v4_specs(vcfg, ratios, head_dim=512, index_dim=128, window=128):
    """Specs of all layers, as the layers themselves state them."""
    import torch
    from vllm.models.deepseek_v4.attention import DeepseekV4Attention, DeepseekV4IndexerCache
    from vllm.models.deepseek_v4.compressor import CompressorStateCache
    from vllm.v1.attention.backends.mla.sparse_swa import DeepseekV4SWACache

    vcfg.cache_config.cache_dtype = "fp8_ds_mla"
    vcfg.cache_config.block_size = 256
    specs = {}

    def state(ratio, dim):
        overlap = 2 if ratio == 4 else 1
        return SimpleNamespace(
            state_dim=2 * overlap * dim,
            dtype=torch.float32,
            sliding_window=overlap * ratio,
            block_size=4 if ratio == 4 else 8,
        )

    for i, ratio in enumerate(ratios):
        swa = SimpleNamespace(
            cache_config=vcfg.cache_config,
            bounded_replay=False,
            block_size=64,
            head_dim=head_dim,
            dtype=torch.uint8,
            window_size=window,
            packed_bytes_per_token=584,
            packed_page_alignment=576,
            packed_block_stride_alignment=None,
        )
        specs[f"layers.{i}.swa"] = DeepseekV4SWACache.get_kv_cache_spec(swa, vcfg)
        if ratio <= 1:
            continue
        attn = SimpleNamespace(
            compress_ratio=ratio,
            head_dim=head_dim,
            kv_cache_dtype="fp8_ds_mla",
            kv_cache_torch_dtype=torch.uint8,
            _uses_fp8_ds_mla_layout=lambda: True,
        )
        specs[f"layers.{i}.attn"] = DeepseekV4Attention.get_kv_cache_spec(attn, vcfg)
        specs[f"layers.{i}.compressor"] = CompressorStateCache.get_kv_cache_spec(state(ratio, head_dim), vcfg)
        if ratio == 4:
            cache = SimpleNamespace(
                cache_config=vcfg.cache_config, head_dim=index_dim + 4, dtype=torch.uint8, compress_ratio=4
            )
            specs[f"layers.{i}.indexer"] = DeepseekV4IndexerCache.get_kv_cache_spec(cache, vcfg)
            specs[f"layers.{i}.indexer_compressor"] = CompressorStateCache.get_kv_cache_spec(
                state(4, index_dim), vcfg
            )
    return specs


def hybrid_specs(case):
    """Attention and recurrent-state layers of one rank, pages made equal as the platform does before."""
    import torch
    from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator as Shapes
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

    shape = getattr(Shapes, case["shape"])(**case["shape_arguments"])
    dtypes = tuple(getattr(torch, name) for name in case["dtypes"])
    state = MambaSpec(block_size=case["max_model_len"], shapes=shape, dtypes=dtypes)
    heads, dim = case["kv_heads"], case["head_dim"]
    dtype = torch.uint8 if case["kv_bytes"] == 1 else torch.bfloat16
    per_token = FullAttentionSpec(
        block_size=1, num_kv_heads=heads, head_size=dim, dtype=dtype
    ).page_size_bytes
    block = max(16 * -(-state.page_size_bytes // (16 * per_token)), 16)
    attention = FullAttentionSpec(block_size=block, num_kv_heads=heads, head_size=dim, dtype=dtype)
    mode = case["mamba_mode"]
    padded = MambaSpec(
        block_size=block if mode != "none" else case["max_model_len"],
        shapes=shape,
        dtypes=dtypes,
        page_size_padded=attention.page_size_bytes,
        mamba_cache_mode=mode,
    )
    kinds = {"full": attention, "linear": padded}
    return {f"layers.{i}.x": kinds[k] for i, k in enumerate(case["layers"]) if k in kinds}, state


def run(case):
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.kv_cache_planning import get_global_kv_cache_groups, get_kv_cache_configs

    cfg = dict(scn.CONFIG_DEFAULTS)
    cfg.update(
        max_model_len=case["max_model_len"],
        block_size=case.get("block_size", 16),
        max_num_batched_tokens=case["max_num_batched_tokens"],
        async_scheduling=True,
        num_gpu_blocks=64,
    )
    _, _, vcfg, _, _ = record.build(cfg, events=False)
    vcfg.scheduler_config.disable_hybrid_kv_cache_manager = False
    vcfg.cache_config.kv_cache_layout = case["layout"]
    state = None
    if "ratios" in case:
        specs = v4_specs(vcfg, case["ratios"])
    else:
        vcfg.cache_config.mamba_cache_mode = case["mamba_mode"]
        specs, state = hybrid_specs(case)
    groups = get_global_kv_cache_groups(vcfg, [dict(specs)])
    try:
        configs = get_kv_cache_configs(vcfg, [specs], [case["available_bytes"]], groups)
    except ValueError as error:
        return {"error": str(error)}
    scheduler = kv_cache_utils.generate_scheduler_kv_cache_config(configs)
    tokens, most = kv_cache_utils.get_kv_cache_capacity(vcfg, scheduler)
    result = {
        "groups": len(groups),
        "bytes_per_block": configs[0].kv_cache_tensors[0].size // configs[0].num_blocks,
        "num_gpu_blocks": scheduler.num_blocks,
        "kv_cache_size_tokens": tokens,
        "max_concurrency": most,
    }
    if state is not None:
        result["state_bytes"] = state.page_size_bytes
        result["block_size"] = next(s.block_size for n, s in specs.items() if not hasattr(s, "shapes"))
    return result


FLASH = [0, 0, *[4, 128] * 20, 4]
PRO = [128, 128, *[4, 128] * 29, 4]
GDN = {
    "shape": "gated_delta_net_state_shape",
    "shape_arguments": {
        "tp_world_size": 1,
        "num_k_heads": 16,
        "num_v_heads": 32,
        "head_k_dim": 128,
        "head_v_dim": 128,
        "conv_kernel_size": 4,
    },
    "dtypes": ["bfloat16", "float32"],
}


def mamba2(tp, groups, heads, dim, state, kernel=4, ssm="float32"):
    return {
        "shape": "mamba2_state_shape",
        "shape_arguments": {
            "tp_world_size": tp,
            "intermediate_size": heads * dim,
            "n_groups": groups,
            "num_heads": heads,
            "head_dim": dim,
            "state_size": state,
            "conv_kernel": kernel,
        },
        "dtypes": ["bfloat16", ssm],
    }


def cases():
    v4 = {"layout": "BLHNC", "block_size": 256}
    for name, ratios in (("flash", FLASH), ("flash with a draft layer", [*FLASH, 0]), ("pro", PRO)):
        for length, batch, gib in ((30_000, 8192, 8), (262_144, 2048, 32), (1_048_576, 8192, 60)):
            yield {
                "name": f"deepseek v4 {name}, {length}",
                "ratios": ratios,
                "max_model_len": length,
                "max_num_batched_tokens": batch,
                "available_bytes": gib * GIB,
            } | v4
    hybrids = {
        "next": (["linear"] * 3 + ["full"]) * 12,
        "draft": (["linear"] * 3 + ["full"]) * 12 + ["full"],
        "nemotron": ["linear"] * 23 + ["full"] * 6 + ["none"] * 23,
        "granite": (["linear"] * 9 + ["full"]) * 4,
    }
    shapes = {
        "next": (GDN, 2, 256),
        "draft": (GDN, 2, 256),
        "nemotron": (mamba2(1, 8, 64, 64, 128), 2, 128),
        "granite": (mamba2(2, 1, 48, 64, 128, ssm="bfloat16"), 2, 128),
    }
    for name, layers in hybrids.items():
        shape, heads, dim = shapes[name]
        for mode, kv_bytes in (("none", 2), ("align", 1), ("align", 2)):
            yield {
                "name": f"{name} {mode} {kv_bytes}",
                "layers": layers,
                "layout": "LBNHC",
                "mamba_mode": mode,
                "kv_heads": heads,
                "head_dim": dim,
                "kv_bytes": kv_bytes,
                "max_model_len": 65_536,
                "max_num_batched_tokens": 8192,
                "available_bytes": 12 * GIB,
            } | shape


if __name__ == "__main__":
    vectors = [{"case": case, "result": run(case)} for case in cases()]
    with open(sys.argv[1], "w") as file:
        json.dump({"vllm": "0.33.0", "vectors": vectors}, file, indent=1)
        file.write("\n")
