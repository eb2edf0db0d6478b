"""`KVCacheManager` without a scheduler: queries change nothing, failures take nothing, events tell all."""

import pytest

from kvsim.cache.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvsim.cache.groups import KVCacheConfig, KVGroup
from kvsim.cache.integrity import check_integrity
from kvsim.cache.manager import KVCacheManager
from kvsim.errors import KvsimError
from kvsim.rules import rules_for
from kvsim.tokens import segments

VERSIONS = pytest.mark.parametrize("version", ["0.33", "0.16"])
PROMPT = segments((1, 0, 11))


def manager(version="0.33", algorithm="fast", **sizes):
    sizes = {"num_gpu_blocks": 11, "block_size": 4, "max_model_len": 100, "max_num_seqs": 4, **sizes}
    return KVCacheManager(KVCacheConfig(rules=rules_for(version), **sizes), algorithm)


def pool_bytes(m):
    """Blocks, free queue and cache map (counters left out: 0.16 counts lookups)."""
    return b"".join(array.tobytes() for array in m.state.pool[1:])


@VERSIONS
def test_allocate_share_and_free(version):
    m = manager(version)
    m.add_request("a", PROMPT)
    assert m.allocate_slots("a", 11) == [[1, 2, 3]]
    m.add_request("b", segments((1, 0, 9)))
    assert m.get_computed_blocks("b") == ([[1, 2]], 8)
    assert m.allocate_slots("b", 1) == [[4]]
    assert m.get_block_ids("b") == [[1, 2, 4]]
    check_integrity(m)
    m.free("a")
    assert m.usage == pytest.approx(0.3)
    m.free("b")
    assert m.usage == 0.0
    check_integrity(m)


@VERSIONS
def test_a_lookup_changes_nothing_in_the_pool(version):
    m = manager(version)
    m.add_request("a", PROMPT)
    m.allocate_slots("a", 11)
    m.add_request("b", PROMPT)
    before = pool_bytes(m)
    for _ in range(3):
        assert m.get_computed_blocks("b") == ([[1, 2]], 8)
        assert pool_bytes(m) == before
    assert m.free_queue() == [4, 5, 6, 7, 8, 9, 10]


def test_the_last_token_of_a_prompt_is_always_computed():
    m = manager()
    m.add_request("a", segments((1, 0, 12)))
    m.allocate_slots("a", 12)
    m.add_request("b", segments((1, 0, 12)))
    assert m.get_computed_blocks("b") == ([[1, 2]], 8)  # not 12


@VERSIONS
def test_no_room_takes_nothing(version):
    m = manager(version)
    m.add_request("a", PROMPT)
    m.allocate_slots("a", 11)
    m.add_request("b", segments((1, 0, 41)))
    before = pool_bytes(m)
    assert m.allocate_slots("b", 33) is None
    assert pool_bytes(m) == before
    assert m.get_block_ids("b") == [[]]
    assert m.requests["num_computed_tokens"][m.slot_of("b")] == 0
    assert m.allocate_slots("b", 28) == [[4, 5, 6, 7, 8, 9, 10]]


def test_decoding_takes_a_block_when_the_last_is_full():
    m = manager()
    m.add_request("a", PROMPT, segments((2, 0, 4)))
    m.allocate_slots("a", 11)
    new = []
    for _ in range(3):
        m.append_output("a")
        new.append(m.allocate_slots("a", 1))
    assert new == [[[]], [[4]], [[]]]
    m.add_request("b", segments((1, 0, 11), (2, 0, 2)))
    assert m.get_computed_blocks("b") == ([[1, 2, 3]], 12)  # what was generated can be hit as well


def test_a_window_gives_back_what_it_has_passed():
    m = manager(num_gpu_blocks=8, groups=(KVGroup("sliding_window", window=8),), max_in_flight_tokens=8)
    m.add_request("a", segments((1, 0, 40)))
    for _ in range(5):
        assert m.allocate_slots("a", 8) is not None
        check_integrity(m)
    (table,) = m.get_block_ids("a")
    assert len(table) == 10
    assert table.count(0) == 6  # blocks wholly before the window of the step's first token
    assert m.usage <= 4 / 7 + 1e-9


def test_two_groups_share_the_pool():
    m = manager(groups=(KVGroup(), KVGroup("sliding_window", window=8)), max_in_flight_tokens=16)
    m.add_request("a", PROMPT)
    assert m.allocate_slots("a", 11) == [[1, 2, 3], [4, 5, 6]]
    m.add_request("b", segments((1, 0, 9)))
    blocks, hit = m.get_computed_blocks("b")
    assert hit == 8
    assert blocks[0] == [1, 2]
    m.free("a")
    check_integrity(m)


@VERSIONS
def test_events(version):
    m = manager(version, "sha256", num_gpu_blocks=4, log_capacity=100)
    m.add_request("a", segments((1, 0, 9)), lora=("adapter", "/adapter"))
    m.allocate_slots("a", 9)
    (stored,) = m.take_events()
    assert isinstance(stored, BlockStored)
    assert len(stored.block_hashes) == 2
    assert (stored.parent_block_hash, stored.block_size, stored.lora_name) == (None, 4, "adapter")
    assert len(stored.token_ids) == 8
    assert stored.group_idx == (0 if version == "0.33" else None)
    m.free("a")
    assert m.take_events() == []
    m.add_request("b", segments((2, 0, 9)))
    m.allocate_slots("b", 9)
    removed = [e.block_hashes for e in m.take_events() if isinstance(e, BlockRemoved)]
    assert sorted(removed) == sorted([h] for h in stored.block_hashes)
    m.free("b")
    assert m.reset_prefix_cache()
    assert m.take_events() == [AllBlocksCleared()]


def test_unknown_and_doubled_ids():
    m = manager()
    m.add_request("a", PROMPT)
    with pytest.raises(KvsimError, match="request id 'a' is in use"):
        m.add_request("a", PROMPT)
    for call in (m.get_computed_blocks, m.free, m.get_block_ids, m.append_output):
        with pytest.raises(KvsimError, match="no request 'b'"):
            call("b")


def test_caching_off():
    m = manager(enable_prefix_caching=False)
    for name in "ab":
        m.add_request(name, PROMPT)
        assert m.get_computed_blocks(name) == ([[]], 0)
        m.allocate_slots(name, 11)
    assert m.get_block_ids("b") == [[4, 5, 6]]
    check_integrity(m)
