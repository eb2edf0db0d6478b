"""``kvsim run`` from the outside: output, results folder, determinism, interrupts."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

import kvsim

SCENARIO = """\
name: tiny
seed: 3
model: Qwen/Qwen3-VL-2B-Instruct
gpu: rtx-4090
engine: {available_kv_cache_bytes: 2000000000, max_model_len: 4096}
workload:
  type: shared_prefix
  rate: 20
  num_requests: 60
  num_prefixes: 3
  prefix_len: 300
  suffix_len: {distribution: uniform, min: 20, max: 200}
  output_len: {distribution: uniform, min: 1, max: 40}
"""
FOLDER = "tiny-????????"


def start(folder: Path, *args: str, **options) -> subprocess.Popen:
    env = os.environ | {"PYTHONPATH": str(Path(kvsim.__file__).parent.parent)} | options.pop("env", {})
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    command = [sys.executable, "-m", "kvsim.cli.main", *args]
    return subprocess.Popen(command, cwd=folder, env=env, text=True, **streams)


def call(folder: Path, *args: str, **options) -> tuple[int, str, str]:
    process = start(folder, *args, **options)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text(SCENARIO)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    (results,) = (folder / "results").glob(FOLDER)
    return {path.name: path.read_bytes() for path in results.iterdir()}


def test_a_run_shows_a_summary_and_leaves_a_results_folder(folder: Path) -> None:
    code, out, err = call(folder, "run", "tiny.yaml")
    assert code == 0, err
    for words in (
        "GPU KV cache size: ",
        "Maximum concurrency for 4,096 tokens per request: ",
        "60 finished",
        "Prefix cache hit rate",
        "KV cache usage",
        "evicted",
        "Preemptions",
        "TTFT",
        "TPOT",
        "E2E",
        "p99",
        "results/tiny-",
    ):
        assert words in out
    files = contents(folder)
    assert sorted(files) == ["requests.parquet", "scenario.yaml", "summary.json"]
    summary = json.loads(files["summary.json"])
    assert summary["requests"]["finished"] == 60
    assert summary["vllm:prefix_cache_hits"] > 0


def test_recording_adds_files_and_changes_nothing_else(folder: Path) -> None:
    assert call(folder, "run", "tiny.yaml", "--quiet")[0] == 0
    plain = contents(folder)
    code, _, err = call(folder, "run", "tiny.yaml", "--record", "steps", "--record", "events")
    assert (code, err) == (0, "")
    recorded = contents(folder)  # in the same folder
    names = ["events.parquet", "requests.parquet", "scenario.yaml", "steps.parquet", "summary.json"]
    assert sorted(recorded) == names
    for name in ("requests.parquet", "summary.json"):
        assert recorded[name] == plain[name]
    (results,) = (folder / "results").glob(FOLDER)
    (folder / "again.yaml").write_bytes(recorded["scenario.yaml"])
    assert call(folder, "run", "again.yaml", "--quiet")[0] == 0
    assert contents(folder) == recorded  # the resolved scenario records again
    loaded = kvsim.RunResult.load(results)
    assert len(loaded.requests) == 60
    assert list(loaded.steps.columns)[:2] == ["instance", "step"]
    assert call(folder, "run", "tiny.yaml", "--quiet")[0] == 0
    assert contents(folder) == plain


def test_goodput_as_in_vllms_benchmark(folder: Path) -> None:
    options = ["--goodput", "ttft:2000", "--goodput", "e2el:1e6", "--set", "warm_up=1"]
    code, out, _ = call(folder, "run", "tiny.yaml", *options)
    assert code == 0
    assert "100.0% of finished (TTFT <= 2,000 ms: 100.0%; E2E <= 1,000,000 ms: 100.0%)" in out
    assert "first 1 s cut: " in out
    summary = json.loads(contents(folder)["summary.json"])
    assert summary["slo"]["ttft"]["limit"] == 2.0
    assert summary["request_goodput"] == summary["requests_per_second"]


def test_more_than_a_million_rows_are_told_on_standard_error(folder: Path) -> None:
    code = (
        "import warnings\n"
        "from kvsim.cli.progress import progress\n"
        "from kvsim.results import ManyRowsWarning\n"
        "with progress(quiet=%s, cold=False):\n"
        "    warnings.warn('1,000,001 rows', ManyRowsWarning)\n"
        "    warnings.warn('something else')\n"
    )
    env = os.environ | {"PYTHONPATH": str(Path(kvsim.__file__).parent.parent)}
    for quiet in (False, True):
        ended = subprocess.run(
            [sys.executable, "-W", "ignore::UserWarning", "-c", code % quiet],
            env=env,
            capture_output=True,
            text=True,
        )
        assert (ended.returncode, ended.stdout) == (0, "")
        assert ended.stderr == ("" if quiet else "kvsim: 1,000,001 rows\n")


def test_colours_where_they_are_wanted(folder: Path) -> None:
    plain = call(folder, "run", "tiny.yaml")[1]
    coloured = call(folder, "run", "tiny.yaml", env={"FORCE_COLOR": "1"})[1]
    assert "\x1b[1mtiny: " in coloured
    assert re.sub(r"\x1b\[\d*m", "", coloured) == plain


def test_the_collector_works_once_all_is_loaded(folder: Path) -> None:
    code = (
        "import gc, kvsim.cli.run as run\n"
        "run.print_summary = lambda metrics: print(gc.isenabled(), gc.get_freeze_count() > 10_000)\n"
        "from kvsim.cli.main import main; main(['run', 'tiny.yaml'])"
    )
    env = os.environ | {"PYTHONPATH": str(Path(kvsim.__file__).parent.parent)}
    ended = subprocess.run([sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True)
    assert ended.stdout.startswith("True True\n"), ended.stderr


def test_a_run_loads_only_what_it_needs(folder: Path) -> None:
    code = (
        "import sys, atexit\n"
        "heavy = ['pandas', 'rich', 'matplotlib', 'pyarrow.compute', 'pyarrow.dataset']\n"
        "atexit.register(lambda: print([name for name in heavy if name in sys.modules], file=sys.stderr))\n"
        "from kvsim.cli.main import main; main(['run', 'tiny.yaml'])"
    )
    env = os.environ | {"PYTHONPATH": str(Path(kvsim.__file__).parent.parent)}
    ended = subprocess.run([sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "[]\n")


def test_equal_scenarios_give_equal_bytes(folder: Path) -> None:
    assert call(folder, "run", "tiny.yaml", env={"PYTHONHASHSEED": "1"})[0] == 0
    first = contents(folder)
    assert call(folder, "run", "tiny.yaml", env={"PYTHONHASHSEED": "2", "TZ": "Asia/Tokyo"})[0] == 0
    assert contents(folder) == first
    assert [path.name[:5] for path in (folder / "results").iterdir()] == ["tiny-"]


def test_the_same_bytes_with_the_compiler_off(folder: Path) -> None:
    assert call(folder, "run", "tiny.yaml")[0] == 0
    first = contents(folder)
    assert call(folder, "run", "tiny.yaml", env={"NUMBA_DISABLE_JIT": "1"})[0] == 0
    assert contents(folder) == first


def test_python_gives_the_same_as_the_command(folder: Path) -> None:
    assert call(folder, "run", "tiny.yaml", "--quiet")[0] == 0
    (results,) = (folder / "results").glob(FOLDER)
    result = kvsim.load_scenario(folder / "tiny.yaml").run()
    assert json.loads((results / "summary.json").read_text()) == result.metrics
    assert (results / "scenario.yaml").read_text() == result.scenario
    pd.testing.assert_frame_equal(pd.read_parquet(results / "requests.parquet"), result.requests)
    assert kvsim.RunResult.load(results).requests.equals(result.requests)


def test_the_resolved_scenario_runs_to_the_same_results(folder: Path) -> None:
    assert call(folder, "run", "tiny.yaml", "--quiet")[0] == 0
    first = contents(folder)
    (results,) = (folder / "results").glob(FOLDER)
    (folder / "again.yaml").write_bytes((results / "scenario.yaml").read_bytes())
    assert call(folder, "run", "again.yaml", "--quiet")[0] == 0
    assert contents(folder) == first


def test_a_replay_is_repeated_from_its_resolved_scenario(folder: Path) -> None:
    row = '{"timestamp": %d, "input_length": 600, "output_length": 2, "hash_ids": [1, %d]}\n'
    (folder / "rows.jsonl").write_text("".join(row % (9 * i, i % 3) for i in range(9)))
    text = SCENARIO.split("workload:")[0] + "workload: {type: trace, path: elsewhere.jsonl}\n"
    (folder / "tiny.yaml").write_text(text)
    assert call(folder, "run", "tiny.yaml", "--quiet", "--trace", "rows.jsonl")[0] == 0
    first = contents(folder)
    (results,) = (folder / "results").glob(FOLDER)
    again = str(results.relative_to(folder) / "scenario.yaml")
    code, out, err = call(folder, "run", again, "--quiet")
    assert (code, out.strip()) == (0, str(results.relative_to(folder))), err  # the same hash
    assert contents(folder) == first


@pytest.mark.parametrize("option", ["--out", "-o", "--results-dir"])
def test_quiet_prints_only_where_the_results_are(folder: Path, option: str) -> None:
    code, out, err = call(folder, "run", "tiny.yaml", "--quiet", "--set", "seed=4", option, "out/deep")
    assert (code, err) == (0, "")
    assert (folder / out.strip() / "summary.json").is_file()
    assert out.startswith("out/deep/tiny-")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_an_interrupt_leaves_nothing_behind_and_says_so(folder: Path, name: str) -> None:
    number = getattr(signal, name)
    process = start(folder, "run", "tiny.yaml", "--set", "workload.num_requests=2000000")
    deadline = time.monotonic() + 120
    while not list(folder.glob("results/.tiny-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(number)
    process.send_signal(number)  # the impatient do not cut cleaning up short
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (128 + number, "")
    assert err.splitlines()[-1] == "kvsim: interrupted; nothing was written"
    assert "Traceback" not in err
    assert os.listdir(folder) == ["tiny.yaml"]


@pytest.mark.parametrize("module", ["typer", "numba", "pyarrow"])
def test_an_interrupt_while_libraries_load_is_one_line(folder: Path, module: str) -> None:
    (folder / f"{module}.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    ended = call(folder, "run", "tiny.yaml")
    assert ended == (130, "", "kvsim: interrupted; nothing was written\n")


def test_an_interrupt_after_the_run_says_where_the_results_are(folder: Path) -> None:
    code = (
        "import kvsim.cli.run as run, signal\n"
        "run.print_summary = lambda *_: signal.raise_signal(signal.SIGTERM)\n"
        "from kvsim.cli.main import main; main(['run', 'tiny.yaml'])"
    )
    env = os.environ | {"PYTHONPATH": str(Path(kvsim.__file__).parent.parent)}
    ended = subprocess.run([sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True)
    assert ended.returncode == 143
    assert "kvsim: interrupted; the results are in results/tiny-" in ended.stderr
    assert "summary.json" in contents(folder)


def test_a_reader_that_goes_away_is_not_a_crash(folder: Path) -> None:
    process = start(folder, "run", "tiny.yaml")
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    process.wait(timeout=300)
    assert "summary.json" in contents(folder)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("args", [["run", "tiny.yaml"], ["run", "tiny.yaml", "--quiet"], ["--help"]])
def test_output_that_cannot_be_written_is_told(folder: Path, args: list[str]) -> None:
    with open("/dev/full", "w") as full:
        code, _, err = call(folder, *args, stdout=full)
    assert code == 1
    line = err.splitlines()[-1]
    assert line.startswith("kvsim: cannot write to standard output: ")
    assert ("; the results are in results/tiny-" in line) == (args[0] == "run")


@pytest.mark.parametrize("args", ["run tiny.yaml --quiet", "run tiny.yaml", "--help", "run nowhere.yaml"])
def test_closed_streams_are_no_crash(folder: Path, args: str) -> None:
    command = f'"{sys.executable}" -m kvsim.cli.main {args}'
    env = os.environ | {"PYTHONPATH": str(Path(kvsim.__file__).parent.parent)}
    for closed in (">&-", ">&- 2>&-"):
        ended = subprocess.run(
            ["sh", "-c", f"{command} {closed}"], cwd=folder, env=env, capture_output=True, text=True
        )
        assert ended.returncode == (2 if "nowhere" in args else 0)
        assert "Traceback" not in ended.stderr


def test_runs_at_the_same_time_do_not_disturb_each_other(folder: Path) -> None:
    assert call(folder, "run", "tiny.yaml", "--quiet")[0] == 0
    alone = contents(folder)
    for seeds in ((3, 3, 3), (5, 3, 6)):
        runs = [start(folder, "run", "tiny.yaml", "--quiet", "--set", f"seed={seed}") for seed in seeds]
        outputs = [process.communicate(timeout=300) for process in runs]
        assert [process.returncode for process in runs] == [0, 0, 0], outputs
        assert len({out for out, _ in outputs}) == len(set(seeds))
    written = {path.name: path for path in (folder / "results").iterdir()}
    assert len(written) == 3
    assert all(name.startswith("tiny-") for name in written)
    assert all(len(list(path.iterdir())) == 3 for path in written.values())
    first = kvsim.load_scenario(folder / "tiny.yaml").scenario_hash[:8]
    assert {path.name: path.read_bytes() for path in written[f"tiny-{first}"].iterdir()} == alone


def test_the_first_run_ever_says_that_it_compiles(folder: Path) -> None:
    """Also where stderr is no terminal, as here."""
    fresh = {"KVSIM_CACHE_DIR": str(folder / "cache")}
    for times, code, *options in ((1, 0), (0, 0), (0, 2, "--set", "engine.max_model_len=100")):
        got, _, err = call(folder, "run", "tiny.yaml", *options, env=fresh)
        assert got == code
        said = err.count("compiling once for this machine (about a minute); later runs start at once")
        assert said == times


def test_version_and_help() -> None:
    here = Path.cwd()
    assert call(here, "--version")[1].startswith("kvsim ")
    code, out, _ = call(here, "run", "--help")
    assert code == 0
    assert "--trace" in out
