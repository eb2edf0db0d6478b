"""``kvsim verify``: recorded vLLM traces against kvsim's core."""

from collections.abc import Sequence
from pathlib import Path

from kvsim.verify import verify_paths


def verify_command(paths: Sequence[Path]) -> int:
    """Print what differs and the count; returns the exit code."""
    raise NotImplementedError(verify_paths, paths)
