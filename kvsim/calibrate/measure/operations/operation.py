"""What every operation offers."""

from kvsim.calibrate.measure.device import Device
from kvsim.calibrate.measure.points import Kernel, Point
from kvsim.calibrate.measure.timing import Call, Timing


class Operation:
    """graph: whether its calls may be captured in a CUDA graph."""

    kernel: Kernel
    graph = True

    def prepare(self, device: Device, point: Point) -> list[Call]:
        """Raises OutOfMemoryError, or whatever the kernel raises."""
        raise NotImplementedError

    def time(self, device: Device, point: Point, calls: list[Call], *, cold: bool) -> Timing:
        """Raises whatever the calls raise."""
        return device.timer.time(calls, cold=cold, graph=self.graph)
