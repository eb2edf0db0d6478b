"""Tables of a calibration's errors, for people."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from kvsim.calibrate.evaluate import SIZES, figures
from kvsim.gpu.cost.calibration import Calibration
from kvsim.gpu.cost.description import words

_SIZES = tuple(name for _, _, name in SIZES)


def print_errors(summary: pd.DataFrame, out: Console) -> None:
    """One line for each operation, GPU, source of rows, and whether they were fitted."""
    table = Table(title="Absolute error of the modelled times, percent", title_justify="left")
    for name in ("operation", "GPU", "table", "rows are"):
        table.add_column(name, overflow="fold")
    for name in ("rows", "MAPE", "median", "p90", *(f"MAPE {size}" for size in _SIZES)):
        table.add_column(name, justify="right", no_wrap=True)
    for row in summary.to_dict("records"):
        cells = [_percent(row[name]) for name in ("mape", "median", "p90", *_SIZES)]
        table.add_row(row["line"], row["gpu"], row["source"], row["which"], f"{row['rows']:,}", *cells)
    out.print(table)


def print_notes(known: Mapping[str, Calibration], out: Console) -> None:
    """What was borrowed for each GPU, and which branch the decode lines are."""
    for gpu, calibration in known.items():
        for relative, keys in calibration.borrowed.items():
            out.print(f"{gpu}: borrowed from {relative}: {', '.join(map(words, keys))}", highlight=False)
    out.print(
        "Tables timed without a flush are scored with KV in L2 (hot); a run reads it from memory (cold).",
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
