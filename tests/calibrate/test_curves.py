"""Curves and grids never fall, and stay as close to what was measured as that allows."""

import numpy as np
import pytest

from kvsim.gpu import catalog
from kvsim.gpu.cost.attention import attention_record, attention_sets
from kvsim.gpu.cost.calibration import calibration, device
from kvsim.gpu.cost.curves import TOKENS, never_falling, rising
from kvsim.gpu.cost.forms import AttentionShape
from kvsim.gpu.gpus import gpu_names


def test_a_curve_that_rises_stays():
    curve = 3.0 + TOKENS
    assert rising(curve) == pytest.approx(curve)


def test_one_bad_point_does_not_carry_the_rest_away():
    curve = np.maximum(6.0, TOKENS / 100)
    curve[0] = 18.0
    flat = rising(curve)
    assert (np.diff(flat) >= 0).all()
    assert flat[20] == pytest.approx(6.0, rel=0.35)
    assert flat[-1] == pytest.approx(curve[-1])


def test_a_grid_meets_in_the_middle():
    grid = np.array([[1.0, 3.0, 2.0], [1.0, 2.0, 4.0]])
    found = never_falling(grid)
    assert found.tolist() == [[1.0, 2.5, 2.5], [1.0, 2.5, 4.0]]


@pytest.mark.parametrize("gpu", gpu_names())
@pytest.mark.parametrize("window", [0, 128])
@pytest.mark.parametrize("kv_dtype", ["bfloat16", "fp8"])
def test_attention_never_falls(gpu, window, kv_dtype):
    """Over sequences and context for decode, over the form's time for prefill; whatever the shape."""
    card, known = device(catalog.gpu(gpu)), calibration(gpu)
    for heads in ((32, 8, 128), (7, 1, 64), (16, 16, 256), (8, 1, 512), (128, 1, 0)):
        shape = AttentionShape.dense(*heads, 1.0 if kv_dtype == "fp8" else 2.0, window)
        record = attention_record(*attention_sets(known, kv_dtype, shape), shape, card)
        decode, prefill = record["decode"][0], record["prefill"][0]
        assert np.isfinite(decode).all()
        assert np.isfinite(prefill).all()
        assert (np.diff(decode, axis=0) >= -1e-12).all()
        assert (np.diff(decode, axis=1) >= -1e-12).all()
        assert (np.diff(prefill, axis=1) >= -1e-12).all()
