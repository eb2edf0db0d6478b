"""Numbers in the units that a person reads: milliseconds, GiB, percent; and what an engine is."""

from collections.abc import Mapping
from typing import Any

GIB = 2**30


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.1f}"


def gib(num_bytes: float) -> str:
    """Bytes in GiB (2^30)."""
    return f"{num_bytes / GIB:.2f} GiB"


def percent(fraction: float | None) -> str:
    if fraction is None:
        return "-"
    return "<0.1%" if 0 < fraction < 0.0005 else f"{fraction:.1%}"


def plan_notes(part: Mapping[str, Any]) -> list[str]:
    """vLLM's capacity lines, and what step times rest on, of a summary or of a group in it."""
    return [*part["capacity"]["lines"], part["step_time"].rsplit(" (", 1)[0]]  # without the sources
