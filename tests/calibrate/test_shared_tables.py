"""What the shipped calibrations score on the quarter of the published rows that they were not fitted on."""

from pathlib import Path

import numpy as np
import pytest

from kvsim.calibrate.evaluate import FITTED, LEFT_OUT, UNKNOWN, figures, scored
from kvsim.calibrate.evaluate_beyond import beyond_range
from kvsim.calibrate.rows import operations
from kvsim.calibrate.tables import read_tables

SHARED = Path(__file__).parents[3] / "shared" / "calibration"
pytestmark = pytest.mark.skipif(not SHARED.exists(), reason=f"{SHARED} is not there")

# MAPE at most, percent
TARGETS = {
    ("prefill", "A100-80GB SXM"): 7,
    ("prefill", "H100 SXM"): 6,
    ("prefill", "H200"): 6,
    ("prefill", "L40S"): 6,
    ("prefill", "B200"): 6.5,
    ("decode", "A100-80GB SXM"): 10,
    ("decode", "H100 SXM"): 4.5,
    ("decode", "H200"): 4.5,
    ("decode", "L40S"): 11,
    ("decode", "B200"): 6,
    ("linear", "A100-80GB SXM"): 7,
    ("linear", "H100 SXM"): 4.5,
    ("linear", "H200"): 4.5,
    ("linear", "L40S"): 9,
    ("linear", "B200"): 6,
    ("linear, fp8", "H100 SXM"): 10,
    ("linear, fp8", "H200"): 10,
    ("linear, fp8", "L40S"): 10,
    ("linear, fp8", "B200"): 14,
    ("all-reduce, vLLM", "A100-80GB SXM"): 9.5,
    ("all-reduce, vLLM", "H200"): 9.5,
    ("all-reduce, vLLM", "H100 SXM"): 11,
    ("all-reduce, vLLM", "B200"): 11,
}
BEYOND = {"prefill": 8, "decode": 22}


@pytest.fixture(scope="module")
def rows():
    names = ("attention_prefill", "attention_decode", "gemm", "collectives")
    return operations(read_tables([SHARED / f"{name}.parquet" for name in names]))


@pytest.fixture(scope="module")
def result(rows):
    return scored(rows)


@pytest.mark.parametrize(("line", "gpu"), TARGETS)
def test_left_out_rows(result, line, gpu):
    held = result[(result.which == LEFT_OUT) & (result.line == line) & (result.gpu == gpu)]
    assert figures(held)["mape"] <= TARGETS[line, gpu]


def test_these_are_the_tables_that_were_fitted(result):
    inside = result[~result.line.str.contains("large heads") & (result.which != "out of range")]
    assert set(inside.which) == {LEFT_OUT, FITTED}
    assert UNKNOWN not in set(result.which)
    assert np.isfinite(result.modelled).all()
    assert (result.modelled > 0).all()


def test_beyond_the_range(rows):
    far = beyond_range({"attention": rows["attention"]})
    for (line, gpu), part in far.groupby(["line", "gpu"]):
        kind = line.split(",")[0]
        limit = 11 if (kind, gpu) == ("prefill", "L40S") else BEYOND[kind]
        assert figures(part)["mape"] <= limit, (line, gpu)
