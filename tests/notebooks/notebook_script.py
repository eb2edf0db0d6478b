"""notebooks/execute.py as a module; without what it needs the tests that use it are skipped."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def load() -> ModuleType:
    for needed in ("nbclient", "nbconvert", "ipykernel"):
        pytest.importorskip(needed, reason=f"{needed} is not installed; pip install 'kvsim[test]' brings it")
    spec = importlib.util.spec_from_file_location("execute", NOTEBOOKS / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script
