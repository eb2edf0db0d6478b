"""What depends on the number of tokens alone: linear layers, experts, small kernels, all-reduces."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.gpu.cost.calibration import Calibration, ValueSet
from kvsim.gpu.cost.curves import TOKENS, rising
from kvsim.gpu.cost.forms import (
    Device,
    active_experts,
    all_reduce_time,
    gemm_time,
    moe_time,
    send_time,
    small_time,
)
from kvsim.gpu.model import DTYPE_BYTES, QUANT_BYTES, ModelSpec

Curve = NDArray[np.float64]

CUSTOM_ALL_REDUCE_BYTES = 8 << 20  # vLLM's own kernel below this, NCCL from here on (custom_all_reduce.py)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How one GPU multiplies with weights of a type: numbers, flop/us, bytes a weight and an activation."""

    values: ValueSet
    flops: float
    weight_bytes: float
    activation_bytes: float
    measured: bool  # whether the numbers were fitted on this type

    @classmethod
    def of(
        cls, quantization: str | None, dtype: str, calibration: Calibration, device: Device
    ) -> "Arithmetic":
        """fp8 (and mxfp8, nvfp4, int8) on the units for it where the GPU has them; else 16-bit arithmetic
        on weights that are read narrow, which is physics, not measured."""
        wide = DTYPE_BYTES.get(dtype, 2)
        sixteen = calibration.get("gemm")
        if quantization is None:
            return cls(sixteen, device.flops * min(1.0, 2 / wide), wide, wide, wide == 2)
        narrow = QUANT_BYTES[quantization]
        if device.fp8_flops and quantization in ("fp8", "mxfp8", "int8", "nvfp4"):
            return cls(
                calibration.get("gemm", "fp8"),
                device.fp8_flops,
                narrow,
                1.0,
                quantization in ("fp8", "mxfp8"),
            )
        return cls(sixteen, device.flops, narrow, 2.0, False)


def gemm_curve(kind: Arithmetic, device: Device, columns: float, inner: float, rows: Curve = TOKENS) -> Curve:
    """us of one linear layer over as many rows as TOKENS has knots; never falls."""
    time = gemm_time(
        kind.values.parameters,
        kind.flops,
        device.bandwidth,
        rows,
        columns,
        inner,
        kind.weight_bytes,
        kind.activation_bytes,
    )
    table = kind.values.table if kind.measured else None
    if table is None:
        return time
    return rising(time * np.exp(table.at(m=rows, n=columns, k=inner)))


def linear_shapes(model: ModelSpec, ranks: int) -> Iterator[tuple[float, float, float]]:
    """(how many, columns, inner) of all dense matrix products of one step on one rank."""
    linears = model.layer_types.count("linear") if model.linear else 0
    mixers = sum(kind not in ("none", "linear") for kind in model.layer_types)
    hidden = model.hidden_size
    for columns, inner in _attention_shapes(model, ranks):
        yield mixers, columns, inner
    if model.linear:
        yield linears, (model.linear.conv_dim + model.linear.inner_size) / ranks, hidden
        yield linears, hidden, model.linear.inner_size / ranks
    dense = model.num_hidden_layers - model.num_moe_layers
    if model.intermediate_size:
        yield dense, 2 * model.intermediate_size / ranks, hidden
        yield dense, hidden, model.intermediate_size / ranks
    if model.shared_intermediate_size:
        yield model.num_moe_layers, 2 * model.shared_intermediate_size / ranks, hidden
        yield model.num_moe_layers, hidden, model.shared_intermediate_size / ranks


def _attention_shapes(model: ModelSpec, ranks: int) -> Iterator[tuple[float, float]]:
    hidden, heads = model.hidden_size, model.num_attention_heads / ranks
    if not model.is_mla:
        kv_heads = max(1.0, model.num_key_value_heads / ranks)
        queries = heads * model.head_dim * (2 if model.attention_output_gate else 1)
        yield queries + kv_heads * (model.head_dim + model.v_head_dim), hidden
        yield hidden, heads * model.head_dim
        return
    qk = model.qk_nope_head_dim + model.qk_rope_head_dim
    if model.q_lora_rank:
        yield model.q_lora_rank + model.kv_lora_rank + model.qk_rope_head_dim, hidden
        yield heads * qk, model.q_lora_rank
    else:
        yield heads * qk + model.kv_lora_rank + model.qk_rope_head_dim, hidden
    yield heads * (model.qk_nope_head_dim + model.v_head_dim), model.kv_lora_rank
    yield hidden, heads * model.v_head_dim


def expert_curve(
    model: ModelSpec, ranks: int, kind: Arithmetic, values: ValueSet, device: Device, replicas: int = 1
) -> Curve:
    """us of one layer's routed experts, their weights split over the ranks.

    replicas: data-parallel ranks that share out the experts. They take steps together, with about as many
    tokens each, so that every expert sees the tokens of all; how tokens travel is not counted.
    """
    tokens = replicas * TOKENS
    active = active_experts(tokens, model.num_experts, model.num_experts_per_tok)
    return moe_time(
        values.parameters,
        kind.flops,
        device.bandwidth,
        tokens * model.num_experts_per_tok,
        active,
        model.expert_parameters / (ranks * replicas),
        kind.weight_bytes,
    )


def small_bytes(model: ModelSpec, ranks: int) -> list[float]:
    """Bytes a token that a layer's small kernels move: two norms with their residual, rotary, activation."""
    norm = 4 * 2 * model.hidden_size
    heads = (model.num_attention_heads + model.num_key_value_heads) / ranks
    rotary = 2 * 2 * heads * model.head_dim
    width = (model.intermediate_size or model.moe_intermediate_size * model.num_experts_per_tok) / ranks
    return [norm, norm, rotary, 3 * 2 * width]


def small_curve(model: ModelSpec, ranks: int, kind: Arithmetic, values: ValueSet, device: Device) -> Curve:
    """us of one layer's small kernels.

    Where linear layers quantise their activations, vLLM fuses norms and activation with that, and the
    measured linear layers hold those launches: only their bytes and the rotary embedding are left.
    """
    moved = small_bytes(model, ranks)
    launches = 1 if kind.activation_bytes < 2 else len(moved)
    bytes_alone = small_time({**values.parameters, "launch": 0.0}, device.bandwidth, TOKENS * sum(moved))
    return np.asarray(launches * values.parameters["launch"] + bytes_alone)


def all_reduce_curve(size: Curve, ranks: int, calibration: Calibration, device: Device) -> Curve:
    """us of one all-reduce of `size` bytes: vLLM's kernel for small ones where it is the faster."""
    nccl = all_reduce_us(calibration.get("all_reduce_nccl"), device, ranks, size)
    custom = all_reduce_us(calibration.get("all_reduce_custom"), device, ranks, size)
    small = size < CUSTOM_ALL_REDUCE_BYTES
    return rising(np.where(small, np.minimum(custom, nccl), nccl))


def all_reduce_us(values: ValueSet, device: Device, ranks: Curve | int, size: Curve) -> Curve:
    """us of all-reduces of `size` bytes, residual included."""
    time = all_reduce_time(values.parameters, device.link, ranks, size)
    table = values.table
    return time if table is None else time * np.exp(table.at(ranks=ranks, size=size))


def send_curve(size: Curve, values: ValueSet, device: Device) -> Curve:
    """us of passing `size` bytes to the next pipeline stage."""
    return send_time(values.parameters, device.link, size)
