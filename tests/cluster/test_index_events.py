"""The index of a target that is several engines: it holds what one of them does."""

import numpy as np
import pytest

from kvsim.cache.state import LOG_CLEARED, LOG_REMOVED, LOG_STORED
from kvsim.cluster.index_events import apply_event_at
from kvsim.cluster.policies.longest_prefix import LongestPrefix
from kvsim.cluster.policies.vllm_dp import VllmDp
from kvsim.cluster.router import Router, TargetFacts


@pytest.fixture
def routers():
    outer = Router(LongestPrefix(), [TargetFacts("a", 100), TargetFacts("b", 100)])
    inner = Router(VllmDp(), [TargetFacts(f"a/{rank}", 100) for rank in range(3)])
    return outer, inner


def tell(routers, rank, kind, key):
    """An event of a rank of the first target."""
    outer, inner = routers
    return apply_event_at(outer.address, 0, inner.address, rank, int(kind), np.uint64(key))


def held(router):
    return {int(key): int(bits) for key, bits in router.state.holders if key}


def test_a_block_leaves_with_the_last_rank_that_holds_it(routers):
    outer, _ = routers
    for rank, key in ((0, 5), (2, 5), (2, 6)):
        assert tell(routers, rank, LOG_STORED, key) == 0
    assert held(outer) == {5: 1, 6: 1}
    tell(routers, 2, LOG_REMOVED, 5)
    tell(routers, 2, LOG_REMOVED, 6)
    assert held(outer) == {5: 1}
    tell(routers, 1, LOG_REMOVED, 5)  # never held it
    assert held(outer) == {5: 1}
    tell(routers, 0, LOG_REMOVED, 5)
    assert held(outer) == {}


def test_a_rank_that_is_cleared_takes_only_what_it_alone_held(routers):
    outer, inner = routers
    outer.stored(1, 5)
    for rank, key in ((0, 5), (1, 5), (1, 6), (1, 7), (2, 8)):
        tell(routers, rank, LOG_STORED, key)
    tell(routers, 1, LOG_CLEARED, 0)
    assert held(outer) == {5: 0b11, 8: 0b01}
    assert held(inner) == {5: 0b001, 8: 0b100}


def test_the_index_without_room_is_named(routers):
    outer, inner = routers
    key = 1
    while (full := tell(routers, 0, LOG_STORED, key)) == 0:
        key += 1
    assert full == inner.address
    inner.grow()
    assert tell(routers, 0, LOG_STORED, key) == outer.address
    outer.grow()
    assert tell(routers, 0, LOG_STORED, key) == 0
    assert held(outer) == held(inner) == dict.fromkeys(range(1, key + 1), 1)


def test_an_engine_that_is_its_target_needs_no_router_inside(routers):
    outer, _ = routers
    assert apply_event_at(outer.address, 1, 0, 0, int(LOG_STORED), np.uint64(9)) == 0
    assert held(outer) == {9: 2}
    apply_event_at(outer.address, 1, 0, 0, int(LOG_CLEARED), np.uint64(0))
    assert held(outer) == {}
