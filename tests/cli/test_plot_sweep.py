"""`kvsim plot` of the folder that `kvsim sweep` wrote."""

from pathlib import Path

import pytest

from kvsim.cli.main import main

pytest.importorskip("kvsim.sweep", reason="this kvsim has no sweeps")

SCENARIO = """\
name: tiny
model: Qwen/Qwen3-VL-2B-Instruct
gpu: rtx-4090
engine: {max_model_len: 512}
workload: {type: shared_prefix, rate: 50, num_requests: 5, prefix_len: 64, suffix_len: 20, output_len: 20}
"""


def kvsim(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(args))
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Four points, of which the two at utilization 0.1 fail."""
    place = tmp_path_factory.mktemp("sweep")
    (place / "tiny.yaml").write_text(SCENARIO)
    keys = ["--set", "engine.gpu_memory_utilization=0.1,0.9", "--set", "engine.block_size=16,64"]
    assert (
        kvsim("sweep", str(place / "tiny.yaml"), *keys, "--out", str(place / "swept"), "--workers", "1") == 0
    )
    return place / "swept"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kind", ["lines", "heatmap", "pareto"])
def test_every_kind_of_a_sweep(folder, kind, capsys):
    assert kvsim("plot", str(folder), kind) == 0
    assert capsys.readouterr().out == f"swept-{kind}.png\n"
    first = Path(f"swept-{kind}.png").read_bytes()
    assert first.startswith(b"\x89PNG")
    kvsim("plot", str(folder), kind)
    assert Path(f"swept-{kind}.png").read_bytes() == first


def test_options_of_a_sweep(folder):
    names = ["-o", "x.svg", "--title", "Mine"]
    assert kvsim("plot", str(folder), "lines", "--x", "block_size", "--y", "ttft_p99", *names) == 0
    keys = ["--x", "block_size", "--y", "gpu_memory_utilization"]
    assert kvsim("plot", str(folder), "heatmap", *keys, "--metric", "throughput", *names) == 0
    assert kvsim("plot", str(folder), "pareto", "--x", "ttft_p99", "--by", "block_size", *names) == 0


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["cdf"], "holds a sweep; of a sweep there are lines, heatmap, pareto"),
        (["lines", "--y", "ttft_p98"], "nearest: ttft_p99"),
        (["lines", "--x", "blok_size"], "nearest: engine.block_size"),
        (["lines", "--y", "hit_rate", "--metric", "hit_rate"], "give one of them"),
        (["heatmap", "--y", "rate"], "--y: 'rate' is not in the table"),
        (["pareto", "--metric", "hit_rate"], "--metric: has no meaning for pareto"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(folder, args, says, capsys):
    assert kvsim("plot", str(folder), *args) == 2
    out = capsys.readouterr()
    assert out.out == ""
    (line,) = out.err.splitlines()
    assert says in line
    assert not list(Path().iterdir())


def test_a_sweep_that_has_not_ended_is_said(folder, tmp_path, capsys):
    half = tmp_path / "half"
    half.mkdir()
    (half / "sweep.json").write_bytes((folder / "sweep.json").read_bytes())
    assert kvsim("plot", str(half), "lines") == 2
    assert "the sweep has not ended" in capsys.readouterr().err


def test_one_value_of_a_key_is_drawn(folder, capsys):
    assert kvsim("plot", str(folder), "lines", "--where", "block_size=16", "-o", "x.svg") == 0
    for given, says in (
        (["block_size"], "--where block_size: write KEY=VALUE"),
        (["block_size=16", "block_size=64"], "--where block_size=64: block_size has a value already, 16"),
        (["block_size=17"], "--where block_size=17: engine.block_size was not swept there, but at 16, 64"),
    ):
        options = [word for text in given for word in ("--where", text)]
        assert kvsim("plot", str(folder), "lines", *options, "-o", "y.png") == 2
        assert says in capsys.readouterr().err
    assert not Path("y.png").exists()


def test_a_title_of_letters_that_pictures_lack_is_refused(folder, capsys, recwarn):
    assert kvsim("plot", str(folder), "heatmap", "--title", "首字 TTFT", "-o", "y.png") == 2
    assert capsys.readouterr().err == "kvsim: title: the pictures' font, DejaVu Sans, has no 字 首\n"
    assert not recwarn.list


def test_a_wrong_option_points_to_the_command_s_own_help(folder, capsys):
    assert kvsim("plot", str(folder), "lines", "--nope") == 2
    assert capsys.readouterr().err.endswith("(see kvsim plot --help)\n")
    assert kvsim("calibrate", "fit", "--nope") == 2
    assert capsys.readouterr().err.endswith("(see kvsim calibrate fit --help)\n")
    assert kvsim("--nope") == 2
    assert capsys.readouterr().err.endswith("(see kvsim --help)\n")
