"""The device at hand: opened once, with the facts that go beside each time."""

import platform
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from kvsim.calibrate.measure.timing import CpuTimer, CudaTimer, Timer
from kvsim.errors import KvsimError
from kvsim.gpu import catalog

_DEVICE = re.compile(r"cpu|cuda(:\d+)?")
_FLUSHED_PER_L2 = 3  # bytes read between repeats, as a multiple of the L2 cache
_L2_BYTES = 64 << 20  # where torch does not tell


class OutOfMemoryError(Exception):
    """This point does not fit beside what is there."""


@dataclass(frozen=True)
class Card:
    """Where and with what a time was taken. name: as the driver says it; gpu: the catalog's name for it."""

    name: str
    gpu: str
    torch: str
    cuda: str
    driver: str


@dataclass(frozen=True)
class Device:
    """torch: the module; device: torch's; count: devices of that kind; capability: (major, minor)."""

    torch: Any
    device: Any
    card: Card
    timer: Timer
    count: int
    capability: tuple[int, int]

    @property
    def is_cuda(self) -> bool:
        return bool(self.device.type == "cuda")

    def random(self, *shape: int, dtype: str = "bfloat16") -> Any:
        """Values as activations have them: tensor cores draw less power, and run faster, on zeros."""
        torch = self.torch
        if dtype == "fp8":  # any bits but those of infinity and NaN
            bits = torch.randint(0, 112, shape, dtype=torch.uint8, device=self.device)
            return bits.view(torch.float8_e4m3fn)
        return torch.randn(shape, dtype=torch.bfloat16, device=self.device)

    def whole(self, values: Any, dtype: Any = None) -> Any:
        """A list of whole numbers on the device, int32 unless said."""
        return self.torch.tensor(values, dtype=dtype or self.torch.int32, device=self.device)

    def require(self, nbytes: float) -> None:
        """Raises OutOfMemoryError if so much would not fit with a tenth to spare."""
        if not self.is_cuda:
            return
        cuda = self.torch.cuda
        unused = cuda.memory_reserved(self.device) - cuda.memory_allocated(self.device)
        if nbytes > 0.9 * (cuda.mem_get_info(self.device)[0] + unused):
            raise OutOfMemoryError

    def release(self) -> None:
        """Give unused memory back, so that a point of another size finds it in one piece."""
        if self.is_cuda:
            self.torch.cuda.empty_cache()

    def is_alive(self) -> bool:
        """Whether it still answers: after a bad access, a CUDA device does not in this process."""
        try:
            if self.is_cuda:
                self.torch.cuda.synchronize(self.device)
        except Exception:
            return False
        return True


def open_device(name: str) -> Device:
    """``cuda``, ``cuda:1`` or ``cpu``. Raises KvsimError if torch or the device is not there."""
    if not _DEVICE.fullmatch(name):
        raise KvsimError(f"--device {name}: write cuda, cuda:N or cpu")
    torch = _torch()
    if name == "cpu":
        card = Card("cpu", "cpu", torch.__version__, "", platform.machine())
        return Device(torch, torch.device("cpu"), card, CpuTimer(torch), 1, (0, 0))
    if not torch.cuda.is_available():
        why = "was built without CUDA" if torch.version.cuda is None else "sees no CUDA device"
        raise KvsimError(
            f"--device {name}: torch {torch.__version__} {why}; --device cpu only tries the program out"
        )
    count, index = torch.cuda.device_count(), int(name.partition(":")[2] or 0)
    if index >= count:
        raise KvsimError(f"--device {name}: there are {count} CUDA devices, the last is cuda:{count - 1}")
    return _open_cuda(torch, index, count)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise KvsimError(
            'calibrate measure needs torch, which is not installed: pip install "kvsim[cuda]"'
        ) from None
    return torch


def _open_cuda(torch: Any, index: int, count: int) -> Device:
    device = torch.device("cuda", index)
    try:
        torch.cuda.set_device(device)
        facts = torch.cuda.get_device_properties(device)
        l2 = getattr(facts, "L2_cache_size", 0) or _L2_BYTES
        timer = CudaTimer(torch, device, _FLUSHED_PER_L2 * l2)
    except RuntimeError as error:
        raise KvsimError(f"--device cuda:{index}: cannot be used: {str(error).splitlines()[0]}") from None
    card = Card(
        facts.name, catalog_name(facts.name), torch.__version__, str(torch.version.cuda), _driver(index)
    )
    return Device(torch, device, card, timer, count, (facts.major, facts.minor))


def catalog_name(card: str) -> str:
    """The catalog's name of a card that the driver names so; the driver's own if it is not there."""
    try:
        return catalog.gpu(card).name
    except KvsimError:
        return card


def _driver(index: int) -> str:
    """Version of the display driver; torch does not know it. Empty if it cannot be found out."""
    with suppress(OSError, subprocess.SubprocessError, IndexError):
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        return done.stdout.split()[0]
    with suppress(OSError):
        found = re.search(
            r"\b\d{3}\.[\d.]+\b", Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
        )
        return found[0] if found else ""
    return ""


def package_version(package: str) -> str:
    """Empty if it is not installed."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return ""
