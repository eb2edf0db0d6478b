"""Figures of each replica, and how evenly the load lies."""

import math

import numpy as np
import pytest
from made_results import HEAD, STATS, fill

from kvsim.results import FINISHED, MemorySink, ReplicaStats, RequestLog, RouterStats, replicas, summarize
from kvsim.results.replicas import imbalance
from kvsim.results.requests import new_rows

COUNTERS = {
    **dict.fromkeys(("prefix_cache_queries", "prefix_cache_hits", "generation_tokens"), 0),
    **dict.fromkeys(("num_preemptions", "blocks_evicted", "num_steps"), 0),
    "busy_time": 0.0,
}
GAUGES = ("kv_cache_usage_perc", "num_requests_running", "num_requests_waiting")


def stats_of(**counters: float) -> dict[str, float]:
    gauges = {f"{gauge}_{figure}": 0.0 for gauge in GAUGES for figure in ("mean", "peak")}
    return {**COUNTERS, **gauges, **counters}


def cluster(*stats: dict[str, float]) -> list[ReplicaStats]:
    return [ReplicaStats(f"h100-{i}", "h100", each, {"num_gpu_blocks": 100}) for i, each in enumerate(stats)]


def log_of(sink: MemorySink, instances: list[int], ttfts: list[float], chunk_rows: int = 3) -> None:
    """Requests of 50 prompt tokens, 10 of them hits, one each second; a TTFT of NaN: still waiting."""
    log = RequestLog(sink, chunk_rows)
    count = len(instances)
    arrivals = np.arange(count, dtype=float)
    log.arrive([f"r{i}" for i in range(count)], arrivals, np.full(count, 50))
    rows = new_rows(count)
    rows["arrival_time"], rows["first_token_time"] = arrivals, arrivals + ttfts
    rows["finish_time"] = rows["first_token_time"] + 1
    rows["num_prompt_tokens"], rows["num_cached_tokens"], rows["num_output_tokens"] = 50, 10, 4
    rows["instance"] = instances
    rows["status"], rows["reason"] = FINISHED, 2
    ended = ~np.isnan(rows["first_token_time"])
    log.end(np.flatnonzero(ended), rows[ended])
    log.update(np.flatnonzero(~ended), rows[~ended][["instance"]])
    log.close()


def summary_of(sink: MemorySink, stats: list[dict[str, float]], **more) -> dict:
    return summarize(HEAD, STATS, sink, replicas=cluster(*stats), **more)


def test_one_replica_has_no_parts_of_its_own() -> None:
    sink = MemorySink()
    fill(sink)
    plain = summarize(HEAD, STATS, sink)
    assert plain == summary_of(sink, [stats_of()], routers=[RouterStats("router", "round_robin")])
    assert not {"replicas", "imbalance", "routers"} & plain.keys()


def test_counts_and_latencies_of_each_replica() -> None:
    sink = MemorySink()
    log_of(sink, [0, 1, 0, 0, 1, 0, 2], [1.0, 5.0, 2.0, 3.0, 7.0, math.nan, math.nan])
    stats = [
        stats_of(
            prefix_cache_queries=200,
            prefix_cache_hits=50,
            kv_cache_usage_perc_mean=0.25,
            kv_cache_usage_perc_peak=0.5,
        ),
        stats_of(num_preemptions=3, busy_time=2.0),
        stats_of(),
        stats_of(),
    ]
    summary = summary_of(sink, stats, routers=[RouterStats("front", "dynamo_kv", {"num_messages": 7})])
    first, second, third, fourth = summary["replicas"]
    assert (first["name"], first["group"], first["num_gpu_blocks"]) == ("h100-0", "h100", 100)
    assert first["requests"] == {"total": 4, "unfinished": 1, "finished": 3}
    assert (first["vllm:prompt_tokens"], first["vllm:prompt_tokens_cached"]) == (150, 30)
    assert first["prefix_cache_hit_rate"] == 0.25
    assert first["vllm:kv_cache_usage_perc"] == {"mean": 0.25, "peak": 0.5}
    assert first["vllm:time_to_first_token_seconds"] == {
        "count": 3,
        "mean": 2.0,
        **{f"p{p}": float(np.percentile([1, 2, 3], p)) for p in (50, 90, 95, 99)},
    }
    assert second["vllm:time_to_first_token_seconds"]["p50"] == 6.0
    assert (second["vllm:num_preemptions"], second["prefix_cache_hit_rate"]) == (3, None)
    assert third["requests"] == {"total": 1, "unfinished": 1}
    assert fourth["requests"] == {"total": 0}
    assert fourth["vllm:time_to_first_token_seconds"]["p99"] is None
    assert summary["routers"] == [{"name": "front", "policy": "dynamo_kv", "num_messages": 7}]


def test_totals_are_the_sums_of_the_replicas() -> None:
    sink = MemorySink()
    log_of(sink, [0, 1, 0, 1, 1], [1.0, 5.0, 2.0, 3.0, math.nan])
    summary = summary_of(sink, [stats_of(), stats_of()])
    for total in ("vllm:prompt_tokens", "vllm:prompt_tokens_cached"):
        assert sum(part[total] for part in summary["replicas"]) == summary[total]
    assert sum(part["requests"]["total"] for part in summary["replicas"]) == summary["requests"]["total"]


def test_requests_of_the_warm_up_are_left_out_of_latencies_only() -> None:
    sink = MemorySink()
    log_of(sink, [0, 1, 0, 1], [1.0, 5.0, 2.0, 3.0])
    first, second = summary_of(sink, [stats_of(), stats_of()], warm_up=2.0)["replicas"]
    assert first["requests"]["total"] == second["requests"]["total"] == 2
    assert first["vllm:time_to_first_token_seconds"]["mean"] == 2.0
    assert second["vllm:time_to_first_token_seconds"]["mean"] == 3.0


def test_latencies_read_in_several_goes_are_the_same(monkeypatch) -> None:
    sink = MemorySink()
    generator = np.random.default_rng(0)
    log_of(sink, generator.integers(0, 5, 200).tolist(), generator.random(200).tolist(), chunk_rows=16)
    stats = [stats_of()] * 5
    at_once = summary_of(sink, stats)
    monkeypatch.setattr(replicas, "VALUES_AT_ONCE", 60)
    assert summary_of(sink, stats) == at_once


def test_imbalance() -> None:
    assert imbalance([3, 3, 3]) == {"max_over_mean": 1.0, "jain": 1.0}
    assert imbalance([8, 0, 0, 0]) == {"max_over_mean": 4.0, "jain": 0.25}
    assert imbalance([1, 2, 3]) == {"max_over_mean": pytest.approx(1.5), "jain": pytest.approx(36 / 42)}
    assert imbalance([0, 0]) == {"max_over_mean": None, "jain": None}


def test_who_is_idle_counts_in_the_imbalance_of_running_requests() -> None:
    """Both replicas have 4 requests while busy, one of them for a third of the time of the other."""
    sink = MemorySink()
    log_of(sink, [0, 1], [1.0, 1.0])
    stats = [stats_of(num_requests_running_mean=4.0, busy_time=busy) for busy in (3.0, 1.0)]
    summary = summary_of(sink, stats)
    assert summary["imbalance"]["num_requests_running"]["max_over_mean"] == pytest.approx(1.5)
    assert summary["imbalance"]["busy_time"]["max_over_mean"] == pytest.approx(1.5)
    assert summary["imbalance"]["requests"]["max_over_mean"] == 1.0
