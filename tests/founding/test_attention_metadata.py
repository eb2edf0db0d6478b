"""The founding study's image prompts: what the attention kernel is given, by exact number.

A prompt of 997 tokens with one picture, on a Qwen3-VL-2B server with block size 16. The numbers
are 0.16's, its time; 0.33 gives a freed half-full block out again, and is tested beside it.
"""

import pytest

from kvsim.engine.attention_metadata import (
    PAD_SLOT_ID,
    attention_metadata,
    cudagraph_capture_sizes,
    padded_num_tokens,
)
from kvsim.engine.config import EngineConfig
from kvsim.engine.core import EngineCore
from kvsim.tokens import PLACEHOLDER_STREAM, segments
from kvsim.workload import ImageFeature, Request

VERSIONS = ("0.16", "0.33")
PAD = [PAD_SLOT_ID] * 3


def run(*numbers):
    """Ids or slots a..b for each pair."""
    return [n for a, b in numbers for n in range(a, b + 1)]


def config(version="0.33", max_num_seqs=128, max_num_batched_tokens=2048, num_drafts=0):
    """The study's server: 128 sequences and 2,048 tokens a step."""
    return EngineConfig(
        num_gpu_blocks=9872,
        max_model_len=4096,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        async_scheduling=False,
        spec_method="ngram" if num_drafts else None,
        num_speculative_tokens=num_drafts,
        vllm_version=version,
    )


class Server:
    def __init__(self, version):
        self.core = EngineCore(config(version))
        self.ids = 0

    def ask(self, picture, question, num_question, max_tokens):
        """Four tokens of template, 972 of a picture, then the question."""
        self.ids += 1
        prompt = segments((1, 0, 4), (PLACEHOLDER_STREAM, 0, 972), (question, 0, num_question))
        output = segments((100 + self.ids, 0, max_tokens))
        feature = (ImageFeature(picture, 4, 972),)
        self.core.add_request(Request(f"r{self.ids}", 0.0, prompt, output, max_tokens, feature))

    def first(self, max_tokens=4):
        self.ask("cat", 2, 21, max_tokens)

    def other(self, max_tokens=4):
        self.ask("dog", 3, 25, max_tokens)

    def step(self):
        self.core.schedule()
        seen = attention_metadata(self.core)
        self.core.update_from_output()
        self.core.take_finished()
        return seen

    def drain(self):
        while self.core.live_requests()[0]:
            self.step()


@pytest.fixture(params=VERSIONS)
def server(request):
    return Server(request.param)


def test_first_run(server):
    server.first()
    seen = server.step()
    assert seen.num_actual_tokens == seen.max_query_len == seen.max_seq_len == 997
    assert seen.query_start_loc == [0, 997]
    assert seen.seq_lens == [997]
    assert seen.slot_mapping == run((16, 1012))  # picture tokens have slots like any other
    assert seen.block_table == [run((1, 63))]


@pytest.mark.parametrize(("version", "last", "slot"), [("0.16", 64, 1024), ("0.33", 63, 1008)])
def test_cached_run_right_after_the_first(version, last, slot):
    """62 blocks hit, 5 tokens are computed. The first request has ended: 0.16 appended its last
    block to the queue, 0.33 put it in front and takes it again."""
    server = Server(version)
    server.first()
    server.drain()
    server.first()
    seen = server.step()
    assert seen.num_actual_tokens == seen.max_query_len == 5
    assert seen.query_start_loc == [0, 5]
    assert seen.max_seq_len == 997
    assert seen.seq_lens == [997]
    assert seen.block_table == [[*run((1, 62)), last]]
    assert seen.slot_mapping == [*run((slot, slot + 4)), *PAD]  # a CUDA graph of 8 tokens, not a picture
    assert seen.num_padding_tokens == 3
    decodes = [server.step() for _ in range(3)]
    assert [seen.slot_mapping for seen in decodes] == [[slot + 5], [slot + 6], [slot + 7]]
    assert [seen.seq_lens for seen in decodes] == [[998], [999], [1000]]
    assert not server.core.live_requests()[0]


