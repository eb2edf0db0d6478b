"""What each replica of a cluster did, and how evenly the load lay on them.

A *replica* here is one engine: a serving instance, or one data-parallel rank of it. Its number is its place
in the list, and stands in the column ``instance`` of the tables. Figures have the names and meanings that
they have in the totals (`kvsim.results.summary`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kvsim.results import arrow
from kvsim.results.columns import STATUSES
from kvsim.results.percentiles import FIGURES, PERCENTILES
from kvsim.results.sinks import Rows
from kvsim.results.tally import MEASURED_BY, statuses

TTFT = "vllm:time_to_first_token_seconds"
VALUES_AT_ONCE = 1 << 21  # latencies held together; beyond that the rows are read again
_GAUGES = ("kv_cache_usage_perc", "num_requests_running", "num_requests_waiting")
# Counters of an engine -> their names in the summary
_COUNTERS = {
    "generation_tokens": "vllm:generation_tokens",
    "prefix_cache_queries": "vllm:prefix_cache_queries",
    "prefix_cache_hits": "vllm:prefix_cache_hits",
    "num_preemptions": "vllm:num_preemptions",
    "blocks_evicted": "blocks_evicted",
    "num_steps": "num_steps",
    "busy_time": "busy_time",
}

Measured = Callable[[pa.RecordBatch], NDArray[np.bool_]]


@dataclass(frozen=True)
class ReplicaStats:
    """One engine.

    `stats`: as `EngineCore.stats()` gives them. `facts` are copied to its part of the summary, such as
    ``num_gpu_blocks`` and ``num_gpus``; of the latter the summary has the sum.
    """

    name: str
    group: str
    stats: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RouterStats:
    """One router: its policy's name, and what it counted."""

    name: str
    policy: str
    stats: Mapping[str, Any] = field(default_factory=dict)


def cluster_figures(
    replicas: Sequence[ReplicaStats], routers: Sequence[RouterStats], requests: Rows, measured: Measured
) -> dict[str, Any]:
    """The parts ``routers``, ``imbalance`` and ``replicas`` of a summary; none for a single replica.

    measured: which rows of a chunk (with the columns `MEASURED_BY`) latencies are taken of.
    """
    if len(replicas) < 2:
        return {}
    rows = _counted(requests, len(replicas), measured)
    latencies = _latencies(requests, rows["measured"], measured)
    parts = [
        _figures(replica, {name: counts[number].tolist() for name, counts in rows.items()}, latency)
        for number, (replica, latency) in enumerate(zip(replicas, latencies, strict=True))
    ]
    gpus = [part["num_gpus"] for part in parts if "num_gpus" in part]
    return {
        **({"num_gpus": sum(gpus)} if len(gpus) == len(parts) else {}),
        "routers": [{"name": each.name, "policy": each.policy, **each.stats} for each in routers],
        "imbalance": {name: imbalance([load(part) for part in parts]) for name, load in LOADS.items()},
        "replicas": parts,
    }


def imbalance(loads: Sequence[float]) -> dict[str, float | None]:
    """How unevenly loads lie on n replicas; None where there is no load.

    ``max_over_mean`` is 1 if all are equal, n if one has everything. ``jain`` is Jain's fairness index
    ``(sum x)^2 / (n sum x^2)``, 1 if all are equal, 1/n if one has everything (Jain, Chiu, Hawe, "A
    Quantitative Measure of Fairness and Discrimination for Resource Allocation in Shared Computer Systems",
    DEC-TR-301, 1984).
    """
    total = float(sum(loads))
    if not total:
        return {"max_over_mean": None, "jain": None}
    shares = [load / total for load in loads]
    return {
        "max_over_mean": max(shares) * len(shares),
        "jain": 1 / (len(shares) * sum(share * share for share in shares)),
    }


def _running(part: Mapping[str, Any]) -> float:
    """Requests running, added up over time: means over busy time alone would hide who was idle."""
    return float(part["vllm:num_requests_running"]["mean"] * part["busy_time"])


