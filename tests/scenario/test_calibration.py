"""A scenario may name a calibration file: it is found, pinned, and its numbers are those of the run."""

import json

import pytest

from kvsim.errors import KvsimError
from kvsim.gpu.cost.calibration import own_calibration
from kvsim.scenario import load_scenario

SCENARIO = """\
name: mine
model: Qwen/Qwen3-8B
gpu: H100 SXM
calibration: mine.json
workload:
  type: shared_prefix
  rate: 10
  num_requests: 5
"""


@pytest.fixture
def folder(tmp_path):
    """A scenario beside a calibration whose attention launches take ten times as long."""
    (tmp_path / "case.yaml").write_text(SCENARIO)
    own = own_calibration("H100 SXM")
    decode = own.get("attention_decode")
    slow = decode.model_copy(update={"parameters": {**decode.parameters, "launch": 100.0}})
    own.model_copy(update={"values": {"attention_decode/bfloat16": slow}}).save(tmp_path / "mine.json")
    return tmp_path


def test_its_numbers_are_those_of_the_run(folder):
    mine = load_scenario(folder / "case.yaml").run().metrics
    (folder / "case.yaml").write_text(SCENARIO.replace("calibration: mine.json\n", ""))
    shipped = load_scenario(folder / "case.yaml").run().metrics
    tpot = "vllm:request_time_per_output_token_seconds"
    assert mine[tpot]["mean"] > 1.2 * shipped[tpot]["mean"]
    assert "calibrated on measured kernels of H100 SXM" in mine["step_time"]


def test_it_counts_by_its_content(folder):
    first = load_scenario(folder / "case.yaml")
    again = load_scenario(folder / "case.yaml")
    assert first.scenario_hash == again.scenario_hash
    (folder / "resolved.yaml").write_text(first.to_yaml())
    assert load_scenario(folder / "resolved.yaml").scenario_hash == first.scenario_hash
    record = json.loads((folder / "mine.json").read_text())
    record["values"]["attention_decode/bfloat16"]["parameters"]["launch"] = 50.0
    (folder / "mine.json").write_text(json.dumps(record))
    assert load_scenario(folder / "case.yaml").scenario_hash != first.scenario_hash
    with pytest.raises(KvsimError, match=r"calibration_sha256: mine\.json holds another"):
        load_scenario(folder / "resolved.yaml")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("calibration: none.json", "line 4: calibration: 'none.json' is not a regular file"),
        ("calibration: case.yaml", "line 4: calibration: .*case.yaml: file: Invalid JSON"),
        ("calibration_sha256: abc", "line 4: calibration_sha256: goes with a calibration; leave it out"),
    ],
)
def test_bad_files(folder, line, message):
    (folder / "case.yaml").write_text(SCENARIO.replace("calibration: mine.json", line))
    with pytest.raises(KvsimError, match=message):
        load_scenario(folder / "case.yaml")


def test_one_of_another_gpu(folder):
    (folder / "case.yaml").write_text(SCENARIO.replace("H100 SXM", "L40S"))
    with pytest.raises(KvsimError, match=r"calibration: .*mine.json is of H100 SXM, gpu is L40S"):
        load_scenario(folder / "case.yaml")
