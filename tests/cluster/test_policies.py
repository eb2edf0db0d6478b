"""Every policy of the catalog at work behind a router: valid choices, the same ones for the same seed."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from routing_requests import request, router_over, store

from kvsim.cluster.policies import POLICIES, policy_class
from kvsim.cluster.policy import Policy
from kvsim.errors import KvsimError

NUM_TARGETS = 5
CLASSES = list(dict.fromkeys(POLICIES.values()))


def choices(policy: Policy, seed: int) -> list[int]:
    """Targets of 60 requests of 7 sessions, each of which ends when the third after it has been sent."""
    router = router_over(policy, NUM_TARGETS, seed)
    for target in range(NUM_TARGETS):
        router.snapshot(target, 0.0, waiting=target % 2, running=target, usage=target / 10)
    store(router, 3, [1, 2, 3])
    out = []
    for uid in range(1, 61):
        session = None if uid % 3 == 0 else f"session {uid % 7}"
        asked = request((f"head {uid % 7}", 200), (f"own {uid}", 90), request_id=str(uid), session=session)
        now = uid / 10
        target = router.choose(asked, now)
        assert 0 <= target < NUM_TARGETS
        router.send(uid, asked, target, now)
        router.first_token(uid)
        if uid > 3:
            router.end(uid - 3)
        out.append(target)
    return out


@pytest.mark.parametrize("policy", CLASSES, ids=[policy.names[0] for policy in CLASSES])
class TestEachPolicy:
    def test_equal_seeds_choose_alike(self, policy):
        assert choices(policy(), 1) == choices(policy(), 1)

    def test_it_is_described_and_has_defaults(self, policy):
        assert policy.__doc__
        assert policy() == policy()
        assert all(f.kw_only for f in dataclasses.fields(policy))


def test_names_are_unlike():
    names = [name for policy in CLASSES for name in policy.names]
    assert len(names) == len(set(names))
    assert all(policy_class(name) is POLICIES[name] for name in names)


def test_an_unknown_policy_is_told_the_known_ones():
    with pytest.raises(KvsimError, match=r"'fastest' is no known routing policy; known: random, round_robin"):
        policy_class("fastest")


def test_choices_do_not_depend_on_the_hash_seed():
    here = Path(__file__).parent
    code = "from test_policies import CLASSES, choices; print([choices(policy(), 1) for policy in CLASSES])"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={
                **os.environ,
                "PYTHONHASHSEED": seed,
                "PYTHONPATH": f"{here}{os.pathsep}{here.parent.parent}",
            },
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


def test_the_catalog_has_the_names_that_policies_have() -> None:
    for policy in CLASSES:
        assert tuple(name for name, kind in POLICIES.items() if kind is policy) == policy.names


def test_a_prompt_without_a_token_is_refused() -> None:
    router = router_over(POLICIES["random"](), 2)
    with pytest.raises(KvsimError, match=r"^r: its prompt is empty; a request has at least one token$"):
        router.choose(request(request_id="r"), 0.0)
