"""How each kernel is run: one class per kernel, which makes the calls to be timed.

`Operation.prepare` puts the data of a point on the device and returns calls that do the same on different
data. The write of new keys and values into the KV cache is part of every decoder attention call, as it is of
the attention of vLLM's tables.
"""

from collections.abc import Iterator
from importlib.util import find_spec

from kvsim.calibrate.measure.device import Device
from kvsim.calibrate.measure.operations.operation import Operation


def available(device: Device) -> Iterator[Operation]:
    """Operations of what is installed, that of torch always. Imports nothing that is not needed."""
    from kvsim.calibrate.measure.operations.copies import Copies
    from kvsim.calibrate.measure.operations.gemm import TorchFp8Linear, TorchLinear, VllmFp8Linear
    from kvsim.calibrate.measure.operations.torch_attention import Sdpa, Varlen

    yield from (Sdpa(device), Varlen(device), TorchLinear(device), TorchFp8Linear(device))
    yield Copies(device)
    if not device.is_cuda:
        return
    from kvsim.calibrate.measure.operations import flash_attention

    if _is_installed("flash_attn"):
        yield flash_attention.FlashAttention2()
    if _is_installed("flash_attn_interface"):
        yield flash_attention.FlashAttention3()
    if _is_installed("vllm"):
        yield flash_attention.VllmFlashAttention(device)
        yield VllmFp8Linear(device)


def _is_installed(module: str) -> bool:
    return find_spec(module) is not None
