"""Sweeps: many points of one scenario, with the same requests, in parallel, kept as they finish."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvsim.sweep.result import SweepResult

__all__ = ["SweepResult"]


def __getattr__(name: str) -> Any:
    """On first use: who only reads axes loads no tables."""
    if name == "SweepResult":
        from kvsim.sweep.result import SweepResult

        return SweepResult
    raise AttributeError(f"module 'kvsim.sweep' has no attribute {name!r}")
