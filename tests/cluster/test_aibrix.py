"""aibrix_prefix_cache: limit and gate by hand from its formula, its table against a plain dict."""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_requests import request, router_over

from kvsim.cluster.policies.aibrix import AibrixPrefixCache
from kvsim.cluster.router import Router

ASKED = request(("A", 100))


def router_with(loads: list[int], matches: dict[int, int], **parameters: float) -> Router:
    """A router with so many requests in flight, whose targets know so many percent of `ASKED`."""
    router = router_over(AibrixPrefixCache(**parameters), len(loads))  # type: ignore[arg-type]
    router.choose(ASKED, 0.0)
    keys = router.state.hashes[:, 0].tolist()
    assert len(keys) == 100
    for key in keys:
        for target in range(len(loads)):
            router.removed(target, key)
    for target, percent in matches.items():
        for key in keys[:percent]:
            router.stored(target, key)
    uid = 0
    for target, load in enumerate(loads):
        for _ in range(load):
            uid += 1
            router.send(uid, ASKED, target, 0.0)
    return router


@pytest.mark.parametrize(
    ("loads", "matches", "chosen"),
    [
        ([5, 1, 0], {0: 90, 1: 30}, 1),  # 5 is more than 2 + 2.65
        ([4, 1, 1], {0: 90, 1: 30}, 1),  # 4 is more than 2 + 1.73
        ([3, 1, 1], {0: 90, 1: 30}, 1),  # 3 is more than 1.67 + 1.15
        ([3, 3, 1], {0: 90, 1: 30}, 0),  # 3 is within 2.33 + 1.15
        ([2, 2, 9], {0: 30, 1: 30, 2: 99}, {0, 1}),
        ([2, 1, 9], {0: 30, 1: 30, 2: 99}, 1),  # the same part, fewer requests
        ([0, 4, 8], {1: 80}, 1),  # 8 apart is not imbalanced
        ([0, 4, 9], {1: 80}, 0),  # 9 apart is
        ([1, 0, 5], {2: 50}, 1),  # too busy: the least busy one
        ([0, 0, 0], {}, {0, 1, 2}),
    ],
)
def test_best_match_within_a_deviation(
    loads: list[int], matches: dict[int, int], chosen: int | set[int]
) -> None:
    drawn = {router_with(loads, matches).choose(ASKED, 0.0)}
    if isinstance(chosen, set):
        for seed in range(40):
            router = router_with(loads, matches)
            router.state.scalars["draws"] = seed
            drawn.add(router.choose(ASKED, 0.0))
    assert drawn == (chosen if isinstance(chosen, set) else {chosen})


def test_the_gate_of_later_sources_asks_for_a_factor_too() -> None:
    loads, matches = [0, 4, 9], {1: 80}
    assert router_with(loads, matches, imbalance_factor=1.5).choose(ASKED, 0.0) == 0  # 9 > 1.5 * 5.33
    assert router_with(loads, matches, imbalance_factor=2.0).choose(ASKED, 0.0) == 1


def test_what_was_sent_is_remembered_and_the_head_of_a_prompt_goes_first() -> None:
    router = router_over(AibrixPrefixCache(prefix_cache_block_number=100), 4)
    first = router.choose(ASKED, 0.0)
    assert router.choose(ASKED, 1.0) == first
    router.choose(request(("B", 1)), 2.0)  # one block more than the table holds
    assert router.overlaps(ASKED).tolist() == [0, 0, 0, 0]
    assert int(router.state.fill["used"][1]) == 100


def test_what_is_old_is_forgotten_at_the_next_look() -> None:
    router = router_over(AibrixPrefixCache(prefix_cache_eviction_duration_mins=1), 2)
    target = router.choose(ASKED, 0.5)
    router.choose(request(("B", 1)), 60.9)
    assert router.overlaps(ASKED)[target] == 100
    router.choose(request(("B", 1)), 61.0)
    assert router.overlaps(ASKED)[target] == 0


@given(st.lists(st.tuples(st.sampled_from("ABC"), st.integers(1, 12), st.integers(0, 90)), max_size=40))
def test_the_table_is_one_lru_of_blocks(sent: list[tuple[str, int, int]]) -> None:
    router = router_over(AibrixPrefixCache(prefix_cache_block_number=20, prefix_cache_block_size=4), 3)
    table: OrderedDict[int, set[int]] = OrderedDict()
    for step, (name, length, wait) in enumerate(sent):
        asked = request((name, length))
        target = router.choose(asked, step + wait / 100)
        keys = router.state.hashes[:, 0].tolist()
        for key in keys:
            table.setdefault(key, set()).add(target)
            table.move_to_end(key)
            if len(table) > 20:
                table.popitem(last=False)
        expected = []
        for t in range(3):
            held = [key in table and t in table[key] for key in keys]
            expected.append(held.index(False) if False in held else len(held))
        assert router.overlaps(asked).tolist() == expected
    assert int(router.state.fill["used"][1]) == len(table)


def test_growing_changes_no_choice() -> None:
    def chosen(grows: bool) -> list[int]:
        router = router_over(AibrixPrefixCache(), 3)
        targets = []
        for uid in range(1, 40):
            if grows and uid % 10 == 0:
                router.state.fill["lacks"] = 1
                router.grow()
            asked = request((f"P{uid % 5}", 60), (f"Q{uid}", 40))
            targets.append(router.choose(asked, uid / 10))
            router.send(uid, asked, targets[-1], uid / 10)
        return targets

    assert chosen(True) == chosen(False)
    assert np.bincount(chosen(False)).min() > 5
