"""`kvsim run --compare-routers`: policies side by side, from the outside."""

from pathlib import Path

import pytest

from kvsim.cli.main import main

SCENARIO = """\
name: tiny
model: Qwen/Qwen3-VL-2B-Instruct
gpu: rtx-4090
engine: {num_gpu_blocks_override: 200, max_model_len: 1024}
cluster: {replicas: 4}
workload: {type: shared_prefix, rate: 50, num_requests: 40, prefix_len: 64, suffix_len: 20, output_len: 20}
"""


@pytest.fixture
def kvsim(tmp_path: Path, monkeypatch, capsys):
    """Runs a command in a folder with tiny.yaml; returns exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(SCENARIO)

    def run(*args: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(args))
        out = capsys.readouterr()
        return int(ended.value.code or 0), out.out, out.err

    return run


def test_policies_side_by_side(kvsim) -> None:
    code, out, _ = kvsim("run", "tiny.yaml", "--compare-routers", "round_robin,random")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "tiny: 2 points over cluster.router"
    assert any(line.split()[:1] == ["round_robin"] and "1.000" in line.split() for line in lines)
    spread = next(i for i, line in enumerate(lines) if line.lstrip().startswith("router, of 4 replicas"))
    assert lines[spread + 1].split()[:4] == ["round_robin", "10", "..", "10"]
    assert "Tables written to results/tiny-routers/table.parquet and .csv" in out
    assert "results/tiny-routers/replicas.parquet and .csv" in out
    assert out.endswith("Pictures: kvsim plot results/tiny-routers routers\n")
    assert {path.name for path in Path("results/tiny-routers").iterdir()} == {
        *("sweep.json", "points", "table.parquet", "table.csv", "replicas.parquet", "replicas.csv")
    }
    code, out, _ = kvsim("plot", "results/tiny-routers", "routers", "--metric", "hit_rate,jain")
    assert (code, out) == (0, "tiny-routers-routers.png\n")


def test_options_of_a_run_hold_for_every_policy(kvsim) -> None:
    options = ["--set", "workload.num_requests=8", "--goodput", "ttft:2000", "--out", "here", "--quiet"]
    code, out, _ = kvsim("run", "tiny.yaml", "--compare-routers", "random", *options)
    assert (code, out) == (0, "here/tiny-routers\n")
    table = Path("here/tiny-routers/table.csv").read_text().splitlines()
    header, row = (line.split(",") for line in table)
    figures = dict(zip(header, row, strict=True))
    assert figures["cluster.router"] == "random"
    assert figures["requests.total"] == "8"
    assert figures["slo.all.share"] == "1.0"


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (
            ["random,rendom"],
            "--compare-routers rendom: 'rendom' is not known; did you mean random? One of random,",
        ),
        (
            [""],
            "--compare-routers: no policies; write their names with commas, such as round_robin,dynamo_kv",
        ),
        (["random", "--record", "steps"], "--record steps: --compare-routers keeps summaries only;"),
        (
            ["random,round_robin", "--set", "cluster.replicas=1"],
            "--compare-routers: no router has two or more to choose from; ",
        ),
    ],
)
def test_one_line_says_what_is_wrong(kvsim, args: list[str], problem: str) -> None:
    code, out, err = kvsim("run", "tiny.yaml", "--compare-routers", *args)
    assert (code, out) == (2, "")
    assert err.startswith(f"kvsim: {problem}")
    assert err.count("\n") == 1
    assert not Path("results").exists()


def test_a_run_of_a_cluster_shows_its_replicas_and_draws_them(kvsim) -> None:
    code, out, _ = kvsim("run", "tiny.yaml")
    assert code == 0
    assert "Router                round_robin over 4 replicas" in out
    assert [line.split()[0] for line in out.splitlines() if line.startswith("replica")] == [
        "replica",
        *(f"replica-{i}" for i in range(4)),
    ]
    folder = next(Path("results").glob("tiny-*"))
    code, out, _ = kvsim("plot", str(folder), "replicas", "-o", "x.svg", "--metric", "requests,busy_time")
    assert (code, out) == (0, "x.svg\n")
