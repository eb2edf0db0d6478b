"""Hypothesis draws the same examples every time and does not mind a busy machine."""

import os
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings

settings.register_profile(
    "kvsim", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("kvsim")

# What it keeps names the files of this copy; with the same examples every time there is nothing to remember.
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(Path(tempfile.gettempdir()) / "kvsim-hypothesis"))
