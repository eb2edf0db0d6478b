"""Fit a calibration from rows of measurements; a quarter of them is left out (`left_out`)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kvsim.calibrate.choice import FEWEST_ROWS, as_run, one_kernel
from kvsim.calibrate.fit_attention import attention_sets
from kvsim.calibrate.fit_linear import gemm_sets
from kvsim.calibrate.smooth import Parameters, Spec, fit_form, fit_table
from kvsim.calibrate.value_sets import OCTAVES, preferred, sample, to_fit, value_set, within
from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.cost import forms
from kvsim.gpu.cost.calibration import Calibration, ValueSet, completed, device, supplemented
from kvsim.gpu.cost.forms import Device
from kvsim.gpu.cost.residual import ResidualTable

# How much the table of one number of GPUs follows those of others; the second where it predicts better.
_REDUCE_STIFFNESS = ({"ranks": 0.05, "size": 0.2}, {"ranks": 0.003, "size": 0.3})

_SMALL_OPERATIONS: dict[str, tuple[Spec, Callable[..., Any], tuple[str, ...]]] = {
    "small": (forms.SMALL_PARAMETERS, lambda p, g, r: forms.small_time(p, g.bandwidth, r.bytes), ("bytes",)),
    "sampler": (
        forms.SMALL_PARAMETERS,
        lambda p, g, r: forms.small_time(p, g.bandwidth, r.bytes),
        ("bytes",),
    ),
    "moe": (
        forms.MOE_PARAMETERS,
        lambda p, g, r: forms.moe_time(p, g.flops, g.bandwidth, r.pairs, r.active, r.weights),
        ("pairs", "active"),
    ),
    "send": (forms.SEND_PARAMETERS, lambda p, g, r: forms.send_time(p, g.link, r["size"]), ("size",)),
    "attention_encoder": (
        forms.ENCODER_PARAMETERS,
        lambda p, g, r: forms.encoder_time(p, g, r.batch, r.length, r.heads, r.head_dim),
        ("batch", "length", "heads", "head_dim"),
    ),
}


def fit_gpu(name: str, rows: dict[str, pd.DataFrame], kernels: Sequence[str] = ()) -> Calibration:
    """All operations that the rows (operation -> frame) have of the GPU of that catalog name.

    kernels: which to take where an operation was timed with several, see `one_kernel`. Where only few
    shapes were measured, numbers of the GPU's relatives stand in for those that the rows cannot tell.
    Raises KvsimError if no operation has enough rows.
    """
    gpu = device(catalog.gpu(name))
    mine = {operation: frame[frame.gpu == name] for operation, frame in rows.items()}
    values: dict[str, ValueSet] = {}
    if len(mine.get("gemm", ())):
        values |= gemm_sets(mine["gemm"], gpu, _relatives(name, mine["gemm"], {}), kernels)
    if len(mine.get("attention", ())):
        values |= attention_sets(mine["attention"], gpu, _relatives(name, mine["attention"], values), kernels)
    for operation, (spec, predict, axes) in _SMALL_OPERATIONS.items():
        frame = mine.get(operation)
        if frame is not None and len(frame):
            fitted = as_run(one_kernel(preferred(frame) if operation == "small" else frame, kernels))
            values |= _simple_set(operation, spec, predict, axes, fitted, gpu)
    for operation in ("all_reduce_custom", "all_reduce_eager", "all_reduce_nccl"):
        frame = mine.get(operation)
        if frame is not None and len(frame):
            values |= _all_reduce_set(operation, frame, gpu)
    if not values:
        counts = ", ".join(f"{len(frame)} of {operation}" for operation, frame in mine.items() if len(frame))
        raise KvsimError(
            f"calibrate fit: {name}: too few rows ({counts or 'none'}); {FEWEST_ROWS} of an operation are "
            "needed beside the quarter that is left out"
        )
    return Calibration(gpu=name, values=values)


def _relatives(name: str, frame: pd.DataFrame, values: dict[str, ValueSet]) -> Calibration:
    """Those whose numbers stand in. A user's own rows go before kvsim's numbers of the same GPU, which
    a refit of kvsim's own files must not see."""
    begun = Calibration(gpu=name, values=values)
    if not frame.measured.any():
        return completed(begun)
    others = {key: value for key, value in supplemented(begun).values.items() if key not in values}
    return Calibration(gpu=name, values=others)


def gpus_of(rows: dict[str, pd.DataFrame]) -> list[str]:
    """Catalog names of the GPUs that rows are of, in order."""
    return sorted({name for frame in rows.values() for name in frame.gpu.unique()})


def _simple_set(
    operation: str, spec: Spec, predict: Any, axes: tuple[str, ...], frame: pd.DataFrame, gpu: Device
) -> dict[str, ValueSet]:
    rows = to_fit(frame)
    if len(rows) < FEWEST_ROWS:
        return {}
    few = sample(rows)
    parameters = fit_form(spec, lambda p: np.asarray(predict(p, gpu, few), float), few.us.to_numpy(float))
    return {f"{operation}/bfloat16": value_set(parameters, None, rows, frame, axes)}


def _all_reduce_set(operation: str, frame: pd.DataFrame, gpu: Device) -> dict[str, ValueSet]:
    if (frame.form == "collectives").any():
        frame = frame[frame.form == "collectives"]
    rows = to_fit(frame)
    if len(rows) < FEWEST_ROWS:
        return {}
    stiff, loose = (_fold_errors(rows, gpu, stiffness) for stiffness in _REDUCE_STIFFNESS)
    chosen = _REDUCE_STIFFNESS[1 if loose < 0.9 * stiff else 0]  # few rows: only a clear gain counts
    parameters, table = _all_reduce_fit(rows, gpu, chosen)
    return {f"{operation}/bfloat16": value_set(parameters, table, rows, frame, ("ranks", "size"))}


def _all_reduce_fit(
    rows: pd.DataFrame, gpu: Device, stiffness: Mapping[str, float]
) -> tuple[Parameters, ResidualTable]:
    where = {"ranks": rows.ranks.to_numpy(float), "size": rows["size"].to_numpy(float)}
    measured = rows.us.to_numpy(float)

    def predict(p: Parameters) -> NDArray[np.float64]:
        return np.asarray(forms.all_reduce_time(p, gpu.link, where["ranks"], where["size"]))

    parameters = fit_form(forms.ALL_REDUCE_PARAMETERS, predict, measured)
    axes = {"ranks": within(OCTAVES, where["ranks"]), "size": within(2.0 ** np.arange(41), where["size"])}
    return parameters, fit_table(axes, where, np.log(measured / predict(parameters)), stiffness)


def _fold_errors(rows: pd.DataFrame, gpu: Device, stiffness: Mapping[str, float]) -> float:
    """Mean error of every fourth row, fitted on the other three, four times over."""
    errors = []
    shuffled = rows.sample(frac=1, random_state=0)
    for fold in range(4):
        part = shuffled.iloc[fold::4]
        p, table = _all_reduce_fit(shuffled.drop(part.index), gpu, stiffness)
        ranks, size = part.ranks.to_numpy(float), part["size"].to_numpy(float)
        modelled = forms.all_reduce_time(p, gpu.link, ranks, size) * np.exp(table.at(ranks=ranks, size=size))
        errors.append(np.abs(modelled / part.us.to_numpy(float) - 1))
    return float(np.mean(np.concatenate(errors)))
