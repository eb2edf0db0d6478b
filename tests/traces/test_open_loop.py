"""The block pool driven open loop: against a plain Python pool, and over a public trace."""

import os
import random
from itertools import pairwise
from pathlib import Path

import pytest
from numba.core import config as numba_config

from kvsim.cache.open_loop import OpenLoopHits, open_loop
from kvsim.errors import KvsimError
from kvsim.tokens import expand, segments
from kvsim.workload import ImageFeature, Request, TraceWorkload
from kvsim.workload.trace import rows_to_requests
from kvsim.workload.trace_rows import check_rows

SHARED = Path(os.environ.get("KVSIM_SHARED", Path(__file__).parents[3] / "shared"))
TRACE = SHARED / "traces" / "mooncake_conversation_trace.jsonl.gz"


class PlainPool:
    """vLLM's pool with lists and whole prefixes as keys: slow, and easy to see through."""

    def __init__(self, usable_blocks, block_size, version):
        self.free = list(range(usable_blocks))
        self.blocks_of, self.key_of = {}, {}
        self.size, self.usable, self.front = block_size, usable_blocks, version == "0.33"
        self.evictions = 0

    def take(self):
        block = self.free.pop(0)
        key = self.key_of.pop(block, None)
        if key is not None:
            self.blocks_of[key].remove(block)
            self.evictions += 1
        return block

    def put_back(self, blocks):
        """Last block first; to the tail, but in 0.33 to the front what holds no full block."""
        blocks = blocks[::-1]
        plain = [block for block in blocks if block not in self.key_of] if self.front else []
        self.free = plain + self.free + [block for block in blocks if block not in plain]

    def request(self, tokens):
        """Hit blocks of a prompt, None if it does not fit."""
        num_blocks = -(-len(tokens) // self.size)
        if num_blocks > self.usable:
            return None
        keys = [tuple(tokens[: end * self.size]) for end in range(1, len(tokens) // self.size + 1)]
        table = []
        for key in keys[: (len(tokens) - 1) // self.size]:
            if not self.blocks_of.get(key):
                break
            table.append(self.blocks_of[key][0])
        hits = len(table)
        self.free = [block for block in self.free if block not in table]
        table += [self.take() for _ in range(num_blocks - hits)]
        for key, block in list(zip(keys, table, strict=False))[hits:]:
            self.blocks_of.setdefault(key, []).append(block)
            self.key_of[block] = key
        self.put_back(table)
        return hits


def made_rows(seed, count=300, block=32):
    """A trace of conversations that come back, grow and break off, with aligned lengths among them."""
    draw = random.Random(seed)
    chats = [[chat * 1000] for chat in range(12)]
    rows = []
    for time in range(count):
        ids = draw.choice(chats)
        if len(ids) < 8 and draw.random() < 0.6:
            ids.append(ids[0] + len(ids))
        taken = ids[: draw.randint(1, len(ids))]
        last = draw.choice([block, block, draw.randint(1, block)])
        length = block * (len(taken) - 1) + last
        rows.append({"timestamp": time, "input_length": length, "output_length": 1, "hash_ids": list(taken)})
    return check_rows(rows, block)


@pytest.mark.parametrize("version", ["0.33", "0.16"])
@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("seed", range(3))
def test_equals_a_plain_pool(version, block_size, seed):
    requests = list(rows_to_requests(made_rows(seed)))
    sizes = [9, 30, 77, 400]
    counts = open_loop(requests, [n + 1 for n in sizes], block_size=block_size, vllm_version=version)
    for usable, count in zip(sizes, counts, strict=True):
        pool = PlainPool(usable, block_size, version)
        hits = [pool.request(expand(request.prompt).tolist()) for request in requests]
        assert count.hit_blocks == sum(hit or 0 for hit in hits)
        assert count.num_too_long == hits.count(None)
        assert count.evictions == pool.evictions
    assert [count.num_too_long > 0 for count in counts] == [True, block_size == 4, False, False]
    assert counts[0].hit_blocks < counts[-1].hit_blocks
    assert all(a.hit_blocks <= b.hit_blocks for a, b in pairwise(counts))


def test_versions_differ_under_pressure():
    """Where half-full blocks go decides who is evicted."""
    requests = list(rows_to_requests(made_rows(1)))
    hits = {
        v: open_loop(requests, [78], block_size=4, vllm_version=v)[0].hit_blocks for v in ("0.16", "0.33")
    }
    assert hits["0.16"] < hits["0.33"]


def test_counts_by_hand():
    """One prompt of 40 tokens three times: blocks 0 and 1 hit, the half block never does."""
    prompt, output = segments((1, 0, 40)), segments((2, 0, 1))
    same = [Request(f"r{i}", 0.0, prompt, output, 1) for i in range(3)]
    (count,) = open_loop(same, [10])
    assert count == OpenLoopHits(10, 16, 3, 120, num_full_blocks=6, hit_blocks=4)
    assert count.block_hit_ratio == 4 / 6
    assert count.token_hit_ratio == 64 / 120


def test_content_counts():
    """Pictures, tenants and adapters keep their blocks apart."""
    prompt, output = segments((1, 0, 16), (0, 0, 32)), segments((2, 0, 1))

    def ask(picture, salt=None):
        return Request("r", 0.0, prompt, output, 1, (ImageFeature(picture, 16, 32),), salt)

    asked = [ask("cat"), ask("dog"), ask("cat"), ask("cat", "tenant")]
    assert open_loop(asked, [100])[0].hit_blocks == 0 + 1 + 2 + 0


def test_nothing_asked():
    (count,) = open_loop([], [10])
    assert (count.block_hit_ratio, count.token_hit_ratio) == (0.0, 0.0)


def test_a_pool_without_a_block():
    with pytest.raises(KvsimError, match="at least 2 are needed"):
        open_loop([], [1])


# Conversation trace of Mooncake (FAST'25) at 16 tokens a block, vLLM 0.33's pool:
# usable blocks -> hit blocks, ratio of blocks, ratio of tokens, evictions.
CONVERSATION = {
    62_500: (499_457, 0.055225, 0.055191, 8_482_057),
    100_000: (634_704, 0.070179, 0.070136, 8_309_310),
    187_500: (1_284_004, 0.141973, 0.141885, 7_572_510),
    625_000: (2_657_263, 0.293815, 0.293633, 5_761_751),
    9_100_000: (3_381_090, 0.373848, 0.373617, 0),
}


@pytest.mark.skipif(not TRACE.exists(), reason=f"{TRACE.name} is not in {TRACE.parent} (KVSIM_SHARED)")
@pytest.mark.skipif(bool(numba_config.DISABLE_JIT), reason="nine million blocks need the compiler")
def test_mooncake_conversation():
    """All 12,031 requests: each allocated whole and freed at once, in the order of the file."""
    requests = TraceWorkload(path=str(TRACE)).requests(seed=0)
    for count in open_loop(requests, [usable + 1 for usable in CONVERSATION]):
        assert (count.num_requests, count.num_full_blocks, count.num_too_long) == (12_031, 9_044_013, 0)
        ratios = round(count.block_hit_ratio, 6), round(count.token_hit_ratio, 6)
        seen = (count.hit_blocks, *ratios, count.evictions)
        assert seen == CONVERSATION[count.num_gpu_blocks - 1]
