"""A cluster as a person reads it: routers, imbalance, a table of the replicas, shortened if they are many."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from kvsim.results.words import milliseconds, percent, plan_notes

HEADER = (
    "replica",
    "requests",
    "hit rate",
    "KV mean",
    "KV peak",
    "running",
    "TTFT p99 ms",
    "preemptions",
)
MOST_ROWS = 16
NUM_WORST = 4
MOST_GROUPS = 4
_WORDS = {
    "requests": "requests",
    "prompt_tokens": "prompt tokens",
    "busy_time": "busy time",
    "num_requests_running": "running requests",
}
_TTFT = "vllm:time_to_first_token_seconds"

Part = Mapping[str, Any]  # a replica's part of the summary
Row = tuple[str, ...]


def _number(digits: int) -> Callable[[float | None], str]:
    return lambda value: "-" if value is None else f"{value:,.{digits}f}"


# How to read a column of HEADER, the first apart, and how to show it
_FIGURES: tuple[tuple[Callable[[Part], Any], Callable[[Any], str]], ...] = (
    (lambda part: part["requests"]["total"], _number(0)),
    (lambda part: part["prefix_cache_hit_rate"], percent),
    (lambda part: part["vllm:kv_cache_usage_perc"]["mean"], percent),
    (lambda part: part["vllm:kv_cache_usage_perc"]["peak"], percent),
    (lambda part: part["vllm:num_requests_running"]["mean"], _number(1)),
    (lambda part: part[_TTFT]["p99"], milliseconds),
    (lambda part: part["vllm:num_preemptions"], _number(0)),
)


def facts(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Label and text of the lines about routers and imbalance; none for a single replica."""
    if not metrics.get("replicas"):
        return []
    return [*_routers(metrics), ("Imbalance", _imbalance(metrics["imbalance"]))]


def served(metrics: Mapping[str, Any]) -> str:
    """Which models on which GPUs."""
    groups = metrics.get("groups", {}).values() or [metrics]
    models, gpus = (", ".join(dict.fromkeys(group[key] for group in groups)) for key in ("model", "gpu"))
    return f"{models} on {gpus}"


def group_notes(metrics: Mapping[str, Any]) -> list[str]:
    """What is said of each group's engines, the first of many; nothing where there are no groups."""
    groups = metrics.get("groups", {})
    shown = [
        f"{name}, {group['replicas']:,} on {group['gpu']}: {line}"
        for name, group in list(groups.items())[:MOST_GROUPS]
        for line in plan_notes(group)
    ]
    more = len(groups) - MOST_GROUPS
    return [*shown, f"and {more:,} more groups"] if more > 0 else shown


def table(metrics: Mapping[str, Any]) -> list[Row]:
    """A header, the replicas, and the whole cluster; nothing for a single replica.

    Beyond `MOST_ROWS` replicas: least, median and most of each figure by itself, and the replicas whose
    99th percentile of TTFT is the highest.
    """
    parts: Sequence[Part] = metrics.get("replicas") or ()
    if not parts:
        return []
    rows = list(map(_row, parts)) if len(parts) <= MOST_ROWS else [*_spread(parts), *map(_row, _worst(parts))]
    return [HEADER, *rows, ("all", *_cells(_whole(metrics)))]


def _whole(metrics: Mapping[str, Any]) -> Part:
    """The totals as a replica's part: its requests are those that a replica got."""
    return {**metrics, "requests": {"total": sum(each["requests"]["total"] for each in metrics["replicas"])}}


def _row(part: Part) -> Row:
    return part["name"], *_cells(part)


def _cells(part: Part) -> Row:
    return tuple(show(read(part)) for read, show in _FIGURES)


def _spread(parts: Sequence[Part]) -> list[Row]:
    columns = [([v for v in map(read, parts) if v is not None], show) for read, show in _FIGURES]
    return [
        (f"{name} of {len(parts)}", *(show(of(values) if values else None) for values, show in columns))
        for name, of in (("least", min), ("median", median), ("most", max))
    ]


def _worst(parts: Sequence[Part]) -> list[Part]:
    slow = [part for part in parts if part[_TTFT]["p99"] is not None]
    return sorted(slow, key=lambda part: -part[_TTFT]["p99"])[:NUM_WORST]


def _routers(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    routers = metrics["routers"]
    replicas = len({part["name"].partition("/")[0] for part in metrics["replicas"]})
    ranks = len(metrics["replicas"])
    count = f"{replicas:,} replicas" + (f", {ranks:,} data-parallel ranks" if ranks > replicas else "")
    if len(routers) == 1:
        return [("Router", f"{routers[0]['policy']} over {count}")]
    shown = ", ".join(f"{each['name']}: {each['policy']}" for each in routers[:6])
    more = f" and {len(routers) - 6:,} more" if len(routers) > 6 else ""
    return [("Routers", f"{shown}{more}; {count}")] if routers else []


def _imbalance(of: Mapping[str, Any]) -> str:
    parts = [
        f"{_WORDS[name]} {each['max_over_mean']:.2f} ({each['jain']:.3f})"
        for name, each in of.items()
        if each["max_over_mean"] is not None
    ]
    return f"most over mean (Jain's index): {', '.join(parts)}" if parts else "nothing was served"
