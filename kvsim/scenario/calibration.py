"""The calibration file that a scenario names: found, checked, pinned by its content."""

import hashlib
from pathlib import Path

from kvsim.errors import KvsimError
from kvsim.gpu.catalog import is_file
from kvsim.gpu.cost.calibration import Calibration, supplemented
from kvsim.workload.checks import shown


def calibration_file(name: str, folder: Path) -> Path:
    """In `folder` or else the working directory; raises ValueError if there is none."""
    places = list(dict.fromkeys((folder / name, Path(name))))
    for path in places:
        if is_file(path):
            return path
    raise ValueError(f"{shown(name)} is not a regular file (tried {' and '.join(map(str, places))})")


def read_calibration(name: str, folder: Path, gpu: str) -> Calibration:
    """With what it lacks from kvsim's own numbers of the GPU, else borrowed.

    Raises ValueError for a bad file and one of another GPU.
    """
    path = calibration_file(name, folder)
    try:
        own = Calibration.load(path)
    except KvsimError as error:
        raise ValueError(str(error)) from None
    if own.gpu != gpu:
        raise ValueError(f"{path} is of {own.gpu}, gpu is {gpu}")
    return supplemented(own)


def digest(name: str, folder: Path) -> str:
    """SHA-256 of the file, hex."""
    return hashlib.sha256(calibration_file(name, folder).read_bytes()).hexdigest()
