"""Score a calibration on rows of measurements."""

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kvsim.calibrate.fit_attention import families
from kvsim.calibrate.predict import predict
from kvsim.calibrate.tables import left_out
from kvsim.gpu.cost.attention import LARGEST_HEAD
from kvsim.gpu.cost.calibration import Calibration, Error, calibration

LEFT_OUT, FITTED, UNKNOWN, OUTSIDE = "left out", "fitted", "not fitted", "out of range"
SIZES = ((0.0, 100.0, "< 100 us"), (100.0, 1000.0, "< 1 ms"), (1000.0, np.inf, "longer"))

_NAMES = {
    "attention_encoder": "vision attention",
    "gemm": "linear",
    "small": "small kernels",
    "moe": "experts",
    "all_reduce_custom": "all-reduce, vLLM",
    "all_reduce_eager": "all-reduce, vLLM eager",
    "all_reduce_nccl": "all-reduce, NCCL",
    "send": "pipeline send",
    "unequal": "unequal contexts",
}


def scored(rows: dict[str, pd.DataFrame], known: Callable[[str], Calibration] = calibration) -> pd.DataFrame:
    """Every row with what the model says of it.

    Columns: line (operation as people read it), gpu, which (LEFT_OUT ..), source (form of the table),
    us, modelled (us), error (percent, signed).
    """
    parts = [
        _scored(operation, frame, known(str(gpu)))
        for operation, whole in rows.items()
        for gpu, frame in whole.groupby("gpu")
    ]
    return pd.concat(parts, ignore_index=True)


def _scored(operation: str, frame: pd.DataFrame, known: Calibration) -> pd.DataFrame:
    modelled, within = predict(operation, frame, known)
    return pd.DataFrame(
        {
            "line": _lines(operation, frame),
            "gpu": frame.gpu.to_numpy(),
            "which": np.where(within, _which(operation, frame, known), OUTSIDE),
            "source": _source(frame),
            "us": frame.us.to_numpy(float),
            "modelled": modelled,
            "error": 100 * (modelled / frame.us.to_numpy(float) - 1),
        }
    )


def _source(frame: pd.DataFrame) -> NDArray[np.object_]:
    """Form of the table; for measured ones the kernel and state of L2, each of which has its line."""
    cold = frame.cold.map({True: ", L2 cold", False: ""})
    named = frame.kernel.where(frame.measured, frame.form) + cold
    return named.to_numpy(object)


def _which(operation: str, frame: pd.DataFrame, known: Calibration) -> NDArray[np.object_]:
    """Rows of a table that the calibration was fitted on are fitted or left out; others are neither."""
    own = [
        values
        for key, values in known.values.items()
        if key.startswith(operation) and not values.borrowed_from
    ]
    tables = {name for values in own for name in values.tables}
    ours = frame.table.isin(tables).to_numpy()
    held = left_out(frame.digest.to_numpy())
    return np.where(ours, np.where(held, LEFT_OUT, FITTED), UNKNOWN)


def _lines(operation: str, frame: pd.DataFrame) -> NDArray[np.object_]:
    if operation != "attention":
        name = _NAMES.get(operation, operation)
        return np.array([name if dtype == "bfloat16" else f"{name}, {dtype}" for dtype in frame["dtype"]])
    kind = np.select(
        [frame.many == 0, frame.singles > 0, frame.context > 0],
        ["decode", "mixed step", "prefill on cached prefix"],
        "prefill",
    ).astype(object)
    kind += np.where(frame["dtype"] == "fp8", ", fp8 KV", "").astype(object)
    kind += np.where(frame.window > 0, ", window", "").astype(object)
    return np.asarray(kind + np.where(frame.head_dim > LARGEST_HEAD, ", large heads", "").astype(object))


def summary(*scores: pd.DataFrame) -> pd.DataFrame:
    """One line per operation, GPU, which rows and source: rows, mape, median, p90, and mape by size."""
    by = ["line", "gpu", "source", "which"]
    parts = [pd.DataFrame(_summary(rows)).sort_values(by) for rows in scores if len(rows)]
    return pd.concat(parts, ignore_index=True)


def _summary(rows: pd.DataFrame) -> Iterator[dict[str, object]]:
    for key, part in rows.groupby(["line", "gpu", "source", "which"]):
        yield {**dict(zip(("line", "gpu", "source", "which"), key, strict=True)), **figures(part)}


def figures(rows: pd.DataFrame) -> dict[str, float]:
    """Absolute percentage errors: mape, median, p90, and mape of each size class (NaN without rows)."""
    size = np.abs(rows.error.to_numpy())
    us = rows.us.to_numpy()
    by_size = {
        name: float(size[(us >= low) & (us < high)].mean()) if ((us >= low) & (us < high)).any() else np.nan
        for low, high, name in SIZES
    }
    return {
        "rows": len(rows),
        "mape": float(size.mean()),
        "median": float(np.median(size)),
        "p90": float(np.quantile(size, 0.9)),
        **by_size,
    }


def errors_by_key(fitted: Calibration, known: Calibration, rows: dict[str, pd.DataFrame]) -> Calibration:
    """`fitted` with `Error` records of each value set: on the rows it was fitted on, and on those left out.

    known: `fitted` with what it borrows. rows: of its GPU.
    """
    scores: dict[tuple[str, str], list[NDArray[np.float64]]] = {}
    for operation, frame in rows.items():
        if not len(frame) or operation == "unequal":
            continue
        result = _scored(operation, frame, known)
        named = keys(operation, frame)
        for key in np.unique(named):
            for which in (FITTED, LEFT_OUT):
                part = result[(named == key) & (result.which == which).to_numpy()]
                if len(part) and key in fitted.values:
                    scores.setdefault((key, which), []).append(part.error.to_numpy())
    values = {
        key: value.model_copy(
            update={
                "fitted": _error(scores.get((key, FITTED))),
                "left_out": _error(scores.get((key, LEFT_OUT))),
            }
        )
        for key, value in fitted.values.items()
    }
    return fitted.model_copy(update={"values": values})


def keys(operation: str, frame: pd.DataFrame) -> NDArray[np.object_]:
    """The value set that each row is modelled by."""
    dtype = frame["dtype"].to_numpy(object)
    if operation != "attention":
        return np.array([f"{operation}/{name}" for name in dtype], object)
    kind = np.where(frame.many == 0, "attention_decode", "attention_prefill").astype(object)
    return np.asarray(kind + families(frame).to_numpy(object) + "/" + dtype)


def _error(parts: list[NDArray[np.float64]] | None) -> Error | None:
    if not parts:
        return None
    size = np.abs(np.concatenate(parts))
    return Error(
        rows=len(size),
        mape=round(float(size.mean()), 1),
        median=round(float(np.median(size)), 1),
        p90=round(float(np.quantile(size, 0.9)), 1),
    )
