"""Bad input: one clear line on stderr, exit code 2, nothing written."""

import gzip
import os
from pathlib import Path

import pytest

from kvsim.cli.main import main

GOOD = """\
name: tiny
model: Qwen/Qwen3-VL-2B-Instruct
gpu: rtx-4090
engine: {available_kv_cache_bytes: 2000000000, max_model_len: 4096}
workload: {type: shared_prefix, rate: 10, num_requests: 5, output_len: 4}
"""
ROW = '{"timestamp": %d, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}\n'


@pytest.fixture
def run(tmp_path: Path, monkeypatch, capfd):
    """Runs `kvsim run` in an empty folder; returns exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run_kvsim(*args: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["run", *args])
        out = capfd.readouterr()
        return int(ended.value.code or 0), out.out, out.err

    return run_kvsim


def write(text: str | bytes, name: str = "scenario.yaml") -> str:
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return name


def refused(outcome: tuple[int, str, str], *words: str, underway: str = "") -> None:
    """`underway`: a line that may stand before, where the input proves bad only in mid-run."""
    code, out, err = outcome
    assert code == 2, err
    assert out == ""
    (line,) = [line for line in err.splitlines() if underway not in line or not underway]
    assert line.startswith("kvsim: ")
    for word in words:
        assert word in line
    assert not Path("results").exists()


CASES = {
    "unknown key": (GOOD.replace("max_model_len", "max_model_length"), ["line 4", "max_model_len"]),
    "wrong type": (GOOD.replace("rate: 10", "rate: fast"), ["rate", "fast"]),
    "negative": (GOOD.replace("rate: 10", "rate: -1"), ["rate", "-1"]),
    "absurd": (GOOD.replace("num_requests: 5", "num_requests: 1e99"), ["num_requests"]),
    "broken YAML": ("name: [tiny\nmodel: x\n", ["line"]),
    "not a mapping": ("- a\n- b\n", ["scenario.yaml"]),
    "empty": ("", ["scenario.yaml"]),
    "not UTF-8": (b"name: \xff\xfe\n", ["UTF-8"]),
    "unknown model": (GOOD.replace("Qwen3-VL-2B", "Qwen3-VL-3B"), ["Qwen3-VL"]),
    "no room for one block": (GOOD.replace("2000000000", "1000"), ["scenario.yaml: engine"]),
    "no block by override": (
        GOOD.replace("engine: {", "engine: {num_gpu_blocks_override: 1, "),
        ["scenario.yaml: engine", "engine.num_gpu_blocks_override"],
    ),
    "room for no request": (
        GOOD.replace("2000000000", "20000000"),
        ["scenario.yaml: all 5 requests were refused: ", "the pool has 9"],
    ),
    "override leaves room for no request": (
        GOOD.replace("engine: {", "engine: {num_gpu_blocks_override: 5, "),
        [
            "scenario.yaml: all 5 requests were refused: ",
            "(engine.num_gpu_blocks_override: 5)",
        ],
    ),
    "model too large for the card": (
        GOOD.replace("available_kv_cache_bytes: 2000000000", "gpu_memory_utilization: 0.05"),
        ["scenario.yaml: engine.gpu_memory_utilization: "],
    ),
    "heads not divisible": (
        GOOD.replace("engine: {", "engine: {tensor_parallel_size: 3, "),
        ["scenario.yaml", "engine.tensor_parallel_size: "],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_scenario_is_told_in_one_line(run, case: str) -> None:
    text, words = CASES[case]
    refused(run(write(text)), *words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--record", "blocks"], ["--record blocks: not known; one of steps, events"]),
        (["--record", "steps", "--set", "record.steps=true"], ["record.steps is set twice"]),
        (["--goodput", "tfft:2"], ["--goodput tfft:2: write NAME:MILLISECONDS", "one of ttft, tpot, e2e"]),
        (["--goodput", "ttft"], ["--goodput ttft: write a number of milliseconds"]),
        (["--goodput", "ttft:-3"], ["--goodput ttft:-3: write a number of milliseconds above 0"]),
        (["--goodput", "ttft:nan"], ["milliseconds above 0"]),
        (["--goodput", "ttft:1e12"], ["--goodput ttft:1e12: slo.ttft: 1000000000.0 is out of range"]),
        (["--goodput", "e2e:1", "--goodput", "e2el:2"], ["--goodput e2el:2: slo.e2e is set twice"]),
        (["--set", "slo=3", "--goodput", "ttft:1"], ["--goodput ttft:1: slo is 3, not a section"]),
        (["--set", "slo={}"], ["--set slo={}: slo: states no limit; give ttft, tpot or e2e, in seconds"]),
        (["--set", "slo.ttft=0"], ["--set slo.ttft=0: slo.ttft: 0 is out of range; give above 0"]),
        (["--set", "slo.itl=1"], ["slo.itl: unknown key"]),
        (["--set", "record.step=true"], ["record.step: unknown key; did you mean steps?"]),
        (["--set", "record.steps=1"], ["record.steps: 1 is not true or false"]),
        (["--set", "warm_up=-1"], ["warm_up: -1 is out of range"]),
        (
            ["--set", "warm_up=9", "--set", "horizon=9"],
            ["--set warm_up=9: warm_up: 9 s leave nothing to measure before horizon, 9 s"],
        ),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith("--") else "",
)
def test_what_to_record_and_to_measure_is_checked(run, options: list[str], words: list[str]) -> None:
    refused(run(write(GOOD), *options), *words)


def test_a_missing_file_and_a_folder_are_told(run) -> None:
    refused(run("nowhere.yaml"), "nowhere.yaml")
    os.mkdir("folder")
    refused(run("folder"), "folder")


@pytest.mark.parametrize(
    "override", ["engine.block_sise=16", "engine.block_size=x", "engine", "workload.rate=-3"]
)
def test_a_bad_override_is_told(run, override: str) -> None:
    refused(run(write(GOOD), "--set", override), override.split("=")[0].split(".")[-1])


def test_a_wrong_command_line_is_told_in_one_line(run) -> None:
    refused(run(write(GOOD), "--sett", "a=b"), "--sett")
    refused(run(), "FILE")


TRACES = {
    "broken line": ((ROW % 0) + "{oops\n", ["line 2"]),
    "missing field": ((ROW % 0) + '{"timestamp": 1}\n', ["line 2", "input_length"]),
    "wrong type": ((ROW % 0) + (ROW % 1).replace("600", '"many"'), ["line 2", "input_length"]),
    "negative": ((ROW % 0) + (ROW % 1).replace("600", "-600"), ["line 2", "input_length"]),
    "empty": ("", ["empty"]),
    "cut gzip": (gzip.compress((ROW % 0).encode() * 50, mtime=0)[:-20], ["trace.jsonl"]),
}


@pytest.mark.parametrize("case", TRACES)
def test_a_bad_trace_is_told_with_line_and_field(run, case: str) -> None:
    text, words = TRACES[case]
    scenario = write(GOOD.split("workload")[0] + "workload: {type: trace}\n")
    refused(run(scenario, "--trace", write(text, "trace.jsonl")), *words, underway="compiling once")


def test_a_trace_needs_a_trace_workload(run) -> None:
    refused(run(write(GOOD), "--trace", write(ROW % 0, "trace.jsonl")), "trace")


def test_a_place_that_cannot_be_written_is_told(run) -> None:
    write("", "results")
    refused_elsewhere = run(write(GOOD), "--results-dir", "results/below")
    assert refused_elsewhere[0] == 2
    assert "cannot write results" in refused_elsewhere[2]


def test_when_all_requests_are_refused_that_is_the_error(run) -> None:
    outcome = run(write(GOOD), "--set", "workload.prefix_len=5000")
    refused(outcome, "scenario.yaml: all 5 requests were refused", "max_model_len")


@pytest.mark.parametrize(
    ("override", "longest"),
    [
        ("engine.max_model_len=90000", "17,408"),  # more than the memory holds
        ("engine.num_gpu_blocks_override=100", "1,584"),
        ("engine.available_kv_cache_bytes=20000000", "144"),
    ],
)
def test_a_pool_that_vllm_would_not_start_with_runs_and_says_so(run, override: str, longest: str) -> None:
    short = ["--set", "workload.prefix_len=16", "--set", "workload.suffix_len=16"]
    code, out, _ = run(write(GOOD), "--set", override, *short)
    assert code == 0
    assert "vLLM would not start: " in out
    assert f" do not fit the KV cache, {longest} would; requests that do not fit are refused" in out


def test_a_request_that_needs_more_blocks_than_the_pool_is_refused(run) -> None:
    mixed = "workload.suffix_len={distribution: uniform, min: 1, max: 2000}"
    code, out, _ = run(write(GOOD), "--set", "engine.num_gpu_blocks_override=40", "--set", mixed)
    assert code == 0
    assert "refused" in out
    assert "KV blocks for" in out


def test_an_error_of_the_run_names_the_option_that_set_the_key(run) -> None:
    scenario = write(GOOD.replace("available_kv_cache_bytes: 2000000000, ", ""))
    override = "engine.gpu-memory-utilization=0.05"
    outcome = run(scenario, "--set", "seed=1", "--set", override)
    refused(outcome, f"kvsim: --set {override}: engine.gpu_memory_utilization: ")


def test_folders_made_for_the_results_go_too(run) -> None:
    outcome = run(write(GOOD), "--set", "workload.prefix_len=5000", "--results-dir", "made/for/this")
    refused(outcome, "refused")
    assert os.listdir() == ["scenario.yaml"]


def test_files_that_no_run_wrote_are_not_thrown_away(run) -> None:
    assert run(write(GOOD), "--quiet")[0] == 0
    (folder,) = Path("results").iterdir()
    (folder / "notes.txt").write_text("mine")
    code, _, err = run(write(GOOD))
    assert code == 2
    assert f"kvsim: cannot write results to {folder}: the folder holds notes.txt, " in err
    assert (folder / "notes.txt").read_text() == "mine"
    assert len(list(folder.iterdir())) == 4
