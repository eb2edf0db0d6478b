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
    with pytest.raises(KvsimError, match="quantization 'novel' is not known"):
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
