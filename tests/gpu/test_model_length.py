"""The model's own length, its rotary scalings, and what vLLM refuses before it looks at the memory.

Expected values: `_get_and_verify_max_len` of the wheels 0.6.6 to 0.33.0, called with these configurations.
"""

import pytest

import kvsim
from kvsim.errors import KvsimError
from kvsim.gpu.model_length import own_length, read_lengths

YARN = {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}
LONG = {"type": "su", "short_factor": [1.0], "long_factor": [2.0]}


@pytest.mark.parametrize(
    ("config", "minor", "most", "usual"),
    [
        ({"max_position_embeddings": 40960, "rope_scaling": YARN}, 9, "131072", 131072),
        ({"max_position_embeddings": 40960, "rope_scaling": YARN}, 29, "131072", 131072),
        ({"max_position_embeddings": 40960, "rope_scaling": YARN}, 30, "40960.0", 40960),
        (
            {"max_position_embeddings": 8192, "rope_scaling": {"type": "linear", "factor": 2.0}},
            6,
            "16384.0",
            16384,
        ),
        (
            {"max_position_embeddings": 8192, "rope_scaling": {"type": "dynamic", "factor": 2}},
            33,
            "16384",
            16384,
        ),
        (
            {"max_position_embeddings": 8192, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            11,
            "8192",
            8192,
        ),
        (
            {"max_position_embeddings": 8192, "rope_scaling": {"type": "mrope", "mrope_section": [1]}},
            9,
            "8192.0",
            8192,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "original_max_position_embeddings": 4096,
                "rope_scaling": LONG,
            },
            10,
            "131072",
            131072,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "original_max_position_embeddings": 4096,
                "rope_scaling": LONG,
            },
            11,
            "131072",
            4096,
        ),
        (
            {
                "model_type": "gemma3_text",
                "max_position_embeddings": 8192,
                "rope_scaling": {"type": "linear", "factor": 8},
            },
            33,
            "8192",
            8192,
        ),
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, 7, "8192", 8192),
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, 8, "131072", 131072),
        ({"n_positions": 1024, "seq_length": 512, "model_type": "gpt2"}, 33, "512", 512),
    ],
)
def test_the_derived_length_of_each_release(config, minor, most, usual):
    own = own_length(read_lengths(config), minor)
    assert (str(own.most), own.usual) == (most, usual)


def test_a_length_beyond_the_model_is_refused_in_the_words_of_the_release():
    asked = {"model": "Qwen3-8B", "gpu": "H100", "max_model_len": 131072}
    plan = kvsim.plan_capacity(**asked)
    assert plan.refused == "configuration"
    assert plan.refusal.startswith(
        "User-specified max_model_len (131072) is greater than the derived max_model_len "
        "(max_position_embeddings=40960.0 or model_max_length=None in model's config.json). To allow"
    )
    assert (plan.longest, plan.num_gpu_blocks) == (40960, 0)
    assert [way.flags for way in plan.ways_out] == [
        "--max-model-len 40960",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1",
    ]
    old = kvsim.plan_capacity(**asked, vllm_version="0.9.2").refusal
    assert "max_position_embeddings=40960 or" in old
    assert old.endswith(
        "CUDA errors. To allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"
    )
    assert kvsim.plan_capacity(**asked, allow_long_max_model_len=True).refusal is None
    assert kvsim.plan_capacity(**asked | {"max_model_len": 40960}).refusal is None


def test_scalings_stretch_length_and_table():
    asked = {"model": "Qwen3-8B", "gpu": "H100", "vllm_version": "0.16"}
    plain = kvsim.plan_capacity(**asked)
    wide = kvsim.plan_capacity(**asked, hf_overrides={"rope_scaling": YARN})
    assert (plain.max_model_len, wide.max_model_len) == (40960, 131072)
    assert wide.prediction.weights - plain.prediction.weights == (131072 - 40960) * 128 * 2
    newest = asked | {"vllm_version": "0.33"}
    assert kvsim.plan_capacity(**newest, hf_overrides={"rope_parameters": YARN}).max_model_len == 40960
    both = {"rope_parameters": YARN, "max_position_embeddings": 131072}
    assert kvsim.plan_capacity(**newest, hf_overrides=both).max_model_len == 131072
    nested = {"text_config": {"rope_parameters": YARN}}
    assert kvsim.plan_capacity(**asked, hf_overrides=nested).max_model_len == 131072


