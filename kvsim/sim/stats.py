"""Statistics of several engines as one."""

from collections.abc import Mapping, Sequence
from typing import Any

GAUGES = ("kv_cache_usage_perc", "num_requests_running", "num_requests_waiting")


def merged(stats: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counters added up; a gauge becomes its mean over busy time (averaged over the engines) and peak."""
    parts = {f"{gauge}{suffix}" for gauge in GAUGES for suffix in ("", "_mean", "_peak")}
    parts.add("prompt_tokens")  # counted at arrival; vLLM's metric is taken from the rows
    totals: dict[str, Any] = {
        name: sum(each[name] for each in stats) for name in stats[0] if name not in parts
    }
    for gauge in GAUGES:
        means = [each[f"{gauge}_mean"] for each in stats]
        totals[gauge] = {
            "mean": sum(means) / len(means),
            "peak": max(each[f"{gauge}_peak"] for each in stats),
        }
    return totals
