"""A fit finds the numbers that made a table, leaves a quarter alone, and writes what it found."""

import json

import numpy as np
import pytest
from made_tables import DECODE, attention, collectives, gemm, written

from kvsim.calibrate.evaluate import FITTED, LEFT_OUT, UNKNOWN, errors_by_key, figures, scored, summary
from kvsim.calibrate.evaluate_beyond import beyond_range
from kvsim.calibrate.fit import fit_gpu, gpus_of
from kvsim.calibrate.rows import operations
from kvsim.calibrate.smooth import fit_form, fit_table
from kvsim.calibrate.tables import left_out, read_tables
from kvsim.errors import KvsimError
from kvsim.gpu.cost.calibration import Calibration, completed
from kvsim.gpu.cost.residual import ResidualTable


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    made = {"a": attention(), "g": gemm(), "c": collectives()}
    return operations(
        read_tables([written(frame, folder / f"{name}.parquet") for name, frame in made.items()])
    )


@pytest.fixture(scope="module")
def fitted(rows):
    return fit_gpu("H100 SXM", rows)


def test_what_was_made_is_found_again(rows, fitted):
    result = scored(rows, lambda _: completed(fitted))
    held = result[result.which == LEFT_OUT]
    assert gpus_of(rows) == ["H100 SXM"]
    assert set(result.which) == {LEFT_OUT, FITTED}
    for line in ("prefill", "decode", "linear", "all-reduce, vLLM"):
        assert figures(held[held.line == line])["mape"] < 5, line
    found = fitted.get("attention_decode").parameters
    assert found["launch"] == pytest.approx(DECODE["launch"], rel=0.2)
    assert found["bandwidth_efficiency"] == pytest.approx(DECODE["bandwidth_efficiency"], rel=0.1)


def test_the_quarter_left_out_is_never_fitted(rows, fitted):
    """Whatever stands in those rows, the numbers are the same."""
    changed = {
        operation: frame.assign(us=np.where(left_out(frame.digest.to_numpy()), 1e6, frame.us))
        for operation, frame in rows.items()
    }
    assert fit_gpu("H100 SXM", changed) == fitted


def test_a_value_set_says_where_it_is_from(fitted):
    values = fitted.get("attention_prefill")
    assert values.unit == "us"
    assert values.source.kernel == "vllm_flash_attn_fa3"
    assert values.source.licence
    assert values.measured["new"] == (16, 8192)
    assert values.rows > 150
    assert len(values.tables) == 1


def test_files_hold_all_of_it(fitted, rows, tmp_path):
    whole = errors_by_key(fitted, completed(fitted), rows)
    whole.save(tmp_path / "c.json")
    again = Calibration.load(tmp_path / "c.json")
    assert again == whole
    assert again.get("gemm").left_out.mape < 5
    again.save(tmp_path / "d.json")
    assert (tmp_path / "c.json").read_bytes() == (tmp_path / "d.json").read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["values"]["gemm/bfloat16"]["parameters"].pop("launch"), "parameters lacks launch"),
        (
            lambda r: r["values"]["gemm/bfloat16"]["parameters"].update(launch=-1.0),
            "parameters.launch: -1.0 is no such number",
        ),
        (lambda r: r["values"].update({"gem/x": r["values"]["gemm/bfloat16"]}), "unknown operation"),
        (lambda r: r.update(format=9), "format is 9, this kvsim reads 1"),
        (lambda r: r.pop("gpu"), "gpu: Field required"),
        (
            lambda r: r["values"]["gemm/bfloat16"]["residual"]["axes"].update(m=[1.0]),
            "residual does not fill its axes",
        ),
    ],
)
def test_bad_files_are_one_line(fitted, tmp_path, change, message):
    path = tmp_path / "c.json"
    fitted.save(path)
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    with pytest.raises(KvsimError) as error:
        Calibration.load(path)
    assert message in str(error.value)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_few_shapes_take_what_they_cannot_tell_from_a_relative(tmp_path):
    """As `kvsim calibrate measure` makes them: three head shapes."""
    frame = attention("RTX 5090", ((32, 8), (16, 8), (64, 8)), "vllm_flash_attn_fa2")
    rows = operations(read_tables([written(frame, tmp_path / "t.parquet")]))
    values = fit_gpu("RTX 5090", rows)
    known = completed(Calibration(gpu="RTX 5090", values={}))
    assert (
        values.get("attention_prefill").parameters["pad"] == known.get("attention_prefill").parameters["pad"]
    )
    result = scored(rows, lambda _: completed(values))
    assert figures(result[result.which == LEFT_OUT])["mape"] < 12


def test_too_few_rows(tmp_path):
    rows = operations(read_tables([written(gemm().head(6), tmp_path / "t.csv")]))
    with pytest.raises(KvsimError, match=r"H100 SXM: too few rows \(6 of gemm\); 8 of an operation"):
        fit_gpu("H100 SXM", rows)


def test_tables_that_were_not_fitted_are_one_line(rows, fitted, tmp_path):
    frame = gemm().sample(frac=0.5, random_state=3)
    other = operations(read_tables([written(frame, tmp_path / "t.parquet")]))
    result = scored(other, lambda _: completed(fitted))
    assert set(result.which) == {UNKNOWN}
    (line,) = summary(result).to_dict("records")
    assert (line["line"], line["gpu"], line["rows"]) == ("linear", "H100 SXM", len(frame))


def test_beyond_the_range_it_goes_on_by_physics(rows):
    result = beyond_range(rows)
    assert set(result.line) == {"linear, beyond range", "decode, beyond range"}  # too few of prefill
    for _, part in result.groupby("line"):
        assert figures(part)["mape"] < 12


def test_a_form_finds_its_numbers():
    x = np.array([1.0, 2.0, 5.0, 10.0, 100.0])
    spec = {"a": (1.0, 0.1, 100.0, ""), "b": (1.0, 0.1, 100.0, "")}
    found = fit_form(spec, lambda p: p["a"] + p["b"] * x, 7.0 + 3.0 * x)
    assert (found["a"], found["b"]) == (pytest.approx(7.0, rel=1e-3), pytest.approx(3.0, rel=1e-3))
    given = fit_form(spec, lambda p: p["a"] + p["b"] * x, 7.0 + 3.0 * x, fixed={"b": 2.0})
    assert given["b"] == 2.0


def test_a_table_follows_its_rows_and_fades_where_there_are_none():
    axes = {"x": tuple(2.0 ** np.arange(11))}
    x = np.repeat([1.0, 2.0, 4.0], 30)
    table = fit_table(axes, {"x": x}, np.full(90, 0.5), {"x": 0.05})
    assert table.at(x=2.0)[0] == pytest.approx(0.5, abs=0.03)
    assert abs(table.at(x=1024.0)[0]) < 0.15
    assert table.at(x=1e9)[0] == table.at(x=1024.0)[0]  # clamped at the edge


def test_a_residual_is_clamped_to_a_factor_e():
    table = fit_table({"x": (1.0, 2.0)}, {"x": np.ones(50)}, np.full(50, 9.0), {"x": 0.01})
    assert table.at(x=1.0)[0] == 1.0
    again = ResidualTable.from_json(json.loads(json.dumps(table.to_json())))
    assert again.at(x=1.0)[0] == 1.0
