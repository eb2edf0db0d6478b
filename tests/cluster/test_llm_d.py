"""llm_d: scores by hand from its scorers' formulas, its two kinds of prefix data against plain lists."""

from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_requests import block_keys, request, router_over, store

from kvsim.cluster.policies.llm_d import LlmD
from kvsim.cluster.router import Router
from kvsim.errors import KvsimError

ASKED = request(("P", 640))


def router_with(metrics: list[tuple[int, int, float]], matches: dict[int, int], **settings: Any) -> Router:
    """Metrics (waiting, running, usage) of each target, and how many blocks of `ASKED` it may have."""
    router = router_over(LlmD(**settings), len(metrics))
    router.choose(ASKED, 0.0)
    keys = router.state.hashes[:, 0].tolist()
    for target, (waiting, running, usage) in enumerate(metrics):
        router.snapshot(target, 0.0, waiting, running, usage)
        for key in keys:
            router.removed(target, key)
    for target, blocks in matches.items():
        store(router, target, keys[:blocks])
    return router


def scores(router: Router, asked=ASKED) -> list[float]:
    router.choose(asked, 0.1)
    return router.state.targets["score"].round(6).tolist()


IDLE = [(0, 0, 0.0)] * 3
METRICS = [(0, 4, 0.8), (6, 10, 0.1), (3, 4, 0.4)]


def test_default_weights() -> None:
    router = router_with(METRICS, {0: 5, 1: 10})
    assert router.choose(ASKED, 0.1) == 1
    assert scores(router_with(METRICS, {0: 5, 1: 10})) == [2 + 0.4 + 1.5, 0 + 1.8 + 3, 1 + 1.2 + 0]


def test_the_last_partial_block_counts() -> None:
    longer = request(("P", 640), ("Q", 1))
    router = router_with(METRICS, {0: 5, 1: 10})
    assert scores(router, longer) == [round(2.4 + 15 / 11, 6), round(1.8 + 30 / 11, 6), 2.2]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"weights": {"queue": 1.0}}, [1.0, 0.0, 0.5]),
        ({"weights": {"running-requests-size": 1.0}}, [1.0, 0.0, 1.0]),
        ({"weights": {"load-aware": 1.0}, "threshold": 12}, [0.5, 0.25, 0.375]),
        ({"weights": {"kv-cache-utilization": 2.0}}, [0.4, 1.8, 1.2]),
        ({"weights": {"prefix-cache": 1.0}}, [0.5, 1.0, 0.0]),
        (
            {"weights": {"prefix-cache": 1.0}, "prefix_length_weight": 0.5, "max_model_len": 1280},
            [0.25 + 0.5 * 0.0625, 0.5 + 0.5 * 0.25, 0.0],
        ),
        ({"weights": {"no-hit-lru": 1.0}}, [0.5, 0.5, 0.5]),
        ({"weights": {"token-load": 1.0}, "queue_threshold_tokens": 1280}, [0.75, 1.0, 0.5]),
    ],
)
def test_each_scorer(settings: dict[str, Any], expected: list[float]) -> None:
    assert scores(router_with(METRICS, {0: 5, 1: 10}, **settings)) == expected


def test_equal_queues_score_one_and_ties_are_uniform() -> None:
    router = router_with([(3, 0, 0.5)] * 3, {}, weights={"queue": 2.0, "kv-cache-utilization-scorer": 2.0})
    assert scores(router) == [3.0, 3.0, 3.0]
    drawn = Counter(router.choose(ASKED, 0.1) for _ in range(3000))
    assert all(900 < drawn[target] < 1100 for target in range(3))


def test_active_requests() -> None:
    settings = {"weights": {"active-request": 1.0}, "idle_threshold": 1, "max_busy_score": 0.5}
    router = router_with(IDLE, {}, **settings)
    for uid, target in enumerate([0, 1, 1, 2, 2, 2, 2], 1):
        router.send(uid, ASKED, target, 0.0)
    assert scores(router) == [1.0, 0.25, 0.0]


