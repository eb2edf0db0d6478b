"""Policies that look at no prompt, the catalog, and what all choices have in common."""

import re
from collections import Counter
from pathlib import Path

import pytest
from routing_requests import block_keys, request, router_over, store

from kvsim.cluster.policies import POLICIES, policy_class
from kvsim.cluster.policies.longest_prefix import LongestPrefix
from kvsim.cluster.policies.plain import LeastRequest, PowerOfTwo, RandomChoice, RoundRobin
from kvsim.cluster.router import Router, TargetFacts
from kvsim.errors import KvsimError

ANY = request(("A", 64))


def test_round_robin_begins_with_the_first() -> None:
    router = router_over(RoundRobin(), 3)
    assert [router.choose(ANY, 0.0) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_random_is_uniform_and_depends_on_the_seed_alone() -> None:
    def drawn(seed: int) -> list[int]:
        router = router_over(RandomChoice(), 4, seed)
        return [router.choose(ANY, 0.0) for _ in range(4000)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert all(900 < count < 1100 for count in Counter(drawn(1)).values())


def test_least_request_counts_what_has_not_ended_and_draws_among_equals() -> None:
    router = router_over(LeastRequest(), 3)
    for uid, target in enumerate([0, 0, 1, 2, 2], 1):
        router.send(uid, ANY, target, 0.0)
    assert router.choose(ANY, 0.0) == 1
    router.end(1)
    router.end(5)
    assert {router.choose(ANY, 0.0) for _ in range(50)} == {0, 1, 2}
    router.send(6, ANY, 1, 0.0)
    assert {router.choose(ANY, 0.0) for _ in range(50)} == {0, 2}


def test_longest_prefix_takes_the_first_of_equals() -> None:
    router = router_over(LongestPrefix(), 3)
    asked = request(("A", 64), ("B", 20))
    keys = block_keys(router, asked)
    assert len(keys) == 5
    assert router.choose(asked, 0.0) == 0
    store(router, 1, keys[:2])
    store(router, 2, keys[:2])
    assert router.choose(asked, 0.0) == 1
    store(router, 2, keys[2:3])
    assert router.choose(asked, 0.0) == 2
    router.removed(2, keys[0])
    assert router.overlaps(asked).tolist() == [0, 2, 0]
    assert router.view(0.0, 0).targets["overlap"].tolist() == [0, 2, 0]


def test_salt_and_adapter_keep_prompts_apart() -> None:
    router = router_over(LongestPrefix(), 2)
    store(router, 1, block_keys(router, request(("A", 64), salt="one")))
    assert router.choose(request(("A", 64), salt="one"), 0.0) == 1
    assert router.choose(request(("A", 64), salt="two"), 0.0) == 0
    assert router.choose(request(("A", 64)), 0.0) == 0


def test_an_unknown_policy_is_answered_with_the_known_ones() -> None:
    assert policy_class("round_robin") is RoundRobin
    assert policy_class("least-request") is LeastRequest
    with pytest.raises(
        KvsimError, match=r"'rr' is no known routing policy; known: random, round_robin, power_of_two, "
    ):
        policy_class("rr")


def test_names_are_taken_once() -> None:
    classes = dict.fromkeys(POLICIES.values())
    assert sum(len(policy.names) for policy in classes) == len(POLICIES)


def test_power_of_two_draws_two_different_ones() -> None:
    router = router_over(PowerOfTwo(), 3)
    assert set(Counter(router.choose(ANY, 0.0) for _ in range(100))) == {0, 1, 2}
    for uid in (1, 2):
        router.send(uid, ANY, uid, 0.0)
    router.send(3, ANY, 1, 0.0)
    drawn = Counter(router.choose(ANY, 0.0) for _ in range(3000))  # loads 0, 2, 1
    assert drawn[1] == 0
    assert drawn[0] == pytest.approx(2000, abs=100)
    assert drawn[2] == pytest.approx(1000, abs=100)
    assert router_over(PowerOfTwo(), 1).choose(ANY, 0.0) == 0


def test_one_index_needs_one_block_size() -> None:
    facts = [TargetFacts("a", 100, 16), TargetFacts("b", 100, 32)]
    with pytest.raises(KvsimError, match="router front: longest_prefix reads KV events and needs one block"):
        Router(LongestPrefix(), facts, name="front")
    assert Router(RoundRobin(), facts).choose(ANY, 0.0) == 0


def test_the_router_of_the_documentation_works_alone() -> None:
    page = (Path(__file__).parents[2] / "docs" / "routing.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(from .*?)```", page, re.DOTALL)
    names = {"request": ANY, "block_hash": 7}
    exec(code, names)
    router = names["router"]
    assert isinstance(router, Router)
    assert router.state.targets["num_routed"].sum() == 1
    assert router.state.targets["in_flight"].sum() == 0
    assert router.state.fill["used"].tolist() == [0, 1, 0, 0, 0]
