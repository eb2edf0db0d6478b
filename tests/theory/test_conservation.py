"""Nothing gets lost and nothing is counted twice, whatever the policy and the traffic.

The laws of a flow: what arrives has ended or is under way, in one way each; the load of the replicas adds up
to that of the cluster; a router that has heard of every end believes in no load. And Little's law (Little,
"A Proof for the Queuing Formula L = lambda W", Operations Research 9, 1961), which holds for every run that
ends empty: requests in the system, summed over time, are the sum of the times that they spent in it.
"""

import numpy as np
import pytest
from one_price import STEP, serve

from kvsim.cluster.policies.aibrix import AibrixPrefixCache
from kvsim.cluster.policies.dynamo import DynamoKv
from kvsim.cluster.policies.llm_d import LlmD
from kvsim.cluster.policies.longest_prefix import LongestPrefix
from kvsim.cluster.policies.plain import LeastRequest, PowerOfTwo, RandomChoice, RoundRobin
from kvsim.cluster.policies.production_stack import KvAware
from kvsim.cluster.policies.rings import ConsistentHashing
from kvsim.cluster.policies.sglang import CacheAware
from kvsim.cluster.policies.vllm_dp import VllmDp
from kvsim.engine.config import EngineConfig
from kvsim.workload import ChatWorkload, SharedPrefixWorkload

REPLICAS = 3
POLICIES = [
    RandomChoice(),
    RoundRobin(),
    LeastRequest(),
    PowerOfTwo(),
    LongestPrefix(),
    DynamoKv(),
    LlmD(),
    AibrixPrefixCache(),
    KvAware(),
    ConsistentHashing(),
    CacheAware(),
    VllmDp(),
]
ENGINE = EngineConfig(num_gpu_blocks=60, max_model_len=320, max_num_seqs=8, max_num_batched_tokens=128)
TRAFFIC = {
    # Some requests are longer than max_model_len, and the pools are so small that others are preempted.
    "open": SharedPrefixWorkload(
        rate=40.0,
        num_requests=400,
        num_prefixes=6,
        prefix_len=96,
        suffix_len={"distribution": "uniform", "min": 1, "max": 260},
        output_len={"distribution": "uniform", "min": 1, "max": 60},
        popularity="zipf",
    ),
    "closed": SharedPrefixWorkload(
        rate=float("inf"),
        num_requests=300,
        max_concurrency=20,
        prefix_len=64,
        suffix_len=40,
        output_len={"distribution": "uniform", "min": 1, "max": 60},
    ),
    "chat": ChatWorkload(
        rate=8.0,
        num_sessions=80,
        num_turns={"distribution": "uniform", "min": 1, "max": 5},
        num_system_prompts=3,
        system_prompt_len=48,
        question_len={"distribution": "uniform", "min": 1, "max": 40},
        output_len={"distribution": "uniform", "min": 1, "max": 30},
        think_time={"distribution": "exponential", "mean": 0.5},
    ),
    "chat clients": ChatWorkload(
        rate=float("inf"),
        num_sessions=60,
        max_concurrency=9,
        num_turns={"distribution": "uniform", "min": 1, "max": 5},
        system_prompt_len=48,
        question_len=20,
        output_len=20,
    ),
}
SUMS = [
    "vllm:prompt_tokens",
    "vllm:prompt_tokens_cached",
    "vllm:generation_tokens",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:num_preemptions",
    "blocks_evicted",
    "num_steps",
    "busy_time",
]
COUNTERS = ["in_flight", "in_flight_tokens", "prefill_tokens", "active_blocks"]

every_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.names[0])
every_traffic = pytest.mark.parametrize("traffic", TRAFFIC)


def check_rows(run):
    """Each request once, ended in one way, with the times and the place that belong to it."""
    rows, counts = run.requests, run.summary["requests"]
    assert rows["request_id"].is_unique
    assert rows["status"].value_counts().to_dict() == {
        name: count for name, count in counts.items() if name != "total" and count
    }
    assert counts["total"] == len(rows)
    finished, refused = rows["status"] == "finished", rows["status"] == "refused"
    assert (rows["finish_time"].notna() == finished).all()
    assert rows.loc[refused, "first_scheduled_time"].isna().all()
    assert rows.loc[finished, "instance"].between(0, REPLICAS - 1).all()
    times = rows.loc[finished, ["arrival_time", "first_scheduled_time", "first_token_time", "finish_time"]]
    assert (np.diff(times.to_numpy(), axis=1) >= 0).all()


