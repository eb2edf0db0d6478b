"""A summary as a person reads it: milliseconds, GiB, percent, thousands separated."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvsim.results import cluster_glance
from kvsim.results.words import gib, milliseconds, percent, plan_notes

LATENCIES = (
    ("TTFT", "vllm:time_to_first_token_seconds"),
    ("TPOT", "vllm:request_time_per_output_token_seconds"),
    ("E2E", "vllm:e2e_request_latency_seconds"),
    ("Queue", "vllm:request_queue_time_seconds"),
)
LATENCY_HEADER = ("latency, ms", "mean", "p50", "p90", "p95", "p99")
# By reason, see `WAITING_REASONS`.
WAITING_WORDS = {
    "no_room": "no room in the KV cache",
    "preemption": "a preemption in the step",
    "queue_head": "behind a request that cannot be admitted",
    "sequence_limit": "max_num_seqs reached",
    "token_budget": "token budget used up",
    "encoder_budget": "encoder budget used up",
    "lora_limit": "max_loras reached",
    "output_in_flight": "preempted, output still in flight",
}


def facts(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Label and text of each line above the latency table."""
    rows = [
        ("Requests", _requests(metrics)),
        *_warm_up(metrics),
        ("Tokens", _tokens(metrics)),
        ("Prefix cache hit rate", _hit_rate(metrics)),
        ("KV cache usage", _usage(metrics)),
        ("Evictions", f"{metrics.get('blocks_evicted', 0):,} cached blocks evicted"),
        ("Preemptions", _preemptions(metrics)),
        ("Waiting", _waiting(metrics)),
        ("Simulated", _duration(metrics)),
        *_goodput(metrics),
        *cluster_glance.facts(metrics),
    ]
    refusals = metrics.get("refusals", {})
    return rows + [("Refused", f"{count:,} x {kind}") for kind, count in refusals.items()]


def latency_table(metrics: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A header and one row per latency."""
    figures = LATENCY_HEADER[1:]
    rows = [(label, *(milliseconds(metrics[name][key]) for key in figures)) for label, name in LATENCIES]
    return [LATENCY_HEADER, *rows]


def text(metrics: Mapping[str, Any]) -> str:
    """The whole summary in plain text."""
    lines = [title(metrics), *notes(metrics), ""]
    lines += [f"{label:<22}{value}" for label, value in facts(metrics)]
    lines += ["", *_aligned(latency_table(metrics), 14)]
    if replicas := cluster_glance.table(metrics):
        lines += ["", *_aligned(replicas, max(14, 2 + max(len(row[0]) for row in replicas)))]
    return "\n".join(lines)


def _aligned(rows: Sequence[Sequence[str]], first_width: int) -> list[str]:
    return [f"{row[0]:<{first_width}}" + "".join(f"{cell:>12}" for cell in row[1:]) for row in rows]


def title(metrics: Mapping[str, Any]) -> str:
    return (
        f"{metrics['name']}: {cluster_glance.served(metrics)}, "
        f"rules of vLLM {metrics['vllm_version']}, seed {metrics['seed']}"
    )


def notes(metrics: Mapping[str, Any]) -> list[str]:
    """vLLM's capacity lines, and what the figures rest on."""
    lines = cluster_glance.group_notes(metrics) or plan_notes(metrics)
    return [*lines, *metrics.get("step_time_notes", ())]


def _requests(metrics: Mapping[str, Any]) -> str:
    counts = metrics["requests"]
    parts = [f"{count:,} {status}" for status, count in counts.items() if count and status != "total"]
    unsent = metrics.get("num_requests_not_sent", 0)
    further = f"; {unsent:,} more not sent, as their sessions ended with a refused one" if unsent else ""
    return f"{counts['total']:,}: " + (", ".join(parts) or "none arrived") + further


def _tokens(metrics: Mapping[str, Any]) -> str:
    prompt, output = metrics.get("vllm:prompt_tokens", 0), metrics.get("vllm:generation_tokens", 0)
    rate = metrics["generation_tokens_per_second"]
    speed = f" ({rate:,.1f} per second)" if rate is not None else ""
    return f"{prompt:,} prompt, {output:,} generated{speed}"


def _hit_rate(metrics: Mapping[str, Any]) -> str:
    queries = metrics.get("vllm:prefix_cache_queries", 0)
    if not queries:
        return "no prompt token was looked up"
    hits = metrics["vllm:prefix_cache_hits"]
    return f"{percent(metrics['prefix_cache_hit_rate'])} of tokens ({hits:,} of {queries:,})"


def _usage(metrics: Mapping[str, Any]) -> str:
    usage = metrics["vllm:kv_cache_usage_perc"]
    size = metrics["capacity"].get("kv_cache_bytes")
    blocks = metrics["capacity"]["num_gpu_blocks"] if size else 0
    pool = f", of {gib(size)} in {blocks:,} blocks" if size and len(metrics.get("groups", ())) < 2 else ""
    return f"{percent(usage['mean'])} mean, {percent(usage['peak'])} peak{pool}"


def _preemptions(metrics: Mapping[str, Any]) -> str:
    count = metrics.get("vllm:num_preemptions", 0)
    if not count:
        return "0"
    tax = metrics["recompute_tax"]
    victims = _counted(metrics["num_preempted_requests"], "request")
    blocks, tokens = metrics["num_preempted_blocks"], metrics["num_lost_tokens"]
    again = f"{metrics['num_recomputed_tokens']:,} computed again"
    return f"{count:,}, of {victims}; {blocks:,} blocks with {tokens:,} computed tokens lost, {again}" + (
        f" (recompute tax {tax:.2%} of all tokens computed)" if tax is not None else ""
    )


def _waiting(metrics: Mapping[str, Any]) -> str:
    steps = {reason: count for reason, count in metrics.get("waiting_steps", {}).items() if count}
    total = sum(steps.values())
    if not total:
        return "no request had to wait for a step"
    parts = sorted(steps.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{percent(count / total)} {WAITING_WORDS[reason]}" for reason, count in parts)
    return f"{total:,} request-steps: {shares}"


def _warm_up(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    cut = metrics["warm_up"]
    if not cut["seconds"]:
        return []
    left_out = f"{cut['requests_left_out']:,} of {_counted(metrics['requests']['total'], 'request')} left out"
    return [("Warm-up", f"first {cut['seconds']:,.10g} s cut: {left_out} of latencies, rates and goodput")]


def _goodput(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Requests a second within the stated limits, and the share within each."""
    if not metrics["slo"]:
        return []
    rate, limits = metrics["request_goodput"], dict(metrics["slo"])
    whole = limits.pop("all")["share"]
    parts = (
        f"{name.upper()} <= {limit['limit'] * 1e3:,.10g} ms: {percent(limit['share'])}"
        for name, limit in limits.items()
    )
    speed = "-" if rate is None else f"{rate:,.2f}"
    return [("Goodput", f"{speed} requests per second, {percent(whole)} of finished ({'; '.join(parts)})")]


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _duration(metrics: Mapping[str, Any]) -> str:
    return f"{metrics['simulated_seconds']:,.1f} s in {metrics.get('num_steps', 0):,} engine steps"
