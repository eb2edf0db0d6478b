"""Fit a calibration from rows of measurements; a quarter of them is left out (`left_out`)."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kvsim.calibrate.smooth import MOST_ROWS, Parameters, Spec, fit_form, fit_table
from kvsim.calibrate.tables import FORMS, left_out
from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.cost import forms
from kvsim.gpu.cost.calibration import Calibration, Source, ValueSet, completed, device
from kvsim.gpu.cost.curves import batch_body, prefill_us
from kvsim.gpu.cost.forms import AttentionShape, Device
from kvsim.gpu.cost.residual import MOST, ResidualTable

FEWEST_ROWS = 8  # for a form's handful of numbers
NARROW = 6  # with fewer shapes than this, only rates are fitted; the rest is a relative's
LARGEST_HEAD = 256  # other kernels beyond

RATIOS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_OCTAVES = tuple(2.0 ** np.arange(21))
_ATTENTION_STIFFNESS = {"head_dim": 0.1, "ratio": 0.02, "streams": 0.01, "length": 0.01}
_GEMM_NODES = (*(2.0 ** np.arange(5, 17)), 1536, 3072, 6144, 12288)
_ROW_NODES = {
    "bfloat16": (*(2.0 ** np.arange(16)), *(1.5 * 2.0 ** np.arange(4, 15))),
    "fp8": (
        *(2.0 ** np.arange(16)),
        *(1.5 * 2.0 ** np.arange(4, 15)),
        *(2.0 ** np.arange(4, 10) + 1.0),  # its tiles end sharply
    ),
}
_GEMM_STIFFNESS = {
    "bfloat16": {"m": 0.01, "n": 0.02, "k": 0.02},
    "fp8": {"m": 0.002, "n": 0.02, "k": 0.02},
}
# 16-bit products are close to a plain roofline; what fp8 adds is quantised activations and long walks.
_PLAIN_ROOFLINE = {"norm": 16.0, "walk": 0.0, "quantise": 0.0}
_REDUCE_STIFFNESS = {"ranks": 0.03, "size": 0.3}

# Mixed steps where none were measured. FlashAttention-2 drops split KV and the packing of a group's
# heads; FlashAttention-3 and FlashInfer keep them. The rows of the first are from our own fits of
# RTX 4090 and RTX PRO 6000, those of the second an assumption: decodes cost what they cost alone.
_MIXED_FA2 = {"tile": 70.0, "packed": 0.0, "single_key": 0.5, "single_walk": 1.0}
_MIXED_OTHER = {"tile": 128.0, "packed": 1.0, "single_key": 0.4, "single_walk": 0.0}

# Whichever comes first was measured closest to how vLLM runs the layer.
_PREFERRED = ("gemm", "step_dense", "step_per_sequence", "layers_v0", "vidur_linear")

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


def fit_gpu(name: str, rows: dict[str, pd.DataFrame]) -> Calibration:
    """All operations that the rows (operation -> frame) have of the GPU of that catalog name.

    Where only few shapes were measured, numbers of the GPU's relatives stand in for those that the rows
    cannot tell. Raises KvsimError if no operation has enough rows.
    """
    gpu = device(catalog.gpu(name))
    mine = {operation: frame[frame.gpu == name] for operation, frame in rows.items()}
    values: dict[str, ValueSet] = {}
    if len(mine.get("gemm", ())):
        values |= _gemm_sets(mine["gemm"], gpu, completed(Calibration(gpu=name, values={})))
    if len(mine.get("attention", ())):
        relatives = completed(Calibration(gpu=name, values=values))
        values |= _attention_sets(mine["attention"], gpu, relatives)
    for operation, (spec, predict, axes) in _SMALL_OPERATIONS.items():
        frame = mine.get(operation)
        if frame is not None and len(frame):
            fitted = _preferred(frame) if operation == "small" else frame
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


def gpus_of(rows: dict[str, pd.DataFrame]) -> list[str]:
    """Catalog names of the GPUs that rows are of, in order."""
    return sorted({name for frame in rows.values() for name in frame.gpu.unique()})


def to_fit(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[~left_out(frame.digest.to_numpy())]


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


# ---------------------------------------------------------------- attention


def _attention_sets(frame: pd.DataFrame, gpu: Device, relative: Calibration) -> dict[str, ValueSet]:
    # The last are kernels alone, of one short sequence: they say little of a layer in a step.
    told = ~frame.kernel.str.contains("triton") & (frame.form != "chunked_attention_v0")
    frame = frame[(frame.head_dim <= LARGEST_HEAD) & told]
    values: dict[str, ValueSet] = {}
    for (dtype, windowed), part in frame.groupby(["dtype", frame.window > 0]):
        suffix = "_window" if windowed else ""
        decode = part[part.many == 0]
        prefill = part[part.many > 0]
        values |= _attention_set(f"attention_decode{suffix}", str(dtype), decode, gpu, relative)
        values |= _attention_set(f"attention_prefill{suffix}", str(dtype), prefill, gpu, relative)
    return values


def _attention_set(
    operation: str, dtype: str, frame: pd.DataFrame, gpu: Device, relative: Calibration
) -> dict[str, ValueSet]:
    rows = to_fit(frame)
    if len(rows) < FEWEST_ROWS:
        return {}
    prefill = "prefill" in operation
    spec = forms.PREFILL_PARAMETERS | forms.MIXED_PARAMETERS if prefill else forms.DECODE_PARAMETERS
    narrow = len(rows.groupby(["n_q", "n_kv", "head_dim"])) < NARROW
    model = relative.find(operation, dtype) if narrow else None
    few = _sample(rows)
    fixed = _given(prefill, rows, model)
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
    return {f"{operation}/{dtype}": _value_set(parameters, table, rows, frame, _MEASURED_ATTENTION[prefill])}


_MEASURED_ATTENTION = {
    True: ("n_q", "n_kv", "head_dim", "many", "new", "context", "singles", "single_context"),
    False: ("n_q", "n_kv", "head_dim", "singles", "single_context"),
}


def _given(prefill: bool, rows: pd.DataFrame, model: ValueSet | None) -> Parameters:
    """Numbers that these rows cannot tell: assumed, or those of a relative (`model`)."""
    alone = rows.many.max() <= 1  # one prefill at a time, or only single tokens
    if not prefill:
        if model is None:
            return {}
        # The kernel alone, without the write of the KV: only the slope over the KV can be compared.
        free = (
            {"bandwidth_efficiency"}
            if not rows.hot.any() and (rows.form == "step_attention").all()
            else {"launch", "per_head", "walk", "bandwidth_efficiency"}
        )
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
        own = fit_table(base.axes, where, residuals - base.at(**where), _ATTENTION_STIFFNESS)
        return ResidualTable(base.axes, np.clip(base.values + own.values, -MOST, MOST))
    heads = sorted({float(h) for h in rows.head_dim.unique() if np.log2(h) % 1 == 0}) or [
        float(h) for h in sorted(rows.head_dim.unique())
    ]
    axes = {
        "head_dim": tuple(heads),
        "ratio": _within(RATIOS, where["ratio"]),
        "streams": _within(_OCTAVES, where["streams"]),
        "length": _within(_OCTAVES, where["length"]),
    }
    return fit_table(axes, where, residuals, _ATTENTION_STIFFNESS)


def _within(nodes: Iterable[float], values: NDArray[np.float64]) -> tuple[float, ...]:
    """The nodes that span the values."""
    ordered = sorted(nodes)
    first = max([i for i, node in enumerate(ordered) if node <= values.min()], default=0)
    last = min([i for i, node in enumerate(ordered) if node >= values.max()], default=len(ordered) - 1)
    return tuple(float(node) for node in ordered[first : last + 1])


# ---------------------------------------------------------------- linear layers


def _gemm_sets(frame: pd.DataFrame, gpu: Device, relative: Calibration) -> dict[str, ValueSet]:
    values = {}
    for dtype, part in frame.groupby("dtype"):
        part = _preferred(part)
        rows = to_fit(part)
        if len(rows) < FEWEST_ROWS or (dtype == "fp8" and not gpu.fp8_flops):
            continue
        narrow = len(rows.groupby(["n", "k"])) < 4 * NARROW
        model = relative.find("gemm", str(dtype)) if narrow else None
        base = model.table if model else None
        few = _sample(rows)
        shift = base.at(**_gemm_where(few)) if base else 0.0

        def predict(p: Parameters, few: pd.DataFrame = few, shift: Any = shift, dtype: Any = dtype) -> Any:
            return gemm_us(p, few, gpu, str(dtype)) * np.exp(shift)

        given = {} if dtype == "fp8" else _PLAIN_ROOFLINE
        parameters = fit_form(forms.GEMM_PARAMETERS, predict, few.us.to_numpy(float), fixed=given)
        table = _gemm_table(parameters, rows, gpu, str(dtype), base)
        values[f"gemm/{dtype}"] = _value_set(parameters, table, rows, part, ("m", "n", "k"))
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
        own = fit_table(base.axes, where, residuals - base.at(**where), _GEMM_STIFFNESS[dtype])
        return ResidualTable(base.axes, np.clip(base.values + own.values, -MOST, MOST))
    axes = {
        "m": _within(_ROW_NODES[dtype], where["m"]),
        "n": _within(_GEMM_NODES, where["n"]),
        "k": _within(_GEMM_NODES, where["k"]),
    }
    return fit_table(axes, where, residuals, _GEMM_STIFFNESS[dtype])


def _preferred(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the source that comes first; steps' layers and heads belong together."""
    present = [form for form in _PREFERRED if form in set(frame.form)]
    first = present[0] if present else str(frame.form.iloc[0])
    kept = {first, "step_per_sequence"} if first == "step_dense" else {first}
    return frame[frame.form.isin(kept)]


