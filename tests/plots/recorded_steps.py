"""Steps as a run records them, made up."""

import numpy as np
import pandas as pd


def steps_table(count: int, idle_after: int | None = None) -> pd.DataFrame:
    """`count` steps over 100 s; between two of them a second of nothing, if wanted."""
    draw = np.random.default_rng(1)
    edges = np.linspace(0, 100, count + 1)
    start, end = edges[:-1].copy(), edges[1:].copy()
    if idle_after is not None:
        start[idle_after + 1 :] += 1
        end[idle_after + 1 :] += 1
    queries = 10 * draw.integers(1, 20, count)
    return pd.DataFrame(
        {
            "instance": 0,
            "step": np.arange(1, count + 1),
            "start_time": start,
            "end_time": end,
            "duration": end - start,
            "num_running": draw.integers(1, 50, count),
            "num_waiting": 0,
            "kv_cache_usage_perc": draw.random(count) / 2,
            "num_new_reqs": draw.integers(1, 4, count),
            "num_preempted": 0,
            "num_tokens": 100,
            "num_prefill_tokens": 60,
            "prefix_cache_queries": queries,
            "prefix_cache_hits": queries // 2,
        }
    )
