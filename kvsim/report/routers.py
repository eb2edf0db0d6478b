"""What `kvsim run --compare-routers` prints: the policies side by side, and how the load lies under each."""

from collections.abc import Callable
from typing import Any

import pandas as pd
from rich.console import Console

from kvsim.report.sweep_table import Figures, is_missing, plain, print_table, short_key
from kvsim.report.tables import table
from kvsim.results.words import milliseconds, percent
from kvsim.sweep.figures import SHORT_NAMES
from kvsim.sweep.result import SweepResult


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _ratio(value: float) -> str:
    return f"{value:.3f}"


# Header, short name of the column, how to show it
COMPARED: Figures = tuple(
    (header, SHORT_NAMES[name], show)
    for header, name, show in (
        ("hit rate", "hit_rate", percent),
        ("TTFT p50 ms", "ttft_p50", milliseconds),
        ("TTFT p99 ms", "ttft_p99", milliseconds),
        ("TPOT p50 ms", "tpot_p50", milliseconds),
        ("E2E p99 ms", "e2e_p99", milliseconds),
        ("SLO share", "slo_share", percent),
        ("most over mean requests", "imbalance", _ratio),
        ("Jain's index", "jain", _ratio),
        ("most over mean busy time", "imbalance_busy", _ratio),
        ("preemptions", "preemptions", _count),
    )
)
_OF_A_REPLICA: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("requests", "requests.total", _count),
    ("hit rate", SHORT_NAMES["hit_rate"], percent),
    ("KV mean", SHORT_NAMES["kv_usage"], percent),
    ("KV peak", SHORT_NAMES["kv_usage_peak"], percent),
    ("running", SHORT_NAMES["running"], lambda value: f"{value:,.1f}"),
    ("TTFT p99 ms", SHORT_NAMES["ttft_p99"], milliseconds),
)


def print_comparison(result: SweepResult, out: Console) -> None:
    """Title, a row for each policy, and for each the least and the most that one of its replicas has."""
    out.print(repr(result), style="bold", soft_wrap=True)
    rows: list[dict[Any, Any]] = result.frame.to_dict("records")
    print_table(rows, result.axes, out, problems=True, shown_figures=COMPARED, all_in_columns=True)
    if result.replicas is not None:
        out.print()
        out.print(_loads(result.replicas, result.axes[0]), crop=False, overflow="ignore")


def _loads(replicas: pd.DataFrame, key: str) -> Any:
    """Least .. most over the replicas of each policy."""
    rows = [
        [plain(policy), *(_spread(part, column, show) for _, column, show in _OF_A_REPLICA)]
        for policy, part in replicas.groupby(key, sort=False)
    ]
    most = replicas.groupby(key, sort=False).size().max()
    return table(
        [f">{short_key(key)}, of {most:,} replicas", *(f">{name}" for name, *_ in _OF_A_REPLICA)], rows
    )


def _spread(part: pd.DataFrame, column: str, show: Callable[[float], str]) -> str:
    values = [float(value) for value in part.get(column, ()) if not is_missing(value)]
    return f"{show(min(values))} .. {show(max(values))}" if values else "-"
