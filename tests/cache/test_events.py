"""KV events of a manager: in order, and told also after the request has gone."""

from kvsim.cache.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvsim.cache.manager import KVCacheManager
from kvsim.engine.config import EngineConfig
from kvsim.tokens import expand, segments

CONFIG = EngineConfig(num_gpu_blocks=6, max_model_len=64, block_size=4, log_capacity=100)


def test_stored_then_removed_then_cleared():
    manager = KVCacheManager(CONFIG.kv_cache_config())
    first = segments((1, 0, 12))
    manager.add_request("a", first)
    assert manager.allocate_slots("a", 12) == [[1, 2, 3]]
    manager.free("a")  # before its events are read
    (stored,) = manager.take_events()
    assert isinstance(stored, BlockStored)
    assert stored.token_ids == expand(first).tolist()
    assert (len(stored.block_hashes), stored.parent_block_hash, stored.group_idx) == (3, None, 0)

    manager.add_request("b", segments((2, 0, 14)))
    assert manager.allocate_slots("b", 14) == [[4, 5, 3, 2]]
    *removed, again = manager.take_events()
    assert removed == [BlockRemoved([h], 0) for h in stored.block_hashes[:0:-1]]
    assert isinstance(again, BlockStored)
    manager.free("b")
    assert manager.reset_prefix_cache()
    assert manager.take_events() == [AllBlocksCleared()]
    assert manager.take_events() == []


def test_who_has_gone_is_forgotten_once_no_log_can_name_it():
    manager = KVCacheManager(CONFIG.kv_cache_config())
    for i in range(50):
        manager.add_request(f"r{i}", segments((i + 1, 0, 8)))
        manager.allocate_slots(f"r{i}", 8)
        manager.free(f"r{i}")
        manager.take_events()
    assert manager.reader is not None
    assert len(manager.reader._known) <= 2
