"""Figures of a summary as axes show them: label, unit, which direction is good; and names, found."""

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import KvsimError
from kvsim.plots import style

SHORT = {
    "ttft": "time_to_first_token_seconds",
    "tpot": "request_time_per_output_token_seconds",
    "e2e": "e2e_request_latency_seconds",
    "queue_time": "request_queue_time_seconds",
    "hit_rate": "prefix_cache_hit_rate",
    "kv_usage": "kv_cache_usage_perc",
    "goodput": "request_goodput",
    "preemptions": "num_preemptions",
    "tokens_per_second": "generation_tokens_per_second",
    "throughput": "generation_tokens_per_second",
    "queue": "request_queue_time_seconds",
    "running": "num_requests_running",
    "waiting": "num_requests_waiting",
    "evictions": "blocks_evicted",
    "slo_share": "slo_all_share",
    "finished": "finished_share",
    "imbalance": "imbalance_requests_max_over_mean",
    "imbalance_tokens": "imbalance_prompt_tokens_max_over_mean",
    "imbalance_busy": "imbalance_busy_time_max_over_mean",
    "imbalance_running": "imbalance_num_requests_running_max_over_mean",
    "jain": "imbalance_requests_jain",
}
_SHOWN = {
    "time_to_first_token_seconds": "TTFT",
    "request_time_per_output_token_seconds": "TPOT",
    "e2e_request_latency_seconds": "E2E latency",
    "request_queue_time_seconds": "queue time",
    "prefix_cache_hit_rate": "prefix cache hit rate",
    "kv_cache_usage_perc": "KV cache usage",
    "request_goodput": "goodput",
    "num_preemptions": "preemptions",
    "generation_tokens_per_second": "generated tokens",
    "requests_per_second": "finished requests",
    "recompute_tax": "recompute tax",
    "kv_cache_size_tokens": "KV cache size",
    "num_requests_running": "running requests",
    "num_requests_waiting": "waiting requests",
    "imbalance_requests_max_over_mean": "imbalance of requests (most / mean)",
    "imbalance_prompt_tokens_max_over_mean": "imbalance of prompt tokens (most / mean)",
    "imbalance_busy_time_max_over_mean": "imbalance of busy time (most / mean)",
    "imbalance_num_requests_running_max_over_mean": "imbalance of running requests (most / mean)",
    "imbalance_requests_jain": "Jain's index of requests",
    "imbalance_prompt_tokens_jain": "Jain's index of prompt tokens",
    "imbalance_busy_time_jain": "Jain's index of busy time",
    "imbalance_num_requests_running_jain": "Jain's index of running requests",
}
# Pattern of a flat name -> unit, factor.
_UNITS = (
    (r"^imbalance_", "", 1.0),
    (r"kv_cache_usage_perc|hit_rate|recompute_tax|share", "%", 100.0),
    (r"simulated_seconds|busy_time|warm_up", "s", 1.0),
    (r"_seconds(_|$)|ttft|tpot|e2e", "ms", 1e3),
    (r"bytes", "GiB", 2.0**-30),
    (r"tokens_per_second", "tokens/s", 1.0),
    (r"requests_per_second|request_goodput", "requests/s", 1.0),
    (r"tokens|queries|hits", "tokens", 1.0),
    (r"blocks", "blocks", 1.0),
    (r"requests|request_success", "requests", 1.0),
)
_LOW_IS_GOOD = re.compile(
    r"_seconds|preempt|recompute|lost|waiting|refused|unfinished|busy_time|evicted|ttft|tpot|e2e|over_mean"
)
_HIGH_IS_GOOD = re.compile(r"per_second|_jain$")
_FIGURES = re.compile(r"(?<!_over)_(mean|p50|p90|p95|p99|peak|count)$")