def test_tokens_in_flight_are_those_not_cached_until_the_first_token() -> None:
    settings = {"weights": {"token-load": 1.0}, "queue_threshold_tokens": 12800}
    router = router_with(IDLE[:2], {0: 5}, **settings)
    assert router.choose(ASKED, 0.1) == 0
    router.send(1, ASKED, 0, 0.1)
    assert router.state.targets["prefill_tokens"].tolist() == [320, 0]
    router.first_token(1)
    assert router.state.targets["prefill_tokens"].tolist() == [0, 0]


def test_cold_requests_go_round() -> None:
    router = router_over(LlmD(**{"weights": {"no-hit-lru": 1.0}}), 4)
    chosen = [router.choose(request((f"P{k}", 64)), 0.0) for k in range(8)]
    assert chosen == [0, 1, 2, 3, 0, 1, 2, 3]
    assert router.state.targets["score"].round(6).tolist() == [0.666667, 0.333333, 0.0, 1.0]
    router.choose(request(("P0", 64)), 0.0)  # warm: takes no turn
    assert router.state.targets["score"].tolist() == [0.5] * 4


def test_the_affinity_filter_sticks_until_it_costs_too_much() -> None:
    settings = {
        "weights": {"queue": 1.0},
        "prefix_cache_affinity_filter": True,
        "peak_prefill_throughput": 100.0,
    }
    metrics = [(9, 0, 0.0), (9, 0, 0.0), (0, 0, 0.0)]
    assert router_with(metrics, {0: 8}, **settings).choose(ASKED, 0.1) == 0  # exactly 80 %
    assert router_with(metrics, {0: 7}, **settings).choose(ASKED, 0.1) == 2
    assert {router_with(metrics, {0: 8, 1: 9}, **settings).choose(ASKED, 0.1)} <= {0, 1}
    router = router_with(metrics, {0: 8}, **settings)
    router.state.scalars["booked_prefill_tokens"] = 1800
    router.send(1, ASKED, 0, 0.0)
    assert router.choose(ASKED, 0.1) == 0  # 18 s more is not too much
    router.state.scalars["booked_prefill_tokens"] = 1
    router.send(2, ASKED, 0, 0.0)
    for key in router.state.hashes[:, 0].tolist():
        router.removed(0, key)
    store(router, 0, router.state.hashes[:8, 0].tolist())
    assert router.choose(ASKED, 0.1) == 2
    settings["exploration_probability"] = 1.0
    assert router_with(metrics, {0: 8}, **settings).choose(ASKED, 0.1) == 2


def test_weighted_random_draws_in_proportion() -> None:
    settings = {"weights": {"kv-cache-utilization": 1.0}}
    router = router_with(
        [(0, 0, 0.4), (0, 0, 0.7), (0, 0, 1.0)], {}, picker="weighted-random-picker", **settings
    )
    drawn = Counter(router.choose(ASKED, 0.1) for _ in range(9000))
    assert drawn[2] == 0
    assert drawn[0] / drawn[1] == pytest.approx(2.0, rel=0.1)
    router = router_with([(0, 0, 1.0)] * 3, {}, picker="weighted-random-picker", **settings)
    assert set(Counter(router.choose(ASKED, 0.1) for _ in range(50))) == {0, 1, 2}


def test_a_match_counts_found_blocks_up_to_one_that_nobody_has() -> None:
    router = router_with(IDLE, {0: 10}, **{"weights": {"prefix-cache": 1.0}})
    keys = router.state.hashes[:, 0].tolist()
    router.removed(0, keys[2])
    store(router, 1, keys[2:4])
    assert scores(router) == [0.9, 0.2, 0.0]
    router = router_with(IDLE, {0: 10}, **{"weights": {"prefix-cache": 1.0}})
    router.removed(0, keys[2])
    assert scores(router) == [0.2, 0.0, 0.0]


