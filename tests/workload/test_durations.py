import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.workload.checks import FieldError
from kvsim.workload.durations import duration

RNG = np.random.default_rng


@pytest.mark.parametrize(
    ("spec", "mean"),
    [
        (2, 2),
        (0.5, 0.5),
        ({"distribution": "constant", "value": 7.5}, 7.5),
        ({"distribution": "uniform", "min": 1, "max": 4}, 2.5),
        ({"distribution": "exponential", "mean": 5}, 5),
        ({"distribution": "lognormal", "average": 20, "median_ratio": 0.5}, 20),
        ({"distribution": "lognormal", "mean": 1.0, "sigma": 0.4}, np.exp(1.08)),
    ],
)
def test_declared_mean(spec, mean):
    assert duration("time", spec).draw(RNG(0), 50_000).mean() == pytest.approx(mean, rel=0.03)


def test_constant_takes_nothing_from_the_stream():
    rng = RNG(0)
    assert duration("time", 1.5).draw(rng, 2).tolist() == [1.5, 1.5]
    assert rng.random() == RNG(0).random()


@given(st.sampled_from(["exponential", "lognormal"]), st.floats(0, 10), st.floats(0, 10))
def test_everything_drawn_lies_within_the_bounds(kind, one, other):
    least, most = sorted((one, other))
    parameters = {"mean": 3.0} if kind == "exponential" else {"average": 3.0}
    drawn = duration("t", {"distribution": kind, "min": least, "max": most, **parameters}).draw(RNG(1), 100)
    assert least <= drawn.min()
    assert drawn.max() <= most


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (True, "t: true is not a number"),
        (float("nan"), "t: nan is out of range; give a number of seconds from 0 to 1e"),
        ("x", "t: 'x' is not a number of seconds"),
        (-0.5, "t: -0.5 is out of range; give a number of seconds from 0 to 1e"),
        (float("nan"), "t: nan is out of range"),
        ({"distribution": "exponential"}, "t.mean: missing; exponential needs mean"),
        ({"distribution": "exponential", "mean": 0}, "t.mean: 0 is out of range"),
        ({"distribution": "uniform", "min": 3, "max": 1}, "t.min: 3 is above max, 1"),
        ({"distribution": "uniform", "min": 3, "max": 5, "mean": 2}, "t.mean: unknown key; uniform takes"),
        ({"distribution": "zipf"}, "t.distribution: 'zipf' is not known; one of constant, uniform"),
    ],
)
def test_bad_durations(spec, says):
    with pytest.raises(FieldError, match=says):
        duration("t", spec)
