"""A summary as a person reads it: milliseconds, GiB, percent, thousands separated."""

from collections.abc import Mapping
from typing import Any

LATENCIES = (
    ("TTFT", "vllm:time_to_first_token_seconds"),
    ("TPOT", "vllm:request_time_per_output_token_seconds"),
    ("E2E", "vllm:e2e_request_latency_seconds"),
    ("Queue", "vllm:request_queue_time_seconds"),
)
LATENCY_HEADER = ("latency, ms", "mean", "p50", "p90", "p95", "p99")
GIB = 2**30


def facts(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Label and text of each line above the latency table."""
    rows = [
        ("Requests", _requests(metrics)),
        ("Tokens", _tokens(metrics)),
        ("Prefix cache hit rate", _hit_rate(metrics)),
        ("KV cache usage", _usage(metrics)),
        ("Evictions", f"{metrics.get('blocks_evicted', 0):,} cached blocks evicted"),
        ("Preemptions", _preemptions(metrics)),
        ("Simulated", _duration(metrics)),
    ]
    refusals = metrics.get("refusals", {})
    return rows + [("Refused", f"{count:,} x {kind}") for kind, count in refusals.items()]


def latency_rows(metrics: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """One row per latency, under `LATENCY_HEADER`."""
    figures = LATENCY_HEADER[1:]
    return [(label, *(milliseconds(metrics[name][key]) for key in figures)) for label, name in LATENCIES]


def text(metrics: Mapping[str, Any]) -> str:
    """The whole summary in plain text."""
    lines = [title(metrics), *notes(metrics), ""]
    lines += [f"{label:<22}{value}" for label, value in facts(metrics)]
    rows = [LATENCY_HEADER, *latency_rows(metrics)]
    lines += ["", *(f"{row[0]:<14}" + "".join(f"{cell:>12}" for cell in row[1:]) for row in rows)]
    return "\n".join(lines)


def title(metrics: Mapping[str, Any]) -> str:
    return (
        f"{metrics['name']}: {metrics['model']} on {metrics['gpu']}, "
        f"rules of vLLM {metrics['vllm_version']}, seed {metrics['seed']}"
    )


def notes(metrics: Mapping[str, Any]) -> list[str]:
    """vLLM's capacity lines, and what the figures rest on."""
    return [*metrics["capacity"]["lines"], metrics["step_time"].split(" (")[0]]  # without the sources


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.1f}"


def gib(num_bytes: float) -> str:
    """Bytes in GiB (2^30)."""
    return f"{num_bytes / GIB:.2f} GiB"


def percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{fraction:.1%}"


def _requests(metrics: Mapping[str, Any]) -> str:
    counts = metrics["requests"]
    parts = [f"{count:,} {status}" for status, count in counts.items() if count and status != "total"]
    return f"{counts['total']:,}: " + (", ".join(parts) or "none arrived")


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
    pool = f", of {gib(size)} in {metrics['capacity']['num_gpu_blocks']:,} blocks" if size else ""
    return f"{percent(usage['mean'])} mean, {percent(usage['peak'])} peak{pool}"


def _preemptions(metrics: Mapping[str, Any]) -> str:
    count, lost = metrics.get("vllm:num_preemptions", 0), metrics.get("num_recomputed_tokens", 0)
    return f"{count:,}" + (f" ({lost:,} computed tokens thrown away)" if count else "")


def _duration(metrics: Mapping[str, Any]) -> str:
    return f"{metrics['simulated_seconds']:,.1f} s in {metrics.get('num_steps', 0):,} engine steps"
