"""vllm_dp against vLLM's own picker (recorded_vllm_dp.json, by record_vllm_dp.py)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from routing_requests import request, router_over

from kvsim.cluster.policies.vllm_dp import VllmDp
from kvsim.cluster.router import Router
from kvsim.errors import KvsimError

RECORDED = json.loads(Path(__file__).with_name("recorded_vllm_dp.json").read_text())
ASKED = request(("A", 32))


def tell(router: Router, time: float, counts: list[list[float]]) -> None:
    for rank, (waiting, running, usage) in enumerate(counts):
        router.snapshot(rank, time, int(waiting), int(running), usage)


def sent(router: Router, count: int) -> list[int]:
    """Ranks of requests that arrive one after the other and do not end."""
    ranks = []
    for _ in range(count):
        ranks.append(router.choose(ASKED, 0.0))
        router.send(int(router.state.targets["num_routed"].sum()) + 1, ASKED, ranks[-1], 0.0)
    return ranks


@pytest.mark.parametrize("case", RECORDED["cases"], ids=range(len(RECORDED["cases"])))
def test_it_chooses_as_vllm_does(case: dict[str, Any]) -> None:
    policy = VllmDp(client_count=case["client_count"], client_index=case["client_index"])
    router = router_over(policy, case["ranks"])
    uid = 0
    for at, (kind, what) in enumerate(case["steps"]):
        if kind == "counts":
            tell(router, at, what)
        elif kind == "end":
            router.end(what)
        else:
            uid += 1
            assert router.choose(ASKED, at) == what, at
            router.send(uid, ASKED, what, at)


def test_a_queue_on_a_full_cache_is_shunned() -> None:
    router = router_over(VllmDp(), 2)
    tell(router, 0.0, [[2, 2, 1.0], [0, 8, 0.2]])
    assert sent(router, 3) == [1, 1, 0]  # 4 + 2 * 6 * 0.5 = 10 against 8, 9, and 10 with one waiting


def test_the_second_of_two_clients_begins_in_the_middle_and_counts_double() -> None:
    router = router_over(VllmDp(client_count=2, client_index=1), 4)
    assert sent(router, 4) == [2, 3, 0, 1]
    assert router.chooser.arrays[2].tolist() == [[2, 2, 2, 2]]  # type: ignore[union-attr]


def test_several_clients_know_only_of_their_own_requests() -> None:
    alone, spread = router_over(VllmDp(), 4), router_over(VllmDp(client_count=4), 4)
    for router in (alone, spread):
        sent(router, 400)
    assert np.ptp(alone.state.targets["in_flight"]) == 0
    by_client = spread.state.by_client
    assert (by_client.sum(axis=0) == spread.state.targets["in_flight"]).all()
    assert (np.ptp(by_client, axis=1) <= 1).all()  # each one's own are even
    assert by_client.sum(axis=1).min() > 60
    for uid in range(1, 401):
        spread.end(uid)
    assert not by_client.any()


def test_a_client_that_does_not_exist_is_refused() -> None:
    with pytest.raises(KvsimError, match="client_index: 2 is not below client_count, which is 2"):
        router_over(VllmDp(client_count=2, client_index=2), 2)
