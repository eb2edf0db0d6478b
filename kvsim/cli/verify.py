"""``kvsim verify``: recorded vLLM traces against kvsim's core."""

from collections.abc import Sequence
from pathlib import Path

from kvsim.verify import verify_paths


def verify_command(paths: Sequence[Path]) -> int:
    """Print the first difference of each failing trace and the count; returns the exit code."""
    total = identical = 0
    for verdict in verify_paths(paths):
        total += 1
        identical += verdict.identical
        if not verdict.identical:
            print(f"{verdict.path}: {verdict.difference}", flush=True)
    print(f"{total} traces, {identical} identical")
    return 0 if identical == total else 1
