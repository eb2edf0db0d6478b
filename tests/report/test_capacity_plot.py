"""The picture of `kvsim capacity --sweep --plot` holds the table's numbers."""

import pytest
from matplotlib.figure import Figure

from kvsim.errors import KvsimError
from kvsim.gpu.sweep import swept
from kvsim.plots import SweepPlots
from kvsim.report.capacity import plot_sweep

UTILIZATIONS = [0.3, 0.7, 0.9]


def test_refused_settings_are_marked(tmp_path, monkeypatch):
    drawn: list[Figure] = []
    lines = SweepPlots.lines
    monkeypatch.setattr(SweepPlots, "lines", lambda *args: drawn.append(lines(*args)) or drawn[-1])
    axes = {"gpu_memory_utilization": UTILIZATIONS, "kv_cache_dtype": ["auto", "fp8"]}
    rows = swept("Qwen/Qwen3-8B", {"gpu": "rtx-4090", "max_model_len": 4096}, axes)
    plot_sweep(list(axes), rows, tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_bytes().startswith(b"<?xml")
    (ax,) = drawn[0].axes
    found = {line.get_label(): line for line in ax.lines}
    started = {u for (u, _), plan in rows if not isinstance(plan, str) and not plan.refusal}
    assert started
    assert set(found["failed"].get_xdata()) == set(UTILIZATIONS) - started
    for dtype in ("auto", "fp8"):
        for (u, kind), plan in rows:
            if kind == dtype and u in started:
                assert plan.kv_cache_size_tokens in found[dtype].get_ydata()
    assert ax.get_ylabel() == "KV cache size, tokens"


def test_a_path_that_does_not_do_is_said(tmp_path):
    rows = swept("Qwen/Qwen3-8B", {"gpu": "h100"}, {"block_size": [16, 32]})
    with pytest.raises(KvsimError, match=r"one of \.png"):
        plot_sweep(["block_size"], rows, tmp_path / "x.jpg")
    assert not list(tmp_path.iterdir())
