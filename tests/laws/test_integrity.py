"""`check_integrity` notices every kind of damage and says which numbers disagree."""

import re

import pytest

from kvsim.cache.block_pool import BlockPool
from kvsim.cache.integrity import IntegrityError, check_integrity
from kvsim.cache.manager import KVCacheManager
from kvsim.engine.config import EngineConfig
from kvsim.engine.core import EngineCore
from kvsim.tokens import segments

HASHES = [bytes([i]) * 16 for i in range(8)]


@pytest.fixture
def pool():
    """Blocks 1..3 owned, 1 and 2 with the same hash, 3 with another, 4 free with a third."""
    pool = BlockPool(8)
    assert pool.get_new_blocks(4) == [1, 2, 3, 4]
    for block, content in ((1, 0), (2, 0), (3, 1), (4, 2)):
        pool.cache_block(block, HASHES[content], 16)
    pool.free_blocks([4])
    check_integrity(pool)
    return pool


def scalar(name, value):
    return lambda state: state.scalars.__setitem__(name, value)


def column(name, block, value):
    def damage(state):
        rows = state.blocks if name in state.blocks.dtype.names else state.entries
        rows[name][block] = value

    return damage


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (scalar("num_free_blocks", 5), "num_free_blocks is 5, the free queue holds 4"),
        (column("ref_cnt", 5, 1), "block 5 has ref_cnt 1 and is in the free queue"),
        (column("ref_cnt", 2, 0), "block 2 has ref_cnt 0 and is not in the free queue"),
        (column("ref_cnt", 2, -1), "block 2 has ref_cnt -1 and is not in the free queue"),
        (column("ref_cnt", 0, 1), "the null block has ref_cnt 1, not 0"),
        (column("next_free_block", 5, 7), "7 follows 5 but points back to 6"),
        (column("next_free_block", 5, 70), "block 5 is followed by 70, the pool has 8 blocks"),
        (column("prev_free_block", 9, 6), "it ends with 4 but its tail points to 6"),
        (scalar("enable_caching", 0), "4 hashes although caching is off"),
        (column("hash_num_tokens", 3, 0), r"entries \[\] carry a hash but are not found, \[3\] are found"),
        (column("hash_lo", 3, 7), "key .* is noted for entry"),
        (column("newer", 1, -1), r"entries \[2\] carry a hash but are not found"),
        (column("older", 2, -1), "entry 2 under .* comes after 1"),
        (column("block_id", 3, 2), "entry 3 of block 3 names block 2"),
    ],
)
def test_damage_to_a_pool(pool, damage, says):
    damage(pool.state)
    with pytest.raises(IntegrityError) as error:
        check_integrity(pool)
    assert re.search(says, str(error.value))


@pytest.fixture
def core():
    """Two requests that share their first two blocks, in the middle of their work."""
    core = EngineCore(
        EngineConfig(num_gpu_blocks=20, max_model_len=100, block_size=4, async_scheduling=False)
    )
    for i in (1, 2):
        content = (9, 0, 8), (9 + i, 0, 3)
        core.add_request(_Request(f"r{i}", segments(*content), segments((20 + i, 0, 9))))
    core.step(0.0)
    core.step(0.0)
    check_integrity(core)
    return core


class _Request:
    features, lora, cache_salt, priority, arrival_time, max_tokens = (), None, None, 0, 0.0, 9

    def __init__(self, request_id, prompt, output):
        self.request_id, self.prompt, self.output = request_id, prompt, output


def test_an_owner_too_few(core):
    shared = int(core.kv.block_tables[0, 0, 0])
    core.kv.pool.blocks["ref_cnt"][shared] = 1
    with pytest.raises(IntegrityError, match=f"block {shared} has ref_cnt 1 and 2 owners"):
        check_integrity(core)


def test_a_block_twice_in_a_table(core):
    core.kv.block_tables[0, 0, 1] = core.kv.block_tables[0, 0, 0]
    with pytest.raises(IntegrityError, match="request 1 holds a block twice in group 0"):
        check_integrity(core)


def test_a_row_of_two_requests(core):
    core.requests["row"][core.slot_of("r2")] = core.requests["row"][core.slot_of("r1")]
    with pytest.raises(IntegrityError, match=r"rows \[0, 0\] in use"):
        check_integrity(core)


def test_another_requests_content(core):
    """Block 2 of the table is cached as other content than the request has there."""
    core.kv.block_hashes[core.requests["hash_offset"][core.slot_of("r1")] + 1] ^= 1
    with pytest.raises(
        IntegrityError, match=r"request 1: block .* is cached under .*, the request's hash is"
    ):
        check_integrity(core)


def test_every_kind_of_owner_can_be_checked(core):
    manager = KVCacheManager(core.config.kv_cache_config())
    manager.add_request("a", segments((1, 0, 9)))
    manager.allocate_slots("a", 9)
    for owner in (core, core.state.kv, core.kv.pool, manager, manager.state, BlockPool(3)):
        check_integrity(owner)
    with pytest.raises(TypeError, match="str is neither a pool, a manager nor an engine"):
        check_integrity("pool")
