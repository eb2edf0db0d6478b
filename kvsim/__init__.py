"""kvsim: vLLM's KV cache and scheduler, simulated.

>>> import kvsim
>>> result = kvsim.load_scenario("scenarios/quickstart.yaml").run()  # doctest: +SKIP
>>> result.requests, result.summary  # DataFrames  # doctest: +SKIP
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvsim.errors import KvsimError
    from kvsim.gpu.capacity import CapacityPlan, plan_capacity
    from kvsim.results import RunResult
    from kvsim.scenario import Scenario, load_scenario
    from kvsim.sweep import SweepResult

    __version__: str

__all__ = [
    "CapacityPlan",
    "KvsimError",
    "RunResult",
    "Scenario",
    "SweepResult",
    "__version__",
    "load_scenario",
    "plan_capacity",
]

_HOMES = {
    "CapacityPlan": "kvsim.gpu.capacity",
    "KvsimError": "kvsim.errors",
    "RunResult": "kvsim.results",
    "Scenario": "kvsim.scenario",
    "SweepResult": "kvsim.sweep",
    "load_scenario": "kvsim.scenario",
    "plan_capacity": "kvsim.gpu.capacity",
}


def __getattr__(name: str) -> Any:
    """Import on first use: ``import kvsim`` alone loads nothing heavy."""
    import importlib

    if name == "__version__":
        return _version()
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'kvsim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kvsim")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0+unknown"
