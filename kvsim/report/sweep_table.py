"""The table of a sweep on a screen: what differs between points stands in columns, the rest in a line.

Numbers and names are never cut. Where a terminal is too narrow the last figures go, and a line says which;
errors and remarks are numbered in the table and stand below it in full.
"""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from kvsim.results.words import milliseconds, percent

Row = Mapping[Any, Any]

_HEADER_WIDTH = 12


class Column(NamedTuple):
    """A header and the text of each row."""

    name: str
    cells: list[str]

    @property
    def is_constant(self) -> bool:
        return len(set(self.cells)) == 1


def _count(value: float) -> str:
    return f"{value:,.0f}"


# Header, column, how to show it; the more important first.
Figures = tuple[tuple[str, str, Callable[[float], str]], ...]
FIGURES: Figures = (
    ("KV cache tokens", "capacity.kv_cache_size_tokens", _count),
    ("hit rate", "prefix_cache_hit_rate", percent),
    ("TTFT p50 ms", "vllm:time_to_first_token_seconds.p50", milliseconds),
    ("TTFT p99 ms", "vllm:time_to_first_token_seconds.p99", milliseconds),
    ("TPOT p50 ms", "vllm:request_time_per_output_token_seconds.p50", milliseconds),
    ("tokens/s", "generation_tokens_per_second", lambda value: f"{value:,.1f}"),
    ("imbalance", "imbalance.requests.max_over_mean", lambda value: f"{value:.2f}"),
    ("preemptions", "vllm:num_preemptions", _count),
    ("KV usage", "vllm:kv_cache_usage_perc.mean", percent),
    ("SLO share", "slo.all.share", percent),
)


def print_table(
    rows: Sequence[Row],
    keys: Sequence[str],
    out: Console,
    *,
    problems: bool,
    shown_figures: Figures = FIGURES,
    all_in_columns: bool = False,
) -> None:
    """Rows with `keys` before their figures; `problems`: with what is said in ``error`` and ``remark``.

    What is the same in all rows stands in a line above, unless `all_in_columns`.
    """
    swept = [Column(short_key(key), [plain(row[key]) for row in rows]) for key in keys]
    figures = [
        Column(name, [_shown(row.get(column), show) for row in rows])
        for name, column, show in shown_figures
        if any(not is_missing(row.get(column)) for row in rows)
    ]
    notes = _Notes(rows if problems else ())
    told_apart = all_in_columns or len(rows) == 1
    same = [] if told_apart else [column for column in (*swept, *figures) if column.is_constant]
    shown = [_without_beginning(column, out) for column in swept if column not in same]
    figures = [column for column in figures if column not in same]
    table, left_out = _fitted(shown, figures, notes, len(rows), out)
    if same:
        facts = ", ".join(f"{column.name} {column.cells[0]}" for column in same)
        out.print(f"at every point: {facts}", style="dim", soft_wrap=True)
    if table.columns:
        out.print(table, width=_width(table, out), crop=False, no_wrap=True, overflow="ignore")
    if left_out:
        names = ", ".join(column.name for column in left_out)
        out.print(f"not shown for want of room: {names}", style="dim", soft_wrap=True)
    for number, text in enumerate(notes.texts, 1):
        out.print(f"[{number}] {text}", style="red" if text.startswith("error") else "", soft_wrap=True)


class _Notes:
    """Errors and remarks, each text once, and the number of each row's."""

    def __init__(self, rows: Sequence[Row]) -> None:
        said = [_problem(row) for row in rows]
        self.texts = list(dict.fromkeys(filter(None, said)))
        self.cells = [f"[{self.texts.index(text) + 1}]" if text else "" for text in said]


def _problem(row: Row) -> str:
    """The error, or what would go wrong with a real server."""
    for name in ("error", "remark"):
        if not is_missing(row.get(name)):
            return f"{name}: {row[name]}"
    return ""


def _fitted(
    swept: Sequence[Column], figures: Sequence[Column], notes: _Notes, num_rows: int, out: Console
) -> tuple[Table, list[Column]]:
    """The table with as many figures as the terminal is wide enough for, and those left out."""
    for count in range(len(figures), -1, -1):
        columns = [*swept, *figures[:count]]
        if notes.texts:
            columns.append(Column("note", notes.cells))
        table = _table(columns, num_rows)
        if count == 0 or _width(table, out) <= out.width:
            return table, list(figures[count:])
    raise AssertionError("count ends at 0")


def _table(columns: Sequence[Column], num_rows: int) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(_header(column), justify="right", no_wrap=True)
    for i in range(num_rows):
        table.add_row(*(column.cells[i] for column in columns))
    return table


def _width(table: Table, out: Console) -> int:
    """What it takes to cut nothing."""
    return Measurement.get(out, out.options.update(width=10_000), table).maximum


def _header(column: Column) -> str:
    """On lines as narrow as the cells, broken between words only."""
    width = max(_HEADER_WIDTH, *map(len, column.cells))
    if len(column.name) <= width:
        return column.name
    words = column.name.replace("_", "_ ")
    lines = textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(line.replace("_ ", "_") for line in lines)


def _without_beginning(column: Column, out: Console) -> Column:
    """Long names without what all of them begin with, which stands in a line above."""
    common = _beginning(min(column.cells), max(column.cells))
    cut = max(common.rfind(mark) for mark in "/-_ ") + 1
    if cut < 6 or max(map(len, column.cells)) <= _HEADER_WIDTH:
        return column
    out.print(f"{column.name}: ... stands for {common[:cut].rstrip()}", style="dim", soft_wrap=True)
    return Column(column.name, [f"...{cell[cut:]}" for cell in column.cells])


def _beginning(a: str, b: str) -> str:
    """What two texts begin with."""
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:same]


def short_key(key: str) -> str:
    """A key without its section where that is plain."""
    return key.removeprefix("engine.").removeprefix("workload.").removeprefix("cluster.")


def _shown(value: Any, show: Any) -> str:
    return "-" if is_missing(value) else str(show(value))


def is_missing(value: Any) -> bool:
    return (
        value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and math.isnan(value))
    )


def plain(value: Any) -> str:
    """A swept value as it is typed."""
    if is_missing(value):
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)
