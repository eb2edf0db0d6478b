import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.workload.checks import FieldError
from kvsim.workload.lengths import length

RNG = np.random.default_rng


def drawn(spec, count=20_000, **bounds):
    return length("len", spec, **bounds).draw(RNG(0), count)


def test_constant_takes_nothing_from_the_stream():
    rng = RNG(0)
    assert length("len", 64).draw(rng, 3).tolist() == [64, 64, 64]
    assert rng.random() == RNG(0).random()


@pytest.mark.parametrize(
    ("spec", "mean"),
    [
        ({"distribution": "constant", "value": 7}, 7),
        ({"distribution": "uniform", "min": 10, "max": 20}, 15),
        ({"distribution": "lognormal", "average": 256}, 256),
        ({"distribution": "lognormal", "average": 256, "median_ratio": 0.5}, 256),
        ({"distribution": "lognormal", "mean": 5.0, "sigma": 0.4}, np.exp(5.08)),
        ({"distribution": "normal", "mean": 300, "std": 30}, 300),
        ({"distribution": "poisson", "alpha": 100}, 100),
        ({"distribution": "zipf", "alpha": 3.5}, 1.19),
        ({"distribution": "choice", "values": [10, 30], "weights": [3, 1]}, 15),
    ],
)
def test_declared_mean(spec, mean):
    assert drawn(spec).mean() == pytest.approx(mean, rel=0.03)


def test_lognormal_median_is_the_stated_share_of_the_average():
    sample = drawn({"distribution": "lognormal", "average": 1000, "median_ratio": 0.7})
    assert np.median(sample) == pytest.approx(700, rel=0.03)


def test_uniform_includes_both_ends():
    assert set(drawn({"distribution": "uniform", "min": 3, "max": 5}).tolist()) == {3, 4, 5}


@given(
    st.sampled_from(
        [
            {"distribution": "lognormal", "mean": 3.0, "sigma": 5.0},
            {"distribution": "normal", "mean": 0.0, "std": 1e6},
            {"distribution": "zipf", "alpha": 1.05},
            {"distribution": "poisson", "alpha": 0.1},
            {"distribution": "uniform"},
        ]
    ),
    st.integers(1, 50),
    st.integers(0, 1000),
)
def test_bounds_hold(spec, low, extra):
    bounded = length("len", {**spec, "min": low, "max": low + extra})
    sample = bounded.draw(RNG(1), 500)
    assert bounded.low <= sample.min()
    assert sample.max() <= bounded.high
    assert sample.dtype == np.int64


@pytest.mark.parametrize(
    ("spec", "field", "says"),
    [
        (-1, "len", "at least 1"),
        (2**40, "len", "at most"),
        (1.5, "len", "whole number"),
        (True, "len", "whole number"),
        ("12", "len", "whole number"),
        (None, "len", "whole number"),
        ({}, "len.distribution", "one of constant"),
        ({"distribution": "gauss"}, "len.distribution", "one of constant"),
        ({"distribution": "constant"}, "len.value", "missing"),
        ({"distribution": "uniform", "min": 5}, "len.max", "missing"),
        ({"distribution": "uniform", "min": 5, "max": 4}, "len.min", "above max"),
        ({"distribution": "uniform", "min": 5, "max": 9, "mean": 3}, "len.mean", "unknown key"),
        ({"distribution": "normal", "mean": 5, "std": -1}, "len.std", "out of range"),
        ({"distribution": "normal", "mean": float("nan"), "std": 1}, "len.mean", "out of range"),
        ({"distribution": "lognormal"}, "len", "needs average"),
        ({"distribution": "lognormal", "average": 5, "sigma": 1}, "len", "not both"),
        ({"distribution": "lognormal", "average": 5, "median_ratio": 2}, "len.median_ratio", "out of range"),
        ({"distribution": "lognormal", "mean": 1e30, "sigma": 1}, "len.mean", "out of range"),
        ({"distribution": "zipf", "alpha": 1.0}, "len.alpha", "out of range"),
        ({"distribution": "poisson", "alpha": "x"}, "len.alpha", "not a number"),
        ({"distribution": "choice", "values": []}, "len.values", "list"),
        ({"distribution": "choice", "values": [0]}, "len.values", "at least 1"),
        ({"distribution": "choice", "values": [1, 2], "weights": [1]}, "len.weights", "2 numbers"),
        ({"distribution": "choice", "values": [1, 2], "weights": [1, -1]}, "len.weights", "out of range"),
    ],
)
def test_bad_lengths(spec, field, says):
    with pytest.raises(FieldError, match=says) as caught:
        length("len", spec, low=1)
    assert caught.value.field == field
