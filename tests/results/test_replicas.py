"""Figures of each replica, and how evenly the load lies."""

import math

import numpy as np
import pytest
from made_results import HEAD, STATS, fill

from kvsim.results import (
    FINISHED,
    MemorySink,
    ReplicaStats,
    RequestLog,
    RouterStats,
    cluster_glance,
    glance,
    notebook,
    replicas,
    summarize,
)
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


def clustered(count: int) -> dict:
    """Replica i gets i + 1 requests, each with a TTFT of i + 1 seconds."""
    sink = MemorySink()
    instances = [i for i in range(count) for _ in range(i + 1)]
    log_of(sink, instances, [i + 1.0 for i in instances], chunk_rows=1000)
    stats = [
        stats_of(
            busy_time=i + 1.0,
            num_requests_running_mean=2.0,
            prefix_cache_queries=100,
            prefix_cache_hits=i,
            kv_cache_usage_perc_mean=0.25,
            kv_cache_usage_perc_peak=0.5,
            num_preemptions=i,
        )
        for i in range(count)
    ]
    return summary_of(sink, stats, routers=[RouterStats("router", "least_request")]) | {
        "vllm:num_requests_running": {"mean": 2.0, "peak": 7}
    }


def test_text_has_a_row_for_each_replica_and_one_for_all() -> None:
    lines = glance.text(clustered(3)).splitlines()
    assert "Router                least_request over 3 replicas" in lines
    assert (
        "Imbalance             most over mean (Jain's index): requests 1.50 (0.857), "
        "prompt tokens 1.50 (0.857), busy time 1.50 (0.857), running requests 1.50 (0.857)"
    ) in lines
    header = (
        "replica           requests    hit rate     KV mean     KV peak     running TTFT p99 ms preemptions"
    )
    at = lines.index(header)
    assert lines[at + 1].split() == ["h100-0", "1", "0.0%", "25.0%", "50.0%", "2.0", "1,000.0", "0"]
    assert lines[at + 3].split() == ["h100-2", "3", "2.0%", "25.0%", "50.0%", "2.0", "3,000.0", "2"]
    assert lines[at + 4].split() == ["all", "6", "25.0%", "25.0%", "50.0%", "2.0", "3,000.0", "1"]
    assert len(lines) == at + 5


def test_many_replicas_are_shortened() -> None:
    header, *rows = cluster_glance.table(clustered(64))
    assert [row[0] for row in rows] == [
        *("least of 64", "median of 64", "most of 64"),
        *("h100-63", "h100-62", "h100-61", "h100-60"),
        "all",
    ]
    assert [row[1] for row in rows[:3]] == ["1", "32", "64"]
    assert rows[1][header.index("TTFT p99 ms")] == "32,500.0"


def test_notebook_shows_the_replicas() -> None:
    page = notebook.html(clustered(2))
    assert page.count('<table class="latency">') == 2
    assert "<tr><th>h100-1</th><td>2</td><td>1.0%</td>" in page
    assert "<th>Imbalance</th>" in page


def test_replicas_that_served_nothing() -> None:
    sink = MemorySink()
    log_of(sink, [], [])
    summary = summary_of(sink, [stats_of(), stats_of()]) | {
        "vllm:num_requests_running": {"mean": 0.0, "peak": 0}
    }
    text = glance.text(summary)
    assert "nothing was served" in text
    assert [row[0] for row in cluster_glance.table(summary)] == ["replica", "h100-0", "h100-1", "all"]


def grouped(count: int) -> dict:
    """A cluster of groups, of one replica each, every other one on a card of its own kind."""
    plan = {"capacity": HEAD["capacity"], "step_time": "Step times: made up (a source)"}
    groups = {
        f"g{i}": {"router": "front", "replicas": 1, "model": "some-model", "gpu": f"gpu-{i % 2}", **plan}
        for i in range(count)
    }
    return clustered(count) | {"groups": groups}


def test_groups_are_told_apart() -> None:
    lines = glance.text(grouped(2)).splitlines()
    assert lines[0] == "tiny: some-model on gpu-0, gpu-1, rules of vLLM 0.33, seed 0"
    assert lines[1:5] == [
        "g0, 1 on gpu-0: GPU KV cache size: 1,584 tokens",
        "g0, 1 on gpu-0: Step times: made up",
        "g1, 1 on gpu-1: GPU KV cache size: 1,584 tokens",
        "g1, 1 on gpu-1: Step times: made up",
    ]
    usage = next(line for line in lines if line.startswith("KV cache usage"))
    assert "blocks" not in usage  # each group has a pool of its own size
    assert glance.notes(grouped(6))[-1] == "and 2 more groups"
