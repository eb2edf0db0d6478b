"""Loaded bytes per rank: what is split, copied, padded, or left in 16 bits."""

import random

import pytest

from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.layout import cache_layout
from kvsim.gpu.memory import KVCacheOptions
from kvsim.gpu.model import ModelSpec
from kvsim.gpu.releases import release
from kvsim.gpu.weights import NESTED_NF4_BYTES, loaded_bytes, mxfp4_kernel, weight_parts

GIB = 1 << 30


def parts(name, tp=1):
    return {part.name: part for part in weight_parts(catalog.model(name), tp)}


def test_parts_add_up_to_the_whole_model():
    for name in ("Llama-3.1-8B", "DeepSeek-V3.2", "DeepSeek-V4-Flash", "GLM-5.2", "Qwen3-Next-80B-A3B"):
        model = catalog.model(name)
        counted = sum(part.parameters for part in weight_parts(model))
        assert counted == pytest.approx(model.num_parameters, rel=0.001), name


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("deepseek-ai/DeepSeek-V2", 236),
        ("deepseek-ai/DeepSeek-V4-Flash", 284),
        ("zai-org/GLM-4.5-Air", 106),
        ("zai-org/GLM-5", 744),
        ("MiniMaxAI/MiniMax-Text-01", 456),
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", 49),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", 49.9),
        ("NVIDIA-Nemotron-3-Super-120B-A12B", 120.6),
        ("NVIDIA-Nemotron-3-Ultra-550B-A55B", 550),
        ("Qwen/Qwen2-57B-A14B-Instruct", 57.4),
        ("bigcode/starcoder2-15b", 16),
        ("mistralai/Pixtral-12B-2409", 12.7),
        ("ByteDance-Seed/Seed-OSS-36B-Instruct", 36),
    ],
)
def test_counts_are_those_that_the_names_tell(name, billions):
    assert catalog.model(name).counted_parameters / 1e9 == pytest.approx(billions, rel=0.02)


def test_a_split_divides_pads_and_copies():
    one, eight = parts("Qwen3-30B-A3B"), parts("Qwen3-30B-A3B", 8)
    assert eight["experts"].parameters == one["experts"].parameters / 8
    assert eight["router"].parameters == one["router"].parameters  # on every rank
    model = catalog.model("Qwen3-30B-A3B")  # 4 KV heads on 8 ranks: each twice
    copied = 48 * 2048 * 0.5 * 2 * 128
    assert eight["attention"].parameters == pytest.approx(48 * model.attention_parameters / 8 + copied)
    odd = ModelSpec.from_config({"num_hidden_layers": 1, "hidden_size": 8, "vocab_size": 65})
    assert next(weight_parts(odd)).parameters == 2 * 128 * 8


def test_latent_attention_copies_its_down_projections():
    model = catalog.model("DeepSeek-R1")
    down = 7168 * (512 + 64 + 1536)
    assert model.replicated_attention_parameters == down
    split = (model.attention_parameters - down) / 8
    assert parts("DeepSeek-R1", 8)["attention"].parameters == pytest.approx(61 * (split + down))


def test_no_images_no_tower():
    model = catalog.model("Qwen3.6-27B")
    tower = loaded_bytes(model) - loaded_bytes(model, tower=False)
    assert tower / GIB == pytest.approx(0.857, abs=0.01)  # what two published logs lack


def test_scales_of_four_bits_by_release():
    model = catalog.model("Llama-3.1-8B-bnb-4bit")
    linear = model.counted_parameters - model.embedding_parameters
    newer, older = loaded_bytes(model, minor=9), loaded_bytes(model, minor=8)
    assert newer - older == pytest.approx((0.5625 - NESTED_NF4_BYTES) * linear)
    assert older / GIB == pytest.approx(5.354 - 0.031, abs=0.02)  # a published log, less the rotary table


def test_padding_of_mxfp4_experts_by_card():
    model = catalog.model("gpt-oss-120b")
    by_kernel = {kernel: loaded_bytes(model, mxfp4_kernel=kernel) / GIB for kernel in ("hopper", "marlin")}
    assert by_kernel["marlin"] == pytest.approx(65.97, rel=0.004)
    assert by_kernel["hopper"] == pytest.approx(64.38, rel=0.004)
    cards = {"H100 SXM": "hopper", "RTX 4090": "marlin", "B200": "blackwell", "A100-80GB SXM": "marlin"}
    assert {card: mxfp4_kernel(card, 33) for card in cards} == cards
    assert mxfp4_kernel("H100 SXM", 10) == "marlin"


def test_modules_left_alone_keep_sixteen_bits():
    config = {"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 4}
    config |= {"vocab_size": 64, "tie_word_embeddings": True}
    quantization = {"quant_method": "fp8", "ignored_layers": ["model.layers.0.mlp.gate_proj"]}
    all_of_it = ModelSpec.from_config(config | {"quantization_config": {"quant_method": "fp8"}})
    some = ModelSpec.from_config(config | {"quantization_config": quantization})
    assert loaded_bytes(some) - loaded_bytes(all_of_it) == 3 * 64 * 256


JUNK = (None, True, -1, 0, 3, 2**41, 1.5, float("nan"), "x", "", [], [1], [None], [[1]], {}, {"a": 1}, [{}])


def test_broken_configs_get_one_line():
    """Catalog rows with values replaced at random: understood or refused in words."""
    rng, names, told = random.Random(3), catalog.model_names(), []
    rows = catalog._model_rows()
    for _ in range(400):
        config = dict(rows[rng.choice(names)]["config"])
        for _ in range(rng.randint(1, 3)):
            config[rng.choice(list(config))] = rng.choice(JUNK)
        try:
            model = ModelSpec.from_config(config)
            loaded_bytes(model, 2)
            cache_layout(model, KVCacheOptions(), release("0.33"))
        except KvsimError as error:
            told.append(str(error))
    assert not [text for text in told if "\n" in text]
