"""`kvsim capacity --evaluate`: how well arithmetic and prediction agree with published start-up logs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvsim.gpu.log_rows import LogRow, read_rows
from kvsim.gpu.start_logs import GIB, Arithmetic, Scored, check_arithmetic, score

_LAPTOP_GIB = 6.0  # cards below are shown apart: a fixed share of a GiB is most of what they have left


@dataclass(frozen=True)
class ErrorFigures:
    """Absolute errors of some rows: relative in tokens, GiB in available memory.

    within: rows whose printed memory lies in the range that the prediction states.
    """

    name: str
    count: int
    tokens_median: float
    tokens_p90: float
    gib_median: float
    gib_p90: float
    within: int


@dataclass(frozen=True)
class Evaluation:
    """All that `--evaluate` reports.

    rows: with their arithmetic, and the score or the reason for having none.
    """

    rows: tuple[tuple[LogRow, Arithmetic, Scored | str], ...]

    @property
    def checkable(self) -> list[tuple[LogRow, Arithmetic]]:
        return [(row, check) for row, check, _ in self.rows if check.outcome in ("exact", "miss")]

    @property
    def exact(self) -> int:
        return sum(check.outcome == "exact" for _, check in self.checkable)

    @property
    def misses(self) -> list[tuple[LogRow, Arithmetic]]:
        return [(row, check) for row, check in self.checkable if check.outcome == "miss"]

    @property
    def scored(self) -> list[tuple[LogRow, Scored]]:
        return [(row, found) for row, _, found in self.rows if isinstance(found, Scored)]

    @property
    def unscored(self) -> list[tuple[LogRow, str]]:
        return [(row, found) for row, _, found in self.rows if isinstance(found, str)]

    @property
    def without_release(self) -> list[LogRow]:
        """Rows whose version is none; they count as of a usual release."""
        return [row for row, _, _ in self.rows if row.names_no_release]

    def figures(self) -> list[ErrorFigures]:
        """Overall, by number of GPUs, and by class of architecture."""
        small = [row for row, _ in self.scored if (row.number("total_gib") or _LAPTOP_GIB) < _LAPTOP_GIB]
        foreign = [row for row, _ in self.scored if row["engine"].lower() not in ("", "v0", "v1")]
        main = [(row, found) for row, found in self.scored if row not in small and row not in foreign]
        parts = {
            "single GPU": [f for row, f in main if row.tp == 1],
            "tensor parallel": [f for row, f in main if row.tp > 1],
        }
        for kind in dict.fromkeys(row["arch_class"] or "unknown" for row, _ in main):
            parts[kind] = [f for row, f in main if (row["arch_class"] or "unknown") == kind]
        parts["all of these"] = [found for _, found in main]
        parts[f"laptops (< {_LAPTOP_GIB:g} GiB)"] = [f for row, f in self.scored if row in small]
        parts["engines that are not vLLM"] = [found for row, found in self.scored if row in foreign]
        return [_figures(name, found) for name, found in parts.items() if found]

    def total_line(self) -> str:
        """One line: what the exit of the command is judged by."""
        known = {figures.name: figures for figures in self.figures()}
        parts = [
            f"arithmetic {self.exact} of {len(self.checkable)} exact",
            f"{len(self.scored)} rows predicted",
        ]
        for name in ("single GPU", "tensor parallel", "moe"):
            if name in known:
                found = known[name]
                parts.append(
                    f"{name} median {found.tokens_median:.1%}, p90 {found.tokens_p90:.1%} ({found.count})"
                )
        return "total: " + "; ".join(parts)


def evaluate(path: Path) -> Evaluation:
    """Check and score every row of a file; raises KvsimError for one that cannot be read."""
    return evaluate_rows(read_rows(path))


def evaluate_rows(rows: Iterable[LogRow]) -> Evaluation:
    return Evaluation(tuple((row, check_arithmetic(row), score(row)) for row in rows))


def _figures(name: str, found: Sequence[Scored]) -> ErrorFigures:
    tokens = sorted(abs(each.token_error) for each in found)
    gib = sorted(abs(each.gib_error) for each in found)
    return ErrorFigures(
        name,
        len(found),
        _percentile(tokens, 0.5),
        _percentile(tokens, 0.9),
        _percentile(gib, 0.5),
        _percentile(gib, 0.9),
        sum(abs(each.gib_error) * GIB <= each.prediction.error for each in found),
    )


def _percentile(values: Sequence[float], share: float) -> float:
    """Linear between the two nearest values, like numpy's default."""
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (place - low) * (values[high] - values[low])
