"""What the model says of rows of measurements, through the code that a run uses."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kvsim.gpu import catalog
from kvsim.gpu.cost import forms, linear
from kvsim.gpu.cost.attention import attention_record, attention_sets, equal_batches
from kvsim.gpu.cost.calibration import Calibration, ValueSet, device
from kvsim.gpu.cost.curves import TOKENS
from kvsim.gpu.cost.forms import AttentionShape, Device

Times = NDArray[np.float64]


def predict(operation: str, rows: pd.DataFrame, known: Calibration) -> tuple[Times, NDArray[np.bool_]]:
    """(us, whether each row lies within the measured range) of rows of one GPU.

    Decode attention takes the hot branch for tables that were timed without a flush of L2, and the cold
    one, as a run does, for others.
    """
    gpu = device(catalog.gpu(known.gpu))
    if operation == "attention":
        return _attention(rows, known, gpu)
    if operation == "gemm":
        return _gemm(rows, known, gpu)
    if operation == "unequal":
        return rows.mean_us.to_numpy(float), np.ones(len(rows), bool)
    values = known.get(operation)
    return _simple(operation, rows, values, gpu), inside(values, rows)


def _groups(rows: pd.DataFrame, keys: list[str]) -> Iterator[tuple[Any, NDArray[np.int64]]]:
    """(values of the keys, places of their rows)."""
    found: Any = rows.groupby(keys).indices
    yield from found.items()


def inside(values: ValueSet, rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Whether each row lies within the box of the measured rows."""
    within = np.ones(len(rows), bool)
    for column, (low, high) in values.measured.items():
        within &= rows[column].between(low, high).to_numpy()
    return within


def _attention(rows: pd.DataFrame, known: Calibration, gpu: Device) -> tuple[Times, NDArray[np.bool_]]:
    us, within = np.empty(len(rows)), np.empty(len(rows), bool)
    keys = ["dtype", "n_q", "n_kv", "head_dim", "window", "hot"]
    for (dtype, n_q, n_kv, head_dim, window, hot), places in _groups(rows, keys):
        part = rows.iloc[places]
        shape = AttentionShape.dense(n_q, n_kv, head_dim, 1.0 if dtype == "fp8" else 2.0, int(window))
        prefill, decode = attention_sets(known, str(dtype), shape)
        record = attention_record(prefill, decode, shape, gpu, hot=bool(hot))
        columns = ("many", "new", "context", "singles", "single_context")
        batch = [part[name].to_numpy(np.int64) for name in columns]
        us[places] = equal_batches(record, *batch)
        alone = part.many.to_numpy() == 0
        within[places] = np.where(alone, inside(decode, part), inside(prefill, part))
    return us, within


def _gemm(rows: pd.DataFrame, known: Calibration, gpu: Device) -> tuple[Times, NDArray[np.bool_]]:
    us, within = np.empty(len(rows)), np.empty(len(rows), bool)
    for dtype, places in rows.groupby("dtype").indices.items():
        part = rows.iloc[places]
        kind = linear.Arithmetic.of("fp8" if dtype == "fp8" else None, "bfloat16", known, gpu)
        us[places] = _gemm_us(part, kind, gpu)
        within[places] = inside(kind.values, part)
    return us, within


def _gemm_us(rows: pd.DataFrame, kind: linear.Arithmetic, gpu: Device) -> Times:
    us = np.empty(len(rows))
    for (n, k), places in _groups(rows, ["n", "k"]):
        curve = linear.gemm_curve(kind, gpu, float(n), float(k))
        us[places] = np.interp(np.log2(rows.m.to_numpy(float)[places]), np.log2(TOKENS), curve)
    return us


def _simple(operation: str, r: Any, values: ValueSet, gpu: Device) -> Times:
    p = values.parameters
    if operation.startswith("all_reduce"):
        return linear.all_reduce_us(values, gpu, r.ranks.to_numpy(float), r["size"].to_numpy(float))
    us = {
        "small": lambda: forms.small_time(p, gpu.bandwidth, r.bytes),
        "sampler": lambda: forms.small_time(p, gpu.bandwidth, r.bytes),
        "moe": lambda: forms.moe_time(p, gpu.flops, gpu.bandwidth, r.pairs, r.active, r.weights),
        "send": lambda: forms.send_time(p, gpu.link, r["size"]),
        "attention_encoder": lambda: forms.encoder_time(p, gpu, r.batch, r.length, r.heads, r.head_dim),
    }[operation]()
    return np.asarray(us, float)
