"""Time one call on the device.

On CUDA a graph of several calls is replayed and divided by their number, so no launch by the host is in
the time (the method of the tables in `kvsim calibrate fit`'s documentation). Cold: before each call a
buffer of three times the L2 cache is read, as an engine's weights are; the same graph without the calls
is timed beside it and taken off. Reading leaves no dirty lines, which a call would have to write back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, Protocol

Call = Callable[[], object]

GRAPH, EVENTS, HOST = "cuda_graph", "cuda_events", "perf_counter"

_REPLAY_US = 2000.0  # aimed at: long against the resolution of an event and a launch
_POINT_US = 40000.0  # aimed at for all repeats of a point
_MOST_CALLS, _MOST_COLD_CALLS = 60, 12
_FEWEST_REPEATS, _MOST_REPEATS = 3, 15
_WARM_UPS = 3
_LONG_US = 50000.0  # such a call warms up enough by itself


@dataclass(frozen=True)
class Timing:
    """us: median of the repeats, for one call. spread: their interquartile range over it."""

    us: float
    spread: float
    repeats: int
    how: str

    @classmethod
    def of(cls, samples: Sequence[float], how: str) -> "Timing":
        """Raises ValueError if the median is not above zero, which no device can do."""
        middle = median(samples)
        if not middle > 0:
            raise ValueError(f"timed {middle:g} us, which is below what can be measured")
        ordered = sorted(samples)
        quarter = (len(ordered) - 1) / 4
        spread = ordered[round(3 * quarter)] - ordered[round(quarter)]
        return cls(middle, spread / middle, len(samples), how)


class Timer(Protocol):
    """calls: do the same on different data; they are called in turn.

    graph: whether they may be captured. estimate: microseconds of a call; where several processes must
    do the same number of calls, they give the same estimate, and each call has been made before.
    """

    def warm_up(self) -> None: ...

    def time(
        self, calls: Sequence[Call], *, cold: bool, graph: bool = True, estimate: float | None = None
    ) -> Timing: ...

    def once(self, call: Call) -> float:
        """Microseconds of a single call, launch included."""


class CpuTimer:
    """By the wall clock; cold reads a buffer before each call, untimed."""

    def __init__(self, torch: Any) -> None:
        self._buffer = torch.zeros(1 << 20)

    def warm_up(self) -> None:
        """Nothing to warm up."""

    def time(
        self, calls: Sequence[Call], *, cold: bool, graph: bool = True, estimate: float | None = None
    ) -> Timing:
        samples = []
        calls[0]()
        for i in range(_FEWEST_REPEATS):
            if cold:
                self._buffer.sum()
            samples.append(self.once(calls[i % len(calls)]))
        return Timing.of(samples, HOST)

    def once(self, call: Call) -> float:
        start = perf_counter()
        call()
        return 1e6 * (perf_counter() - start)


class CudaTimer:
    """flushed: bytes to read for a cold call."""

    def __init__(self, torch: Any, device: Any, flushed: int) -> None:
        self._torch = torch
        self._device = device
        self._buffer = torch.zeros(flushed // 4, dtype=torch.float32, device=device)

    def warm_up(self) -> None:
        """Half a second of products brings an idle card to its clock."""
        torch = self._torch
        side = torch.randn(2048, 2048, dtype=torch.bfloat16, device=self._device)
        end = perf_counter() + 0.5
        while perf_counter() < end:
            for _ in range(20):
                side @ side
            torch.cuda.synchronize(self._device)

    def time(
        self, calls: Sequence[Call], *, cold: bool, graph: bool = True, estimate: float | None = None
    ) -> Timing:
        """Raises what the calls raise; what cannot be captured is timed by events, launches and all."""
        us = self._first_calls(calls) if estimate is None else estimate
        if graph:
            try:
                return self._by_graph(calls, us, cold)
            except self._torch.cuda.OutOfMemoryError:
                raise
            except RuntimeError:
                self._torch.cuda.synchronize(self._device)  # raises if the device itself is lost
        return self._by_events(calls, us, cold)

    def once(self, call: Call) -> float:
        cuda = self._torch.cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        return 1e3 * float(start.elapsed_time(end))

    def _first_calls(self, calls: Sequence[Call]) -> float:
        """Warm up and estimate one call's microseconds, launch included."""
        estimate = 0.0
        for i in range(_WARM_UPS):
            estimate = self.once(calls[i % len(calls)])
            if estimate > _LONG_US:
                break
        return max(estimate, 1.0)

    def _by_graph(self, calls: Sequence[Call], estimate: float, cold: bool) -> Timing:
        most = _MOST_COLD_CALLS if cold else _MOST_CALLS
        turns = min(max(round(_REPLAY_US / estimate / len(calls)), 1), max(most // len(calls), 1))
        row = [call for _ in range(turns) for call in calls]
        if estimate > _REPLAY_US:
            row = row[:1]
        us = estimate * len(row)
        if not cold:
            with _Replayed(self._torch, row) as replay:
                samples = [each / len(row) for each in self._repeat(replay, us)]
        else:
            flushed = [each for call in row for each in (self._flush, call)]
            alone = [self._flush] * len(row)
            with _Replayed(self._torch, flushed) as both, _Replayed(self._torch, alone) as flush:
                floor = median(self._repeat(flush, us))
                samples = [(each - floor) / len(row) for each in self._repeat(both, us)]
        return Timing.of(samples, GRAPH)

    def _by_events(self, calls: Sequence[Call], estimate: float, cold: bool) -> Timing:
        samples = []
        for i in range(_repeats(estimate)):
            if cold:
                self._flush()
            samples.append(self.once(calls[i % len(calls)]))
        return Timing.of(samples, EVENTS)

    def _flush(self) -> object:
        return self._buffer.sum()

    def _repeat(self, replay: Call, us: float) -> list[float]:
        """Microseconds of each replay. us: about how many that is.

        A short one is replayed once before, untimed: meanwhile the host launches the one that counts,
        so that no wait for the host falls between its events.
        """
        samples = []
        replay()
        for _ in range(_repeats(us)):
            if us < _REPLAY_US:
                replay()
            samples.append(self.once(replay))
        return samples


def _repeats(us: float) -> int:
    return min(max(round(_POINT_US / us), _FEWEST_REPEATS), _MOST_REPEATS)


class _Replayed:
    """Calls captured in a graph, which is dropped at the end; entering gives its replay."""

    def __init__(self, torch: Any, calls: Sequence[Call]) -> None:
        self._torch = torch
        self._calls = calls

    def __enter__(self) -> Call:
        torch = self._torch
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # as torch asks: once on another stream before a capture
            for call in dict.fromkeys(self._calls):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        with torch.cuda.graph(self._graph):
            for call in self._calls:
                call()
        return self._graph.replay  # type: ignore[no-any-return]

    def __exit__(self, *_: object) -> None:
        self._torch.cuda.synchronize()
        self._graph.reset()
