"""Names find their rows in every usual spelling, rows have sources, config.json files are read."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvsim
import kvsim.gpu
from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.model import ModelSpec
from kvsim.gpu.model_config import model_from_file
from kvsim.gpu.model_names import key
from kvsim.gpu.weights import loaded_bytes

DATA = Path(kvsim.gpu.__file__).parent / "data"


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3-VL-2B-Instruct",
        "qwen3_vl_2b",
        "QWEN3.VL.2B",
        "Qwen3 VL 2B Instruct",
        "Qwen3-VL-2B-Thinking",
    ],
)
def test_model_names_are_forgiving(name):
    assert catalog.model(name).name == "Qwen/Qwen3-VL-2B-Instruct"


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("llama-3.1-70b-instruct", "meta-llama/Llama-3.1-70B"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen/Qwen3-30B-A3B-Instruct-2507"),
        ("Mistral-7B-v0.3", "mistralai/Mistral-7B-Instruct-v0.3"),
        ("gemma-3-27b", "google/gemma-3-27b-it"),
        ("deepseek-v2-lite", "deepseek-ai/DeepSeek-V2-Lite"),
        ("gpt_oss_120b", "openai/gpt-oss-120b"),
        ("Qwen2.5-72B", "Qwen/Qwen2.5-72B-Instruct"),
    ],
)
def test_spellings_of_the_field(name, row):
    assert catalog.model(name).name == row


@pytest.mark.parametrize(
    ("name", "quantization"),
    [
        ("Qwen/Qwen3-32B-FP8", "fp8"),
        ("Qwen3-8B (AWQ)", "int4"),
        ("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic", "fp8"),
        ("nvidia/GLM-5-NVFP4", "nvfp4"),
        ("Qwen3-8B", None),
    ],
)
def test_quantised_names(name, quantization):
    assert catalog.model(name).quantization == quantization


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("rtx-4090", "RTX 4090"),
        ("RTX4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("h100_sxm", "H100 SXM"),
        ("H100-SXM-80GB", "H100 SXM"),
        ("H100", "H100 SXM"),
        ("b200_sxm", "B200"),
        ("RTXPRO6000", "RTX PRO 6000"),
        ("A100-SXM-80GB", "A100-80GB SXM"),
        ("A100 40GB", "A100-40GB SXM"),
        ("a6000", "RTX A6000"),
        ("Tesla T4", "T4"),
        ("NVIDIA H200 141GB", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("h100-sxm", "H100 SXM"),
        ("A100-SXM4-40GB", "A100-40GB SXM"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB PCIe"),
        ("A100-40GB", "A100-40GB SXM"),
        ("GB200", "GB200"),
        ("AMD Instinct MI300X", "MI300X"),
        ("L4", "L4"),
        ("A10G", "A10G"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000"),
        ("GB10", "GB10"),
        ("RTX 5090", "RTX 5090"),
        ("RTX 3060 12GB", "RTX 3060 12GB"),
        ("rtx 3060", "RTX 3060 12GB"),
        ("V100-SXM2-32GB", "V100-32GB SXM"),
        ("RTX 3090/4090", "RTX 3090"),
        ("A100/H100 80GB", "A100-80GB SXM"),
        ("L4/A10G", "L4"),
    ],
)
def test_gpu_names_are_forgiving(name, row):
    assert catalog.gpu(name).name == row


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "A100",
            "'A100' is ambiguous: A100-40GB SXM or A100-80GB SXM or A100-40GB PCIe or A100-80GB PCIe; name",
        ),
        ("Tesla V100", "is ambiguous: V100-16GB SXM or V100-32GB SXM"),
        ("RTX 4060 Ti", "is ambiguous: RTX 4060 Ti 16GB or RTX 4060 Ti 8GB"),
        ("H100 24GB", "is not in the catalog; nearest: H100"),
        ("L4/H100", "is not in the catalog"),
        ("8GB", "is not in the catalog"),
    ],
)
def test_ambiguous_and_wrong_cards_are_told(name, told):
    with pytest.raises(KvsimError, match=told):
        catalog.gpu(name)


@pytest.mark.parametrize(
    ("name", "row", "quantization"),
    [
        ("Pixtral-12B", "mistralai/Pixtral-12B-2409", None),
        ("llama-2-7b-hf", "meta-llama/Llama-2-7b-hf", None),
        ("Qwen2.5-7B-Instruct-AWQ", "Qwen/Qwen2.5-7B-Instruct", "int4"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", "meta-llama/Llama-3.1-8B", "fp8"),
        ("neuralmagic/Meta-Llama-3.1-70B-Instruct-quantized.w8a8", "meta-llama/Llama-3.1-70B", "int8"),
        ("RedHatAI/Qwen2.5-72B-Instruct-quantized.w4a16", "Qwen/Qwen2.5-72B-Instruct", "int4"),
        ("unsloth/Llama-3.2-3B-Instruct-unsloth-bnb-4bit", "meta-llama/Llama-3.2-3B-Instruct", "nf4"),
        ("unsloth/Qwen2.5-0.5B-Instruct-bnb-4bit", "Qwen/Qwen2.5-0.5B-Instruct", "nf4"),
        ("Qwen2.5-0.5B (unsloth, 4-bit)", "Qwen/Qwen2.5-0.5B-Instruct", "nf4"),
        ("Qwen/Qwen3-30B-A3B-GPTQ-Int4", "Qwen/Qwen3-30B-A3B", "int4"),
        ("DeepSeek-R1 (wna16 4-bit)", "deepseek-ai/DeepSeek-R1", "int4"),
        ("unsloth/DeepSeek-R1-BF16", "deepseek-ai/DeepSeek-R1", None),
        ("unsloth/gpt-oss-20b-BF16", "openai/gpt-oss-20b", None),
        ("zai-org/GLM-4.6/4.7 (355B-A32B)", "zai-org/GLM-4.6", None),
        ("Qwen3.5/3.6-35B-A3B", "Qwen/Qwen3.5-35B-A3B", None),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", "NVIDIA-Nemotron-3-Super-120B-A12B-BF16", "fp8"),
        ("nvidia/Llama-3.3-70B-Instruct-FP4", "meta-llama/Llama-3.3-70B-Instruct", "nvfp4"),
        ("QWEN3-8B", "Qwen/Qwen3-8B", None),
    ],
)
def test_names_with_formats(name, row, quantization):
    model = catalog.model(name)
    assert model.quantization == quantization
    assert catalog.model(row).layer_types == model.layer_types
    assert catalog.model(row).hidden_size == model.hidden_size


def test_a_format_in_the_name_replaces_all_of_the_rows_own():
    own, named = catalog.model("DeepSeek-V4-Flash"), catalog.model("DeepSeek-V4-Flash-BF16")
    assert (own.quantization, own.expert_quantization) == ("fp8", "mxfp4")
    assert (named.quantization, named.expert_quantization) == (None, None)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Llama-3.3", r"'Llama-3.3' is not in the catalog|fits several rows"),
        ("Qwen2.5-VL", "fits several rows of the catalog: Qwen/Qwen2.5-VL"),
        ("Qwen3.x-27B-FP8", "is not in the catalog; nearest: "),
        ("(MoE, FP4)", "is not in the catalog"),
    ],
)
def test_names_that_fit_none_or_several(name, told):
    with pytest.raises(KvsimError, match=told) as error:
        catalog.model(name)
    assert "\n" not in str(error.value)


def test_unknown_names_get_the_nearest_spelling():
    with pytest.raises(KvsimError, match="'rtx 4900' is not in the catalog; nearest: RTX 4090"):
        catalog.gpu("rtx 4900")
    with pytest.raises(KvsimError, match=r"nearest: Qwen/Qwen3-VL-2B-Instruct.*config\.json"):
        catalog.model("Qwen3-VL-2C")
    with pytest.raises(KvsimError, match="is known, but Mamba"):
        catalog.model("Zamba2-2.7B")


@pytest.mark.parametrize("name", catalog.model_names())
def test_every_model_is_whole(name):
    model = catalog.model(name)
    assert model.source
    assert len(model.layer_types) == model.num_hidden_layers
    assert all((model.hidden_size, model.vocab_size, model.max_position_embeddings))
    assert model.num_attention_heads % (1 if model.is_mla else model.num_key_value_heads) == 0
    assert bool(model.num_experts) == bool(model.num_experts_per_tok)


@pytest.mark.parametrize("name", catalog.gpu_names())
def test_every_gpu_is_whole(name):
    gpu = catalog.gpu(name)
    assert gpu.source
    assert min(gpu.memory_bytes, gpu.bandwidth, gpu.bf16_flops, gpu.link_bandwidth) > 0


def test_no_two_models_share_a_spelling():
    spelled = {}
    for name, row in json.loads((DATA / "models.json").read_text())["models"].items():
        for spelling in (name, *row.get("aliases", ())):
            assert spelled.setdefault(key(spelling), name) == name


def test_cards_that_share_a_name_differ_in_memory():
    shared = {}
    for row in json.loads((DATA / "gpus.json").read_text()).values():
        for alias in row.get("aliases", ()):
            shared.setdefault(alias, []).append(row["memory_gib"])
    assert all(len({round(gib / 2) for gib in sizes}) == len(sizes) for sizes in shared.values())


@pytest.mark.parametrize(
    "name", ["Qwen3-8B", "Qwen3-30B-A3B", "Llama-3.1-8B", "gpt-oss-20b", "DeepSeek-V3", "Qwen2.5-7B"]
)
def test_counted_weights_agree_with_stated_ones(name):
    model = catalog.model(name)
    counted = ModelSpec.from_config(
        {
            k: v
            for k, v in json.loads((DATA / "models.json").read_text())["models"][model.name]["config"].items()
            if k != "num_parameters"
        }
    )
    assert counted.num_parameters == pytest.approx(model.stated_parameters, rel=0.01)


# ---- config.json ----


def write(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    return folder / "config.json"


def test_dense_config_file(tmp_path):
    config = {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 8,
        "torch_dtype": "float32",
        "vocab_size": 10,
    }
    model = catalog.model(str(write(tmp_path, config)))
    assert (model.num_key_value_heads, model.head_dim, model.dtype) == (8, 8, "bfloat16")
    assert catalog.model(str(tmp_path)) == model


def test_nested_window_config_file(tmp_path):
    text = {
        "model_type": "gemma3_text",
        "num_hidden_layers": 7,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "sliding_window": 512,
    }
    model = model_from_file(write(tmp_path, {"model_type": "gemma3", "text_config": text}))
    assert model.layer_types == ("sliding",) * 5 + ("full", "sliding")
    assert model.sliding_window == 512


def test_moe_and_mla_config_file(tmp_path):
    config = {
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "intermediate_size": 128,
        "quantization_config": {"quant_method": "fp8"},
    }
    model = model_from_file(write(tmp_path, config))
    assert (model.is_mla, model.num_moe_layers, model.shared_intermediate_size) == (True, 3, 48)
    assert model.quantization == "fp8"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "cannot be read"),
        ("[]", "holds one JSON object"),
        ("{}", "num_hidden_layers is missing"),
        ('{"num_hidden_layers": "two"}', 'num_hidden_layers is "two"'),
        ('{"num_hidden_layers": 2}', "hidden_size and num_attention_heads missing"),
        ('{"num_hidden_layers": 1, "layer_types": ["odd"]}', "layer_types holds 'odd'"),
    ],
)
def test_bad_config_files_are_named(tmp_path, text, complaint):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(KvsimError, match=complaint) as error:
        catalog.model(str(path))
    assert str(path) in str(error.value)


def test_missing_config_file():
    with pytest.raises(KvsimError, match=r"'nowhere/config\.json' is not a regular file"):
        catalog.model("nowhere/config.json")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[" * 100_000, "config.json: nested too deeply"),
        ('{"num_hidden_layers": ' + "9" * 5000 + "}", "thousands of digits"),
        ('{"num_hidden_layers": 2, "x": }', "not JSON at line 1 column 31"),
        ('{"num_hidden_layers": 999999999}', "num_hidden_layers is 999999999, wanted a whole number from 1"),
        ('{"num_hidden_layers": 2, "hidden_size": 0}', "hidden_size is 0, wanted a whole number from 1"),
        (
            '{"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 0, "num_key_value_heads": 2}',
            "num_attention_heads is 0, wanted a whole number from 1",
        ),
        (
            '{"num_hidden_layers": 2, "hidden_size": 4, "num_attention_heads": 8}',
            "hidden_size 4 is not a multiple of num_attention_heads 8",
        ),
        ('{"num_hidden_layers": 2, "text_config": 5}', "text_config is 5, wanted an object"),
        ('{"num_hidden_layers": 2, "layer_types": 5}', "layer_types is 5, wanted a list"),
        ('{"num_hidden_layers": 2, "layer_types": [[1], {}]}', "layer_types holds"),
        ('{"num_hidden_layers": 2, "sliding_window_pattern": "LG"}', 'sliding_window_pattern is "LG"'),
        ('{"num_hidden_layers": 2, "vision_config": []}', "vision_config is"),
    ],
)
def test_odd_config_files_are_told_by_key_and_value(tmp_path, text, complaint):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(KvsimError, match=re.escape(complaint)) as error:
        catalog.model(str(path))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


CONFIG_KEYS = [
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "text_config",
    "layer_types",
    "sliding_window",
    "sliding_window_pattern",
    "full_attention_interval",
    "attention_chunk_size",
    "model_type",
    "quantization_config",
    "vision_config",
    "mlp_only_layers",
    "dtype",
    "num_experts",
    "moe_layer_freq",
    "first_k_dense_replace",
    "max_window_layers",
    "use_sliding_window",
    "kv_lora_rank",
    "num_kv_shared_layers",
    "n_shared_experts",
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 70) | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(CONFIG_KEYS), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(CONFIG_KEYS), json_values, max_size=4))
def test_any_config_file_is_a_model_or_told(tmp_path_factory, odd):
    path = tmp_path_factory.getbasetemp() / "config.json"
    good = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 9}
    path.write_text(json.dumps({**good, **odd}))
    said = ""
    try:
        assert loaded_bytes(catalog.model(str(path))) > 0
    except KvsimError as error:
        said = str(error)
    assert "\n" not in said


def test_an_ambiguous_gpu_names_every_card_of_that_name():
    with pytest.raises(KvsimError) as refusal:
        catalog.gpu("A100")
    assert all(
        f"A100-{row}" in str(refusal.value) for row in ("40GB SXM", "80GB SXM", "40GB PCIe", "80GB PCIe")
    )


@pytest.mark.parametrize(
    ("name", "remark"),
    [
        ("H100", "gpu: H100 is taken to be H100 SXM; there is also H100 PCIe, H100 NVL"),
        ("H100 80GB", "gpu: H100 80GB is taken to be H100 SXM; there is also H100 PCIe"),
        ("a100-80gb", "gpu: a100-80gb is taken to be A100-80GB SXM; there is also A100-80GB PCIe"),
        ("NVIDIA H100 80GB HBM3", None),
        ("H100 SXM", None),
        ("L4", None),
        ("4090", None),
    ],
)
def test_a_gpu_that_was_chosen_among_several_is_named(name, remark):
    assert catalog.gpu_remark(name) == remark
    plan = kvsim.plan_capacity("Qwen3-8B", name, max_model_len=4096)
    assert (remark in plan.notes) == (remark is not None)
