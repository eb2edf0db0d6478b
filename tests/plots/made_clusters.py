"""Clusters made up for pictures: the summary of a run, and the table of a comparison of routers."""

import pandas as pd

from kvsim.results.replicas import LOADS, imbalance

TTFT, USAGE = "vllm:time_to_first_token_seconds", "vllm:kv_cache_usage_perc"
ROUTER = "cluster.router"


def replica(number: int, requests: int, group: str = "h100") -> dict:
    return {
        "name": f"{group}-{number}",
        "group": group,
        "requests": {"total": requests, "finished": requests},
        "vllm:prompt_tokens": 100 * requests,
        "prefix_cache_hit_rate": 0.5 + number / 100,
        USAGE: {"mean": 0.2 + number / 200, "peak": 0.6},
        "vllm:num_requests_running": {"mean": 3.0, "peak": 9},
        TTFT: {"p99": 0.1 * requests},
        "busy_time": 2.0 * requests,
        "vllm:num_preemptions": number,
    }


def summary(replicas: list[dict]) -> dict:
    return {
        "name": "made",
        "model": "some-model",
        "gpu": "some-gpu",
        "vllm_version": "0.33",
        "prefix_cache_hit_rate": 0.52,
        USAGE: {"mean": 0.21, "peak": 0.6},
        TTFT: {"p99": 0.9},
        "routers": [{"name": "router", "policy": "dynamo_kv"}],
        "imbalance": {name: imbalance([load(part) for part in replicas]) for name, load in LOADS.items()},
        "replicas": replicas,
    }


def comparison(policies: tuple[str, ...] = ("round_robin", "dynamo_kv")) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables of points and of replicas: policy i gives 10 - i and 10 + i requests, of 20."""
    points, replicas = [], []
    for i, policy in enumerate(policies):
        points.append(
            {
                ROUTER: policy,
                "prefix_cache_hit_rate": 0.4 + 0.1 * i,
                f"{TTFT}.p99": 0.5 + i,
                "imbalance.requests.max_over_mean": 1 + i / 10,
                "imbalance.requests.jain": 1 - i / 50,
                "error": None,
            }
        )
        for number, count in enumerate((10 - i, 10 + i)):
            figures = {
                "prefix_cache_hit_rate": 0.4 + 0.1 * i + 0.01 * number,
                f"{TTFT}.p99": 0.5 + i * number,
            }
            replicas.append(
                {ROUTER: policy, "replica": f"r-{number}", "group": "r", "requests.total": count, **figures}
            )
    return pd.DataFrame(points), pd.DataFrame(replicas)
