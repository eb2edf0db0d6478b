"""What was measured, as rows of a table and of a JSON file."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One figure: the best of the rounds, and the worst.

    target: ">= 2" or "<= 4", what it is to reach; empty for a figure that only informs.
    """

    job: str
    figure: str
    best: float
    worst: float
    unit: str
    target: str = ""
    note: str = ""

    @property
    def met(self) -> bool | None:
        if not self.target:
            return None
        sign, bound = self.target.split()
        return self.best >= float(bound) if sign == ">=" else self.best <= float(bound)


def least(job: str, figure: str, values: Sequence[float], unit: str, target: str = "", note: str = "") -> Row:
    """A figure of which less is better."""
    return Row(job, figure, min(values), max(values), unit, target, note)


def most(job: str, figure: str, values: Sequence[float], unit: str, target: str = "", note: str = "") -> Row:
    """A figure of which more is better."""
    return Row(job, figure, max(values), min(values), unit, target, note)


def ratio(job: str, figure: str, theirs: Sequence[float], ours: Sequence[float], target: str = "") -> Row:
    """How many times as much they took: best by best; the worst is that of one round."""
    worst = min(a / b for a, b in zip(theirs, ours, strict=True))
    best = min(theirs) / min(ours)
    return Row(job, figure, best, min(best, worst), "x", target)


def as_json(row: Row) -> dict[str, object]:
    return {**asdict(row), "met": row.met}


def print_rows(rows: Sequence[Row], rounds: int, console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("job", "figure"):
        table.add_column(heading, no_wrap=True)
    for heading in (f"best of {rounds}", "worst"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("unit", "target", "", "note"):
        table.add_column(heading, no_wrap=heading != "note")
    job = ""
    for row in rows:
        met = {None: "", True: "met", False: "missed"}[row.met]
        cells = (row.figure, number(row.best), number(row.worst), row.unit, row.target, met, row.note)
        table.add_row("" if row.job == job else row.job, *cells)
        job = row.job
    console.print(table)


def number(value: float) -> str:
    """Three digits that count."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