@dataclass(frozen=True)
class Metric:
    """`factor` turns the frame's number into `unit`."""

    column: str
    label: str
    unit: str
    factor: float
    low_is_good: bool

    def best(self, values: NDArray[np.float64]) -> float | None:
        """The lowest or the highest of them, whichever is good; None where they do not differ."""
        finite = values[np.isfinite(values)]
        if not len(finite) or finite.min() == finite.max():
            return None
        return float(finite.min() if self.low_is_good else finite.max())

    @property
    def capital(self) -> str:
        """The label as a title begins."""
        return self.label[:1].upper() + self.label[1:]

    @property
    def suffix(self) -> str:
        """The unit as it follows a number."""
        return f"{'' if self.unit == '%' else ' '}{self.unit}" if self.unit else ""

    def difference(self, value: float) -> str:
        """A distance between two values, rounded: of shares, percentage points."""
        if self.unit != "%":
            return f"{style.number(value, 3)}{self.suffix}"
        return f"{value:.1f} percentage points" if value >= 0.05 or not value else "< 0.1 percentage points"

    @property
    def axis(self) -> str:
        return f"{self.label}, {self.unit}" if self.unit else self.label


def described(column: str) -> Metric:
    """A column of a sweep's table as an axis shows it."""
    flat = _flat(column)
    figure = _FIGURES.search(flat)
    base = (flat[: figure.start()] if figure else flat).removeprefix("capacity_")
    label = _SHOWN.get(base, base.replace("_", " "))
    if figure:
        label = f"{label} {figure[1]}"
    unit, factor = next(((u, f) for pattern, u, f in _UNITS if re.search(pattern, flat)), ("", 1.0))
    if figure and figure[1] == "count":
        unit, factor = "requests", 1.0
    low = bool(_LOW_IS_GOOD.search(flat)) and not _HIGH_IS_GOOD.search(flat)
    return Metric(column, label, unit, factor, low)


def _flat(name: str) -> str:
    """One spelling: vllm:time_to_first_token_seconds.p99 and ttft_p99 are the same."""
    name = name.strip().removeprefix("vllm:").replace("vllm:", "")
    flat = re.sub(r"[.\s-]+", "_", name)
    for short, long in SHORT.items():
        if flat.startswith(short) and _FIGURES.fullmatch(flat[len(short) :] or "_mean"):
            return long + flat[len(short) :]
    return flat


def find_column(name: str, columns: Iterable[str], what: str) -> str:
    """The column with that name, a short form of it, or the end of it; raises KvsimError with the nearest."""
    columns = list(columns)
    if name in columns:
        return name
    flats = {column: _flat(column) for column in columns}
    wanted = _flat(name)
    for found in (
        [c for c in columns if flats[c] == wanted],
        [c for c in columns if flats[c].endswith(f"_{wanted}")],
        [c for c in columns if flats[c] in (f"{wanted}_p99", f"{wanted}_mean") and flats[c].endswith("p99")]
        or [c for c in columns if flats[c] == f"{wanted}_mean"],
    ):
        if len(found) == 1:
            return found[0]
    raise KvsimError(f"{what}: {name!r} is not in the table; {nearest(wanted, flats)}")


def nearest(wanted: str, flats: dict[str, str]) -> str:
    by_flat = {flat: column for column, flat in flats.items()}
    short = {name: name for name in _short_names(flats)}
    close = difflib.get_close_matches(wanted, by_flat | short, 3)
    if close:
        return "nearest: " + ", ".join((by_flat | short)[each] for each in close)
    if short:
        return f"there are {', '.join(short)}, and the {len(flats)} columns of the table"
    return listed(list(flats))


def _short_names(flats: dict[str, str]) -> list[str]:
    """Short names of what the table has."""
    names = []
    for short, long in SHORT.items():
        if long in flats.values():
            names.append(short)
        else:
            names += [
                f"{short}_{figure}" for figure in ("p99", "mean") if f"{long}_{figure}" in flats.values()
            ][:1]
    return names


def listed(names: Sequence[str], most: int = 12) -> str:
    more = f", … ({len(names)} in all)" if len(names) > most else ""
    return f"there are {', '.join(names[:most])}{more}" if names else "it has no columns"


def one_of(name: str, known: Iterable[str], what: str) -> str:
    """The name if it is known; raises KvsimError that lists them, the nearest first said."""
    known = list(known)
    name = name.replace("-", "_").lower()
    if name in known:
        return name
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise KvsimError(f"{what}: {name!r} is not known; {hint}one of {', '.join(known)}")
