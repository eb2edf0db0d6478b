"""EngineConfig: what it refuses, what it says, and what follows from it."""

from dataclasses import replace

import pytest
from engine_runs import drain, engine, request, rows_by_id

from kvsim.cache.groups import KVGroup
from kvsim.engine.config import EngineConfig
from kvsim.errors import KvsimError

FULL, WINDOW = KVGroup(), KVGroup("sliding_window", window=32)


def config(**flags):
    return EngineConfig(**{"num_gpu_blocks": 11, "max_model_len": 1000, **flags})


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"num_gpu_blocks": 1}, "num_gpu_blocks must be from 2 to 2147483647, not 1"),
        ({"num_gpu_blocks": 2**31}, "num_gpu_blocks must be from 2 to 2147483647, not 2147483648"),
        ({"max_model_len": 0}, "max_model_len must be from 1 to .*, not 0"),
        ({"block_size": -16}, "block_size must be from 1 to .*, not -16"),
        ({"max_num_seqs": 0}, "max_num_seqs must be from 1"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens must be from 1"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold must be from 0"),
        ({"scheduling_policy": "lifo"}, "scheduling_policy must be one of fcfs, priority, not 'lifo'"),
        ({"spec_method": "medusa"}, "spec_method must be one of None, ngram, eagle, not 'medusa'"),
        ({"prefix_caching_hash_algo": "md5"}, "must be one of fast, sha256, .*, not 'md5'"),
        ({"watermark": 1.0}, "watermark must be at least 0 and below 1, not 1.0"),
        ({"watermark": float("nan")}, "watermark .* not nan"),
        ({"acceptance_rate": 1.5}, "acceptance_rate must be from 0 to 1, not 1.5"),
        ({"spec_method": "ngram"}, "spec_method and num_speculative_tokens go together"),
        ({"num_speculative_tokens": 3}, "spec_method and num_speculative_tokens go together"),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 512},
            r"max_num_batched_tokens \(512\) must be at least max_model_len \(1000\)",
        ),
        (
            {"max_num_batched_tokens": 100},
            r"max_num_batched_tokens \(100\) must be at least max_num_seqs \(256\)",
        ),
        ({"kv_groups": ()}, "kv_groups must name at least one group"),
    ],
)
def test_refused(flags, says):
    with pytest.raises(KvsimError, match=says):
        config(**flags)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("mamba",), "kind 'mamba' is not one of full, sliding_window, chunked_local"),
        (("full", None, 32), "a full group has no window"),
        (("sliding_window",), "a sliding_window group needs a window"),
        (("sliding_window", None, 0), "needs a window|window must be at least 1"),
        (("chunked_local", None, -4), "window must be at least 1 token, not -4"),
    ],
)
def test_refused_groups(arguments, says):
    with pytest.raises(KvsimError, match=says):
        KVGroup(*arguments)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"prefix_cache_retention_interval": 24}, "must be a multiple of 16 .*, not 24"),
        ({"prefix_cache_retention_interval": -16}, "must be a multiple of 16 .*, not -16"),
        (
            {"kv_groups": (KVGroup(block_size=16), KVGroup("chunked_local", 8, 32))},
            "chunked_local needs equal block sizes",
        ),
        (
            {
                "kv_groups": (KVGroup(block_size=24), KVGroup("sliding_window", 16, 32)),
                "vllm_version": "0.16",
            },
            r"block sizes \(24, 16\) are not multiples of the smallest",
        ),
    ],
)
def test_refused_together_with_the_groups(flags, says):
    with pytest.raises(KvsimError, match=says):
        engine(**{"block_size": 16, **flags})


def test_an_unknown_release():
    with pytest.raises(KvsimError, match=r"vllm_version: '0\.12' is not known; known are 0\.33, 0\.16"):
        engine(vllm_version="0.12")


def test_two_batches_in_flight_only_with_asynchronous_scheduling():
    assert config().queue_depth == 2
    assert config(async_scheduling=False).queue_depth == 1


@pytest.mark.parametrize(
    ("flags", "slots", "hashed", "drops"),
    [
        ({}, 0, 0, False),
        ({"spec_method": "ngram"}, 0, 0, False),
        ({"spec_method": "eagle"}, 3, 1, False),
        ({"spec_method": "eagle", "disable_lookahead_block_hashes": True}, 3, 0, True),
        ({"spec_method": "eagle", "vllm_version": "0.16"}, 3, 0, True),
        ({"spec_method": "eagle", "enable_prefix_caching": False}, 3, 0, True),
    ],
)
def test_what_speculation_reserves(flags, slots, hashed, drops):
    c = config(num_speculative_tokens=3 if flags.get("spec_method") else 0, **flags)
    assert (c.num_lookahead_tokens, c.num_hash_lookahead_tokens) == (slots, hashed)
    if c.enable_prefix_caching:
        assert c.use_eagle_block_drop == drops


class TestRefusal:
    """Why a request can never run to its end; sizes are checked on both sides of each limit."""

    def test_an_empty_prompt(self):
        assert config().refusal(0, 5) == "prompt is empty"

    def test_no_room_for_output(self):
        assert config(num_gpu_blocks=1000).refusal(999, 1) is None
        reason = config(num_gpu_blocks=1000).refusal(1000, 1)
        assert reason == "prompt of 1000 tokens leaves no room for output in max_model_len 1000"

    def test_more_blocks_than_the_pool(self):
        """Ten usable blocks of 16: the last output token is never computed, so it needs no slot."""
        assert config().refusal(100, 61) is None
        assert config().refusal(100, 62) == "needs 11 KV blocks for 161 tokens, the pool has 10"

    def test_output_beyond_max_model_len_is_cut_there(self):
        assert config(max_model_len=160).refusal(100, 10_000) is None

    def test_draft_slots_count(self):
        flags = {"spec_method": "eagle", "num_speculative_tokens": 4}
        assert config(**flags).refusal(100, 57) is None
        assert config(**flags).refusal(100, 58) == "needs 11 KV blocks for 161 tokens, the pool has 10"

    def test_groups_add_up_and_windows_are_recycled(self):
        assert config(kv_groups=(FULL, FULL)).refusal(96, 1) == (
            "needs 12 KV blocks for 96 tokens, the pool has 10"
        )
        small = {"kv_groups": (WINDOW,), "max_num_batched_tokens": 32, "max_num_seqs": 4}
        assert config(**small).refusal(900, 90) is None

    def test_an_image_larger_than_the_encoder_allows(self):
        c = config(encoder_compute_budget=50, encoder_cache_size=40)
        assert c.refusal(100, 1, 40) is None
        assert c.refusal(100, 1, 41) == "image of 41 tokens exceeds the encoder budget of 40"
        c = config(encoder_compute_budget=500, max_num_batched_tokens=400, num_gpu_blocks=100)
        assert c.refusal(600, 1, 450) is None
        unsplit = replace(c, disable_chunked_mm_input=True)
        assert unsplit.refusal(600, 1, 450) == "image of 450 tokens exceeds the encoder budget of 400"

    @pytest.mark.parametrize("size", [(100, 61), (1, 160), (159, 2), (16, 1)])
    def test_what_is_not_refused_runs_to_its_end(self, size):
        core = engine(num_gpu_blocks=11, block_size=16, max_model_len=1000)
        assert core.config.refusal(*size) is None
        core.add_request(request("r", *size))
        drain(core)
        assert rows_by_id(core)["r"]["num_tokens"] == sum(size)
