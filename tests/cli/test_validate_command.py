"""``kvsim validate``: what it prints, what it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "validate"))
from measured import CLOSED, MOE, OPEN, write

SHARED = Path(__file__).parents[2].parent / "shared"
SERVING = SHARED / "validation" / "serving.csv"
RTX4090 = SHARED / "validation" / "vllm019_rtx4090_llama31_8b_requests.csv"
TRACE = SHARED / "traces" / "sharegpt300_llama31_blk16.jsonl.gz"
REPLAYED = Path(__file__).parents[2] / "scenarios" / "rtx4090_replay.yaml"


def kvsim(*args):
    command = [sys.executable, "-m", "kvsim.cli.main", "validate", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write(tmp_path_factory.mktemp("table") / "serving.csv", [CLOSED, OPEN, MOE])


def test_every_row_is_shown_with_errors_and_the_last_line_is_a_total(table) -> None:
    done = kvsim(table)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    for row in (["closed", "Qwen3-0.6B"], ["open", "Qwen3-8B-FP8"], ["moe", "gpt-oss-20b"]):
        assert sum(line.split()[1:3] == row for line in lines) == 1
    assert "3 at once" in done.stdout
    assert "Flags not stated, vLLM's defaults taken" in done.stdout
    assert "% with the first wave cut)" in lines[-1]
    assert lines[-1].startswith("total: 2 rows dense, 8 or 16 bits, TTFT MAPE ")
    assert lines[-1].endswith("; 1 row of other classes apart")


def test_json_holds_rows_and_summary(table) -> None:
    found = json.loads(kvsim(table, "--json").stdout)
    assert [row["id"] for row in found["rows"]] == ["closed", "open", "moe"]
    assert {line["class"] for line in found["summary"]} == {"dense, 8 or 16 bits", "MoE"}
    assert found["rows"][0]["filled"]["max_num_seqs"] == 1024
    assert kvsim(table, "--json").stdout == kvsim(table, "--json").stdout


def test_rows_and_gpus_are_picked(table) -> None:
    def ids(*args):
        return [row["id"] for row in json.loads(kvsim(table, "--json", *args).stdout)["rows"]]

    assert ids("--rows", "2-3") == ["open", "moe"]
    assert ids("--rows", "moe,1") == ["closed", "moe"]
    assert ids("--gpu", "h200") == ["moe"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--rows", "9"), "--rows 9: no such row"),
        (("--gpu", "l4"), "has no row of it; there are H100 SXM, H200"),
        (("--gpu", "l4000"), "gpu: 'l4000'"),
        (("--trace", "x.jsonl"), "--trace: only for a file of single requests"),
        (("-o", "x.png"), "-o: only for a file of single requests"),
        (("--fit",), "2 dense rows could be simulated; 8 are needed for a fit"),
    ],
)
def test_bad_options_are_one_line(table, args, said) -> None:
    done = kvsim(table, *args)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_bad_files_are_one_line(tmp_path) -> None:
    done = kvsim(tmp_path / "none.csv")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "none.csv: no such file" in done.stderr
    path = write(tmp_path / "bad.csv", [CLOSED | {"tp": 3}])
    done = kvsim(path)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "bad.csv: row 1: engine.tensor_parallel_size: " in done.stderr


def test_a_table_of_which_no_row_can_run_is_refused(tmp_path) -> None:
    path = tmp_path / "large.csv"
    path.write_text(
        "id,source,model,gpu,dtype,tp,mean_input_len,mean_output_len,concurrency,ttft_mean_ms\n"
        "one,me,Llama-3.1-70B,L4,bf16,1,100,10,1,50\n"
    )
    done = kvsim(path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "large.csv: row 1: gpu: " in done.stderr
    assert "does not fit on L4" in done.stderr


def test_a_run_needs_to_be_told_what_served_it(tmp_path) -> None:
    rows = [{"request_id": "a", "input_toks": 5, "output_toks": 3, "queued_s": 0.5}]
    path = tmp_path / "x_requests.csv"
    pd.DataFrame(rows).assign(first_token_s=0.6, last_token_s=0.7).to_csv(path, index=False)
    done = kvsim(path)
    assert done.returncode == 2
    assert "say with --scenario FILE what served them" in done.stderr
    picture = tmp_path / "run.png"
    done = kvsim(path, "--scenario", REPLAYED, "-o", picture)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-2].startswith("total: 1 requests, MAPE ")
    assert picture.stat().st_size > 10_000
    assert kvsim(path, "--scenario", REPLAYED, "--rows", "1").returncode == 2


@pytest.mark.skipif(not SERVING.exists(), reason="needs the measured runs of ../shared")
def test_measured_runs_are_predicted_as_well_as_is_said(tmp_path) -> None:
    found = json.loads(kvsim(SERVING, "--json").stdout)
    lines = pd.DataFrame(found["summary"]).set_index(["class", "source", "metric"]).sort_index()
    dense = lines.loc["dense, 8 or 16 bits", "all"]
    assert dense.mape["tpot"] <= 12
    assert dense.mape["ttft"] <= 25
    assert lines.loc["dense, 8 or 16 bits", "aiconfigurator-core"].mape["tpot"] <= 8
    assert not any(row["error"] for row in found["rows"])


@pytest.mark.skipif(not RTX4090.exists(), reason="needs the measured run of ../shared")
def test_the_rtx_4090_run_is_replayed_within_15_percent(tmp_path) -> None:
    done = kvsim(RTX4090, "--scenario", REPLAYED, "--trace", TRACE, "--json")
    found = json.loads(done.stdout)
    assert all(abs(line["error"]) <= 15 for line in found["latencies_s"])
    rises = found["waiting_rises"]
    assert 0.5 * rises["measured"] <= rises["simulated"] <= 2 * rises["measured"]
