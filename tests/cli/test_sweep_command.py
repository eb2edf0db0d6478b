"""``kvsim sweep`` from the outside: table, exit codes, kills and interrupts, errors in one line."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

import kvsim
from kvsim.compiled import COMPILING

sys.path.insert(0, str(Path(__file__).parents[1] / "sweep"))
from sweeps import SCENARIO

BILLION = ["--set", "seed=0:999:1", "--set", "workload.rate=1:1000:1", "--set", "horizon=1:1000:1"]
OUT = "results/tiny-sweep"
FIND = ["--find", "max:workload.rate", "--subject-to", "ttft_p99<=2s"]
FORTY = ("--set", "engine.num_gpu_blocks_override=100:1000:100", "--set", "engine.block_size=8,16,32,64")
FORTY += ("--set", "workload.num_requests=1500")


def start(folder: Path, *args: str) -> subprocess.Popen:
    env = os.environ | {"PYTHONPATH": str(Path(kvsim.__file__).parent.parent), "COLUMNS": "200"}
    command = [sys.executable, "-m", "kvsim.cli.main", "sweep", "tiny.yaml", *args]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, env=env, text=True, start_new_session=True, **streams)


def call(folder: Path, *args: str) -> tuple[int, str, str]:
    process = start(folder, *args)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err.removeprefix(f"{COMPILING}\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text(SCENARIO)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def num_points(folder: Path) -> int:
    return len([path for path in folder.glob("points/*.json") if not path.name.startswith(".")])


def wait_for(condition, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


def is_gone(group: int) -> bool:
    """Whether no process of the group is left, zombies apart."""
    listed = subprocess.run(["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
    return not [line for line in listed.splitlines() if re.match(rf"\s*{group}\s+[^Z]", line)]


# ---- what it shows ----


def test_a_table_and_a_folder(folder):
    code, out, err = call(folder, "--set", "engine.block_size=16,32", "--set", "seed=1,2", "--workers", "1")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "tiny: 4 points over engine.block_size, seed"
    for words in ("block_size", "seed", "hit rate", "TTFT p50", "TTFT p99", "TPOT", "tokens/s", "KV usage"):
        assert words in out
    assert f"Tables written to {OUT}/table.parquet and .csv" in out
    assert sorted(path.name for path in (folder / OUT).iterdir()) == [
        "points",
        "sweep.json",
        "table.csv",
        "table.parquet",
    ]
    frame = pd.read_parquet(folder / OUT / "table.parquet")
    assert frame.columns[:2].tolist() == ["engine.block_size", "seed"]
    assert f"{frame['prefix_cache_hit_rate'][0]:.1%}" in out


def test_a_search_answers_in_one_line(folder):
    code, out, err = call(
        folder, "--find", "max:workload.rate", "--subject-to", "ttft_p99<=300ms, tpot_p99<=50ms"
    )
    assert (code, err) == (0, "")
    answer = next(line for line in out.splitlines() if "is the highest" in line)
    assert re.fullmatch(
        r"workload\.rate [\d.]+ is the highest that keeps ttft_p99<=300ms \([\d.]+ ms\) and tpot_p99<=50ms "
        r"\([\d.]+ ms\); at [\d.]+ t(tft|pot)_p99<=\d+ms: [\d.]+ ms",
        answer,
    )
    assert f"{OUT}/probes.parquet and .csv" in out


def test_a_search_for_each_point_of_a_grid(folder):
    code, out, _ = call(
        folder,
        "--find",
        "max:workload.rate",
        "--subject-to",
        "ttft_p99<=300ms",
        "--set",
        "engine.max_num_seqs=2,8",
    )
    assert code == 0
    assert "max_num_seqs 2: workload.rate " in out
    assert "max_num_seqs 8: workload.rate " in out


def test_the_exit_code_is_2_only_if_every_point_failed(folder):
    code, out, err = call(folder, "--set", "engine.num_gpu_blocks_override=3,400")
    assert (code, err) == (0, "")
    assert "1 failed" in out
    assert "all 60 requests were refused" in out
    code, out, _ = call(folder, "--set", "engine.num_gpu_blocks_override=3,4")
    assert code == 2
    assert "2 failed" in out
    code, out, err = call(folder, "--set", "engine.num_gpu_blocks_override=3,4", "--quiet")
    assert (code, out) == (2, f"{OUT}\n")
    assert re.fullmatch(rf"kvsim: {OUT}: all 2 points failed; the first point: all 60 requests .*\n", err)
    limit = ("--find", "max:workload.rate=1:2", "--subject-to", "ttft_p99<=1us", "--quiet")
    code, _, err = call(folder, *limit)
    assert code == 2
    assert re.fullmatch(rf"kvsim: {OUT}: no workload.rate of 1 value, 1, keeps every limit; .*\n", err)


def test_quiet_prints_the_folder(folder):
    assert call(folder, "--set", "seed=1,2", "--quiet", "--out", "here", "--workers", "1") == (
        0,
        "here\n",
        "",
    )


def test_the_block_and_options_on_top_of_it(folder):
    path = folder / "tiny.yaml"
    path.write_text(SCENARIO + "sweep:\n  set: {engine.block_size: [16, 32], seed: '0:3:1'}\n")
    assert "8 points over engine.block_size, seed" in call(folder, "--workers", "1")[1]
    code, out, _ = call(folder, "--set", "seed=7", "--sample", "latin:4", "--workers", "1")
    assert code == 0
    assert "4 points over engine.block_size, seed" in out
    code, out, _ = call(folder, "--set", "seed=7,8", "--ignore-block", "-o", "alone", "--workers", "1")
    assert code == 0
    assert "2 points over seed" in out
    assert (folder / "alone" / "table.csv").is_file()


# ---- killed and interrupted ----


def test_killed_three_times_it_ends_with_the_same_bytes(folder):
    """Forty points; SIGKILL at random moments; the next call goes on."""
    code, _, err = call(folder, *FORTY, "--workers", "2", "--out", "whole")
    assert (code, err) == (0, "")
    assert num_points(folder / "whole") == 40
    moments = random.Random(5)
    for _ in range(3):
        before = num_points(folder / "out")
        process = start(folder, *FORTY, "--workers", "2", "--out", "out")
        enough = before + moments.randint(1, 9)
        wait_for(lambda enough=enough: num_points(folder / "out") >= enough)
        process.send_signal(signal.SIGKILL)
        _, err = process.communicate()
        assert (process.returncode, err) == (-signal.SIGKILL, "")
        assert before < num_points(folder / "out") < 40
        assert not (folder / "out" / "table.parquet").exists()
        wait_for(lambda group=process.pid: is_gone(group), 20)
    kept = {path: path.stat().st_mtime_ns for path in (folder / "out" / "points").glob("*.json")}
    assert call(folder, *FORTY, "--workers", "2", "--out", "out")[0] == 0
    assert contents(folder / "out") == contents(folder / "whole")
    assert all(path.stat().st_mtime_ns == when for path, when in kept.items())  # nothing was repeated


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_interrupt_says_how_to_go_on(folder, number, workers):
    process = start(folder, *FORTY, "--workers", workers)
    wait_for(lambda: num_points(folder / OUT) >= 3)
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(
        number
    )  # as Ctrl-C does
    out, err = process.communicate()
    assert process.returncode == 128 + number
    assert out == ""
    assert re.fullmatch(
        rf"kvsim: interrupted; \d+ finished points are kept in {OUT}; the same command goes on from there\n",
        err,
    )
    wait_for(lambda: is_gone(process.pid), 20)
    assert call(folder, *FORTY, "--workers", "1")[0] == 0
    assert num_points(folder / OUT) == 40


def test_a_second_sweep_in_the_same_folder_is_refused(folder):
    process = start(folder, *FORTY, "--workers", "2")
    wait_for(lambda: num_points(folder / OUT) >= 1)
    code, out, err = call(folder, "--set", "seed=1,2")
    assert (code, out) == (2, "")
    assert err == f"kvsim: {OUT}: another sweep is writing there; wait for it, or give another --out\n"
    assert process.wait() == 0


# ---- bad sweeps ----


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "nothing to sweep: give --set KEY=VALUES"),
        (["--set", "engine.blok_size=8,16"], "engine.blok_size: unknown key; did you mean block_size?"),
        (["--set", "engine.block_size=16,17"], "17 is not a block size"),
        (["--set", "workload.rate=5:1:1"], "empty range"),
        (["--set", "workload.rate=1:5:0"], "a step of 0 leads nowhere"),
        (["--set", "workload.rate=1:5:-1"], "empty range"),
        (BILLION, "1,000,000,000 points are more than 10,000; take fewer values, draw some with --sample"),
        (["--set", "seed=1:1000000000:1"], "1,000,000,000 values are more than 10,000"),
        (["--set", "seed=1,1"], "1 is given twice"),
        (["--set", "seed=1", "--set", "seed=2"], "seed is set twice"),
        (["--point", "seed=1", "--point", "seed=1"], "given twice"),
        (["--set", "seed=1,2", "--out", "/proc/nothing"], "cannot write results to /proc/nothing"),
        (["--set", "seed=1,2", "--out", "."], "no folder of a sweep, it holds tiny.yaml"),
        (["--find", "max:workload.rate"], "needs a limit"),
        (["--find", "max:workload.rate", "--subject-to", "ttft<=2s"], "unknown figure ttft"),
        (["--set", "seed=1,2", "--trace", "x.jsonl"], "replays no trace"),
        (["--set", "seed=1,2", "--workers", "0"], "--workers"),
        (["--find", "max:workload.rate", "--find", "max:seed"], "--find max:seed: given twice"),
        (["--sample", "latin:2", "--sample", "latin:3"], "--sample latin:3: given twice"),
        ([*FIND, "--tolerance", "nan"], "--tolerance nan: is out of range; give a share above 0"),
        (["--set", "seed=1,2", "--tolerance", "0.1"], "--tolerance 0.1: goes with --find"),
    ],
)  # fmt: skip
def test_bad_sweeps_fail_early_in_one_line(folder, args, says):
    code, out, err = call(folder, *args)
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1
    assert not (folder / "results").exists()


# ---- progress ----


def test_a_terminal_sees_points_failures_and_the_time_left(folder):
    axes = ("--set", "engine.num_gpu_blocks_override=3,400", "--set", "seed=1:4:1", "--workers", "1")
    assert (
        call(folder, "--set", "engine.num_gpu_blocks_override=400", "--set", "seed=1,2", "--workers", "1")[0]
        == 0
    )
    shown = on_a_terminal(folder, *axes)
    assert "sweeping" in shown
    assert "points, 2 kept" in shown
    assert re.search(r"8/8 points, 2 kept, 4 failed, +[\d:-]+ left", shown)


def on_a_terminal(folder: Path, *args: str) -> str:
    """Standard error as a terminal gets it."""
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    env = os.environ | {
        "PYTHONPATH": str(Path(kvsim.__file__).parent.parent),
        "COLUMNS": "120",
        "TERM": "xterm",
    }
    command = [sys.executable, "-m", "kvsim.cli.main", "sweep", "tiny.yaml", *args]
    with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=slave):
        os.close(slave)
        shown = b""
        while True:
            try:
                more = os.read(master, 65536)
            except OSError:  # Linux's way of saying that all is read
                break
            if not more:
                break
            shown += more
    os.close(master)
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown.decode())
