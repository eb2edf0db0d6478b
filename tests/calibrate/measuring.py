"""A device and kernels that only pretend, so that all around them is tested without torch."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from kvsim.calibrate.measure import session
from kvsim.calibrate.measure.device import Card, Device, OutOfMemoryError
from kvsim.calibrate.measure.grids import TINY
from kvsim.calibrate.measure.operations.operation import Operation
from kvsim.calibrate.measure.points import Kernel, Point
from kvsim.calibrate.measure.timing import GRAPH, Call, Timing

CARD = Card("NVIDIA H200", "H200", "2.13.0", "13.0", "580.1")


class TorchOutOfMemoryError(RuntimeError):
    """As torch.cuda.OutOfMemoryError."""


class Timer:
    def warm_up(self) -> None:
        """Nothing."""

    def once(self, call: Call) -> float:
        return 1.0

    def time(self, calls, *, cold: bool, graph: bool = True, estimate: float | None = None) -> Timing:
        calls[0]()
        return Timing(20.0 if cold else 10.0, 0.01, 5, GRAPH)


class Pretended(Operation):
    """Keeps the points that it was asked for; `act` may raise."""

    def __init__(self, name: str, *operations: str) -> None:
        self.kernel = Kernel(name, frozenset(operations), "torch", "2.13.0")
        self.points: list[Point] = []
        self.act: Callable[[Point], None] = lambda point: None

    def prepare(self, device: Device, point: Point) -> list[Call]:
        self.points.append(point)
        self.act(point)
        return [lambda: None]


def pretend(monkeypatch: pytest.MonkeyPatch, *found: Operation, card: Card = CARD) -> None:
    """Let `measure` find that card and those kernels, and take the tiny grid."""
    cuda = SimpleNamespace(OutOfMemoryError=TorchOutOfMemoryError, synchronize=lambda device: None)
    device = Device(SimpleNamespace(cuda=cuda), SimpleNamespace(type="cpu"), card, Timer(), 1, (9, 0))
    monkeypatch.setattr(session, "open_device", lambda name: device)
    monkeypatch.setattr(session.operations, "available", lambda device: iter(found))
    monkeypatch.setattr(session, "_reduces", lambda device: [])
    monkeypatch.setattr(session, "CARD", TINY)


def out_of_memory(kind: type[Exception] = OutOfMemoryError) -> Callable[[Point], None]:
    """Points of two sequences do not fit."""

    def act(point: Point) -> None:
        if point["batch"] == 2:
            raise kind("CUDA out of memory")

    return act
