"""Linear layers: out[m, n] = in[m, k] x W[k, n]. Weights are several copies, called in turn.

A model's layers do not find their weights in the L2 cache, since those of the others lie between.
"""

from typing import Any

from kvsim.calibrate.measure.device import Device, package_version
from kvsim.calibrate.measure.operations.operation import Operation
from kvsim.calibrate.measure.points import Kernel, Point
from kvsim.calibrate.measure.timing import Call

_COPIES = 6  # of the weights, as in the tables of aiconfigurator
_APART = 512 << 20  # bytes of weights beyond which one copy pushes itself out of any L2 cache
_FP8_CAPABILITY = (8, 9)


def copies(nbytes: int) -> int:
    """How many copies of weights of so many bytes."""
    return max(1, min(_COPIES, -(-_APART // nbytes)))


class TorchLinear(Operation):
    """`torch.nn.functional.linear` in bfloat16."""

    def __init__(self, device: Device) -> None:
        self.kernel = Kernel("torch.nn.functional.linear", frozenset({"gemm"}), "torch", device.card.torch)

    def prepare(self, device: Device, point: Point) -> list[Call]:
        m, n, k = point["m"], point["n"], point["k"]
        count = copies(2 * n * k)
        device.require(2 * (m * k + m * n + count * n * k))
        inputs = device.random(m, k)
        linear = device.torch.nn.functional.linear
        return [_bound(linear, inputs, device.random(n, k)) for _ in range(count)]


class TorchFp8Linear(Operation):
    """`torch._scaled_mm` after a cast of the input, one scale for each operand."""

    def __init__(self, device: Device) -> None:
        self.kernel = Kernel(
            "torch._scaled_mm", frozenset({"gemm"}), "torch", device.card.torch, _fp8_dtypes(device)
        )

    def prepare(self, device: Device, point: Point) -> list[Call]:
        torch = device.torch
        m, n, k = point["m"], point["n"], point["k"]
        count = copies(n * k)
        device.require(3 * m * k + 2 * m * n + count * n * k)
        inputs, one = device.random(m, k), torch.ones((), device=device.device)

        def call(weights: Any) -> Any:
            return torch._scaled_mm(
                inputs.to(torch.float8_e4m3fn),
                weights,
                scale_a=one,
                scale_b=one,
                out_dtype=torch.bfloat16,
                use_fast_accum=True,
            )

        return [_bound(call, device.random(n, k, dtype="fp8").t()) for _ in range(count)]


class VllmFp8Linear(Operation):
    """vLLM's fp8 linear layer: quantise the input row by row, then its CUTLASS product."""

    def __init__(self, device: Device) -> None:
        version = package_version("vllm")
        self.kernel = Kernel(
            "CutlassFP8ScaledMMLinearKernel", frozenset({"gemm"}), "vllm", version, _fp8_dtypes(device)
        )

    def prepare(self, device: Device, point: Point) -> list[Call]:
        from vllm import _custom_ops

        torch = device.torch
        m, n, k = point["m"], point["n"], point["k"]
        count = copies(n * k)
        device.require(3 * m * k + 2 * m * n + count * n * k)
        inputs, one = device.random(m, k), torch.ones(1, device=device.device)

        def call(weights: Any) -> Any:
            rows, scales = _custom_ops.scaled_fp8_quant(inputs, use_per_token_if_dynamic=True)
            return _custom_ops.cutlass_scaled_mm(rows, weights, scales, one, torch.bfloat16)

        return [_bound(call, device.random(n, k, dtype="fp8").t()) for _ in range(count)]


def _fp8_dtypes(device: Device) -> frozenset[str]:
    there = not device.is_cuda or device.capability >= _FP8_CAPABILITY
    return frozenset({"fp8"} if there else ())


def _bound(function: Any, *arguments: Any) -> Call:
    return lambda: function(*arguments)
