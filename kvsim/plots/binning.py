"""From steps to the points of a line over time.

A line has some 300 points. Longer runs are put together in bins of equal time: gauges as their mean over the
bin, with the least and the most in it; counters as the rate over the bin.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

MOST_POINTS = 300
VLLM_WINDOW = 1000  # requests over which vLLM logs its hit rate

Numbers = NDArray[np.float64]

# panel -> column of the steps, factor to the panel's unit
GAUGES = {
    "running": ("num_running", 1.0),
    "waiting": ("num_waiting", 1.0),
    "kv_usage": ("kv_cache_usage_perc", 100.0),
}
COUNTERS = {"preemptions": "num_preempted", "tokens": "num_tokens"}


@dataclass(frozen=True)
class Series:
    """Points of a line, times in seconds; low and high: its band, None if there is none."""

    time: Numbers
    value: Numbers
    low: Numbers | None = None
    high: Numbers | None = None


def series(steps: pd.DataFrame, panel: str, window: tuple[float, float], most: int = MOST_POINTS) -> Series:
    """One replica's line in a panel of `PANELS`; times in seconds, values as its label says."""
    if panel == "hit_rate":
        return _hit_rate(steps, window, most)
    start, end = (steps[name].to_numpy(np.float64) for name in ("start_time", "end_time"))
    if panel in COUNTERS:
        return rate(end, steps[COUNTERS[panel]].to_numpy(np.float64), window, most)
    column, factor = GAUGES[panel]
    return _gauge(start, end, factor * steps[column].to_numpy(np.float64), window, most)


def _gauge(start: Numbers, end: Numbers, value: Numbers, window: tuple[float, float], most: int) -> Series:
    """`value` holds from `start` to `end`, and nothing runs, waits or is held in between."""
    edges, value = _with_idle(start, end, value)
    if len(value) <= most:
        return Series(edges, np.append(value, value[-1]))
    bins = np.linspace(*window, most + 1)
    area = np.concatenate([[0.0], np.cumsum(value * np.diff(edges))])
    mean = np.diff(np.interp(bins, edges, area)) / np.diff(bins)
    # What stood at the beginning of each bin, and what began in it.
    standing = value[np.clip(np.searchsorted(edges, bins[:-1], "right") - 1, 0, len(value) - 1)]
    low, high = standing.copy(), standing.copy()
    of = np.searchsorted(bins, edges[:-1], "right") - 1
    inside = (of >= 0) & (of < most)
    np.minimum.at(low, of[inside], value[inside])
    np.maximum.at(high, of[inside], value[inside])
    return Series((bins[1:] + bins[:-1]) / 2, mean, low, high)


def _with_idle(start: Numbers, end: Numbers, value: Numbers) -> tuple[Numbers, Numbers]:
    """Edges of intervals that follow each other (one more than values), 0 where there was no step."""
    gaps = np.flatnonzero(start[1:] > end[:-1] + 1e-9) + 1
    edges = np.append(np.insert(start, gaps, end[gaps - 1]), end[-1])
    return edges, np.insert(value, gaps, 0.0)


def rate(end: Numbers, count: Numbers, window: tuple[float, float], most: int) -> Series:
    """Per second in bins, edges of bins as times; a short run gets fewer of them, about ten steps each."""
    bins = int(np.clip(len(end) // 10, 1, most // 2))
    edges = np.linspace(*window, bins + 1)
    width = max(edges[1] - edges[0], 1e-12)
    total, _ = np.histogram(end, edges, weights=count)
    per_second = total / width
    return Series(edges, np.append(per_second, per_second[-1]))


def hit_window(num_requests: int) -> int:
    """vLLM's 1,000 latest requests, or a tenth of them all where those would show no change."""
    return int(min(VLLM_WINDOW, max(10, num_requests // 10)))


def _hit_rate(steps: pd.DataFrame, window: tuple[float, float], most: int) -> Series:
    """Hits per looked-up token over the latest requests, in %; as `CachingMetrics` of vLLM, by steps."""
    looked = steps[steps["prefix_cache_queries"] > 0]
    requests = np.cumsum(np.maximum(looked["num_new_reqs"].to_numpy(np.float64), 1))
    queries, hits = (
        np.concatenate([[0.0], np.cumsum(looked[name].to_numpy(np.float64))])
        for name in ("prefix_cache_queries", "prefix_cache_hits")
    )
    if not len(requests):
        return Series(np.zeros(0), np.zeros(0))
    kept = requests - hit_window(int(requests[-1]))
    first = np.searchsorted(requests, kept, "right")
    first = np.minimum(first, np.arange(len(first)))  # the latest update always stays
    now = np.arange(1, len(first) + 1)
    rate = 100 * (hits[now] - hits[first]) / (queries[now] - queries[first])
    time = looked["end_time"].to_numpy(np.float64)
    if len(time) > 4 * most:
        chosen = np.unique(np.linspace(0, len(time) - 1, 4 * most).astype(np.int64))
        time, rate = time[chosen], rate[chosen]
    return Series(time, rate)
