"""Percentiles chunk by chunk are numpy's to the last bit."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.results import percentiles
from kvsim.results.percentiles import PERCENTILES, distributions


def figures(values: np.ndarray, chunk: int = 100) -> dict:
    def chunks(names: list[str]) -> Iterator[dict[str, np.ndarray]]:
        for start in range(0, max(len(values), 1), chunk):
            yield dict.fromkeys(names, values[start : start + chunk])

    return distributions(chunks, ["x"])["x"]


def check(values: np.ndarray) -> None:
    found, known = figures(values), values[~np.isnan(values)]
    assert found["count"] == len(known)
    if len(known):
        assert [found[f"p{p}"] for p in PERCENTILES] == list(np.percentile(known, PERCENTILES))
        assert found["mean"] == pytest.approx(known.mean(), rel=1e-12)


def test_they_interpolate_linearly() -> None:
    found = figures(np.append(np.arange(101.0), np.nan))
    assert found == {"count": 101, "mean": 50.0, "p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}


def test_the_mean_of_one_chunk_is_numpys() -> None:
    values = np.random.default_rng(0).random(1000)
    assert figures(values, 1000)["mean"] == values.mean()


@pytest.mark.parametrize("small_bin", [0, 10, 32_768])  # 0: divided to the last bit
@settings(max_examples=60)
@given(
    st.lists(st.one_of(st.floats(-1e9, 1e9), st.floats(0, 1e-3), st.just(float("nan")), st.integers(0, 4)))
)
def test_any_values(small_bin: int, values: list[float]) -> None:
    before, percentiles._SMALL_BIN = percentiles._SMALL_BIN, small_bin
    try:
        check(np.array(values, np.float64))
    finally:
        percentiles._SMALL_BIN = before


@pytest.mark.parametrize("spread", [0.0, 0.3, 2.0])
def test_many_values_in_few_passes(spread: float) -> None:
    values = np.random.default_rng(1).lognormal(0, spread, 300_000)
    passes = 0

    def chunks(names: list[str]) -> Iterator[dict[str, np.ndarray]]:
        nonlocal passes
        passes += 1
        yield from (dict.fromkeys(names, part) for part in np.split(values, 10))

    found = distributions(chunks, ["x"])["x"]
    assert [found[f"p{p}"] for p in PERCENTILES] == list(np.percentile(values, PERCENTILES))
    assert passes <= 3
