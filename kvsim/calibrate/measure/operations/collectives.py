"""All-reduce over several GPUs: one process each, timed by the first one while all do the same."""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

from kvsim.calibrate.measure.device import Device, open_device
from kvsim.calibrate.measure.operations.operation import Operation
from kvsim.calibrate.measure.points import Kernel, Point
from kvsim.calibrate.measure.timing import Timing

_START_SECONDS = 120  # for processes to find each other
_POLL_SECONDS = 0.2


class AllReduce(Operation):
    """`torch.distributed.all_reduce` in bfloat16: NCCL, or gloo where there is no GPU."""

    def __init__(self, device: Device) -> None:
        name = "NCCL_all_reduce" if device.is_cuda else "gloo_all_reduce"
        package, version = ("nccl", _nccl_version(device)) if device.is_cuda else ("gloo", "")
        self.kernel = Kernel(name, frozenset({"all_reduce"}), package, version)


def _nccl_version(device: Device) -> str:
    with suppress(Exception):  # a build of torch without NCCL
        return ".".join(map(str, device.torch.cuda.nccl.version()))
    return ""


def devices(device: Device) -> int:
    """How many take part at most."""
    return device.count if device.is_cuda else 2


def all_reduce(
    device: Device, points: list[Point], deadline: float, stopped: Callable[[], bool]
) -> Iterator[tuple[Point, Timing]]:
    """Points of one number of GPUs with their times, as far as the deadline (of `monotonic`) allows.

    Raises RuntimeError if the processes fail or do not find each other.
    """
    import torch.multiprocessing as processes

    count = points[0]["num_gpus"]
    with tempfile.TemporaryDirectory() as folder:
        sizes = [point["message_size"] for point in points]
        seconds = min(deadline - monotonic(), 3600.0)
        arguments = (count, device.device.type, sizes, folder, seconds)
        running = processes.spawn(_rank, arguments, nprocs=count, join=False)
        try:
            _wait(running, monotonic() + _START_SECONDS + seconds, stopped)
        finally:
            for process in running.processes:
                if process.is_alive():
                    process.kill()
        yield from zip(points, _read(Path(folder)), strict=False)


def _wait(running: Any, latest: float, stopped: Callable[[], bool]) -> None:
    try:
        while not running.join(timeout=_POLL_SECONDS):
            if stopped():
                return
            if monotonic() > latest:
                raise RuntimeError("the processes of the GPUs did not come to an end")
    except Exception as error:  # torch's, with the traceback of the process that failed
        if stopped():  # a signal from the keyboard ends the processes, too
            return
        lines = str(error).strip().splitlines()
        raise RuntimeError(lines[-1] if lines else "a process failed") from None


def _read(folder: Path) -> Iterator[Timing]:
    path = folder / "times"
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            yield Timing(**json.loads(line))


def _rank(rank: int, count: int, kind: str, sizes: list[int], folder: str, seconds: float) -> None:
    """One process: times every size as long as all of them have time."""
    import torch.distributed as distributed

    end = monotonic() + seconds
    device = open_device(f"cuda:{rank}" if kind == "cuda" else "cpu")
    distributed.init_process_group(
        "nccl" if device.is_cuda else "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=_START_SECONDS),
    )
    try:
        device.timer.warm_up()
        with open(Path(folder, "times" if rank == 0 else f"unused{rank}"), "w", encoding="utf-8") as times:
            for size in sizes:
                if _agreed(device, distributed, end - monotonic(), distributed.ReduceOp.MIN) <= 0:
                    break
                times.write(json.dumps(vars(_time(device, distributed, size))) + "\n")
                times.flush()
    finally:
        distributed.destroy_process_group()


def _time(device: Device, distributed: Any, size: int) -> Timing:
    values = device.torch.zeros(size, dtype=device.torch.bfloat16, device=device.device)

    def call() -> None:
        distributed.all_reduce(values)

    once = 0.0
    for _ in range(3):
        once = device.timer.once(call)
    estimate = _agreed(device, distributed, once, distributed.ReduceOp.MAX)
    return device.timer.time([call], cold=False, estimate=max(estimate, 1.0))


def _agreed(device: Device, distributed: Any, value: float, reduce: Any) -> float:
    """Least or most of all processes' values, so that all do the same."""
    shared = device.torch.tensor([value], dtype=device.torch.float64, device=device.device)
    distributed.all_reduce(shared, op=reduce)
    return float(shared.item())
