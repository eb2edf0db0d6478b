"""Host times of a whole engine from measured rows: few numbers for all GPUs, with held-out errors.

The forms are linear: host time adds to every step, the API server's to every first token. So they are
fitted on what the rows' predictions leave over, without simulating again. Absolute relative errors are
least (no row outweighs the others), on grids. Rows of the dense class are fitted.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd

from kvsim.errors import KvsimError
from kvsim.gpu.cost.calibration import calibration
from kvsim.validate.predict import Prediction
from kvsim.validate.rows import DENSE
from kvsim.validate.score import figures

FEWEST_ROWS = 8
_STEP = np.arange(0.0, 2.01, 0.05)  # ms a step
_STEP_PER_RANK = np.arange(0.0, 0.61, 0.05)  # ms more for each rank
_FRONTEND = np.arange(0.0, 30.1, 0.5)  # ms a request
GROUPS = ("tenth", "source", "model", "gpu")  # one value of each is left out in turn; tenth: by the row's id


@dataclass(frozen=True)
class HostTimes:
    """Milliseconds, see `kvsim.gpu.cost.calibration.ENGINE_PARAMETERS`."""

    step: float
    step_per_rank: float
    frontend: float

    def tpot(self, rows: pd.DataFrame) -> pd.Series:
        return rows.tpot_bare + self.step + self.step_per_rank * (rows.tp - 1)

    def ttft(self, rows: pd.DataFrame) -> pd.Series:
        return rows.ttft_bare + self.frontend

    @property
    def parameters(self) -> dict[str, float]:
        """Under the names of a calibration, microseconds."""
        names = ("step", "step_per_rank", "frontend")
        return {name: float(round(1e3 * getattr(self, name), 1)) for name in names}


@dataclass(frozen=True)
class HostFit:
    """fitted: of all rows. held_out: by group, errors of each row under the fit without its group's value."""

    times: HostTimes
    rows: pd.DataFrame
    held_out: dict[str, pd.DataFrame]


def fit_host_times(predictions: Sequence[Prediction]) -> HostFit:
    """Raises KvsimError for too few rows."""
    rows = _rows(predictions)
    if len(rows) < FEWEST_ROWS:
        raise KvsimError(f"{len(rows)} dense rows could be simulated; {FEWEST_ROWS} are needed for a fit")
    times = _fit(rows)
    held = {group: pd.concat(list(_held_out(rows, group))) for group in GROUPS}
    return HostFit(times, errors_of(times, rows), {group: part for group, part in held.items() if len(part)})


def errors_of(times: HostTimes, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with `ttft_error` and `tpot_error`, percent, signed."""
    return rows.assign(
        ttft_error=100.0 * (times.ttft(rows) / rows.ttft - 1.0),
        tpot_error=100.0 * (times.tpot(rows) / rows.tpot - 1.0),
    )


def error_table(fit: HostFit) -> pd.DataFrame:
    """Lines: all rows fitted, and for each group its rows held out; mape and median of both metrics."""
    parts = {"fitted": fit.rows} | {f"one {group} left out": part for group, part in fit.held_out.items()}
    lines = []
    for name, part in parts.items():
        for metric in ("ttft", "tpot"):
            errors = part[f"{metric}_error"].dropna().to_numpy(float)
            lines.append({"rows": name, "metric": metric, "count": len(errors), **figures(errors)})
    return pd.DataFrame(lines)


def _rows(predictions: Sequence[Prediction]) -> pd.DataFrame:
    """What is measured, and predicted less the host times that kvsim has now; milliseconds."""
    lines = []
    for each in predictions:
        row = each.made.row
        if row.kind != DENSE or not {"ttft", "tpot"} <= set(each.errors):
            continue
        now = calibration(row.gpu).get("engine", "host").parameters
        ranks = int(row.values["tp"])
        per_request = now["step_per_request"]
        step = now["step"] + now["step_per_rank"] * (ranks - 1) + per_request
        lines.append(
            {
                "tenth": zlib.crc32(row.id.encode()) % 10,
                "source": row.source,
                "model": row.model,
                "gpu": row.gpu,
                "tp": ranks,
                "ttft": each.measured["ttft"],
                "tpot": each.measured["tpot"],
                "ttft_bare": each.predicted["ttft"] - 1e-3 * now["frontend"],
                "tpot_bare": each.predicted["tpot"] - 1e-3 * step,
            }
        )
    return pd.DataFrame(lines)


def _fit(rows: pd.DataFrame) -> HostTimes:
    step, per_rank = min(
        product(_STEP, _STEP_PER_RANK),
        key=lambda pair: (_mape(HostTimes(pair[0], pair[1], 0.0).tpot(rows), rows.tpot), pair),
    )
    frontend = min(_FRONTEND, key=lambda ms: (_mape(HostTimes(0.0, 0.0, ms).ttft(rows), rows.ttft), ms))
    return HostTimes(float(step), float(per_rank), float(frontend))


def _mape(modelled: pd.Series, measured: pd.Series) -> float:
    return float((modelled / measured - 1.0).abs().mean())


def _held_out(rows: pd.DataFrame, group: str) -> Iterator[pd.DataFrame]:
    """Rows of one value of the group after another, under what is fitted on all others."""
    values = sorted(rows[group].unique())
    for value in values:
        rest = rows[rows[group] != value]
        if len(rest) >= FEWEST_ROWS:
            yield errors_of(_fit(rest), rows[rows[group] == value])
    yield errors_of(HostTimes(0.0, 0.0, 0.0), rows.iloc[:0])