def test_cached_run_while_the_first_still_decodes(server):
    """Block 63 is in use, so both versions take 64, as the study saw it."""
    server.first(max_tokens=8)
    server.step()
    server.step()
    server.first()
    seen = server.step()
    assert seen.seq_lens == [998 + 1, 997]
    assert seen.query_start_loc == [0, 1, 6]
    assert seen.block_table == [run((1, 63)), [*run((1, 62)), 64]]
    assert seen.slot_mapping == [1014, *run((1024, 1028)), PAD_SLOT_ID, PAD_SLOT_ID]
    decodes = [server.step() for _ in range(3)]
    assert [seen.slot_mapping for seen in decodes] == [[1015, 1029], [1016, 1030], [1017, 1031]]
    assert [seen.seq_lens[1] for seen in decodes] == [998, 999, 1000]


def test_two_requests_with_different_pictures(server):
    """The first decodes while the second (1001 tokens) prefills: no block is shared."""
    server.first()
    server.step()
    server.other()
    seen = server.step()
    assert seen.seq_lens == [998, 1001]
    assert seen.query_start_loc == [0, 1, 1002]
    assert seen.max_query_len == seen.max_seq_len == 1001
    assert seen.slot_mapping == [1013, *run((1024, 2024))]
    assert seen.block_table == [run((1, 63)), run((64, 126))]


@pytest.mark.parametrize(("version", "last", "slot"), [("0.16", 127, 2032), ("0.33", 63, 1008)])
def test_cached_run_after_another_picture(version, last, slot):
    """Blocks 63-126 were used in between: 0.16 goes on to 127, 0.33 finds block 63 free and empty."""
    server = Server(version)
    server.first(max_tokens=8)
    server.step()
    server.other()
    server.drain()
    server.first()
    seen = server.step()
    assert (seen.num_actual_tokens, seen.max_query_len, seen.max_seq_len) == (5, 5, 997)
    assert seen.query_start_loc == [0, 5]
    assert seen.seq_lens == [997]
    assert seen.block_table == [[*run((1, 62)), last]]
    assert seen.slot_mapping == [*run((slot, slot + 4)), *PAD]


class TestCapturedSizes:
    """Lists that vLLM's `_set_cudagraph_sizes` returned."""

    @pytest.mark.parametrize(
        ("version", "seqs", "batched", "drafts", "sizes"),
        [
            ("0.33", 256, 8192, 0, [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]),
            ("0.33", 5, 2048, 0, [1, 2, 4, 5, 8]),
            ("0.33", 5, 8, 3, [1, 2, 4, 8]),
            ("0.33", 5, 43, 1, [1, 2, 4, 8, 10, 16]),
            ("0.33", 5, 2048, 3, [1, 2, 4, 8, 16, 20, 24, 32, 40]),
            ("0.33", 30, 43, 0, [1, 2, 4, 8, 16, 24, 30, 32, 40, 43]),
            ("0.33", 1, 1, 0, [1]),
            ("0.16", 5, 2048, 0, [1, 2, 4, 8]),
            ("0.16", 30, 43, 0, [1, 2, 4, 8, 16, 24, 32, 40]),
            ("0.16", 5, 2048, 3, [1, 2, 4, 8, 16, 24, 32, 40]),
        ],
    )
    def test_sizes(self, version, seqs, batched, drafts, sizes):
        assert cudagraph_capture_sizes(config(version, seqs, batched, drafts)) == sizes

    @pytest.mark.parametrize(("tokens", "padded"), [(1, 1), (3, 4), (5, 8), (8, 8), (9, 16), (997, 997)])
    def test_a_batch_runs_in_the_next_size(self, tokens, padded):
        assert padded_num_tokens(config(), tokens) == padded

    @pytest.mark.parametrize(("version", "padded"), [("0.16", 8), ("0.33", 5)])
    def test_five_sequences_at_most(self, version, padded):
        """0.33 has a graph for exactly five, so a cached run of 5 tokens is not padded there."""
        assert padded_num_tokens(config(version, 5, 2048), 5) == padded

    def test_eager_runs_unpadded(self):
        core = EngineCore(config())
        core.add_request(Request("r", 0.0, segments((1, 0, 5)), segments((2, 0, 1)), 1))
        core.schedule()
        assert attention_metadata(core, enforce_eager=True).slot_mapping == run((16, 20))
        assert attention_metadata(core).slot_mapping == [*run((16, 20)), *PAD]

    def test_nothing_scheduled(self):
        seen = attention_metadata(EngineCore(config()))
        assert (seen.num_reqs, seen.num_actual_tokens, seen.max_query_len, seen.max_seq_len) == (0, 0, 0, 0)
