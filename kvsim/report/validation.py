"""Predicted beside measured, for people."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from kvsim.report.tables import table
from kvsim.validate.fit import HostFit, error_table
from kvsim.validate.replay import Replay
from kvsim.validate.rows import CLASSES
from kvsim.validate.score import figures, main_class

METRIC_WORDS = {
    "ttft": "TTFT",
    "ttft_later": "TTFT, first wave cut",
    "tpot": "TPOT",
    "e2e": "E2E",
    "tokens": "output tokens/s",
    "requests": "requests/s",
}
_IN_ROWS = ("ttft", "tpot", "requests")


def print_rows(rows: pd.DataFrame, out: Console) -> None:
    """A line for each row, by class: measured, predicted and error of TTFT, TPOT and throughput."""
    columns = [">row", "id", "model", "GPU", ">TP", "load", ">in/out"]
    for metric in _IN_ROWS:
        unit = ", ms" if metric != "requests" else ""
        columns += [f">{METRIC_WORDS[metric]}{unit}", ">predicted", ">%"]
    columns += [">TTFT later", "remark"]
    for kind in CLASSES:
        part = rows[rows["class"] == kind]
        if len(part):
            out.print(f"{kind}: {_rows(len(part))}")
            out.print(table(columns, [_cells(row) for row in part.to_dict("records")]))
            out.print()


def _cells(row: Mapping[Any, Any]) -> list[str]:
    name = row["model"].rsplit("/", 1)[-1]
    lengths = f"{row['input']:,.0f}/{row['output']:,.0f}"
    cells = [str(row["row"]), row["id"], _short(name, 30), row["gpu"], str(row["tp"]), _load(row), lengths]
    for metric in _IN_ROWS:
        cells += [_figure(row[metric]), _figure(row[f"{metric}_predicted"]), _error(row[f"{metric}_error"])]
    return [*cells, _figure(row["ttft_later_predicted"]), row["error"]]


def _load(row: Mapping[Any, Any]) -> str:
    at_once, rate = row["concurrency"], row["rate"]
    words = [f"{at_once:.0f} at once"] if at_once and not np.isnan(at_once) else []
    return ", ".join([*words, *([f"{rate:g}/s"] if rate and not np.isnan(rate) else [])])


def print_summary(lines: pd.DataFrame, out: Console) -> None:
    """Errors by class, source and metric."""
    cells = [
        (
            line["class"],
            line["source"],
            METRIC_WORDS[line["metric"]],
            f"{line['rows']:,}" + (f" (+{line['failed']} not run)" if line["failed"] else ""),
            *(_error(line[name], signed=name == "bias") for name in ("mape", "median", "bias")),
        )
        for line in lines.to_dict("records")
    ]
    out.print("Absolute errors, percent; bias: median of the signed errors")
    out.print(table(["class", "source", "metric", ">rows", ">MAPE", ">median", ">bias"], cells))
    out.print()


def print_filled(rows: pd.DataFrame, out: Console) -> None:
    """Which flags the rows leave open and what was taken for them: vLLM's defaults."""
    counts = Counter(f"{flag} {value}" for filled in rows["filled"] for flag, value in filled.items())
    rules = Counter(rows["vllm_rules"])
    under = ", ".join(f"{version}: {count:,} rows" for version, count in sorted(rules.items()))
    out.print(f"Rules of vLLM {under} (no version, or one below 0.25: 0.16).")
    taken = ", ".join(f"{text} ({count:,})" for text, count in sorted(counts.items()))
    out.print(f"Flags not stated, vLLM's defaults taken (rows): {taken}.")
    closed = int(rows["concurrency"].notna().sum())
    if closed:
        out.print(
            f"Closed loops ({_rows(closed)}) ran 10 x concurrency requests. TPOT is of those after the first "
            "wave; TTFT of all, as clients report it, and beside it of those after the wave."
        )


def total_line(rows: pd.DataFrame) -> str:
    """One line over the rows of the main class."""
    kind = main_class(rows)
    part = rows[rows["class"] == kind]
    words = []
    for metric in ("ttft", "tpot"):
        f = figures(part[f"{metric}_error"].dropna().to_numpy(float))
        words.append(f"{METRIC_WORDS[metric]} MAPE {f['mape']:.1f} %, median {f['median']:.1f} %")
    if part["concurrency"].notna().any():
        cut = figures(part["ttft_later_error"].dropna().to_numpy(float))
        words[0] += f" (MAPE {cut['mape']:.1f} % with the first wave cut)"
    rest = len(rows) - len(part)
    apart = f"; {_rows(rest)} of other classes apart" if rest else ""
    return f"total: {_rows(len(part))} {kind}, {', '.join(words)}{apart}"


def _rows(count: int) -> str:
    return f"{count:,} row" + ("" if count == 1 else "s")


def print_fit(fit: HostFit, out: Console) -> None:
    """Fitted host times, and the errors of rows that a fit has not seen."""
    for name, value in fit.times.parameters.items():
        out.print(f"{name}: {value:g} us")
    cells = [
        (
            line["rows"],
            METRIC_WORDS[line["metric"]],
            f"{line['count']:,}",
            *(_error(line[name], signed=False) for name in ("mape", "median")),
        )
        for line in error_table(fit).to_dict("records")
    ]
    out.print(table(["rows", "metric", ">rows", ">MAPE", ">median"], cells))


def print_replay(replay: Replay, out: Console) -> None:
    """Latencies of a replayed run beside the measured ones; the last line is a total."""
    cells = [
        (
            METRIC_WORDS[line["latency"]],
            line["of"],
            *(f"{1e3 * line[name]:,.1f}" for name in ("measured", "predicted")),
            _error(line["error"], signed=True),
        )
        for line in replay.table().to_dict("records")
    ]
    out.print(table(["latency, ms", "of requests", ">measured", ">predicted", ">error, %"], cells))
    fewest = replay.measured.fewest_preemptions
    seen = ""
    if fewest is not None:
        alike = f"{replay.fewest_preemptions.iloc[-1]:.0f}"
        counts = f"{fewest.iloc[-1]:.0f} measured, {alike} simulated"
        seen = f"; rises of the waiting counter once all have arrived: {counts}"
    out.print(f"Preemptions: {replay.num_preemptions:,} simulated{seen}")
    f = replay.errors()
    worst = float(replay.table().error.abs().max())
    out.print(f"total: {len(replay.requests):,} requests, MAPE {f['mape']:.1f} %, worst {worst:.1f} %")


def _figure(value: float) -> str:
    if value is None or np.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.2f}"


def _error(value: float, *, signed: bool = True) -> str:
    if np.isnan(value):
        return "-"
    return f"{value:+,.1f}" if signed else f"{value:,.1f}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
