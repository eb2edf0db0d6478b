"""Errors of predicted rows: per row, and by class, source and metric."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from kvsim.validate.predict import Prediction
from kvsim.validate.rows import CLASSES, DENSE

# What is compared, in the order of the tables; ttft_later leaves out the first wave of closed loops.
METRICS = ("ttft", "ttft_later", "tpot", "e2e", "tokens", "requests")


def row_table(predictions: Sequence[Prediction]) -> pd.DataFrame:
    """One line a row: what it is, `<metric>`, `<metric>_predicted`, `<metric>_error` (percent, signed)."""
    return pd.DataFrame([_line(each) for each in predictions])


def _line(prediction: Prediction) -> dict[str, Any]:
    row, made = prediction.made.row, prediction.made
    line: dict[str, Any] = {
        "row": row.line,
        "id": row.id,
        "source": row.source,
        "class": row.kind,
        "model": row.model,
        "quantization": row.spec.quantization,
        "gpu": row.gpu,
        "tp": row.values["tp"],
        "concurrency": row.concurrency,
        "rate": row.get("request_rate_rps"),
        "input": row.values["mean_input_len"],
        "output": row.values["mean_output_len"],
        "vllm_rules": made.scenario.vllm_version,
        "filled": dict(made.filled),
        "error": prediction.error,
    }
    for metric in METRICS:
        line[metric] = prediction.measured.get(metric, np.nan)
        line[f"{metric}_predicted"] = prediction.predicted.get(metric, np.nan)
        line[f"{metric}_error"] = prediction.errors.get(metric, np.nan)
    return line


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """A line for each class, source and metric, and for each class over all its sources (source "all").

    Columns: class, source, metric, rows, failed (could not be simulated), mape, median, bias (median of the
    signed errors); percent.
    """
    lines = []
    for kind in CLASSES:
        part = table[table["class"] == kind]
        sources = sorted(part["source"].unique())
        for source in [*sources, *(["all"] if len(sources) > 1 else [])]:
            rows = part if source == "all" else part[part["source"] == source]
            closed = rows["concurrency"].notna().any()  # else ttft_later is ttft
            asked = [metric for metric in METRICS if metric != "ttft_later" or closed]
            there = [metric for metric in asked if rows[metric].notna().any()]
            lines += [_scored(kind, source, metric, rows) for metric in there]
    return pd.DataFrame(lines)


def _scored(kind: str, source: str, metric: str, rows: pd.DataFrame) -> dict[str, Any]:
    there = rows[rows[metric].notna()]
    errors = there[f"{metric}_error"].dropna().to_numpy(float)
    return {
        "class": kind,
        "source": source,
        "metric": metric,
        "rows": len(errors),
        "failed": len(there) - len(errors),
        **figures(errors),
    }


def figures(errors: np.ndarray) -> dict[str, float]:
    """mape, median and bias of signed errors, percent; NaN without any."""
    if not len(errors):
        return {"mape": np.nan, "median": np.nan, "bias": np.nan}
    size = np.abs(errors)
    return {
        "mape": float(size.mean()),
        "median": float(np.median(size)),
        "bias": float(np.median(errors)),
    }


def main_class(table: pd.DataFrame) -> str:
    """The class that the last line totals: dense rows, where there are such."""
    present = set(table["class"])
    return next(kind for kind in CLASSES if kind in present) if DENSE not in present else DENSE
