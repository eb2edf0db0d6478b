"""``kvsim verify``: recorded vLLM traces against kvsim's core."""

import sys
from collections.abc import Sequence
from pathlib import Path

from kvsim import compiled
from kvsim.cli import collector
from kvsim.compiled import COMPILING
from kvsim.verify.compare import find_traces, verify_trace


def verify_command(paths: Sequence[Path]) -> int:
    """Print the first difference of each failing trace and the count; returns the exit code."""
    traces = find_traces(paths)
    collector.resume()
    if not compiled.is_warm("core._schedule"):
        print(COMPILING, file=sys.stderr, flush=True)
    identical = 0
    for verdict in map(verify_trace, traces):
        identical += verdict.identical
        if not verdict.identical:
            print(f"{verdict.path}: {verdict.difference}", flush=True)
    print(f"{len(traces)} traces, {identical} identical")
    return 0 if identical == len(traces) else 1
