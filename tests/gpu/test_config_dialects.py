"""Shapes out of config.json files as they are published: formats, hybrids, encoder-decoders, nesting."""

import json

import pytest

import kvsim
from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.layout import cache_layout, state_bytes
from kvsim.gpu.memory import KVCacheOptions, plan_for_model
from kvsim.gpu.model import ModelSpec
from kvsim.gpu.releases import release

DENSE = {
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}


def groups(bits, kind):
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"num_bits": bits, "type": kind}}},
    }


@pytest.mark.parametrize(
    ("details", "name"),
    [
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4"),
        (groups(8, "float"), "fp8"),
        (groups(8, "int"), "int8"),
        (groups(4, "float"), "nvfp4"),
        (groups(4, "int"), "int4"),
        ({"quant_method": "compressed-tensors"}, "int4"),
    ],
)
def test_formats_of_weights(details, name):
    assert ModelSpec.from_config({**DENSE, "quantization_config": details}).quantization == name


def test_an_unknown_format_is_named():
    with pytest.raises(KvsimError, match="quant_method 'novel' is not known; known are gptq, awq"):
        ModelSpec.from_config({**DENSE, "quantization_config": {"quant_method": "novel"}})


@pytest.mark.parametrize(
    ("model", "tp", "fp8", "block"),
    [("Qwen3.5-9B", 1, False, 528), ("Qwen3.5-9B", 1, True, 1056), ("Qwen3.5-27B", 1, True, 1568)],
)
def test_states_stretch_the_block_to_what_logs_print(model, tp, fp8, block):
    options = KVCacheOptions(tensor_parallel_size=tp, kv_cache_dtype="fp8" if fp8 else "auto")
    assert cache_layout(catalog.model(model), options, release("0.24")).block_size == block


def test_padding_is_what_logs_print():
    """A draft layer makes 17 full layers of 16: "Add 3 padding layers" for 48 linear ones, 6.25 %."""
    model = catalog.model("Qwen3.5-27B")
    layout = cache_layout(model, KVCacheOptions(tensor_parallel_size=2), release("0.26"), mtp_layers=1)
    assert layout.padding == 1 - 65 / 68
    assert cache_layout(model, KVCacheOptions(), release("0.26")).padding == 0


def test_drafts_widen_the_convolution_window():
    linear = catalog.model("Qwen3.5-27B").linear
    assert linear is not None
    none, two = (state_bytes(linear, 2, drafts, "bfloat16") for drafts in (0, 2))
    assert two - none == 2 * linear.conv_dim // 2 * 2


def test_parameters_of_a_hybrid_are_counted_by_kind_of_layer():
    model = catalog.model("Qwen3.5-9B")
    assert model.stated_parameters is None
    assert model.num_parameters / 1e9 == pytest.approx(9.4, abs=0.05)


def test_a_pattern_of_mamba_attention_and_mlp():
    model = catalog.model("nvidia/Nemotron-H-56B-Base-8K")
    assert [model.layer_types.count(kind) for kind in ("linear", "full", "none")] == [54, 10, 54]
    plan = kvsim.plan_capacity(model, "H100", tensor_parallel_size=2)
    assert plan.refusal is None
    with pytest.raises(KvsimError, match="hybrid_override_pattern"):
        ModelSpec.from_config({**DENSE, "hybrid_override_pattern": "MMX*"})


def test_an_encoder_decoder_keeps_the_encoders_output_too():
    model = catalog.model("whisper-large-v3")
    options = KVCacheOptions(max_model_len=448)
    old, new = cache_layout(model, options, release("0.7")), cache_layout(model, options, release("0.16"))
    assert old.block_bytes == new.block_bytes == 16 * 163_840
    assert (old.blocks_per_request(448), new.blocks_per_request(448)) == (28, 28 + 94)
    with pytest.raises(KvsimError, match="encoder-decoder"):
        plan_for_model(model, 1 << 30, options)


