"""What `kvsim sweep` prints: a row for each point with its chief figures, or the answer of a search."""

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from kvsim.results.glance import milliseconds, percent
from kvsim.sweep.constraints import read_constraint
from kvsim.sweep.result import SweepResult

MOST_ROWS = 60
_ERROR_WIDTH = 80

# Header, column, how to show it.
_FIGURES = (
    ("hit rate", "prefix_cache_hit_rate", percent),
    ("TTFT p50 ms", "vllm:time_to_first_token_seconds.p50", milliseconds),
    ("TTFT p99 ms", "vllm:time_to_first_token_seconds.p99", milliseconds),
    ("TPOT p50 ms", "vllm:request_time_per_output_token_seconds.p50", milliseconds),
    ("tokens/s", "generation_tokens_per_second", lambda value: f"{value:,.1f}"),
    ("preemptions", "vllm:num_preemptions", lambda value: f"{value:,.0f}"),
    ("KV usage", "vllm:kv_cache_usage_perc.mean", percent),
)


def print_sweep_result(result: SweepResult, out: Console) -> None:
    """Title, table, and for a search the answer of each row in a line."""
    out.print(repr(result), style="bold", soft_wrap=True)
    rows: list[dict[Any, Any]] = result.frame.to_dict("records")
    out.print(_table(result, rows[:MOST_ROWS]))
    if len(rows) > MOST_ROWS:
        out.print(f"... {len(rows) - MOST_ROWS:,} more rows in the table")
    if result.searched is not None:
        for row in rows[:MOST_ROWS]:
            out.print(
                answer(result, row), style="bold" if _is_missing(row["error"]) else "red", soft_wrap=True
            )


def answer(result: SweepResult, row: dict[str, Any]) -> str:
    """What a search found, in one line, with the limit that binds."""
    at = ", ".join(f"{key.rpartition('.')[2]} {plain(row[key])}" for key in result.axes)
    before = f"{at}: " if at else ""
    if not _is_missing(row["error"]):
        return f"{before}{row['error']}"
    key = result.searched
    assert key is not None
    word = "highest" if result.asked["find"].startswith("max") else "lowest"
    limits = " and ".join(_kept(text, row) for text in result.asked["subject_to"])
    note = "" if _is_missing(row.get("find.note")) else f"; {row['find.note']}"
    if _is_missing(row["find.beyond"]):
        return (
            f"{before}{key} {plain(row[key])} keeps {limits}; "
            f"no limit binds, nothing beyond it was tried{note}"
        )
    return (
        f"{before}{key} {plain(row[key])} is the {word} that keeps {limits}; "
        f"at {plain(row['find.beyond'])} {row['find.binding']}{note}"
    )


def _kept(text: str, row: dict[str, Any]) -> str:
    constraint = read_constraint(text)
    value = row.get(constraint.column)
    return text if _is_missing(value) else f"{text} ({constraint.shown(float(value))})"  # type: ignore[arg-type]


def _table(result: SweepResult, rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    keys = [*result.axes, *([result.searched] if result.searched else [])]
    for key in keys:
        table.add_column(key.removeprefix("engine.").removeprefix("workload."), justify="right")
    for header, _, _ in _FIGURES:
        table.add_column(header, justify="right")
    problems = [_problem(row) for row in rows]
    if any(problems):
        table.add_column("error", overflow="ellipsis", no_wrap=True)
    for row, problem in zip(rows, problems, strict=True):
        cells = [plain(row[key]) for key in keys]
        cells += [_shown(row.get(column), show) for _, column, show in _FIGURES]
        table.add_row(*cells, *([problem] if any(problems) else []))
    return table


def _problem(row: dict[str, Any]) -> str:
    """The error, or what would go wrong with a real server."""
    found = [row.get(name) for name in ("error", "remark")]
    return next((_shortened(str(text)) for text in found if not _is_missing(text)), "")


def _shown(value: Any, show: Any) -> str:
    return "-" if _is_missing(value) else str(show(value))


def _shortened(text: str) -> str:
    return text if len(text) <= _ERROR_WIDTH else text[: _ERROR_WIDTH - 3] + "..."


def _is_missing(value: Any) -> bool:
    return (
        value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and math.isnan(value))
    )


def plain(value: Any) -> str:
    """A swept value as it is typed."""
    if _is_missing(value):
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)
