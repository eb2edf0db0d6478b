"""What `kvsim capacity --evaluate` prints: misses by name, errors by class, rows without a score."""

from typing import Any

from rich.console import Console

from kvsim.gpu.evaluation import Evaluation
from kvsim.gpu.refusals import GIB
from kvsim.report.tables import table


def print_evaluation(found: Evaluation, out: Console, *, every: bool) -> None:
    """Misses by name, error by class, rows with a reason for having no score; last line the total."""
    out.print("Arithmetic: what a log prints, against kvsim's formulas", style="bold")
    out.print(f"{found.exact} of {len(found.checkable)} rows agree to the last printed digit")
    for row, check in found.misses:
        out.print(f"  miss {row['id']} {row['model']}: {check.why}", soft_wrap=True)
    out.print("\nPrediction, from model, card and flags alone (absolute errors)", style="bold")
    figures = (
        (
            each.name,
            str(each.count),
            f"{each.tokens_median:.1%}",
            f"{each.tokens_p90:.1%}",
            f"{each.gib_median:.2f}",
            f"{each.gib_p90:.2f}",
            f"{each.within} of {each.count}",
        )
        for each in found.figures()
    )
    out.print(
        table(("Class", ">Rows", ">Tokens median", ">p90", ">GiB median", ">p90", ">In range"), figures)
    )
    if every:
        _print_rows(found, out)
    out.print("\nNot predicted", style="bold")
    reasons: dict[str, list[str]] = {}
    for row, why in found.unscored:
        reasons.setdefault(why, []).append(row["id"])
    for why, ids in reasons.items():
        out.print(f"  {why}: {', '.join(ids)}", soft_wrap=True)
    for row in found.without_release:
        out.print(
            f"{row['id']}: {row['version']!r} is no release; taken as vLLM {row.release.name}", soft_wrap=True
        )
    out.print()
    out.print(found.total_line(), soft_wrap=True)


def _print_rows(found: Evaluation, out: Console) -> None:
    columns = ("Row", "Model", "GPU", ">TP", ">Tokens", ">GiB", ">Predicted", ">Printed")
    rows = (
        (
            row["id"],
            row["model"],
            row["gpu"],
            str(row.tp),
            f"{each.token_error:+.1%}",
            f"{each.gib_error:+.2f}",
            f"{each.available / GIB:.2f}",
            f"{each.printed_available / GIB:.2f}",
        )
        for row, each in found.scored
    )
    out.print()
    out.print(table(columns, rows))


def evaluation_facts(found: Evaluation) -> dict[str, Any]:
    """The same as plain JSON types."""
    return {
        "arithmetic": {
            "exact": found.exact,
            "checkable": len(found.checkable),
            "misses": {row["id"]: check.why for row, check in found.misses},
        },
        "prediction": {
            each.name: {
                "rows": each.count,
                "tokens_median": each.tokens_median,
                "tokens_p90": each.tokens_p90,
                "gib_median": each.gib_median,
                "gib_p90": each.gib_p90,
            }
            for each in found.figures()
        },
        "rows": {
            row["id"]: {"token_error": each.token_error, "gib_error": each.gib_error}
            for row, each in found.scored
        },
        "not_predicted": {row["id"]: why for row, why in found.unscored},
        "releases_not_known": {row["id"]: row["version"] for row in found.without_release},
        "total": found.total_line(),
    }
