"""The one fit check, over one GPU and over pipeline stages, against the full planner."""

import pytest

import kvsim
from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.memory import KVCacheOptions, KVCacheTooSmallError, plan_for_model
from kvsim.gpu.releases import release
from kvsim.gpu.staged_layout import staged_layout

GIB = 1 << 30
MODELS = ["Qwen3-8B", "gemma-3-1b-it", "gpt-oss-20b", "DeepSeek-R1"]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("version", ["0.16", "0.33"])
@pytest.mark.parametrize("stages", [1, 2, 3, 8])
@pytest.mark.parametrize("override", [None, 5000])
def test_it_agrees_with_the_full_planner(name, version, stages, override):
    model = catalog.model(name)
    options = KVCacheOptions(
        max_model_len=4096, pipeline_parallel_size=stages, num_gpu_blocks_override=override
    )
    layout = staged_layout(model, options, release(version))
    plan = plan_for_model(model, 20 * GIB, options, version)
    blocks = layout.blocks(20 * GIB)
    assert blocks == plan.num_gpu_blocks
    assert layout.whole.printed_tokens(blocks, 4096) == plan.kv_cache_size_tokens
    assert layout.whole.concurrency(blocks, 4096) == plan.max_concurrency


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("version", ["0.16", "0.33"])
@pytest.mark.parametrize("stages", [1, 2, 5])
def test_refusals_agree_with_the_full_planner(name, version, stages):
    model = catalog.model(name)
    length, room = model.max_position_embeddings, 8 << 20
    options = KVCacheOptions(max_model_len=length, pipeline_parallel_size=stages)
    with pytest.raises(KVCacheTooSmallError) as refusal:
        plan_for_model(model, room, options, version)
    plan = kvsim.plan_capacity(
        model,
        available_kv_cache_bytes=room,
        vllm_version=version,
        max_num_batched_tokens=2048,
        pipeline_parallel_size=stages,
    )
    assert plan.refusal == refusal.value.vllm_message
    assert plan.refused == "length"
    assert (plan.needed, plan.usable) == (refusal.value.needed_bytes, refusal.value.available_bytes)
    assert plan.longest <= (refusal.value.estimated_max_model_len or 0)  # of the first stage that is short
    assert plan.longest == (refusal.value.estimated_max_model_len or 0) or stages == 5


@pytest.mark.parametrize("version", ["0.10.2", "0.20", "0.33"])
@pytest.mark.parametrize("stages", [1, 4])
def test_the_bytes_that_a_length_needs_are_just_enough(version, stages):
    model, of = catalog.model("gpt-oss-20b"), release(version)
    layout = staged_layout(model, KVCacheOptions(pipeline_parallel_size=stages), of)
    needed = layout.bytes_for(30_000)
    assert layout.longest(needed, 30_000) == 30_000
    assert layout.longest(needed - 1, 30_000) < 30_000


def test_automatic_length_over_stages():
    plan = kvsim.plan_capacity(
        "Llama-3.1-70B", "A100 80GB", max_model_len=-1, pipeline_parallel_size=2, vllm_version="0.33"
    )
    assert plan.refusal is None
    assert 0 < plan.max_model_len < 131_072
    full = {"pipeline_parallel_size": 2, "max_model_len": plan.max_model_len + 1}
    assert kvsim.plan_capacity("Llama-3.1-70B", "A100 80GB", **full).refusal


@pytest.mark.parametrize("name", ["Qwen3-Next-80B-A3B", "whisper-large-v3"])
def test_stages_of_what_is_not_modelled_are_refused_in_one_line(name):
    with pytest.raises(KvsimError, match="pipeline_parallel_size: 2 stages of a"):
        kvsim.plan_capacity(name, "H100", pipeline_parallel_size=2, max_model_len=400)


def test_more_stages_than_layers():
    with pytest.raises(KvsimError, match="pipeline_parallel_size: 100"):
        kvsim.plan_capacity("Qwen3-8B", "H100", pipeline_parallel_size=100)
