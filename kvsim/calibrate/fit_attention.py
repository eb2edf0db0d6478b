"""Fit attention: closed form and residual table for prefill and decode, by KV dtype, whole and windowed."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kvsim.calibrate.choice import FEWEST_ROWS, as_run, one_kernel
from kvsim.calibrate.smooth import Parameters, fit_form, fit_table
from kvsim.calibrate.value_sets import NARROW, OCTAVES, sample, to_fit, value_set, within
from kvsim.gpu.cost import forms
from kvsim.gpu.cost.attention import kernel_family
from kvsim.gpu.cost.calibration import Calibration, ValueSet
from kvsim.gpu.cost.curves import batch_body, prefill_us
from kvsim.gpu.cost.forms import AttentionShape, Device
from kvsim.gpu.cost.residual import MOST, ResidualTable

RATIOS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_STIFFNESS = {"head_dim": 0.1, "ratio": 0.02, "streams": 0.01, "length": 0.01}

# Mixed steps where none were measured. FlashAttention-2 drops split KV and the packing of a group's
# heads; FlashAttention-3 and FlashInfer keep them. The numbers of the first are from our own fits of
# RTX 4090 and RTX PRO 6000, those of the second an assumption: decodes cost what they cost alone.
_MIXED_FA2 = {"tile": 66.0, "packed": 0.0, "single_key": 0.02, "single_walk": 1.0}
_MIXED_OTHER = {"tile": 128.0, "packed": 1.0, "single_key": 0.4, "single_walk": 0.0}

# Where hardly a row reads KV beyond the L2 cache, neither number can be told from the others.
_UNTOLD = {"bandwidth_efficiency": 0.9, "pad": 0.01}
_FROM_MEMORY = 2.0  # times the size of L2


def attention_sets(
    frame: pd.DataFrame, gpu: Device, relative: Calibration, kernels: Sequence[str] = ()
) -> dict[str, ValueSet]:
    """kernels: see `one_kernel`. relative: numbers that stand in for those that few shapes cannot tell."""
    # The last are kernels alone, of one short sequence: they say little of a layer in a step.
    told = ~frame.kernel.str.contains("triton") & (frame.form != "chunked_attention_v0")
    frame = frame[told]
    values: dict[str, ValueSet] = {}
    for (dtype, suffix), part in frame.groupby(["dtype", families(frame)]):
        decode = one_kernel(part[part.many == 0], kernels)
        prefill = as_run(one_kernel(part[part.many > 0], kernels))
        values |= _attention_set(f"attention_decode{suffix}", str(dtype), decode, gpu, relative)
        values |= _attention_set(f"attention_prefill{suffix}", str(dtype), prefill, gpu, relative)
    return values


def families(frame: pd.DataFrame) -> pd.Series:
    """`kernel_family` of each row."""
    shapes = frame[["head_dim", "window"]].drop_duplicates()
    named = {(head, window): kernel_family(head, window) for head, window in shapes.to_numpy()}
    keys = zip(frame.head_dim, frame.window, strict=True)
    return pd.Series([named[key] for key in keys], index=frame.index, dtype=object)


def _attention_set(
    operation: str, dtype: str, frame: pd.DataFrame, gpu: Device, relative: Calibration
) -> dict[str, ValueSet]:
    rows = to_fit(frame)
    if len(rows) < FEWEST_ROWS:
        return {}
    prefill = "prefill" in operation
    spec = forms.PREFILL_PARAMETERS | forms.MIXED_PARAMETERS if prefill else forms.DECODE_PARAMETERS
    few_shapes = len(rows.groupby(["n_q", "n_kv", "head_dim"])) < NARROW
    narrow = few_shapes and not operation.endswith("_large")  # whose kernels differ from GPU to GPU
    model = relative.find(operation, dtype) if narrow else None
    few = sample(rows)
    fixed = _given(prefill, rows, model, gpu)
    base = model.table if model else None
    shift = base.at(**_where(few, gpu, model.parameters)) if base and model else 0.0

    def predict(p: Parameters) -> NDArray[np.float64]:
        return np.asarray(attention_us(p, few, gpu, prefill) * np.exp(shift))

    start = model.parameters if model else None
    parameters = fit_form(spec, predict, few.us.to_numpy(float), start, fixed)
    pure = rows[(rows.singles == 0) & (rows.context == 0)] if prefill else rows
    pure = pure[(pure.window == 0) | (pure.window <= 1024)]
    table = base
    if len(pure) >= 50 and not (model and (rows.many.max() <= 1)):
        table = _attention_table(parameters, pure, gpu, prefill, base)
    return {f"{operation}/{dtype}": value_set(parameters, table, rows, frame, _MEASURED_ATTENTION[prefill])}


_MEASURED_ATTENTION = {
    True: ("n_q", "n_kv", "head_dim", "many", "new", "context", "singles", "single_context"),
    False: ("n_q", "n_kv", "head_dim", "singles", "single_context"),
}


def _given(prefill: bool, rows: pd.DataFrame, model: ValueSet | None, gpu: Device) -> Parameters:
    """Numbers that these rows cannot tell: assumed, or those of a relative (`model`)."""
    alone = rows.many.max() <= 1  # one prefill at a time, or only single tokens
    if not prefill:
        if model is None:
            return _UNTOLD if _all_in_l2(rows, gpu) else {}
        # The kernel alone, without the write of the KV: only the slope over the KV can be compared.
        free = (
            {"bandwidth_efficiency"}
            if not rows.hot.any() and (rows.form == "step_attention").all()
            else {"launch", "per_head", "walk", "bandwidth_efficiency"}
        )
        if rows.hot.any() and not rows.hot.all():
            free = free | {"l2_efficiency"}
        return {name: value for name, value in model.parameters.items() if name not in free}
    kernel = " ".join(rows.kernel.unique())
    keeps_split = "fa3" in kernel or "fa4" in kernel or "flashinfer" in kernel
    given = dict(_MIXED_OTHER if keeps_split else _MIXED_FA2)
    if (rows.singles > 0).any():
        given = {"packed": 0.0, "single_walk": 1.0}
    if model is not None:
        kept = ["pad", "softmax", "norm"]
        kept += ["flops_efficiency", "bandwidth_efficiency"] if alone else ["per_row"]
        given |= {name: model.parameters[name] for name in kept}
    return given


def _all_in_l2(rows: pd.DataFrame, gpu: Device) -> bool:
    keys = rows.singles.to_numpy(float) * (rows.single_context.to_numpy(float) + 1.0)
    from_memory = keys * np.asarray(shape_of(rows).kv_bytes) > _FROM_MEMORY * gpu.l2_bytes
    return bool(rows.hot.all() and np.mean(from_memory) < 0.02)


def attention_us(p: Parameters, rows: pd.DataFrame, gpu: Device, prefill: bool) -> NDArray[np.float64]:
    """The closed form's times, us."""
    shape, batch = shape_of(rows), batch_of(rows)
    if prefill:
        return np.asarray(prefill_us(p, shape, gpu, *batch))
    return np.asarray(forms.decode_time(p, shape, gpu, batch[3], batch[4] + 1.0, rows.hot.to_numpy(float)))