def test_a_nested_config_file(tmp_path):
    path = tmp_path / "config.json"
    vision = {"depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "patch_size": 16}
    path.write_text(json.dumps({"model_type": "new_vl", "text_config": DENSE, "vision_config": vision}))
    plan = kvsim.plan_capacity(path, gpu_memory_gib=8)
    assert plan.refusal is None
    assert plan.prediction is not None
    assert "vision encoder" in plan.prediction.peaks


def test_draft_models_draw_from_the_same_pool():
    """EAGLE's one layer widens every block; a draft with heads of its own shares the group too."""
    target, eagle = catalog.model("Llama-3.1-8B"), ModelSpec.from_config({**DENSE, "num_hidden_layers": 1})
    options, of = KVCacheOptions(), release("0.33")
    alone, both = cache_layout(target, options, of), cache_layout(target, options, of, draft=eagle)
    assert both.block_bytes - alone.block_bytes == cache_layout(eagle, options, of).block_bytes
    assert both.num_groups == 1
    with pytest.raises(KvsimError, match="a draft model beside"):
        cache_layout(catalog.model("Qwen3.5-27B"), options, of, draft=eagle)


def test_built_in_drafts_have_an_indexer_of_their_own():
    model = catalog.model("GLM-5.2")
    assert len(model.indexed_layers) == 21
    alone, drafting = (cache_layout(model, KVCacheOptions(), release("0.33"), mtp_layers=n) for n in (0, 1))
    assert (drafting.block_bytes - alone.block_bytes) // 16 == 2 * 576 + 132


@pytest.mark.parametrize(
    ("details", "unquantized", "group_size", "fp8_cache"),
    [
        ({"quant_method": "awq", "group_size": 64}, {}, 64, False),
        ({"quant_method": "fp8", "ignored_layers": ["re:.*self_attn.*"]}, {"attention": 1.0}, 0, False),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}, {}, 0, True),
        (
            {"quant_method": "compressed-tensors", "ignore": ["lm_head", "model.layers.1.mlp.gate_proj"]},
            {"dense": 0.25},
            0,
            False,
        ),
        (
            {
                "quant_method": "bitsandbytes",
                "llm_int8_skip_modules": ["lm_head", "model.layers.2.self_attn"],
            },
            {"attention": 0.25},
            0,
            False,
        ),
        (groups(8, "float") | {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, {}, 0, True),
    ],
)
def test_what_a_checkpoint_left_alone(details, unquantized, group_size, fp8_cache):
    model = ModelSpec.from_config({**DENSE, "quantization_config": details})
    assert dict(model.unquantized) == unquantized
    assert (model.quant_group_size, model.kv_cache_fp8) == (group_size, fp8_cache)
    half = cache_layout(model, KVCacheOptions(), release("0.33")).block_bytes
    full = cache_layout(ModelSpec.from_config(DENSE), KVCacheOptions(), release("0.33")).block_bytes
    assert half == (full // 2 if fp8_cache else full)


def test_a_bad_group_size_is_told():
    details = {"quant_method": "awq", "group_size": "many"}
    with pytest.raises(KvsimError, match='group_size is "many"'):
        ModelSpec.from_config({**DENSE, "quantization_config": details})


def test_modelopts_own_file_beside_the_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(DENSE))
    facts = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(facts))
    assert catalog.model(tmp_path / "config.json").quantization == "fp8"


def test_kinds_of_layers_in_rarer_dialects():
    kinds = {
        "lightning": {"attn_type_list": [0, 1, 0, 1]},
        "windows": {"hybrid_layer_pattern": [1, 0, 1, 0], "sliding_window": 64},
        "kimi": {
            "linear_attn_config": {"full_attn_layers": [2, 4], "num_heads": 8, "head_dim": 64},
        },
        "blocks": {
            "block_configs": [{"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 1.5}}] * 3
            + [{"attention": {"no_op": True}, "ffn": {"no_op": True}}]
        },
    }
    read = {name: ModelSpec.from_config({**DENSE, **keys}) for name, keys in kinds.items()}
    assert read["lightning"].layer_types == read["kimi"].layer_types == ("linear", "full", "linear", "full")
    assert read["lightning"].linear.state_size == 0 or read["lightning"].linear.conv_dim == 0
    assert read["windows"].layer_types == ("sliding", "full", "sliding", "full")
    assert read["blocks"].layer_types == ("full", "full", "full", "none")
    assert read["blocks"].num_key_value_heads == 2
    off = ModelSpec.from_config({**DENSE, "sliding_window": 64, "use_sliding_window": False})
    assert set(off.layer_types) == {"full"}


def test_a_stretched_length():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    model = ModelSpec.from_config({**DENSE, "rope_scaling": {**yarn, "factor": 8.0}})
    assert (model.max_position_embeddings, model.length_facts.table_rows) == (4096, 8192)
    assert (model.usual_length(16), model.usual_length(33)) == (8192, 4096)
    linear = ModelSpec.from_config({**DENSE, "rope_scaling": {"rope_type": "linear", "factor": 2}})
    assert (linear.usual_length(6), linear.usual_length(33)) == (8192, 8192)
    llama = ModelSpec.from_config({**DENSE, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}})
    assert (llama.usual_length(16), llama.length_facts.table_rows) == (4096, 4096)
