"""Fit linear layers: closed form and residual table by dtype."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kvsim.calibrate.choice import FEWEST_ROWS, as_run, one_kernel
from kvsim.calibrate.smooth import Parameters, fit_form, fit_table
from kvsim.calibrate.value_sets import NARROW, preferred, sample, to_fit, value_set, within
from kvsim.gpu.cost import forms
from kvsim.gpu.cost.calibration import Calibration, ValueSet
from kvsim.gpu.cost.forms import Device
from kvsim.gpu.cost.residual import MOST, ResidualTable

_NODES = (*(2.0 ** np.arange(5, 17)), 1536, 3072, 6144, 12288)
_ROW_NODES = {
    "bfloat16": (*(2.0 ** np.arange(16)), *(1.5 * 2.0 ** np.arange(4, 15))),
    "fp8": (
        *(2.0 ** np.arange(16)),
        *(1.5 * 2.0 ** np.arange(4, 15)),
        *(2.0 ** np.arange(4, 10) + 1.0),  # its tiles end sharply
    ),
}
_STIFFNESS = {
    "bfloat16": {"m": 0.01, "n": 0.02, "k": 0.02},
    "fp8": {"m": 0.002, "n": 0.02, "k": 0.02},
}
# 16-bit products are close to a plain roofline; what fp8 adds is quantised activations and long walks.
_PLAIN_ROOFLINE = {"norm": 16.0, "walk": 0.0, "quantise": 0.0}


def gemm_sets(
    frame: pd.DataFrame, gpu: Device, relative: Calibration, kernels: Sequence[str] = ()
) -> dict[str, ValueSet]:
    """kernels: see `one_kernel`. relative: numbers that stand in for those that few layers cannot tell."""
    values = {}
    for dtype, part in frame.groupby("dtype"):
        part = as_run(one_kernel(preferred(part), kernels))
        rows = to_fit(part)
        if len(rows) < FEWEST_ROWS or (dtype == "fp8" and not gpu.fp8_flops):
            continue
        narrow = len(rows.groupby(["n", "k"])) < 4 * NARROW
        model = relative.find("gemm", str(dtype)) if narrow else None
        base = model.table if model else None
        few = sample(rows)
        shift = base.at(**_gemm_where(few)) if base else 0.0

        def predict(p: Parameters, few: pd.DataFrame = few, shift: Any = shift, dtype: Any = dtype) -> Any:
            return gemm_us(p, few, gpu, str(dtype)) * np.exp(shift)

        given = {} if dtype == "fp8" else _PLAIN_ROOFLINE
        if model:  # a model's few layers are all large: they say nothing of a launch
            given = given | {"launch": model.parameters["launch"]}
        parameters = fit_form(forms.GEMM_PARAMETERS, predict, few.us.to_numpy(float), fixed=given)
        table = _gemm_table(parameters, rows, gpu, str(dtype), base)
        values[f"gemm/{dtype}"] = value_set(parameters, table, rows, part, ("m", "n", "k"))
    return values


def gemm_us(p: Parameters, rows: pd.DataFrame, gpu: Device, dtype: str) -> NDArray[np.float64]:
    """The closed form's times, us."""
    m, n, k = (rows[name].to_numpy(float) for name in ("m", "n", "k"))
    size, flops = (1.0, gpu.fp8_flops) if dtype == "fp8" else (2.0, gpu.flops)
    return np.asarray(forms.gemm_time(p, flops, gpu.bandwidth, m, n, k, size, size))


def _gemm_where(rows: pd.DataFrame) -> dict[str, NDArray[np.float64]]:
    return {name: rows[name].to_numpy(float) for name in ("m", "n", "k")}


def _gemm_table(
    p: Parameters, rows: pd.DataFrame, gpu: Device, dtype: str, base: ResidualTable | None
) -> ResidualTable:
    residuals = np.log(rows.us.to_numpy(float) / gemm_us(p, rows, gpu, dtype))
    where = _gemm_where(rows)
    if base is not None:
        own = fit_table(base.axes, where, residuals - base.at(**where), _STIFFNESS[dtype])
        return ResidualTable(base.axes, np.clip(base.values + own.values, -MOST, MOST))
    axes = {
        "m": within(_ROW_NODES[dtype], where["m"]),
        "n": within(_NODES, where["n"]),
        "k": within(_NODES, where["k"]),
    }
    return fit_table(axes, where, residuals, _STIFFNESS[dtype])
