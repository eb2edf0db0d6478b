"""The CUDA timer on a device that only counts: graphs, events and a clock of its own."""

from types import SimpleNamespace

import pytest

from kvsim.calibrate.measure.timing import EVENTS, GRAPH, HOST, CpuTimer, CudaTimer, Timing

LAUNCH, FLUSH, KERNEL = 8.0, 50.0, 3.0  # us


class Machine:
    """What `CudaTimer` uses of torch. The host's launches cost time only where the device waits for them."""

    def __init__(self, capturable: bool = True) -> None:
        self.now = 0.0
        self.capturing: list[float] | None = None
        self.queued = 0.0  # us of work that the device still has
        self.graphs = 0
        self.replays = 0
        self.float32 = "float32"
        machine = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = machine.now + machine.queued

            def synchronize(self) -> None:
                machine.now += machine.queued
                machine.queued = 0.0

            def elapsed_time(self, end: "Event") -> float:
                return (end.at - self.at) / 1e3

        class CUDAGraph:
            def __init__(self) -> None:
                self.work: list[float] = []
                machine.graphs += 1

            def replay(self) -> None:
                machine.replays += 1
                machine.launch(sum(self.work))

            def reset(self) -> None:
                machine.graphs -= 1

        class Capture:
            def __init__(self, graph: CUDAGraph) -> None:
                self.graph = graph

            def __enter__(self) -> None:
                if not capturable:
                    raise RuntimeError("operation not permitted when stream is capturing")
                machine.capturing = self.graph.work

            def __exit__(self, *_: object) -> None:
                machine.capturing = None

        stream = SimpleNamespace(wait_stream=lambda other: None)
        self.cuda = SimpleNamespace(
            Event=Event,
            CUDAGraph=CUDAGraph,
            graph=Capture,
            Stream=lambda: stream,
            current_stream=lambda: stream,
            stream=lambda each: _Nothing(),
            synchronize=lambda *_: None,
            OutOfMemoryError=type("OutOfMemoryError", (RuntimeError,), {}),
        )

    def launch(self, us: float) -> None:
        """The device is idle while the host launches, unless it has work."""
        if self.capturing is not None:
            self.capturing.append(us)
            return
        idle = max(LAUNCH - self.queued, 0.0)
        self.queued += idle + us

    def kernel(self, us: float = KERNEL):
        return lambda: self.launch(us)

    def zeros(self, size: int, **_: object) -> SimpleNamespace:
        return SimpleNamespace(sum=lambda: self.launch(FLUSH))


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def timed(machine: Machine, *kernels, **how) -> Timing:
    return CudaTimer(machine, "cuda:0", 1 << 20).time(list(kernels), **how)


def test_a_hot_time_holds_no_launch_of_the_host() -> None:
    machine = Machine()
    timing = timed(machine, machine.kernel(), cold=False)
    assert timing.us == pytest.approx(KERNEL)
    assert (timing.how, timing.spread) == (GRAPH, pytest.approx(0, abs=1e-6))
    assert machine.graphs == 0  # given back


def test_a_cold_time_holds_neither_launch_nor_flush() -> None:
    machine = Machine()
    assert timed(machine, machine.kernel(), cold=True).us == pytest.approx(KERNEL)
    assert machine.graphs == 0


def test_calls_on_different_data_take_turns_and_count_alike() -> None:
    machine = Machine()
    kernels = [machine.kernel(us) for us in (2.0, 4.0, 6.0)]
    assert timed(machine, *kernels, cold=False).us == pytest.approx(4.0)


@pytest.mark.parametrize("cold", [False, True])
def test_a_long_call_is_timed_few_times(cold: bool) -> None:
    machine = Machine()
    timing = timed(machine, machine.kernel(2e6), cold=cold)
    assert timing.us == pytest.approx(2e6, rel=1e-4)
    assert timing.repeats == 3
    assert machine.now < 20e6


def test_what_cannot_be_captured_is_timed_by_events() -> None:
    machine = Machine(capturable=False)
    timing = timed(machine, machine.kernel(100.0), cold=False)
    assert timing.how == EVENTS
    assert timing.us == pytest.approx(100.0 + LAUNCH)
    machine = Machine()
    assert timed(machine, machine.kernel(100.0), cold=False, graph=False).how == EVENTS


def test_running_out_of_memory_is_not_taken_for_something_else() -> None:
    machine = Machine()

    def call() -> None:
        raise machine.cuda.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(machine.cuda.OutOfMemoryError):
        timed(machine, call, cold=False, estimate=10.0)


def test_processes_with_one_estimate_do_the_same_number_of_calls() -> None:
    counts = []
    for us in (90.0, 130.0):
        machine = Machine()
        timed(machine, machine.kernel(us), cold=False, estimate=120.0)
        counts.append(machine.replays)
    assert counts[0] == counts[1]


def test_a_time_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="below what can be measured"):
        Timing.of([0.0, 0.0, 0.0], GRAPH)
    assert Timing.of([4.0, 1.0, 2.0, 3.0, 100.0], GRAPH) == Timing(3.0, 2 / 3, 5, GRAPH)


def test_the_timer_without_a_device() -> None:
    called = []
    torch = SimpleNamespace(zeros=lambda size: SimpleNamespace(sum=lambda: None))
    timing = CpuTimer(torch).time([lambda: called.append(1)], cold=True)
    assert timing.us > 0
    assert timing.how == HOST
    assert len(called) == 4
