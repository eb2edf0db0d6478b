"""A GPU's kernels: modelled times, the roofline, and measured points where there are some."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvsim.calibrate.predict import predict
from kvsim.gpu import catalog
from kvsim.gpu.cost.calibration import Calibration, device
from kvsim.plots import style

# What is drawn: Llama-3.1-8B's attention heads and its hidden size.
_SHAPE = {"n_q": 32, "n_kv": 8, "head_dim": 128, "window": 0}
_SIZE = 4096
_MOST_POINTS = 3000  # of a cloud
_LEAST_US = 0.5  # of a roofline that is drawn


def draw_kernels(known: Calibration, rows: Mapping[str, pd.DataFrame]) -> Figure:
    """Four pictures: decode and prefill attention, a linear layer, and measured against modelled.

    rows: measured, by operation, of this GPU; without any, the last shows all-reduces.
    """
    with style.styled():
        figure = style.new_picture(5.6)
        axes = figure.subplots(2, 2).ravel()
        _decode(axes[0], known, rows.get("attention"))
        _prefill(axes[1], known, rows.get("attention"))
        _linear(axes[2], known, rows.get("gemm"))
        if rows:
            _cloud(axes[3], known, rows)
        else:
            _all_reduce(axes[3], known)
    return figure


def _sequences(count: int) -> str:
    return f"{count} sequence" if count == 1 else f"{count} sequences"


def _frame(**columns: Any) -> pd.DataFrame:
    size = max(np.size(column) for column in columns.values())
    whole: dict[str, Any] = {
        "dtype": "bfloat16",
        "many": 0,
        "new": 1,
        "context": 0,
        "singles": 0,
        "single_context": 0,
    }
    whole |= {"hot": False, **columns}
    return pd.DataFrame({name: np.broadcast_to(column, size) for name, column in whole.items()})


def _decode(ax: Axes, known: Calibration, measured: pd.DataFrame | None) -> None:
    gpu = device(catalog.gpu(known.gpu))
    context = 2.0 ** np.arange(4, 18)
    for index, batch in enumerate((1, 16, 128)):
        look = style.line_style(index)
        frame = _frame(**_SHAPE, singles=batch, single_context=context - 1)
        ax.plot(context, predict("attention", frame, known)[0], label=_sequences(batch), **look)
        roof = batch * context * 4 * _SHAPE["n_kv"] * _SHAPE["head_dim"] / gpu.bandwidth
        ax.plot(context, np.where(roof < _LEAST_US, np.nan, roof), color=look["color"], linewidth=0.5)
        _points(ax, measured, {**_SHAPE, "many": 0, "singles": batch}, lambda r: r.single_context + 1, index)
    _finish(ax, "context, tokens", "Attention, decode", f"{known.gpu}, 32/8 heads of 128; thin: memory bound")


def _prefill(ax: Axes, known: Calibration, measured: pd.DataFrame | None) -> None:
    gpu = device(catalog.gpu(known.gpu))
    new = 2.0 ** np.arange(4, 16)
    for index, batch in enumerate((1, 8)):
        look = style.line_style(index)
        frame = _frame(**_SHAPE, many=batch, new=new)
        ax.plot(new, predict("attention", frame, known)[0], label=_sequences(batch), **look)
        roof = batch * 2 * new**2 * _SHAPE["n_q"] * _SHAPE["head_dim"] / gpu.flops
        ax.plot(new, np.where(roof < _LEAST_US, np.nan, roof), color=look["color"], linewidth=0.5)
        _points(ax, measured, {**_SHAPE, "many": batch, "singles": 0, "context": 0}, lambda r: r.new, index)
    _finish(ax, "new tokens of each", "Attention, prefill", "thin: peak of the tensor cores")


def _linear(ax: Axes, known: Calibration, measured: pd.DataFrame | None) -> None:
    gpu = device(catalog.gpu(known.gpu))
    tokens = 2.0 ** np.arange(0, 15)
    kinds = (("bfloat16", gpu.flops, 2), ("fp8", gpu.fp8_flops, 1))
    for index, (dtype, flops, size) in enumerate(kinds):
        if not flops:
            continue
        look = style.line_style(index)
        frame = _frame(m=tokens, n=_SIZE, k=_SIZE).assign(dtype=dtype)
        ax.plot(tokens, predict("gemm", frame, known)[0], label=dtype, **look)
        roof = np.maximum(2 * tokens * _SIZE**2 / flops, size * _SIZE**2 / gpu.bandwidth)
        ax.plot(tokens, roof, color=look["color"], linewidth=0.5)
        _points(ax, measured, {"n": _SIZE, "k": _SIZE, "dtype": dtype}, lambda r: r.m, index)
    _finish(ax, "tokens", f"Linear layer, {_SIZE:,} x {_SIZE:,}", "thin: roofline")


def _all_reduce(ax: Axes, known: Calibration) -> None:
    size = 2.0 ** np.arange(10, 29)
    for index, ranks in enumerate((2, 4, 8)):
        frame = _frame(ranks=ranks, size=size)
        times = [predict(f"all_reduce_{kind}", frame, known)[0] for kind in ("custom", "nccl")]
        ax.plot(size, np.minimum(*times), label=f"{ranks} GPUs", **style.line_style(index))
    _finish(ax, "bytes", "All-reduce", "the faster of vLLM's kernel and NCCL")


def _cloud(ax: Axes, known: Calibration, rows: Mapping[str, pd.DataFrame]) -> None:
    """Measured against modelled, a sample of each operation."""
    for index, (operation, frame) in enumerate(rows.items()):
        part = frame.sample(min(len(frame), _MOST_POINTS), random_state=0)
        modelled, _ = predict(operation, part, known)
        look: dict[str, Any] = {
            "marker": ".",
            "markersize": 1.5,
            "linestyle": "",
            "color": style.colour(index),
        }
        ax.plot(part.us, modelled, label=operation.replace("_", " "), **look)
    low, high = 1.0, max(ax.get_xlim()[1], ax.get_ylim()[1])
    ax.plot([low, high], [low, high], color=style.GREY, linewidth=0.6)
    _finish(ax, "measured, us", "Measured and modelled", f"{known.gpu}, by operation", ylabel="modelled, us")


def _points(
    ax: Axes,
    measured: pd.DataFrame | None,
    like: Mapping[str, float | str],
    x: Callable[[pd.DataFrame], pd.Series],
    index: int,
) -> None:
    if measured is None:
        return
    here = np.ones(len(measured), bool)
    for column, value in like.items():
        here &= (measured[column] == value).to_numpy()
    part = measured[here & (measured["dtype"] == like.get("dtype", "bfloat16")).to_numpy()]
    look: dict[str, Any] = {
        "marker": style.MARKERS[index],
        "markersize": 3,
        "linestyle": "",
        "color": style.colour(index),
    }
    ax.plot(x(part), part.us, **look)


def _finish(ax: Axes, xlabel: str, title: str, subtitle: str, ylabel: str = "us") -> None:
    ax.set_xscale("log", base=2 if ylabel == "us" else 10)
    ax.set_yscale("log")
    style.finish(ax, xlabel, ylabel, grid="both")
    style.set_title(ax, title, subtitle, 46)
    ax.legend(loc="upper left", fontsize=style.SMALL)
