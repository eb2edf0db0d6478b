"""`kvsim calibrate measure` as people use it."""

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from measuring import Pretended, out_of_memory, pretend

from kvsim.calibrate.measure.session import Progress
from kvsim.cli.main import main
from kvsim.cli.measure import clock, told

HEADS = ("--heads", "12/12/64")
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")


@pytest.fixture
def measure(tmp_path: Path, monkeypatch, capfd):
    """Runs the command in an empty folder; returns exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["calibrate", "measure", *args])
        out = capfd.readouterr()
        return int(ended.value.code or 0), out.out, out.err

    return run


def refused(outcome: tuple[int, str, str], *words: str) -> None:
    code, out, err = outcome
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("kvsim: ")
    for word in words:
        assert word in line
    assert not Path("results").exists()


BAD = {
    "no shapes": ((), ["--heads 32/8/128", "--model"]),
    "heads": (("--heads", "32/8"), ["--heads 32/8", "32/8/128"]),
    "heads that do not share": (("--heads", "32/5/128"), ["--heads 32/5/128", "multiple"]),
    "model": (("--model", "Lama-9"), ["Lama-9", "not in the catalog"]),
    "split": (("--model", "Llama-3.1-8B", "--tp", "3"), ["--tp 3", "32 query heads"]),
    "split of nothing": ((*HEADS, "--tp", "2"), ["--tp", "--model"]),
    "no split": (("--model", "Llama-3.1-8B", "--tp", "0"), ["--tp 0"]),
    "dtype": ((*HEADS, "--dtype", "float16"), ["--dtype float16", "bfloat16, fp8"]),
    "operation": ((*HEADS, "--operation", "attn"), ["--operation attn", "prefill", "all_reduce"]),
    "L2": ((*HEADS, "--l2", "warm"), ["--l2 warm", "hot, cold, both"]),
    "budget": ((*HEADS, "--budget", "8"), ["--budget 8", "8m"]),
    "a file": ((*HEADS, "-o", "file"), ["-o file", "folder"]),
    "an option": ((*HEADS, "--bugdet", "8m"), ["--bugdet"]),
}


@pytest.mark.parametrize(("args", "words"), BAD.values(), ids=BAD)
def test_bad_arguments(measure, args, words) -> None:
    Path("file").touch()
    refused(measure(*args), *words)


def test_without_torch(measure, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    refused(measure(*HEADS), "needs torch", 'pip install "kvsim[cuda]"')


@needs_torch
def test_without_cuda(measure) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    refused(measure(*HEADS), "--device cuda: torch", "CUDA", "--device cpu")
    refused(measure(*HEADS, "--device", "tpu"), "--device tpu", "cuda, cuda:N or cpu")


def test_help_does_not_wait_for_torch() -> None:
    code = (
        "import sys; from kvsim.cli.app import run_app\ntry: run_app(sys.argv[1:])\nexcept SystemExit: pass\n"
    )
    code += "print({'torch', 'pyarrow', 'numpy'} & set(sys.modules))"
    command = [sys.executable, "-c", code, "calibrate", "measure", "--help"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "--budget" in out
    assert out.splitlines()[-1] == "set()"


def test_what_it_says_in_the_end(measure, monkeypatch) -> None:
    good, bad = Pretended("torch_sdpa_flash", "decode"), Pretended("flash_attn_2", "decode")
    good.act = out_of_memory()

    def fail(point) -> None:
        raise RuntimeError("no kernel image is available")

    bad.act = fail
    pretend(monkeypatch, good, bad)
    code, out, err = measure(*HEADS, "--operation", "decode", "-o", "here")
    assert code == 0
    assert err.splitlines() == [
        "flash_attn_2, decode, bfloat16: failed: RuntimeError: no kernel image is available"
    ]
    assert [line.split() for line in out.splitlines()[1:3]] == [
        ["here/attention_decode.parquet", "2"],
        ["here/cold/attention_decode.parquet", "2"],
    ]
    assert "NVIDIA H200: 8 points: 2 measured; 2 do not fit into memory; 4 failed" in out
    assert out.splitlines()[-1] == "Next: kvsim calibrate fit here/*.parquet here/cold/*.parquet -o mine.json"
    good.act = lambda point: None
    assert measure(*HEADS, "--operation", "decode", "-o", "here", "--quiet")[1:] == ("here\n", "")


def test_nothing_measured_is_one_line_that_says_why(measure, monkeypatch) -> None:
    kernel = Pretended("flash_attn_2", "decode")
    pretend(monkeypatch, kernel)

    def fail(point) -> None:
        raise RuntimeError("no kernel image is available")

    kernel.act = fail
    code, out, err = measure(*HEADS, "--operation", "decode", "--quiet")
    assert (code, out) == (2, "")
    assert err == (
        "kvsim: calibrate measure: nothing could be measured: flash_attn_2, decode, bfloat16: "
        "RuntimeError: no kernel image is available\n"
    )


def test_an_interrupt_keeps_what_was_measured_and_the_same_command_goes_on(measure, monkeypatch) -> None:
    kernel = Pretended("torch_sdpa_flash", "decode", "prefill")
    pretend(monkeypatch, kernel)

    def interrupt(point) -> None:
        if len(kernel.points) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    kernel.act = interrupt
    before = signal.getsignal(signal.SIGINT)
    code, out, err = measure(*HEADS, "-o", "here")
    assert (code, out) == (130, "")
    assert err.startswith("kvsim: interrupted; 3 of ")
    assert signal.getsignal(signal.SIGINT) == before
    kernel.act = lambda point: None
    assert measure(*HEADS, "-o", "here")[0] == 0
    assert len(set(kernel.points)) == len(kernel.points)


def test_time_left_is_told() -> None:
    assert [clock(seconds) for seconds in (0, 61.2, 3723)] == ["0:00", "1:02", "1:02:03"]
    assert told(Progress(1000, found=20, now="decode, x")) == "20/1,000 points: decode, x"


@needs_torch
def test_every_operation_without_a_gpu(measure) -> None:
    args = (*HEADS, "--model", "Qwen2.5-VL-7B", "--device", "cpu", "--dtype", "fp8", "--dtype", "bfloat16")
    code, out, err = measure(*args, "-o", "here")
    assert code == 0
    assert err.splitlines() == [
        f"{operation}: left out in fp8: no installed kernel does it"
        for operation in ("prefill", "cached", "decode", "mixed")
    ]
    tables = {path.stem: pq.read_table(path) for path in Path("here").glob("*.parquet")}
    assert set(tables) == {
        "attention_decode",
        "attention_encoder",
        "attention_prefill",
        "collectives",
        "copies",
        "gemm",
        "step_attention",
    }
    for name, table in tables.items():
        times = table["time_us" if name == "step_attention" else "latency_us"].to_pylist()
        assert min(times) > 0
        assert set(table["l2"].to_pylist()) == {"hot"}
    assert set(tables["gemm"]["dtype"].to_pylist()) == {"bfloat16", "fp8"}
    assert "failed" not in out
    assert "were there" in measure(*args, "-o", "here")[1]


@needs_torch
def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    operations = [word for name in ("prefill", "cached", "decode", "gemm") for word in ("--operation", name)]
    command = [sys.executable, "-m", "kvsim.cli.main", "calibrate", "measure", *HEADS, *operations]
    command += ["--device", "cpu", "-o", str(tmp_path)]
    running = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    journal = tmp_path / ".unfinished.jsonl"
    while running.poll() is None and not (journal.exists() and journal.stat().st_size > 2000):
        time.sleep(0.001)
    running.kill()
    running.wait()
    if not journal.exists():
        pytest.skip("it was done before it could be killed")
    kept = journal.read_text(encoding="utf-8").count("\n")
    assert kept > 3
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "were there" in done.stdout
    assert not journal.exists()
    hot = [pq.read_table(path).num_rows for path in tmp_path.glob("*.parquet")]
    cold = [pq.read_table(path).num_rows for path in tmp_path.glob("cold/*.parquet")]
    assert sum(hot) == sum(cold)
    assert sum(hot) + sum(cold) > kept
