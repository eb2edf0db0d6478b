"""What `plan_capacity` says to questions that are wrong, or that vLLM would take another way."""

import json

import pytest

import kvsim
from kvsim.gpu.model_config import model_from_file

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}


def refused(**changes):
    with pytest.raises(kvsim.KvsimError) as refusal:
        kvsim.plan_capacity(**{"model": "Qwen3-8B", "gpu": "H100"} | changes)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"gpu": 4}, "gpu: '4' is not a name"),
        ({"model": None}, "model: 'None' is no name"),
        ({"gpu_memory_gib": "x"}, "gpu_memory_gib: 'x' is not a number"),
        ({"gpu_memory_gib": True}, "gpu_memory_gib: 'True' is not a number"),
        ({"gpu_memory_gib": float("inf")}, "gpu_memory_gib: inf is beyond any card"),
        ({"used_by_others_gib": None}, "used_by_others_gib: 'None' is not a number"),
        ({"used_by_others_gib": 100}, "used_by_others_gib: 100 is more than the card has, 79.19 GiB"),
        ({"available_kv_cache_bytes": "5"}, "available_kv_cache_bytes: '5' is not a whole number"),
        ({"available_kv_cache_bytes": -5}, "available_kv_cache_bytes: '-5' is not a whole number"),
        ({"observed": [1]}, "observed: '[1]' is not an object"),
        ({"observed": {"w": 1}}, "observed: 'w' is no part; known are weights"),
        ({"observed": {"weights": -1}}, "observed: weights is '-1', wanted bytes"),
        ({"max_model_len": 0}, "max_model_len: 0 is neither a whole number above 0 nor -1"),
        ({"max_model_len": -7}, "max_model_len: -7 is neither"),
        ({"speculative_config": {}}, "speculative_config: an empty object; give method"),
        ({"enable_lora": True, "max_lora_rank": 7}, "max_lora_rank: 7 is not one of 1, 8, 16"),
        (
            {"enable_lora": True, "max_lora_rank": 320, "vllm_version": "0.7.3"},
            "max_lora_rank: 320 is not one of 8, 16, 32, 64, 128, 256",
        ),
        ({"vllm_version": "0.99"}, "vllm_version: '0.99' is not known; give one from 0.6 to 0.33"),
        ({"model": "./qwen3"}, "model: './qwen3' does not exist, or is a folder without a config.json"),
    ],
)
def test_wrong_arguments_are_named(changes, says):
    assert refused(**changes).startswith(says)


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"max_loras": 4}, "max_loras: no effect without enable_lora"),
        ({"limit_mm_per_prompt": {"banana": 1}}, "limit_mm_per_prompt: banana is no input that vLLM has"),
        ({"vllm_version": "0.5"}, "vllm_version: 0.5 is planned by the rules of 0.6"),
        ({"vllm_version": "0.7.3"}, "model: vLLM 0.7.3 does not know Qwen/Qwen3-8B; its architecture came"),
        (
            {"model": "gpt-oss-20b", "vllm_version": "0.8.5"},
            "model: vLLM 0.8.5 does not know openai/gpt-oss-20b; its architecture came with 0.10",
        ),
        (
            {"model": "Qwen3-VL-8B-Instruct", "vllm_version": "0.10.2"},
            "model: vLLM 0.10.2 does not know Qwen/Qwen3-VL-8B-Instruct; its architecture came with 0.11",
        ),
    ],
)
def test_what_has_no_effect_or_is_too_old_is_noted(changes, note):
    plan = kvsim.plan_capacity(**{"model": "Qwen3-8B", "gpu": "H100"} | changes)
    assert any(each.startswith(note) for each in plan.notes), plan.notes


def test_a_usual_question_has_no_notes():
    assert kvsim.plan_capacity("Qwen3-8B", "H100 SXM").notes == ()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_key_value_heads": 3}, "num_attention_heads 8 is not a multiple of num_key_value_heads 3"),
        ({"hidden_size": 257}, "hidden_size 257 is not a multiple of num_attention_heads 8; give head_dim"),
        ({"num_attention_heads": None}, "num_attention_heads missing"),
        ({"hidden_size": None}, "hidden_size missing"),
        ({"rope_scaling": "yarn"}, 'rope_scaling is "yarn", wanted an object'),
        ({"rope_scaling": {"type": "linear", "factor": "two"}}, 'rope_scaling.factor is "two", wanted'),
        ({"architectures": "LlamaForCausalLM"}, 'architectures is "LlamaForCausalLM", wanted a list'),
        ({"architectures": [5]}, "architectures has 5 in it, wanted names"),
        ({"model_type": 5}, "model_type is 5, wanted a name"),
        ({"model_type": "bert"}, "bert is an encoder alone, which has no KV cache"),
        ({"torch_dtype": "bfloat17"}, 'torch_dtype "bfloat17" is not known; one of bfloat16, float16'),
        (
            {"quantization_config": {"quant_method": "fairydust"}},
            "quant_method 'fairydust' is not known; known are gptq, awq",
        ),
    ],
)
def test_odd_configurations_name_file_and_key(tmp_path, changes, says):
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({key: value for key, value in (CONFIG | changes).items() if value is not None})
    )
    with pytest.raises(kvsim.KvsimError) as refusal:
        model_from_file(path)
    assert str(refusal.value).startswith(f"{path}: {says}")
