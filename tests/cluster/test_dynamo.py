"""dynamo_kv against answers of Dynamo's own selection core (recorded_dynamo.json, by record_dynamo.py)."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from routing_requests import block_keys, request, router_over, store

from kvsim.cluster.policies.dynamo import DynamoKv
from kvsim.cluster.router import Router

RECORDED = json.loads(Path(__file__).with_name("recorded_dynamo.json").read_text())


def pieces(listed: list[list[Any]]) -> list[tuple[str, int]]:
    return [(name, length) for name, length in listed]


def book(router: Router, uid: int, listed: list[list[Any]], target: int, phase: str) -> None:
    """Send a prompt to a target, as if the router had chosen it."""
    asked = request(*pieces(listed))
    router.choose(asked, 0.0)
    overlap = router.state.targets["overlap"][target]
    router.state.scalars["booked_prefill_tokens"] = asked.num_prompt_tokens - 16 * overlap
    router.send(uid, asked, target, 0.0)
    if phase != "prefill":
        router.first_token(uid)
    if phase == "ended":
        router.end(uid)


def router_in(case: dict[str, Any]) -> Router:
    router = router_over(DynamoKv(**case["settings"]), case["workers"])
    for entry in case["index"]:
        keys = block_keys(router, request(*pieces(entry["prompt"])))
        store(router, entry["on"], keys)
        for i in entry["removed"]:
            router.removed(entry["on"], keys[i])
    for k, booking in enumerate(case["booked"]):
        book(router, k + 1, booking["prompt"], booking["on"], booking["phase"])
    return router


@pytest.mark.parametrize("case", RECORDED["cases"], ids=range(len(RECORDED["cases"])))
def test_it_answers_as_dynamo_does(case: dict[str, Any]) -> None:
    router, answer = router_in(case), case["answer"]
    asked = request(*pieces(case["prompt"]))
    chosen = {router.choose(asked, 0.0) for _ in range(30)}
    targets, in_use = router.state.targets, router.chooser.arrays[1]  # type: ignore[union-attr]
    overlap = targets["overlap"]
    assert overlap.tolist() == answer["overlap_blocks"]
    prefill = targets["prefill_tokens"] + asked.num_prompt_tokens - 16 * overlap
    assert prefill.tolist() == answer["potential_prefill_tokens"]
    decode = targets["active_blocks"] + asked.num_prompt_tokens // 16 - in_use
    assert decode.tolist() == answer["potential_decode_blocks"]
    assert targets["in_flight"].tolist() == answer["active_requests"]
    costs = targets["score"]
    assert costs[answer["chosen"]] == pytest.approx(answer["cost"], abs=0.00051)
    assert chosen == set(np.flatnonzero(costs == costs.min()).tolist())
    assert answer["chosen"] in chosen


def test_exact_ties_are_uniform() -> None:
    router = router_over(DynamoKv(), 5)
    asked = request(("A", 320))
    router.send(1, request(("B", 160)), 3, 0.0)
    drawn = Counter(router.choose(asked, 0.0) for _ in range(4000))
    assert set(drawn) == {0, 1, 2, 4}
    assert all(900 < count < 1100 for count in drawn.values())


def test_temperature_spreads_by_scaled_costs() -> None:
    router = router_over(DynamoKv(router_temperature=0.5), 3)
    asked = request(("A", 320))
    keys = block_keys(router, asked)
    store(router, 0, keys)
    store(router, 1, keys[:10])
    book(router, 1, [["B", 16]], 2, "prefill")  # costs 20, 30 and 42
    drawn = Counter(router.choose(asked, 0.0) for _ in range(20_000))
    weights = np.exp(-np.array([0.0, 10 / 22, 1.0]) / 0.5)
    for target, share in enumerate(weights / weights.sum()):
        assert drawn[target] / 20_000 == pytest.approx(share, abs=0.01)


def test_the_old_weight_scales_prefill_and_nothing_takes_the_credit_away() -> None:
    asked = request(("A", 320))
    router = router_over(DynamoKv(overlap_score_weight=0.0), 2)
    store(router, 0, block_keys(router, asked))
    router.choose(asked, 0.0)
    assert router.state.targets["score"].tolist() == [20.0, 20.0]


def test_without_prefill_tokens_cached_blocks_are_taken_off_those_in_use() -> None:
    # answers of ai-dynamo-runtime 1.6.1's SelectionService: cost 16 for the first
    router = router_over(DynamoKv(router_track_prefill_tokens=False), 2)
    store(router, 0, block_keys(router, request(("A", 160))))
    for uid, (listed, target) in enumerate([([["B", 100]], 0), ([["C", 33]], 1)], 1):
        book(router, uid, listed, target, "prefill")
    assert router.choose(request(("A", 330)), 0.0) == 0
    assert router.state.targets["score"].tolist() == [16.0, 22.0]
    assert router.state.scalars["booked_prefill_tokens"][0] == 0


def test_without_events_it_believes_its_own_choices_for_a_while() -> None:
    router = router_over(DynamoKv(use_kv_events=False, router_ttl_secs=10.0), 4)
    asked = request(("A", 320), ("B", 5))
    first = router.choose(asked, 1.0)
    assert {router.choose(asked, 1.0 + second) for second in range(9)} == {first}
    assert router.state.targets["overlap"].tolist() == [20 if t == first else 0 for t in range(4)]
    router.choose(request(("C", 32)), 18.999)
    assert router.overlaps(asked)[first] == 20
    router.choose(request(("C", 32)), 19.0)  # ten seconds after the latest choice
    assert router.overlaps(asked).tolist() == [0, 0, 0, 0]


def test_growing_changes_no_choice() -> None:
    def chosen(rows: int, use_kv_events: bool) -> list[int]:
        router = router_over(DynamoKv(use_kv_events=use_kv_events), 3)
        prompts = [request((f"P{k % 7}", 160), (f"Q{k}", 100)) for k in range(60)]
        targets = []
        for uid, asked in enumerate(prompts, 1):
            if uid % 5 == 0 and rows:
                router.state.fill["lacks"] = 1
                router.grow()
            target = router.choose(asked, uid / 10)
            router.send(uid, asked, target, uid / 10)
            if uid > 9:
                router.end(uid - 9)
            targets.append(target)
        return targets

    for use_kv_events in (True, False):
        assert chosen(0, use_kv_events) == chosen(1, use_kv_events)