def check_sums(run):
    """Replicas add up to the cluster; requests that no replica has were refused, or not sent yet."""
    rows, summary = run.requests, run.summary
    for name in SUMS:
        total = sum(part[name] for part in summary["replicas"])
        assert total == pytest.approx(summary[name], rel=1e-12), name
    assert summary["vllm:generation_tokens"] == rows["num_output_tokens"].sum()
    placed = rows["instance"].value_counts()
    for number, part in enumerate(summary["replicas"]):
        assert part["requests"]["total"] == placed.get(number, 0)
    assert (rows.loc[rows["instance"].isna() | (rows["instance"] < 0), "status"] != "finished").all()
    assert summary["vllm:num_preemptions"] == rows["num_preemptions"].sum()


@every_policy
@every_traffic
def test_all_is_accounted_for_at_the_end(policy, traffic):
    run = serve(TRAFFIC[traffic], ENGINE, policy, REPLICAS)
    check_rows(run)
    check_sums(run)
    counts = run.summary["requests"]
    assert counts["finished"] + counts["refused"] == counts["total"]
    targets = run.router.state.targets
    for name in COUNTERS:
        assert (targets[name] == 0).all(), name
    placed = run.requests["instance"].value_counts().reindex(range(REPLICAS), fill_value=0)
    if not policy.blind:  # else requests are dealt out without being booked
        assert targets["num_routed"].tolist() == placed.tolist()


@every_policy
@every_traffic
def test_all_is_accounted_for_at_a_horizon(policy, traffic):
    run = serve(TRAFFIC[traffic], ENGINE, policy, REPLICAS, horizon=3.0)
    check_rows(run)
    check_sums(run)
    rows, counts = run.requests, run.summary["requests"]
    assert counts["finished"] > 0
    assert counts["unfinished"] > 0
    assert (rows["arrival_time"] < 3.0).all()
    assert not (rows["finish_time"] > 3.0).any()
    if not policy.blind:
        under_way = rows.loc[rows["status"] == "unfinished", "instance"]
        believed = run.router.state.targets["in_flight"].tolist()
        assert believed == [(under_way == number).sum() for number in range(REPLICAS)]


def test_the_traffic_is_heavy_enough_to_refuse_and_to_preempt():
    summary = serve(TRAFFIC["open"], ENGINE, RoundRobin(), REPLICAS).summary
    assert summary["requests"]["refused"] > 10
    assert summary["vllm:num_preemptions"] > 10
    assert summary["blocks_evicted"] > 100


@every_policy
def test_steps_hold_every_token_that_is_computed(policy):
    """Steps last `STEP`, so that busy time is their number; each gives a request one token at most."""
    run = serve(TRAFFIC["closed"], ENGINE, policy, REPLICAS)
    for part in run.summary["replicas"]:
        assert part["busy_time"] == pytest.approx(part["num_steps"] * STEP, rel=1e-9)
        assert part["vllm:generation_tokens"] <= part["num_steps"] * ENGINE.max_num_seqs


@every_policy
@every_traffic
def test_littles_law(policy, traffic):
    """Requests running and waiting, as the engine has them over its busy time, are the times of the rows.

    An engine counts as a step begins, so that it may be wrong by a step for each request.
    """
    run = serve(TRAFFIC[traffic], ENGINE, policy, REPLICAS)
    rows = run.requests[run.requests["status"] == "finished"]
    for number, part in enumerate(run.summary["replicas"]):
        mine = rows[rows["instance"] == number]
        in_system = (mine["finish_time"] - mine["arrival_time"]).sum()
        mean = part["vllm:num_requests_running"]["mean"] + part["vllm:num_requests_waiting"]["mean"]
        assert abs(mean * part["busy_time"] - in_system) <= STEP * len(mine)