def _where(rows: pd.DataFrame, gpu: Device, p: Parameters) -> dict[str, NDArray[np.float64]]:
    """Coordinates of rows in a residual table; unequal batches as `prefill_grid` places them."""
    many, new, context, singles, single_context = batch_of(rows)
    sequences = np.maximum(many + singles, 1.0)
    length = np.where(many > 0, new, single_context + 1.0)
    odd = (many > 0) & ((context > 0) | (singles > 0))
    if odd.any():
        length[odd] = _equal_length(rows[odd], gpu, p)
    return {
        "head_dim": rows.head_dim.to_numpy(float),
        "ratio": np.asarray(shape_of(rows).ratio),
        "streams": sequences * rows.n_kv.to_numpy(float),
        "length": length,
    }


def _equal_length(rows: pd.DataFrame, gpu: Device, p: Parameters) -> NDArray[np.float64]:
    """New tokens of as many equal sequences, without earlier context, for which the form takes as long."""
    shape, batch = shape_of(rows), batch_of(rows)
    sequences, goal = batch[0] + batch[3], batch_body(p, shape, gpu, *batch)
    low, high = np.zeros(len(rows)), np.full(len(rows), 20.0)
    for _ in range(20):
        middle = 0.5 * (low + high)
        below = batch_body(p, shape, gpu, sequences, 2.0**middle) < goal
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray(2.0**low)


def _attention_table(
    p: Parameters, rows: pd.DataFrame, gpu: Device, prefill: bool, base: ResidualTable | None
) -> ResidualTable:
    residuals = np.log(rows.us.to_numpy(float) / attention_us(p, rows, gpu, prefill))
    where = _where(rows, gpu, p)
    if base is not None:  # what a relative's table leaves
        own = fit_table(base.axes, where, residuals - base.at(**where), _STIFFNESS)
        return ResidualTable(base.axes, np.clip(base.values + own.values, -MOST, MOST))
    heads = sorted({float(h) for h in rows.head_dim.unique() if np.log2(h) % 1 == 0}) or [
        float(h) for h in sorted(rows.head_dim.unique())
    ]
    axes = {
        "head_dim": tuple(heads),
        "ratio": within(RATIOS, where["ratio"]),
        "streams": within(OCTAVES, where["streams"]),
        "length": within(OCTAVES, where["length"]),
    }
    return fit_table(axes, where, residuals, _STIFFNESS)


def shape_of(frame: pd.DataFrame) -> AttentionShape:
    """The attention shapes of rows, as arrays."""
    size = _element_bytes(frame)
    n_q, n_kv, head = (frame[name].to_numpy(float) for name in ("n_q", "n_kv", "head_dim"))
    return AttentionShape.dense(n_q, n_kv, head, size, frame.window.to_numpy(float))


def _element_bytes(frame: pd.DataFrame) -> NDArray[np.float64]:
    return np.where(frame["dtype"].to_numpy() == "fp8", 1.0, 2.0)


def batch_of(frame: pd.DataFrame) -> list[NDArray[np.float64]]:
    """many, new, context, singles, single_context of rows."""
    names = ("many", "new", "context", "singles", "single_context")
    return [frame[name].to_numpy(float) for name in names]
