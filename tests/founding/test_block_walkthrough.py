"""The block walk-through of the prefix-caching design document, by exact number.

Block size 4, ten usable blocks. vLLM reserves block 0, so every id is one higher than in the
document: its 0-3 are 1-4 here. 0.16 is the document's time; what 0.33 does otherwise is noted.
"""

import pytest

from kvsim.engine.config import EngineConfig
from kvsim.engine.core import EngineCore
from kvsim.tokens import segments
from kvsim.workload import Request

VERSIONS = ("0.16", "0.33")
SHARED, OUTPUT = 1, 2  # streams of tokens


def request(name, num_shared, num_own, max_tokens):
    """A prompt that begins with `num_shared` tokens which all three have in common."""
    own = 10 + int(name[-1])
    prompt = segments((SHARED, 0, num_shared), (own, 0, num_own))
    return Request(name, 0.0, prompt, segments((own, 100, max_tokens)), max_tokens)


class WalkThrough:
    def __init__(self, version):
        self.core = EngineCore(
            EngineConfig(
                block_size=4,
                num_gpu_blocks=11,
                max_model_len=64,
                max_num_batched_tokens=256,
                max_num_seqs=8,
                async_scheduling=False,
                vllm_version=version,
            )
        )
        self.manager = self.core.kv_cache_manager
        self.core.add_request(request("request-0", 15, 0, 4))

    def step(self):
        """One step; the block table of each request in it."""
        self.core.schedule()
        names = [self.manager.name_of(int(entry["request"])) for entry in self.core.latest_batch()]
        tables = {name: self.manager.get_block_ids(name)[0] for name in names}
        self.core.update_from_output()
        self.core.take_finished()
        return tables

    def until_request_1_has_ended(self):
        """Request 1 comes in step 4, in which request 0 ends; request 1 ends in step 5."""
        for _ in range(3):
            self.step()
        self.core.add_request(request("request-1", 10, 4, 2))
        self.step()
        self.step()


@pytest.fixture(params=VERSIONS)
def walk(request):
    return WalkThrough(request.param)


def cached(walk, block):
    return bool(walk.core.kv.pool.entries["hash_num_tokens"][block])


def test_request_0_takes_four_blocks_of_which_three_are_cached(walk):
    assert walk.step() == {"request-0": [1, 2, 3, 4]}
    assert [cached(walk, block) for block in (1, 2, 3, 4)] == [True, True, True, False]


def test_decoding_fills_block_4_and_takes_block_5(walk):
    walk.step()
    assert walk.step() == {"request-0": [1, 2, 3, 4]}
    assert cached(walk, 4)
    assert walk.step() == {"request-0": [1, 2, 3, 4, 5]}


def test_request_1_hits_two_blocks_and_takes_two(walk):
    for _ in range(3):
        walk.step()
    walk.core.add_request(request("request-1", 10, 4, 2))
    assert walk.step()["request-1"] == [1, 2, 6, 7]
    entry = walk.core.latest_batch()[1]
    assert (entry["num_computed_tokens"], entry["num_scheduled_tokens"]) == (8, 6)


@pytest.mark.parametrize(("version", "queue"), [("0.16", [8, 9, 10, 5, 4, 3]), ("0.33", [5, 8, 9, 10, 4, 3])])
def test_the_end_of_request_0(version, queue):
    """Its blocks come back last one first; blocks 1 and 2 are still in use. 0.33 puts block 5, which
    holds no full block, in front."""
    walk = WalkThrough(version)
    for _ in range(3):
        walk.step()
    walk.core.add_request(request("request-1", 10, 4, 2))
    walk.step()
    assert walk.manager.free_queue() == queue
    assert cached(walk, 3)
    assert cached(walk, 4)
    assert walk.core.kv.pool.blocks["ref_cnt"][1:3].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("version", "queue"),
    [("0.16", [8, 9, 10, 5, 4, 3, 7, 6, 2, 1]), ("0.33", [7, 5, 8, 9, 10, 4, 3, 6, 2, 1])],
)
def test_the_queue_before_request_2(version, queue):
    walk = WalkThrough(version)
    walk.until_request_1_has_ended()
    assert walk.manager.free_queue() == queue


@pytest.mark.parametrize(
    ("version", "taken", "left", "evicted"),
    [("0.16", [8, 9, 10, 5, 4], [7, 6], 1), ("0.33", [7, 5, 8, 9, 10], [4, 6], 0)],
)
def test_request_2_hits_three_blocks_and_takes_five(version, taken, left, evicted):
    """0.16 evicts cached block 4; 0.33 finds five blocks that hold nothing."""
    walk = WalkThrough(version)
    walk.until_request_1_has_ended()
    assert cached(walk, 4)
    before = walk.core.stats()["blocks_evicted"]
    walk.core.add_request(request("request-2", 12, 17, 2))
    walk.core.schedule()
    assert walk.manager.get_block_ids("request-2") == [[1, 2, 3, *taken]]
    assert walk.manager.free_queue() == left
    assert walk.core.stats()["blocks_evicted"] - before == evicted
    (entry,) = walk.core.latest_batch()
    assert (entry["num_computed_tokens"], entry["num_scheduled_tokens"]) == (12, 17)
