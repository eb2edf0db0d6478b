"""The summary of a run: vLLM's metrics, by vLLM's names and meanings, from flat columns.

Counters and gauges come from the engines' statistics, latencies from the request rows, which are
read a chunk at a time. vLLM's names stand in v1/metrics/loggers.py (0.33); what has no counterpart
there is named without the ``vllm:`` prefix. Distributions are over finished requests only.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.results import arrow
from kvsim.results.columns import WAITING_REASONS
from kvsim.results.percentiles import distributions
from kvsim.results.replicas import ReplicaStats, RouterStats, cluster_figures
from kvsim.results.sinks import Rows
from kvsim.results.tally import MEASURED_BY, TALLIED, Tally

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
_WAITING = "waiting_steps_"


def summarize(
    head: Mapping[str, Any],
    stats: Mapping[str, Any],
    requests: Rows,
    *,
    slo: Mapping[str, float] | None = None,
    warm_up: float = 0.0,
    replicas: Sequence[ReplicaStats] = (),
    routers: Sequence[RouterStats] = (),
) -> dict[str, Any]:
    """What ``summary.json`` holds.

    `head` names the run (scenario, capacity, simulated seconds) and is copied to the top;
    `stats` holds the engines' counters under vLLM's names without prefix; `slo` limits to ttft,
    tpot and e2e, in seconds. Requests that arrived before `warm_up` (seconds) count in totals only.
    `replicas`: every engine, in the order of their numbers; several of them get parts of their own,
    ``routers``, ``imbalance`` and ``replicas``.
    """
    tally = Tally(warm_up, slo or {})
    figures = _distributions(requests, tally)
    seconds = max(head["simulated_seconds"] - warm_up, 0.0)
    return {
        **head,
        "warm_up": {"seconds": warm_up, "requests_left_out": tally.num_left_out},
        "requests": {"total": sum(tally.by_status.values()), **tally.by_status},
        "refusals": dict(tally.refusals),
        "vllm:request_success": tally.by_status["finished"],
        **_counters(stats),
        "vllm:prompt_tokens": tally.prompt_tokens,
        "vllm:prompt_tokens_cached": tally.cached_tokens,
        "prefix_cache_hit_rate": _ratio(stats.get("prefix_cache_hits"), stats.get("prefix_cache_queries")),
        "longest_context": tally.longest_context,
        "num_preempted_requests": tally.num_preempted_requests,
        "recompute_tax": _ratio(stats["num_recomputed_tokens"], stats.get("scheduled_tokens")),
        "waiting_steps": {reason: stats[f"{_WAITING}{reason}"] for reason in WAITING_REASONS},
        "generation_tokens_per_second": _ratio(tally.measured_tokens, seconds),
        "requests_per_second": _ratio(tally.measured_finished, seconds),
        **_goodput(tally, slo or {}, seconds),
        **figures,
        **cluster_figures(replicas, routers, requests, tally.measured),
    }


def _counters(stats: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"vllm:{name}" if name in VLLM_COUNTERS else name: value
        for name, value in stats.items()
        if not name.startswith(_WAITING)
    }


def _goodput(tally: Tally, slo: Mapping[str, float], seconds: float) -> dict[str, Any]:
    """`request_goodput` by vLLM's name (benchmarks/serve.py): requests a second that meet every limit."""
    if not slo:
        return {"request_goodput": None, "slo": {}}
    finished = tally.measured_finished
    limits = {
        name: {"limit": limit, "share": _ratio(tally.num_within[name], finished)}
        for name, limit in slo.items()
    }
    return {
        "request_goodput": _ratio(tally.num_good, seconds),
        "slo": limits | {"all": {"share": _ratio(tally.num_good, finished)}},
    }


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _distributions(requests: Rows, tally: Tally) -> dict[str, Any]:
    """Of the finished requests that are measured; the first of the readings fills the tally as well."""
    num_readings = 0

    def chunks(columns: list[str]) -> Iterator[dict[str, NDArray[np.float64]]]:
        nonlocal num_readings
        num_readings += 1
        further = TALLIED if num_readings == 1 else MEASURED_BY
        for chunk in requests.chunks(list(dict.fromkeys([*columns, *further]))):
            if num_readings == 1:
                tally.take(chunk)
            measured = tally.measured(chunk)
            yield {name: arrow.floats(chunk.column(name))[measured] for name in columns}

    figures = distributions(chunks, DISTRIBUTIONS.values())
    return {metric: figures[column] for metric, column in DISTRIBUTIONS.items()}
