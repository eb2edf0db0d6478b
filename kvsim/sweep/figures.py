"""The figures of a summary as columns of a table, and their short names."""

from collections.abc import Iterator, Mapping
from typing import Any

LATENCIES = {
    "ttft": "vllm:time_to_first_token_seconds",
    "tpot": "vllm:request_time_per_output_token_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
    "queue": "vllm:request_queue_time_seconds",
}
_STATISTICS = ("mean", "p50", "p90", "p95", "p99")

# Short name -> column; the columns' own names may be used as well.
SHORT_NAMES = {
    **{
        f"{name}_{figure}": f"{metric}.{figure}"
        for name, metric in LATENCIES.items()
        for figure in _STATISTICS
    },
    "hit_rate": "prefix_cache_hit_rate",
    "throughput": "generation_tokens_per_second",
    "requests_per_second": "requests_per_second",
    "goodput": "request_goodput",
    "slo_share": "slo.all.share",
    "finished": "finished_share",
    "preemptions": "vllm:num_preemptions",
    "recompute_tax": "recompute_tax",
    "kv_usage": "vllm:kv_cache_usage_perc.mean",
    "kv_usage_peak": "vllm:kv_cache_usage_perc.peak",
    "running": "vllm:num_requests_running.mean",
    "waiting": "vllm:num_requests_waiting.mean",
    "evictions": "blocks_evicted",
    "imbalance": "imbalance.requests.max_over_mean",
    "imbalance_tokens": "imbalance.prompt_tokens.max_over_mean",
    "imbalance_busy": "imbalance.busy_time.max_over_mean",
    "imbalance_running": "imbalance.num_requests_running.max_over_mean",
    "jain": "imbalance.requests.jain",
}
# Figures that only a scenario with latency limits has.
NEEDS_SLO = ("request_goodput", "slo.")
_SECONDS = ("_seconds.", "simulated_seconds", "busy_time")
_SHARES = ("kv_cache_usage_perc", "hit_rate", "recompute_tax", "share")
_NO_FIGURES = ("seed", "refusals")


def figures(summary: Mapping[str, Any]) -> dict[str, int | float | None]:
    """Column -> number of a summary: nested names joined by dots, and the share of requests that finished."""
    flat = {
        name: value for key in summary for name, value in _flat(key, summary[key]) if key not in _NO_FIGURES
    }
    total = summary["requests"]["total"]
    return flat | {"finished_share": summary["requests"]["finished"] / total if total else None}


def replica_figures(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Name, group and numbers of each replica in a summary, as columns; nothing for a single one."""
    return [
        {"replica": part["name"], "group": part["group"]}
        | {name: value for key in part for name, value in _flat(key, part[key])}
        for part in summary.get("replicas", ())
    ]


def measure_of(column: str) -> str:
    """What a column counts: "seconds", "share" (0 to 1) or "number"."""
    if column.startswith("imbalance."):
        return "number"
    if any(word in column for word in _SECONDS):
        return "seconds"
    return "share" if any(word in column for word in _SHARES) else "number"


def _flat(name: str, value: Any) -> Iterator[tuple[str, int | float | None]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        yield name, value
