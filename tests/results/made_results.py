"""A tiny run, made up: its head, its engine's counters, and its rows."""

import numpy as np

from kvsim.results import FINISHED, WAITING_REASONS, RequestLog
from kvsim.results.requests import new_rows

HEAD = {
    "name": "tiny",
    "scenario_hash": "0123456789abcdef",
    "seed": 0,
    "vllm_version": "0.33",
    "model": "some-model",
    "gpu": "some-gpu",
    "simulated_seconds": 8.0,
    "step_time": "Step times: made up",
    "capacity": {
        "num_gpu_blocks": 100,
        "kv_cache_bytes": 3 * 2**30,
        "lines": ["GPU KV cache size: 1,584 tokens"],
    },
}
STATS = {
    **dict.fromkeys(("num_recomputed_tokens", "num_preempted_blocks", "num_lost_tokens"), 0),
    **{f"waiting_steps_{reason}": 0 for reason in WAITING_REASONS},
    "prefix_cache_queries": 200,
    "prefix_cache_hits": 50,
    "generation_tokens": 24,
    "num_preemptions": 1,
    "blocks_evicted": 7,
    "num_steps": 30,
    "kv_cache_usage_perc": {"mean": 0.25, "peak": 0.5},
}


def finished_rows(
    arrival: list[float], first: list[float], finish: list[float], tokens: list[int]
) -> np.ndarray:
    rows = new_rows(len(arrival))
    rows["arrival_time"], rows["first_token_time"], rows["finish_time"] = arrival, first, finish
    rows["queued_time"] = rows["first_scheduled_time"] = arrival
    rows["num_output_tokens"] = tokens
    rows["num_prompt_tokens"] = 50
    rows["status"], rows["reason"], rows["instance"] = FINISHED, 2, 0  # 2: length
    return rows


def fill(sink, chunk_rows: int = 3) -> RequestLog:
    """Seven requests: 0-4 finish in reverse order, 5 is refused, 6 never ends."""
    log = RequestLog(sink, chunk_rows)
    for i in range(7):
        assert log.arrive([f"r{i}"], np.array([float(i)]), np.array([50])) == i
    rows = finished_rows([4, 3, 2, 1, 0], [5, 4, 3, 2, 1], [8, 7, 6, 5, 1], [4, 4, 4, 4, 1])
    log.refuse(5, "prompt of 9,000 tokens is longer than max_model_len 4096")
    log.end(np.array([4, 3, 2, 1, 0]), rows)
    log.close()
    return log
