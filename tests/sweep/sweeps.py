"""A small scenario for tests of sweeps."""

from pathlib import Path

import kvsim
from kvsim.scenario import Scenario

SCENARIO = """\
name: tiny
seed: 3
model: Qwen/Qwen3-VL-2B-Instruct
gpu: rtx-4090
engine: {num_gpu_blocks_override: 400, max_model_len: 2048, max_num_seqs: 32}
workload:
  type: shared_prefix
  rate: 20
  num_requests: 60
  num_prefixes: 3
  prefix_len: 300
  suffix_len: {distribution: uniform, min: 20, max: 200}
  output_len: {distribution: uniform, min: 1, max: 40}
"""


def scenario(folder: Path, more: str = "") -> Scenario:
    return kvsim.load_scenario(write(folder, more))


def write(folder: Path, more: str = "") -> Path:
    path = folder / "tiny.yaml"
    path.write_text(SCENARIO + more)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
