"""`kvsim plot`: a picture or one line that says why not."""

import subprocess
import sys
from pathlib import Path

import pytest

import kvsim
from kvsim.cli.main import main

SCENARIO = """\
name: tiny
model: Qwen/Qwen3-VL-2B-Instruct
gpu: rtx-4090
engine: {num_gpu_blocks_override: 60, max_model_len: 512}
workload: {type: shared_prefix, rate: 50, num_requests: 5, prefix_len: 64, suffix_len: 20, output_len: 20}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("plots")
    (place / "tiny.yaml").write_text(SCENARIO)
    for name, recorded in (("plain", "false"), ("recorded", "true")):
        options = [f"record.steps={recorded}", f"record.events={recorded}"]
        kvsim.load_scenario(place / "tiny.yaml", options).run().save(place / name)
    return place


@pytest.fixture
def plot(folder, tmp_path, monkeypatch, capsys):
    """Runs `kvsim plot` in an empty folder; returns exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(run_folder: str, *args: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["plot", str(folder / run_folder), *args])
        out = capsys.readouterr()
        return int(ended.value.code or 0), out.out, out.err

    return run


@pytest.mark.parametrize("kind", ["memory", "timeseries", "cdf", "blocks"])
def test_every_kind_of_a_run(plot, kind):
    assert plot("recorded", kind) == (0, f"recorded-{kind}.png\n", "")
    first = Path(f"recorded-{kind}.png").read_bytes()
    assert first.startswith(b"\x89PNG")
    plot("recorded", kind)
    assert Path(f"recorded-{kind}.png").read_bytes() == first


@pytest.mark.parametrize(
    ("suffix", "start"), [(".svg", b"<?xml"), (".pdf", b"%PDF"), (".png", b"\x89PNG"), (".PNG", b"\x89PNG")]
)
def test_formats(plot, suffix, start):
    code, out, err = plot(
        "recorded", "cdf", "--metric", "ttft,queue_time", "-o", f"x{suffix}", "--title", "Mine"
    )
    assert (code, out, err) == (0, f"x{suffix}\n", "")
    assert Path(f"x{suffix}").read_bytes().startswith(start)


def test_options_reach_the_picture(plot):
    options = ["--window", "0:0.2", "--replica", "0", "--metric", "running", "--dpi", "60"]
    assert plot("recorded", "timeseries", *options)[0] == 0
    assert plot("recorded", "blocks", "--window", "2:5", "-o", "b.svg")[0] == 0
    assert plot("recorded", "cdf", "--metric", "reuse_gap")[0] == 0


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["recorded", "pie"], "one of memory, timeseries, cdf, blocks, lines, heatmap, pareto"),
        (["recorded", "memry"], "did you mean memory?"),
        (["recorded", "heatmap"], "holds one run; of one run there are memory, timeseries, cdf, blocks"),
        ([".", "memory"], "is not a results folder"),
        (["nowhere", "memory"], "nowhere is not a results folder"),
        (["plain", "timeseries"], "steps were not recorded; they are with record: {steps: true}"),
        (["plain", "cdf", "--metric", "block_age"], "events were not recorded"),
        (["recorded", "cdf", "--metric", "tftt"], "did you mean ttft?"),
        (["recorded", "timeseries", "--metric", "hits"], "one of running, waiting, kv_usage, hit_rate"),
        (["recorded", "memory", "-o", "x.jpg"], ".jpg is no format of pictures here"),
        (["recorded", "memory", "-o", "no/x.png"], "cannot write no/x.png"),
        (["recorded", "memory", "--window", "1:2"], "--window: has no meaning for memory"),
        (["recorded", "blocks", "--window", "1"], "write FROM:TO in steps"),
        (["recorded", "blocks", "--window", "0:4"], "whole numbers from 1"),
        (["recorded", "timeseries", "--window", "5:2"], "write FROM:TO in seconds"),
        (["recorded", "timeseries", "--window", "nan:2"], "write FROM:TO in seconds"),
        (["recorded", "timeseries", "--window", "100:200"], "no engine step between"),
        (["recorded", "timeseries", "--replica", "7"], "there is no replica 7; there is one, 0"),
        (["recorded", "cdf", "--replica", "replica-1"], "there is no replica replica-1; there is one, 0"),
        (["recorded", "cdf", "--metric", "block_age"], "no cached block was evicted"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(plot, args, says):
    code, out, err = plot(*args)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("kvsim: ")
    assert says in line
    assert not list(Path().iterdir())


def test_help_lists_the_kinds(plot, capsys):
    with pytest.raises(SystemExit):
        main(["plot", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    for kind in ("memory", "timeseries", "cdf", "blocks", "lines", "heatmap", "pareto"):
        assert kind in words


def test_only_who_draws_loads_matplotlib():
    code = "import sys, kvsim.cli.app, kvsim.results, kvsim.scenario; print('matplotlib' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_a_picture_is_made_without_pyplot(folder, tmp_path):
    run, path = str(folder / "recorded"), str(tmp_path / "x.png")
    code = (
        "import sys, kvsim; from kvsim.plots import save\n"
        f"save(kvsim.RunResult.load({run!r}).plot.memory(), {path!r})\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_a_trace_is_looked_for_where_the_option_says(plot, folder, tmp_path):
    row = '{"timestamp": %d, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}'
    (tmp_path / "rows.jsonl").write_text("\n".join(row % time for time in (0, 100)))
    (tmp_path / "replay.yaml").write_text(
        "name: replay\nmodel: Qwen/Qwen3-VL-2B-Instruct\ngpu: rtx-4090\n"
        "engine: {num_gpu_blocks_override: 100}\nworkload: {type: trace, path: rows.jsonl}\n"
    )
    kvsim.load_scenario(tmp_path / "replay.yaml").run().save(folder / "replay")
    (tmp_path / "rows.jsonl").rename(tmp_path / "moved.jsonl")
    assert plot("replay", "memory")[0] == 0
    code, _, err = plot("replay", "blocks")
    assert code == 2
    assert "workload.path" in err
    assert "--trace" in err
    assert "tmp" not in err
    assert plot("replay", "blocks", "--trace", "moved.jsonl") == (0, "replay-blocks.png\n", "")
