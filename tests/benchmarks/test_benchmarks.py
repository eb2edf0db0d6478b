"""The benchmark script on a few requests: its rows, and missing peers named. No times are asserted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import JOBS
from rows import Row, least, number, ratio

SCRIPT = str(Path(__file__).with_name("peers_bench.py"))
NOWHERE = "/nowhere/python"


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}  # for so few requests nothing is worth compiling
    command = [sys.executable, SCRIPT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], list[dict]]:
    """All jobs in one call, with no peer there."""
    file = tmp_path_factory.mktemp("bench") / "rows.json"
    missing = ("--dynamo-python", NOWHERE, "--vllm-python", NOWHERE)
    done = call("--quick", "--share", "0.0002", "--rounds", "1", *missing, "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    return done, json.loads(file.read_text())["rows"]


def test_peers_that_are_missing_are_named(told) -> None:
    lines = told[0].stdout.splitlines()
    for peer in ("Dynamo", "vLLM"):
        assert f"{peer}: skipped, {NOWHERE}: No such file or directory" in lines


def test_every_job_has_rows_of_kvsim(told) -> None:
    rows = told[1]
    assert list(dict.fromkeys(row["job"] for row in rows)) == list(JOBS)
    assert not [row for row in rows if "Dynamo" in row["figure"] or "vLLM's own" in row["figure"]]
    assert all(row["best"] > 0 for row in rows)


def test_the_table_has_all_rows_and_the_machine_stands_above_it(told) -> None:
    done, rows = told
    assert done.stdout.startswith(("Dynamo", "vLLM"))
    machine = next(line for line in done.stdout.splitlines() if line.startswith("machine: "))
    assert f"{os.cpu_count()} cores" in machine
    assert os.uname().nodename not in machine
    table = done.stdout[done.stdout.index("best of 1") :]
    for row in rows:
        assert row["figure"] in table
        assert row["note"] in table


def test_an_unknown_job_is_refused() -> None:
    done = call("--jobs", "one-replica-11")
    assert done.returncode == 2
    assert "one-replica-11" in done.stderr


@pytest.mark.parametrize(
    ("best", "target", "met"),
    [
        (2.0, ">= 2", True),
        (1.9, ">= 2", False),
        (0.4, "<= 0.5", True),
        (0.6, "<= 0.5", False),
        (9.0, "", None),
    ],
)
def test_a_row_says_whether_it_meets_its_target(best: float, target: str, met: bool | None) -> None:
    assert Row("job", "figure", best, best, "s", target).met is met


def test_best_and_worst_of_the_rounds() -> None:
    row = least("job", "figure", [3.0, 2.0, 4.0], "s")
    assert (row.best, row.worst) == (2.0, 4.0)


def test_a_ratio_is_that_of_the_best_rounds_and_the_worst_that_of_one_round() -> None:
    row = ratio("job", "figure", [10.0, 12.0], [4.0, 8.0])
    assert (row.best, row.worst) == (2.5, 1.5)


def test_three_digits_count() -> None:
    assert [number(value) for value in (1234.5, 12.345, 1.2345)] == ["1,234", "12.3", "1.23"]


def test_the_benchmark_of_sweeps_on_small_points() -> None:
    script = str(Path(__file__).with_name("sweep_bench.py"))
    command = [sys.executable, script, "--points", "4", "--seconds", "0.01", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "4 points of 2,000 requests" in done.stdout
    assert "2 workers against 1" in done.stdout
