"""Copies between host and device, and within the device: what moving KV blocks costs.

pieces: equal parts that are copied one by one, as blocks that do not lie together are. From pinned memory
and within the device the time is the device's, between events; from pageable memory the host's, which waits.
"""

from time import perf_counter
from typing import Any

from kvsim.calibrate.measure.device import Device
from kvsim.calibrate.measure.operations.operation import Operation
from kvsim.calibrate.measure.points import Kernel, Point
from kvsim.calibrate.measure.timing import HOST, Call, Timing

_REPEATS = 5


class Copies(Operation):
    """`Tensor.copy_`, asynchronous where the memory allows it."""

    graph = False  # an engine issues them one by one, too

    def __init__(self, device: Device) -> None:
        self.kernel = Kernel("torch.Tensor.copy_", frozenset({"copy"}), "torch", device.card.torch)

    def prepare(self, device: Device, point: Point) -> list[Call]:
        size, pieces = point["bytes"], point["pieces"]
        device.require(2 * size)
        ends = [self._memory(device, where, point.word("memory"), size) for where in _ends(point)]
        source, target = (end.chunk(pieces) for end in ends)
        pinned = point.word("memory") != "pageable"

        def call() -> None:
            for here, there in zip(source, target, strict=True):
                there.copy_(here, non_blocking=pinned)

        return [call]

    def time(self, device: Device, point: Point, calls: list[Call], *, cold: bool) -> Timing:
        if point.word("memory") == "pageable":
            return _time_on_host(calls[0], device)
        return super().time(device, point, calls, cold=cold)

    def _memory(self, device: Device, where: str, kind: str, size: int) -> Any:
        torch = device.torch
        if where == "device":
            return torch.zeros(size, dtype=torch.uint8, device=device.device)
        memory = torch.zeros(size, dtype=torch.uint8)
        return memory.pin_memory() if kind == "pinned" and device.is_cuda else memory


def _ends(point: Point) -> list[str]:
    return point.word("direction").split("_to_")


def _time_on_host(call: Call, device: Device) -> Timing:
    """A call that keeps the host waiting, by the host's clock."""
    call()
    samples = []
    for _ in range(_REPEATS):
        device.is_alive()  # waits for what is under way
        start = perf_counter()
        call()
        device.is_alive()
        samples.append(1e6 * (perf_counter() - start))
    return Timing.of(samples, HOST)