@pytest.mark.parametrize(
    ("scaling", "says"),
    [
        ({"rope_type": "yarn", "factor": "x"}, "hf_overrides: rope_scaling.factor is"),
        ({"rope_type": 4}, "hf_overrides: rope_scaling.rope_type is 4"),
        ({"rope_type": "wavy"}, "hf_overrides: rope_type 'wavy' is not known; one of default"),
        ("yarn", "hf_overrides: rope_scaling is"),
    ],
)
def test_bad_scalings_are_named(scaling, says):
    with pytest.raises(KvsimError) as refusal:
        kvsim.plan_capacity("Qwen3-8B", "H100", hf_overrides={"rope_scaling": scaling})
    assert str(refusal.value).startswith(says)


def test_batches_that_do_not_go_with_length_or_sequences():
    asked = {"model": "Qwen3-8B", "gpu": "H100", "max_model_len": 8192}
    plan = kvsim.plan_capacity(**asked, max_num_batched_tokens=4096, enable_chunked_prefill=False)
    assert plan.refusal.startswith("max_num_batched_tokens (4096) is smaller than max_model_len (8192). This")
    assert (plan.refused, plan.longest) == ("configuration", 4096)
    assert [way.flags for way in plan.ways_out] == ["--max-model-len 4096", "--max-num-batched-tokens 8192"]
    assert kvsim.plan_capacity(**asked, enable_chunked_prefill=False).max_num_batched_tokens == 8192
    seqs = kvsim.plan_capacity(**asked, max_num_batched_tokens=256, max_num_seqs=512)
    assert seqs.refusal == "max_num_batched_tokens (256) must be greater than or equal to max_num_seqs (512)."
    assert [way.flags for way in seqs.ways_out] == ["--max-num-batched-tokens 512"]
    first = kvsim.plan_capacity(**asked, max_num_batched_tokens=4096, vllm_version="0.6.6")
    assert first.refused == "configuration"  # V0 cuts only prompts of long contexts


@pytest.mark.parametrize(
    ("model", "gpu", "length"),
    [("Llama-3.1-8B", "A10G", 32768), ("Qwen2.5-7B-Instruct", "RTX 4090", 32768)],
)
def test_the_longest_length_starts_where_the_batch_follows_it(model, gpu, length):
    asked = {"model": model, "gpu": gpu, "vllm_version": "0.6.6", "gpu_memory_utilization": 0.8}
    plan = kvsim.plan_capacity(**asked, max_model_len=length)
    assert plan.refused in ("length", "memory")
    assert kvsim.plan_capacity(**asked, max_model_len=plan.longest).refusal is None
    assert kvsim.plan_capacity(**asked, max_model_len=plan.longest + 1).refusal is not None
    for way in plan.ways_out:
        assert way.longest >= plan.longest


def test_the_flag_of_older_releases():
    asked = {"model": "Qwen3-8B", "gpu": "H100", "rope_scaling": YARN}
    assert kvsim.plan_capacity(**asked, vllm_version="0.9.2").max_model_len == 131072
    with pytest.raises(KvsimError, match="rope_scaling: no flag of vLLM"):
        kvsim.plan_capacity(**asked)
    early = kvsim.plan_capacity(
        "Qwen3-8B", "H100", vllm_version="0.9.2", hf_overrides={"rope_parameters": YARN}
    )
    assert early.max_model_len == 40960
    assert any("rope_parameters has no effect before 0.12" in note for note in early.notes)