@given(st.lists(st.tuples(st.sampled_from("ABC"), st.integers(1, 8)), max_size=30))
def test_approximate_data_are_an_lru_for_each_target(sent: list[tuple[str, int]]) -> None:
    settings = {"weights": {"queue": 1.0}, "auto_tune": False, "lru_capacity_per_server": 10}
    router = router_over(LlmD(**settings), 2)
    lists: list[OrderedDict[int, None]] = [OrderedDict(), OrderedDict()]
    for name, blocks in sent:
        asked = request((name, 64 * blocks))
        target = router.choose(asked, 0.0)
        keys = router.state.hashes[:, 0].tolist()
        for key in keys:
            lists[target].pop(key, None)
            lists[target][key] = None
            if len(lists[target]) > 10:
                lists[target].popitem(last=False)
        held = [{int(row[0]) for row in router.state.holders if int(row[1]) >> t & 1} for t in range(2)]
        assert held == [set(each) for each in lists]


def test_precise_data_come_from_events_and_guesses_last_two_seconds() -> None:
    settings = {"weights": {"prefix-cache": 1.0}, "prefix_data": "precise"}
    router = router_over(LlmD(**settings), 2)
    asked = request(("A", 160), ("B", 8))
    store(router, 1, block_keys(router, asked)[:5])
    assert router.choose(asked, 0.0) == 1
    assert router.state.targets["score"].tolist() == [0.0, 0.5]
    guessing = router_over(LlmD(**settings, speculative_indexing=True), 70)
    first = guessing.choose(asked, 1.0)
    assert {guessing.choose(asked, 2.0), guessing.choose(asked, 2.999)} == {first}
    assert guessing.state.targets["score"].max() == 1.0
    guessing.choose(asked, 3.0)  # the first guess ends, and takes the later ones along
    assert guessing.state.targets["score"].max() == 0.0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60)), max_size=60))
def test_guesses_are_a_queue(sent: list[tuple[int, int]]) -> None:
    settings = {"weights": {"prefix-cache": 1.0}, "prefix_data": "precise", "speculative_indexing": True}
    router = router_over(LlmD(**settings), 3)
    guesses: list[tuple[float, int, list[int]]] = []
    held: set[tuple[int, int]] = set()
    now = 0.0
    for k, (name, blocks) in enumerate(sent):
        now += 0.3
        while guesses and guesses[0][0] <= now - 2.0:
            _, target, keys = guesses.pop(0)
            held -= {(target, key) for key in keys}
        asked = request((f"P{name}", 16 * blocks))
        target = router.choose(asked, now)
        keys = router.state.hashes[:, 0].tolist()
        expected = [next((i for i, key in enumerate(keys) if (t, key) not in held), blocks) for t in range(3)]
        assert router.chooser.arrays[1].tolist() == expected, k  # type: ignore[union-attr]
        guesses.append((now, target, keys))
        held |= {(target, key) for key in keys}


@pytest.mark.parametrize("settings", [{}, {"prefix_data": "precise", "speculative_indexing": True}])
def test_growing_changes_no_choice(settings: dict[str, Any]) -> None:
    def chosen(grows: bool) -> list[int]:
        router = router_over(LlmD(**settings), 3)
        targets = []
        for uid in range(1, 60):
            if grows and uid % 20 == 0:
                router.state.fill["lacks"] = 1
                for array in router.chooser.arrays[4:]:  # type: ignore[union-attr]
                    if array.dtype.names and "lacks" in array.dtype.names:
                        array["lacks"] = 1
                router.grow()
            asked = request((f"P{uid % 5}", 640), (f"Q{uid}", 70))
            targets.append(router.choose(asked, uid / 10))
            router.send(uid, asked, targets[-1], uid / 10)
        return targets

    assert chosen(True) == chosen(False)
    assert np.bincount(chosen(False)).min() > 5


def test_an_unknown_scorer_is_refused_with_the_known_ones() -> None:
    with pytest.raises(KvsimError, match=r"^weights\.prfx: is no scorer of llm_d; known: queue, kv-"):
        LlmD(weights={"prfx": 1.0})
    with pytest.raises(
        KvsimError, match=r"^weights\.quue: is no scorer of llm_d; did you mean queue\? Known: qu"
    ):
        LlmD(weights={"quue": 1.0})
    with pytest.raises(KvsimError, match=r"^weights\.queue-scorer: queue is named twice"):
        LlmD(weights={"queue": 1.0, "queue-scorer": 2.0})
