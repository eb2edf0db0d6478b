"""From `calibrate measure`'s tables to a run: all that its writer writes is fitted, scored and used."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "calibrate"))
from made_tables import DECODE, GEMM, PREFILL
from measuring import Pretended, pretend

from kvsim.calibrate.measure import session
from kvsim.calibrate.measure.grids import CARD as GRID
from kvsim.calibrate.measure.points import Kernel
from kvsim.calibrate.measure.timing import GRAPH, Timing
from kvsim.cli.main import main
from kvsim.gpu import catalog
from kvsim.gpu.cost import forms
from kvsim.gpu.cost.calibration import device
from kvsim.gpu.cost.curves import prefill_us
from kvsim.gpu.cost.forms import AttentionShape

H200 = device(catalog.gpu("H200"))
COLD_GEMM = 1.3  # times as long, with activations from memory


class Modelled(Pretended):
    """A kernel that takes as long as the closed forms say, times `factor`."""

    def __init__(self, name, package, version, factor, *operations):
        super().__init__(name, *operations)
        self.kernel = Kernel(name, frozenset(operations), package, version, block_size=64)
        self.factor = factor

    def time(self, _, point, calls, *, cold):
        return Timing(float(self.factor * self._us(point, cold)), 0.01, 5, GRAPH)

    def _us(self, point, cold):
        if point.operation == "gemm":
            us = forms.gemm_time(GEMM, H200.flops, H200.bandwidth, *(point[name] for name in "mnk"))
            return us * (COLD_GEMM if cold else 1.0)
        if point.operation == "copy":
            return 5.0 + point["bytes"] / 5e4
        shape = AttentionShape.dense(point["n_q"], point["n_kv"], point["head_dim"])
        if point.operation == "decode":
            hot = 0.0 if cold else 1.0
            return forms.decode_time(DECODE, shape, H200, point["batch"], point["kv_len"], hot)
        if point.operation == "mixed":
            names = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
            return prefill_us(PREFILL, shape, H200, 1, *(point[name] for name in names))
        new = point["q_len"]
        return prefill_us(PREFILL, shape, H200, point["batch"], new, point["kv_len"] - new)


def _measure(folder, monkeypatch, *kernels):
    pretend(monkeypatch, *kernels)
    monkeypatch.setattr(session, "TINY", GRID)
    heads = ("32/8/128", "16/8/128", "64/8/128")
    named = [word for each in heads for word in ("--heads", each)]
    with pytest.raises(SystemExit) as ended:
        main(["calibrate", "measure", *named, "-o", str(folder), "--quiet"])
    assert not ended.value.code


FA3 = ("vllm_flash_attn_fa3", "vllm", "0.24.0", 1.0, "prefill", "cached", "decode", "mixed")
TORCH = ("torch_sdpa_flash", "torch", "2.13.0", 1.5, "prefill", "cached", "decode")
LINEAR = ("torch.nn.functional.linear", "torch", "2.13.0", 1.0, "gemm")
COPY = ("torch.Tensor.copy_", "torch", "2.13.0", 1.0, "copy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("measured") / "h200"
    with pytest.MonkeyPatch.context() as patch:
        _measure(place, patch, *(Modelled(*each) for each in (FA3, TORCH, LINEAR, COPY)))
    return place


@pytest.fixture
def kvsim(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(*args):
        with pytest.raises(SystemExit) as end:
            main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return run


def _tables(folder):
    return [*sorted(folder.glob("*.parquet")), *sorted((folder / "cold").glob("*.parquet"))]


def _fit(kvsim, folder, *more):
    code, out, err = kvsim("calibrate", "fit", *_tables(folder), "-o", "mine.json", *more)
    assert (code, err) == (0, "")
    return out, json.loads(Path("mine.json").read_text())["values"]


def _scenario():
    scenario = {
        "model": "Llama-3.1-8B",
        "gpu": "H200",
        "calibration": "mine.json",
        "workload": {"type": "shared_prefix", "num_requests": 5, "rate": 2},
    }
    Path("s.yaml").write_text(json.dumps(scenario))
    return "s.yaml"


def test_measured_tables_are_fitted_scored_and_run(kvsim, folder):
    out, values = _fit(kvsim, folder)
    assert "copies.parquet: passed over" in out
    assert "not taken (--kernel chooses): torch_sdpa_flash" in out
    source = values["attention_decode/bfloat16"]["source"]
    assert (source["package"], source["version"]) == ("vllm", "0.24.0")
    assert (source["kernel"], source["licence"]) == ("vllm_flash_attn_fa3", "own measurement")
    assert source["engine"] == "NVIDIA H200, torch 2.13.0, CUDA 13.0, driver 580.1"
    assert "note" not in source
    assert values["gemm/bfloat16"]["left_out"]["mape"] < 6
    assert values["attention_prefill/bfloat16"]["left_out"]["mape"] < 12
    assert values["attention_decode/bfloat16"]["left_out"]["mape"] < 12

    code, out, _ = kvsim(
        "calibrate", "evaluate", *_tables(folder), "--calibration", "mine.json", "--json", "--no-beyond"
    )
    assert code == 0
    lines = {(each["line"], each["source"], each["which"]): each for each in json.loads(out)}
    cold = lines["decode", "vllm_flash_attn_fa3, L2 cold", "left out"]
    hot = lines["decode", "vllm_flash_attn_fa3", "left out"]
    assert cold["mape"] < 12
    assert hot["mape"] < 15
    assert lines["decode", "torch_sdpa_flash", "not fitted"]["mape"] > 20
    # Linear layers have one branch: that of cold rows, as in a run.
    assert lines["linear", "torch.nn.functional.linear, L2 cold", "left out"]["mape"] < 6
    assert ("linear", "torch.nn.functional.linear", "left out") not in lines

    code, out, err = kvsim("run", _scenario())
    assert code == 0, err
    assert "not vLLM's kernel" not in out
    (result,) = Path("results").iterdir()
    assert "vllm 0.24.0" in json.loads((result / "summary.json").read_text())["step_time"]


def test_a_kernel_that_vllm_does_not_run_is_named_as_such(kvsim, folder):
    out, values = _fit(kvsim, folder, "--kernel", "sdpa")
    source = values["attention_prefill/bfloat16"]["source"]
    assert (source["kernel"], source["package"]) == ("torch_sdpa_flash", "torch")
    assert source["note"] == "not vLLM's kernel"
    assert values["gemm/bfloat16"]["source"]["kernel"] == "torch.nn.functional.linear"
    assert "torch_sdpa_flash: not vLLM's kernel" in out
    code, out, err = kvsim("run", _scenario())
    assert code == 0, err
    assert "attention decode, attention prefill timed with torch_sdpa_flash, not vLLM's kernel" in out


def test_a_kernel_that_is_not_there(kvsim, folder):
    code, _, err = kvsim("calibrate", "fit", *_tables(folder), "--kernel", "fa9", "-o", "mine.json")
    assert code == 2
    assert "--kernel fa9: " in err
    assert not Path("mine.json").exists()


def test_copies_alone_are_nothing_to_fit(kvsim, folder):
    code, _, err = kvsim("calibrate", "fit", folder / "copies.parquet")
    assert code == 2
    assert "no row of the tables is of an operation that kvsim models" in err


def test_times_of_a_cpu_are_refused(kvsim, folder):
    import pandas as pd

    pd.read_parquet(folder / "gemm.parquet").assign(gpu="cpu").to_parquet("gemm.parquet")
    code, _, err = kvsim("calibrate", "fit", "gemm.parquet")
    assert code == 2
    assert "times of a CPU" in err
