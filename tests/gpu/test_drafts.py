"""Speculative decoding in `kvsim capacity`: draft model, built-in draft layers, unknown drafts."""

import pytest

import kvsim
from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.drafts import Drafts, draft_weight_bytes
from kvsim.gpu.memory_setup import MemorySetup

GIB = 1 << 30


def plan(model="Qwen/Qwen3-8B", **flags):
    return kvsim.plan_capacity(model, "H200", **({"max_model_len": 32_768} | flags))


def drafts(**config):
    return {"speculative_config": {"num_speculative_tokens": 3} | config}


def test_a_draft_model_takes_weights_and_a_share_of_every_block():
    alone, drafted = plan(), plan(**drafts(model="Qwen/Qwen3-0.6B"))
    (extra,) = drafted.extras
    assert (extra.name, extra.why) == ("draft model", "Qwen/Qwen3-0.6B")
    assert extra.size / GIB == pytest.approx(1.11, rel=0.01)
    assert alone.available - drafted.available == extra.size
    own = plan("Qwen/Qwen3-0.6B")
    assert drafted.block_bytes == alone.block_bytes + own.block_bytes


def test_built_in_draft_layers_are_one_more_layer_of_the_model():
    target = catalog.model("deepseek-ai/DeepSeek-V3")
    setup = MemorySetup(1, "H200", 0.9, 4096, 256, 2048, tensor_parallel_size=8)
    size = draft_weight_bytes(Drafts(tokens=1, method="mtp"), target, setup)
    assert size / GIB == pytest.approx(14e9 / 8 / GIB, rel=0.25)  # 14 B weights in fp8 (DeepSeek-V3's card)
    assert draft_weight_bytes(Drafts(tokens=1, method="ngram"), target, setup) == 0


def test_an_unknown_draft_model_is_said_and_ngram_needs_none():
    unknown = plan(**drafts(method="eagle3", model="someone/EAGLE3"))
    assert unknown.extras == ()
    assert any("someone/EAGLE3 is not in the catalog" in note for note in unknown.notes)
    assert plan(**drafts(method="ngram", model="ngram")).notes == ()


def test_a_draft_model_over_stages_is_refused_by_name():
    with pytest.raises(KvsimError, match="pipeline_parallel_size: a draft model over 2 stages"):
        plan(pipeline_parallel_size=2, **drafts(model="Qwen/Qwen3-0.6B"))
