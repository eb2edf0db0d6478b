"""Tables of a calibration's errors, for people."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from rich.console import Console

from kvsim.calibrate.choice import NOT_VLLM
from kvsim.calibrate.evaluate import SIZES, figures
from kvsim.gpu.cost.calibration import Calibration
from kvsim.gpu.cost.description import words
from kvsim.report.tables import table

_SIZES = tuple(name for _, _, name in SIZES)


def print_errors(summary: pd.DataFrame, out: Console) -> None:
    """One line for each operation, GPU, source of rows, and whether they were fitted."""
    names = ("operation", "GPU", "table or kernel", "rows are", ">rows", ">MAPE", ">median", ">p90")
    rows = (
        (
            *(row[name] for name in ("line", "gpu", "source", "which")),
            f"{row['rows']:,}",
            *(_percent(row[name]) for name in ("mape", "median", "p90", *_SIZES)),
        )
        for row in summary.to_dict("records")
    )
    out.print("Absolute error of the modelled times, percent; on the right MAPE by measured time")
    out.print(table((*names, *(f">{size}" for size in _SIZES)), rows))


def print_fit(fitted: Calibration, others: Sequence[str], too_few: Mapping[str, int], out: Console) -> None:
    """What each number rests on and how it scores on the rows left out; what was not taken."""
    rows = (
        (
            words(key),
            f"{values.rows:,}",
            f"{values.left_out.rows:,}" if values.left_out else "-",
            _percent(values.left_out.mape if values.left_out else np.nan),
            values.source.kernel,
        )
        for key, values in fitted.values.items()
    )
    out.print(table((fitted.gpu, ">Rows fitted", ">Left out", ">MAPE there, %", "Kernel"), rows))
    for key, count in too_few.items():
        out.print(f"not fitted: {words(key)}: {count} rows are too few", soft_wrap=True)
    if others:
        out.print(f"not taken (--kernel chooses): {', '.join(others)}", soft_wrap=True, highlight=False)
    foreign = sorted({v.source.kernel for v in fitted.values.values() if v.source.note == NOT_VLLM})
    if foreign:
        out.print(f"{', '.join(foreign)}: {NOT_VLLM}; runs say so", soft_wrap=True, highlight=False)


def print_values(known: Calibration, out: Console) -> None:
    """What each number of a GPU rests on."""
    rows = (
        (
            words(key),
            f"borrowed from {values.borrowed_from}" if values.borrowed_from else f"{values.rows:,} rows",
            f"{values.source.package} {values.source.version}",
            values.source.kernel,
        )
        for key, values in known.values.items()
    )
    out.print(table((known.gpu, "Rests on", "Source", "Kernel"), rows))


def print_notes(known: Mapping[str, Calibration], out: Console) -> None:
    """What was borrowed for each GPU, and which branch the decode lines are."""
    for gpu, calibration in known.items():
        for relative, keys in calibration.borrowed.items():
            out.print(f"{gpu}: borrowed from {relative}: {', '.join(map(words, keys))}", highlight=False)
    out.print(
        "Decode rows timed without emptying L2 are scored with KV in L2 (hot); rows marked cold, as a run, "
        "with KV from memory.",
        soft_wrap=True,
        highlight=False,
    )


def total_line(rows: pd.DataFrame, which: str) -> str:
    """One line over all rows of one kind."""
    f = figures(rows)
    return (
        f"total: {f['rows']:,} rows {which}, MAPE {f['mape']:.1f} %, median {f['median']:.1f} %, "
        f"p90 {f['p90']:.1f} %"
    )


def _percent(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.1f}"