# What may lie unevenly -> how to read it in a replica's part of the summary
LOADS: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "requests": lambda part: part["requests"]["total"],
    "prompt_tokens": lambda part: part["vllm:prompt_tokens"],
    "busy_time": lambda part: part["busy_time"],
    "num_requests_running": _running,
}


def _figures(
    replica: ReplicaStats, rows: Mapping[str, Any], latency: Mapping[str, float | None]
) -> dict[str, Any]:
    stats = replica.stats
    by_status = {name: count for name, count in zip(STATUSES, rows["by_status"], strict=True) if count}
    queries = stats["prefix_cache_queries"]
    return {
        "name": replica.name,
        "group": replica.group,
        **replica.facts,
        "requests": {"total": sum(by_status.values()), **by_status},
        "vllm:prompt_tokens": rows["prompt_tokens"],
        "vllm:prompt_tokens_cached": rows["cached_tokens"],
        **{name: stats[counter] for counter, name in _COUNTERS.items()},
        "prefix_cache_hit_rate": stats["prefix_cache_hits"] / queries if queries else None,
        **{
            f"vllm:{gauge}": {"mean": stats[f"{gauge}_mean"], "peak": stats[f"{gauge}_peak"]}
            for gauge in _GAUGES
        },
        TTFT: latency,
    }


def _counted(requests: Rows, count: int, measured: Measured) -> dict[str, NDArray[np.int64]]:
    """Sums over the rows of each replica: by_status (count, statuses), the others (count,)."""
    sums = {name: np.zeros(count, np.int64) for name in ("prompt_tokens", "cached_tokens", "measured")}
    by_status = np.zeros(count * len(STATUSES), np.int64)
    columns = ["instance", "first_token_time", "num_prompt_tokens", "num_cached_tokens", *MEASURED_BY]
    for chunk in requests.chunks(columns):
        of = {name: arrow.floats(chunk.column(name)) for name in columns[:4]}
        served = of["instance"] >= 0
        instance = of["instance"].astype(np.int64)
        place = (instance * len(STATUSES) + statuses(chunk.column("status")))[served]
        by_status += np.bincount(place, minlength=len(by_status))
        began = served & ~np.isnan(of["first_token_time"])
        for name in ("prompt_tokens", "cached_tokens"):
            tokens = np.bincount(instance[began], of[f"num_{name}"][began], count)
            sums[name] += tokens.astype(np.int64)
        sums["measured"] += np.bincount(instance[measured(chunk) & served], minlength=count)
    return {**sums, "by_status": by_status.reshape(count, len(STATUSES))}


def _latencies(
    requests: Rows, num_values: NDArray[np.int64], measured: Measured
) -> Iterator[dict[str, float | None]]:
    """TTFT of each replica, seconds, in their order; `num_values` (count,) of each is at least as many."""
    for first, end in _parts(num_values):
        kept = [np.zeros((2, 0))]
        for chunk in requests.chunks(["instance", "ttft", *MEASURED_BY]):
            instance, ttft = (arrow.floats(chunk.column(name)) for name in ("instance", "ttft"))
            here = measured(chunk) & (instance >= first) & (instance < end) & ~np.isnan(ttft)
            kept.append(np.stack([instance[here], ttft[here]]))
        instance, ttft = np.concatenate(kept, axis=1)
        order = np.lexsort((ttft, instance))
        bounds = np.searchsorted(instance[order], np.arange(first, end + 1))
        for start, stop in pairwise(bounds.tolist()):
            yield _distribution(ttft[order[start:stop]])


def _parts(num_values: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Replicas from .. to (excluded) whose values may be held together, at least one at a time."""
    first = total = 0
    for number, count in enumerate(num_values.tolist()):
        if number > first and total + count > VALUES_AT_ONCE:
            yield first, number
            first, total = number, 0
        total += count
    yield first, len(num_values)


def _distribution(values: NDArray[np.float64]) -> dict[str, float | None]:
    if not len(values):
        return {"count": 0, **dict.fromkeys(FIGURES)}
    figures = [values.mean(), *np.percentile(values, PERCENTILES)]
    return {"count": len(values), **dict(zip(FIGURES, map(float, figures), strict=True))}
