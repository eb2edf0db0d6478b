"""A model's attention as records of the compiled step."""

import numpy as np
from numpy.typing import NDArray

from kvsim.gpu.cost.calibration import Calibration, ValueSet
from kvsim.gpu.cost.curves import BODY, SEQUENCES, batch_body, decode_grid, prefill_grid
from kvsim.gpu.cost.forms import AttentionShape, Device, Parameters, least_rows, prefill_coefficients
from kvsim.gpu.cost.step import ATTENTION_DTYPE, FULL, WINDOW, attention_rows
from kvsim.gpu.layers import kv_dtype_bytes, kv_heads_per_gpu
from kvsim.gpu.model import ModelSpec

LARGEST_HEAD = 256  # other kernels beyond


def kernel_family(head_dim: float, window: float) -> str:
    """What value sets of attention are named by: "", "_window" or "_large" (heads)."""
    if window:
        return "_window"
    return "_large" if head_dim > LARGEST_HEAD else ""


def attention_sets(
    calibration: Calibration, kv_dtype: str, shape: AttentionShape
) -> tuple[ValueSet, ValueSet]:
    """Prefill and decode numbers for a KV dtype ("bfloat16" or "fp8"); where fp8 has none, bfloat16's."""
    suffix = kernel_family(shape.head_dim, shape.window)
    found = []
    for operation in ("attention_prefill", "attention_decode"):
        choices = [
            calibration.find(operation + suffix, kv_dtype),
            calibration.find(operation, kv_dtype),
            calibration.find(operation + suffix),
            calibration.find(operation),
        ]
        own = [values for values in choices if values is not None and not values.borrowed_from]
        known = own or [values for values in choices if values is not None]
        found.append(known[0] if known else calibration.get(operation))
    return found[0], found[1]


def attention_record(
    prefill: ValueSet,
    decode: ValueSet,
    shape: AttentionShape,
    device: Device,
    layers: float = 1.0,
    hot: bool = False,
) -> NDArray[np.void]:
    """ATTENTION_DTYPE (1,) for `layers` layers. hot: see `decode_time`; a run is never hot."""
    p, d = prefill.parameters, decode.parameters
    c = prefill_coefficients(p, shape, device)
    # A key costs a lone token no more than others, so that a second token never makes a step cheaper.
    single = min(p["single_key"], 1.0) * c["key"]
    record = np.zeros(1, ATTENTION_DTYPE)
    values = {
        "layers": layers,
        "window": shape.window,
        "pad": p["pad"],
        "tile": least_rows(p, shape),
        "pair": c["pair"],
        "new": c["new"],
        "key": c["key"],
        "single_key": single,
        "single_walk": p["single_walk"],
        "walk": p["walk"],
        "norm": p["norm"],
    }
    for name, value in values.items():
        record[name] = value
    record["decode"][0] = decode_grid(d, decode.table, shape, device, hot)
    record["prefill"][0] = prefill_grid(p, prefill.table, shape, device)
    _meet(record, p, shape, device)
    return record


def _meet(record: NDArray[np.void], p: Parameters, shape: AttentionShape, device: Device) -> None:
    """Let prompts of one token, which go to the decode kernel, meet the prefill of more in the middle.

    FlashAttention-2's decode call takes longer than a short prefill; left so, a second token would make a
    step shorter.
    """
    body = batch_body(p, shape, device, SEQUENCES, np.ones(len(SEQUENCES)))
    at = np.log2(body / BODY[0]) * 2
    places = np.arange(len(BODY))
    prefill = [np.interp(x, places, row) for x, row in zip(at, record["prefill"][0], strict=True)]
    least = np.minimum.accumulate(prefill[::-1])[::-1]  # never falls with the number of sequences
    first = record["decode"][0][:, 0]
    record["decode"][0][:, 0] = 0.5 * (first + np.minimum(first, least))


def equal_batches(
    record: NDArray[np.void],
    many: NDArray[np.int64],
    new: NDArray[np.int64],
    context: NDArray[np.int64],
    singles: NDArray[np.int64] | None = None,
    single_context: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """us of one layer, (rows,), through the code that a run uses; see `attention_rows`."""
    none = np.zeros(len(many), np.int64)
    singles = none if singles is None else singles
    single_context = none if single_context is None else single_context
    out = np.empty(len(many))
    room = int(np.max(many + singles, initial=1))
    rows = [
        np.ascontiguousarray(column, np.int64) for column in (many, new, context, singles, single_context)
    ]
    attention_rows(record, *rows, np.empty(room, np.int32), np.empty(room, np.int32), out)
    return out


def attention_shapes(
    model: ModelSpec, tensor_parallel_size: int, kv_cache_dtype: str
) -> dict[int, tuple[int, AttentionShape]]:
    """Kind of layer (FULL, WINDOW) -> (number of layers, what one GPU computes of one)."""
    size = kv_dtype_bytes(kv_cache_dtype, model.dtype)
    kinds = [kind for kind in model.layer_types if kind not in ("none", "linear")]
    full = sum(kind == "full" for kind in kinds)
    queries = model.num_attention_heads / tensor_parallel_size
    if model.is_mla:
        return {FULL: (full, _latent_shape(model, queries, size))}
    kv_heads = kv_heads_per_gpu(model.num_key_value_heads, tensor_parallel_size)
    windowed = _shape(queries, kv_heads, model.head_dim, model.v_head_dim, size, model.sliding_window or 0)
    heads = model.global_num_key_value_heads or model.num_key_value_heads
    whole = _shape(
        queries,
        kv_heads_per_gpu(heads, tensor_parallel_size),
        model.global_head_dim or model.head_dim,
        model.global_head_dim or model.v_head_dim,
        size,
    )
    return {FULL: (full, whole), WINDOW: (len(kinds) - full, windowed)}


def _shape(
    queries: float, kv_heads: int, head_dim: int, v_head_dim: int, size: int, window: int = 0
) -> AttentionShape:
    both = head_dim + v_head_dim
    return AttentionShape(queries, kv_heads, head_dim, kv_heads * both * size, 2 * queries * both, window)


def _latent_shape(model: ModelSpec, queries: float, size: int) -> AttentionShape:
    """MLA: one latent vector for all heads, read once; prefill multiplies with the heads' own K and V.

    A decode step works in the latent space, with more arithmetic a pair, but is bound by memory.
    """
    latent = model.kv_lora_rank + model.qk_rope_head_dim
    own = model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim
    return AttentionShape(queries, 1, 0, latent * size, 2 * queries * own)
