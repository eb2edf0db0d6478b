"""kvsim's core against recorded vLLM traces: every compared field of every step is the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvsim.verify import verify_trace

HERE = Path(__file__).parent
FOLDERS = ("golden", "golden-0.16", "more/golden", "more/golden-0.16")
TRACES = [path for folder in FOLDERS for path in sorted((HERE / folder).glob("*.jsonl.gz"))]
WITHOUT_COMPILER = ("a1_design_doc", "b1_image_identical_after_finish", "d2_hybrid_full_swa")


def test_all_traces_are_here():
    counts = [len(list((HERE / folder).glob("*.jsonl.gz"))) for folder in FOLDERS]
    assert counts == [84, 81, 66, 46]


@pytest.mark.parametrize("path", TRACES, ids=lambda path: f"{path.parent.name}/{path.name.split('.')[0]}")
def test_identical_to_vllm(path):
    assert verify_trace(path).difference is None


@pytest.mark.parametrize("folder", ["golden", "golden-0.16"])
def test_identical_as_plain_python(folder):
    """The very same code, not compiled."""
    paths = [str(HERE / folder / f"{name}.jsonl.gz") for name in WITHOUT_COMPILER]
    done = subprocess.run(
        [sys.executable, "-m", "kvsim.cli.main", "verify", *paths],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        cwd=HERE.parents[1],
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["3 traces, 3 identical"], done.stdout + done.stderr
