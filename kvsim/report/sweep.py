"""What `kvsim sweep` prints: a row for each point with its chief figures, or the answer of a search."""

from typing import Any

from rich.console import Console

from kvsim.report.sweep_table import is_missing, plain, print_table
from kvsim.sweep.constraints import read_constraint
from kvsim.sweep.result import SweepResult

MOST_ROWS = 60


def print_sweep_result(result: SweepResult, out: Console) -> None:
    """Title, table, and for a search the answer of each row in a line."""
    out.print(repr(result), style="bold", soft_wrap=True)
    rows: list[dict[Any, Any]] = result.frame.to_dict("records")
    keys = [*result.axes, *([result.searched] if result.searched else [])]
    print_table(rows[:MOST_ROWS], keys, out, problems=result.searched is None)
    if len(rows) > MOST_ROWS:
        out.print(f"... {len(rows) - MOST_ROWS:,} more rows in the table")
    if result.searched is not None:
        for row in rows[:MOST_ROWS]:
            out.print(
                answer(result, row), style="bold" if is_missing(row["error"]) else "red", soft_wrap=True
            )


def answer(result: SweepResult, row: dict[str, Any]) -> str:
    """What a search found, in one line, with the limit that binds."""
    at = ", ".join(f"{key.rpartition('.')[2]} {plain(row[key])}" for key in result.axes)
    before = f"{at}: " if at else ""
    if not is_missing(row["error"]):
        return f"{before}{row['error']}"
    key = result.searched
    assert key is not None
    word = "highest" if result.asked["find"].startswith("max") else "lowest"
    limits = " and ".join(_kept(text, row) for text in result.asked["subject_to"])
    note = "" if is_missing(row.get("find.note")) else f"; {row['find.note']}"
    if is_missing(row["find.beyond"]):
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
    return text if is_missing(value) else f"{text} ({constraint.shown(float(value))})"  # type: ignore[arg-type]
