"""The summary of a run: vLLM's metrics, by vLLM's names and meanings, from flat columns.

Counters and gauges come from the engines' statistics, latencies from the request rows.
vLLM's names stand in v1/metrics/loggers.py (0.33); what has no counterpart there is named
without the ``vllm:`` prefix. Distributions are over finished requests only.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from kvsim.results.columns import STATUSES
from kvsim.results.log import Sink

PERCENTILES = (50, 90, 95, 99)

# metric -> the request column it is the distribution of
DISTRIBUTIONS = {
    "vllm:time_to_first_token_seconds": "ttft",
    "vllm:request_time_per_output_token_seconds": "tpot",
    "vllm:e2e_request_latency_seconds": "e2e",
    "vllm:request_queue_time_seconds": "queue_time",
    "vllm:request_prompt_tokens": "num_prompt_tokens",
    "vllm:request_generation_tokens": "num_output_tokens",
    "vllm:request_num_preemptions": "num_preemptions",
}

# statistics of an engine that vLLM exports under the same name
VLLM_COUNTERS = {
    "kv_cache_usage_perc",
    "num_requests_running",
    "num_requests_waiting",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "generation_tokens",
    "num_preemptions",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
}


def summarize(head: Mapping[str, Any], stats: Mapping[str, Any], sink: Sink) -> dict[str, Any]:
    """What ``summary.json`` holds.

    `head` names the run (scenario, capacity, simulated seconds) and is copied to the top;
    `stats` holds the engines' counters under vLLM's names without prefix.
    """
    status = sink.read(["status", "reason"])
    ended = _count_statuses(status)
    duration = head.get("simulated_seconds") or None
    return {
        **head,
        "requests": {"total": sum(ended.values()), **ended},
        "refusals": _refusals(status),
        **_counters(stats, ended),
        **_prompt_tokens(sink),
        "prefix_cache_hit_rate": _ratio(stats.get("prefix_cache_hits"), stats.get("prefix_cache_queries")),
        "generation_tokens_per_second": _ratio(stats.get("generation_tokens"), duration),
        "requests_per_second": _ratio(ended["finished"], duration),
        **_distributions(sink),
    }


def distribution(values: NDArray[np.float64]) -> dict[str, float | int | None]:
    """Count, mean and percentiles (linear interpolation); None where there is no value."""
    values = values[~np.isnan(values)]
    names = ["mean", *(f"p{p}" for p in PERCENTILES)]
    if not len(values):
        return {"count": 0, **dict.fromkeys(names)}
    figures = [float(values.mean()), *(float(x) for x in np.percentile(values, PERCENTILES))]
    return {"count": len(values), **dict(zip(names, figures, strict=True))}


def refusal_kind(reason: str) -> str:
    """A reason without its numbers, so that like refusals are counted together."""
    return re.sub(r"\d[\d,.]*\d|\d", "N", reason)


def _count_statuses(table: pa.Table) -> dict[str, int]:
    seen = Counter(table["status"].to_pylist())
    return {name: seen[name] for name in ("finished", "refused", "unfinished", "aborted")}


def _refusals(table: pa.Table) -> dict[str, int]:
    refused = table.filter(pa.compute.equal(table["status"], "refused"))
    return dict(Counter(refusal_kind(reason) for reason in refused["reason"].to_pylist()))


def _counters(stats: Mapping[str, Any], ended: Mapping[str, int]) -> dict[str, Any]:
    named: dict[str, Any] = {"vllm:request_success": ended["finished"]}
    return named | {(f"vllm:{name}" if name in VLLM_COUNTERS else name): stats[name] for name in stats}


def _prompt_tokens(sink: Sink) -> dict[str, int]:
    """vLLM counts a prompt when its first output token comes (v1/metrics/stats.py, 0.33)."""
    rows = sink.read(["num_prompt_tokens", "num_cached_tokens", "first_token_time"])
    began = rows.filter(pa.compute.is_valid(rows["first_token_time"]))
    totals = (pa.compute.sum(began[name]).as_py() or 0 for name in ("num_prompt_tokens", "num_cached_tokens"))
    return dict(zip(("vllm:prompt_tokens", "vllm:prompt_tokens_cached"), totals, strict=True))


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _distributions(sink: Sink) -> dict[str, Any]:
    finished = sink.read(["status"])["status"].to_numpy() == STATUSES[1]
    out = {}
    for metric, column in DISTRIBUTIONS.items():
        values = sink.read([column])[column].to_numpy().astype(np.float64)
        out[metric] = distribution(values[finished])
    return out
