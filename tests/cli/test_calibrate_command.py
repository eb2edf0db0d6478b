"""`kvsim calibrate fit`, `evaluate` and `show` as a person runs them."""

import json
import sys
from pathlib import Path

import pytest

from kvsim.cli.main import main

sys.path.insert(0, str(Path(__file__).parents[1] / "calibrate"))
from made_tables import attention, gemm, written


def kvsim(capsys, *args):
    with pytest.raises(SystemExit) as end:
        main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    return end.value.code, out, err


@pytest.fixture
def tables(tmp_path):
    return [written(attention(), tmp_path / "a.parquet"), written(gemm(), tmp_path / "g.parquet")]


def test_fit_evaluate_and_show_of_ones_own_tables(capsys, tables, tmp_path):
    fitted, picture = tmp_path / "mine.json", tmp_path / "mine.png"
    code, out, err = kvsim(capsys, "calibrate", "fit", *tables, "-o", fitted)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == str(fitted)
    assert "attention decode " in out
    assert json.loads(fitted.read_text())["gpu"] == "H100 SXM"

    code, out, _ = kvsim(capsys, "calibrate", "evaluate", *tables, "--calibration", fitted)
    assert code == 0
    assert out.splitlines()[-1].startswith("total: ")
    assert " rows left out, MAPE " in out.splitlines()[-1]
    assert " rows fitted, MAPE " in out
    assert " rows beyond range, MAPE " in out
    assert "H100 SXM: borrowed from " in out

    code, out, _ = kvsim(capsys, "calibrate", "show", "H100", *tables, "--calibration", fitted, "-o", picture)
    assert code == 0
    assert out.splitlines()[-1] == str(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_unknown_tables_are_scored_as_one(capsys, tables):
    code, out, _ = kvsim(capsys, "calibrate", "evaluate", *tables, "--no-beyond")
    assert code == 0
    assert " rows not fitted, MAPE " in out.splitlines()[-1]
    assert "left out" not in out


def test_json(capsys, tables):
    code, out, _ = kvsim(capsys, "calibrate", "evaluate", tables[1], "--json", "--no-beyond")
    assert code == 0
    (line,) = json.loads(out)
    assert {"line", "gpu", "source", "which", "rows", "mape", "median", "p90"} <= set(line)


def test_show_without_tables(capsys, tmp_path):
    picture = tmp_path / "t4.svg"
    code, out, _ = kvsim(capsys, "calibrate", "show", "T4", "-o", picture)
    assert code == 0
    assert "borrowed from A40" in out
    assert picture.exists()


def test_several_gpus_want_a_folder(capsys, tmp_path):
    both = [written(gemm(gpu), tmp_path / f"{gpu}.csv") for gpu in ("H100", "L40S")]
    code, out, err = kvsim(capsys, "calibrate", "fit", *both, "-o", tmp_path / "one.json")
    assert code == 2
    assert "the tables are of 2 GPUs (H100 SXM, L40S); give a folder that exists, or --gpu" in err
    assert not (tmp_path / "one.json").exists()
    code, out, _ = kvsim(capsys, "calibrate", "fit", *both, "-o", tmp_path, "--quiet")
    assert code == 0
    assert [Path(line).name for line in out.split()] == ["h100_sxm.json", "l40s.json"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["fit", "nothing.csv"], "nothing.csv: no such file"),
        (["evaluate", "TABLE", "--gpu", "H1000"], "gpu: 'H1000' is not in the catalog"),
        (["evaluate", "TABLE", "--gpu", "L4"], "--gpu L4: the tables have no rows of it"),
        (["evaluate", "TABLE", "--calibration", "nothing.json"], "nothing.json: no such file"),
        (["show", "H1000"], "gpu: 'H1000' is not in the catalog"),
        (["show", "L4", "-o", "x.gif"], "x.gif"),
        (["fit", "TABLE", "-o", "no/such/folder/x.json"], "cannot write no/such/folder/x.json: No such file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, tables, args, message):
    code, _, err = kvsim(capsys, "calibrate", *[str(tables[1]) if arg == "TABLE" else arg for arg in args])
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1


def _changed(name, change):
    def make(folder):
        return written(change(gemm()), folder / name)

    return make


BAD_TABLES = {
    "empty file": (lambda folder: _text(folder / "e.csv", ""), "cannot be read as a table"),
    "binary": (lambda folder: _text(folder / "b.parquet", "x" * 50), "cannot be read as a table"),
    "folder": (lambda folder: folder, "is a folder"),
    "semicolons": (lambda folder: _text(folder / "s.csv", "gpu;m;n\nH100;1;2\n"), "separated by semicolons"),
    "no GPU": (_changed("g.csv", lambda f: f.assign(gpu=None)), "row 1: gpu is empty"),
    "nothing to compute": (_changed("z.csv", lambda f: f.assign(m=0)), "row 1: m is 0, must be above 0"),
    "half a row": (_changed("h.csv", lambda f: f.assign(m=f.m + 0.5)), "row 1: m is 1.5, must be a whole"),
    "true": (_changed("t.parquet", lambda f: f.assign(latency_us=True)), "latency_us is True, not a number"),
    "state of L2": (_changed("l.csv", lambda f: f.assign(l2="luke")), "l2 is 'luke'; one of hot, cold"),
    "heads": (
        lambda folder: written(attention().assign(n_q=7, n_kv=8), folder / "a.csv"),
        "n_q 7 is not a multiple of n_kv 8",
    ),
}


def _text(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_bad_table_is_one_line_and_nothing_is_written(capsys, tmp_path, case):
    make, message = BAD_TABLES[case]
    out = tmp_path / "fitted.json"
    code, _, err = kvsim(capsys, "calibrate", "fit", make(tmp_path), "-o", out)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not out.exists()
