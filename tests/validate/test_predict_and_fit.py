"""Predicted rows, their errors, and the host times fitted on them."""

import dataclasses

import numpy as np
import pytest
from measured import CLOSED, FAILED, OPEN, write

from kvsim.errors import KvsimError
from kvsim.gpu.cost.calibration import calibration
from kvsim.validate.fit import error_table, fit_host_times
from kvsim.validate.predict import Prediction, predict
from kvsim.validate.rows import read_rows
from kvsim.validate.scenarios import row_scenario
from kvsim.validate.score import row_table, summary


def made(tmp_path, *rows):
    return [row_scenario(row) for row in read_rows(write(tmp_path / "serving.csv", list(rows)))]


def test_a_table_of_our_own_figures_is_predicted_exactly(tmp_path) -> None:
    first = [predict(each).predicted for each in made(tmp_path, CLOSED, OPEN)]
    closed = CLOSED | {"ttft_mean_ms": first[0]["ttft"], "tpot_mean_ms": first[0]["tpot"]}
    opened = OPEN | {
        "ttft_mean_ms": first[1]["ttft"],
        "tpot_derived_ms": first[1]["tpot"],
        "e2e_mean_ms": first[1]["e2e"],
        "req_s": first[1]["requests"],
    }
    lines = summary(row_table([predict(each) for each in made(tmp_path, closed, opened)]))
    exact = lines[lines.metric != "ttft_later"]
    assert set(exact.metric) == {"ttft", "tpot", "e2e", "requests"}
    assert exact.mape.max() == pytest.approx(0.0, abs=1e-9)


def test_tpot_leaves_out_the_first_wave_and_ttft_says_both(tmp_path) -> None:
    (row,) = made(tmp_path, CLOSED)
    found = predict(row)
    requests = row.scenario.run().requests
    assert found.predicted["ttft"] == pytest.approx(1e3 * requests.ttft.mean())
    assert found.predicted["ttft_later"] == pytest.approx(1e3 * requests.ttft.iloc[3:].mean())
    assert found.predicted["tpot"] == pytest.approx(1e3 * requests.tpot.iloc[3:].mean())


def test_an_open_loop_has_no_first_wave(tmp_path) -> None:
    found = predict(made(tmp_path, OPEN)[0])
    assert found.predicted["ttft_later"] == found.predicted["ttft"]
    assert "ttft_later" not in set(summary(row_table([found])).metric)


def test_a_row_that_cannot_run_is_apart(tmp_path) -> None:
    (row,) = made(tmp_path, OPEN | {"mean_input_len": 3000, "num_gpu_blocks": 100})
    found = predict(row)
    assert "refused" in found.error
    line = summary(row_table([found])).iloc[0]
    assert (line.rows, line.failed) == (0, 1)
    assert np.isnan(line.mape)


def measured_with(tmp_path, step, per_rank, frontend):
    """Predictions that miss the measured figures by these host times (ms) exactly."""
    models = ["Qwen3-8B", "Llama-3.1-8B", "Qwen3-14B", "Mistral-7B-v0.1"]
    rows, bare = [], []
    for i in range(16):
        tpot, ttft, ranks = 6.0 + i, 30.0 + 5 * i, 2 ** (i % 3)
        rows.append(
            CLOSED
            | {"id": f"r{i}", "model": models[i % 4], "source": f"s{i % 3} x", "tp": ranks}
            | {"tpot_mean_ms": tpot + step + per_rank * (ranks - 1), "ttft_mean_ms": ttft + frontend}
        )
        bare.append((tpot, ttft))
    host = calibration("H100 SXM").get("engine", "host").parameters
    predictions = []
    for each, (tpot, ttft) in zip(made(tmp_path, *rows), bare, strict=True):
        ranks = each.row.values["tp"]
        now = 1e-3 * (host["step"] + host["step_per_rank"] * (ranks - 1))
        predicted = {"tpot": tpot + now, "ttft": ttft + 1e-3 * host["frontend"]}
        predictions.append(Prediction(each, predicted))
    return predictions


def test_the_fit_finds_the_host_times_that_are_there(tmp_path) -> None:
    fit = fit_host_times(measured_with(tmp_path, 0.5, 0.1, 9.0))
    assert fit.times.parameters == {"step": 500.0, "step_per_rank": 100.0, "frontend": 9000.0}
    table = error_table(fit)
    assert table.mape.max() == pytest.approx(0.0, abs=1e-9)
    left_out = {f"one {group} left out" for group in ("tenth", "source", "model")}  # one GPU: no other
    assert set(table.rows) == {"fitted", *left_out}


def test_host_times_never_make_up_for_kernels_that_are_too_slow(tmp_path) -> None:
    fit = fit_host_times(measured_with(tmp_path, -0.5, 0.0, 0.0))
    assert fit.times.parameters == {"step": 0.0, "step_per_rank": 0.0, "frontend": 0.0}


def test_rows_that_are_held_out_do_not_bear_on_their_own_fit(tmp_path) -> None:
    predictions = measured_with(tmp_path, 0.5, 0.1, 9.0)
    odd = [each for each in predictions if each.made.row.source == "s0"]
    slow = [dataclasses.replace(each, predicted={"tpot": 1.0, "ttft": 10.0}) for each in odd]
    fit = fit_host_times([*(each for each in predictions if each not in odd), *slow])
    held = fit.held_out["source"]
    assert held[held.source == "s0"].ttft_error.max() < -30.0


def test_only_dense_rows_without_failures_are_fitted(tmp_path) -> None:
    with pytest.raises(KvsimError, match="0 dense rows could be simulated; 8 are needed"):
        fit_host_times([Prediction(made(tmp_path, FAILED)[0], {"ttft": 1.0, "tpot": 1.0})])