# ---------------------------------------------------------------- the rest


def _simple_set(
    operation: str, spec: Spec, predict: Any, axes: tuple[str, ...], frame: pd.DataFrame, gpu: Device
) -> dict[str, ValueSet]:
    rows = to_fit(frame)
    if len(rows) < FEWEST_ROWS:
        return {}
    few = _sample(rows)
    parameters = fit_form(spec, lambda p: np.asarray(predict(p, gpu, few), float), few.us.to_numpy(float))
    return {f"{operation}/bfloat16": _value_set(parameters, None, rows, frame, axes)}


def _all_reduce_set(operation: str, frame: pd.DataFrame, gpu: Device) -> dict[str, ValueSet]:
    if (frame.form == "collectives").any():
        frame = frame[frame.form == "collectives"]
    rows = to_fit(frame)
    if len(rows) < FEWEST_ROWS:
        return {}
    ranks, size = rows.ranks.to_numpy(float), rows["size"].to_numpy(float)

    def predict(p: Parameters) -> NDArray[np.float64]:
        return np.asarray(forms.all_reduce_time(p, gpu.link, ranks, size))

    measured = rows.us.to_numpy(float)
    parameters = fit_form(forms.ALL_REDUCE_PARAMETERS, predict, measured)
    axes = {"ranks": _within(_OCTAVES, ranks), "size": _within(2.0 ** np.arange(41), size)}
    residuals = np.log(measured / predict(parameters))
    table = fit_table(axes, {"ranks": ranks, "size": size}, residuals, _REDUCE_STIFFNESS, pull=0.005)
    return {f"{operation}/bfloat16": _value_set(parameters, table, rows, frame, ("ranks", "size"))}


def _sample(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.sample(MOST_ROWS, random_state=0) if len(rows) > MOST_ROWS else rows


def _value_set(
    parameters: Parameters,
    table: ResidualTable | None,
    rows: pd.DataFrame,
    frame: pd.DataFrame,
    axes: tuple[str, ...],
) -> ValueSet:
    by_name = {form.name: form for form in FORMS}
    sources = [by_name[form] for form in sorted(frame.form.unique())]
    return ValueSet(
        parameters=parameters,
        residual=table.to_json() if table else None,
        source=Source(
            package=", ".join(dict.fromkeys(source.package for source in sources)),
            version=", ".join(dict.fromkeys(source.version for source in sources)),
            licence=", ".join(dict.fromkeys(source.licence for source in sources)),
            kernel=", ".join(sorted(filter(None, map(str, rows.kernel.unique())))),
        ),
        measured={axis: (float(rows[axis].min()), float(rows[axis].max())) for axis in axes},
        rows=len(rows),
        tables=sorted(map(str, frame.table.unique())),
    )
