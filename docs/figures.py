"""Draw the pictures of README and docs from the reference results in results/reference.

    python docs/figures.py            draws them
    python docs/figures.py --run      computes the reference results first
"""

import sys
from pathlib import Path

import kvsim
from kvsim.plots import save
from kvsim.sweep import SweepResult

DOCS = Path(__file__).parent
ROOT = DOCS.parent
REFERENCE = ROOT / "results" / "reference"
SWEPT = ("block_size", "qwen3vl_sizing")


def compute() -> None:
    """One folder for each scenario, as `kvsim sweep scenarios/NAME.yaml --out FOLDER` writes its tables."""
    for name in SWEPT:
        kvsim.load_scenario(ROOT / "scenarios" / f"{name}.yaml").sweep().save(REFERENCE / name)


def draw(folder: Path) -> list[Path]:
    """The pictures, written to `folder`."""
    blocks, sizing = (SweepResult.load(REFERENCE / name).plot for name in SWEPT)
    pictures = {
        "block_size.png": blocks.heatmap("gpu_memory_utilization", "block_size", "hit_rate"),
        "qwen3vl_sizing.png": sizing.lines("gpu_memory_utilization", "kv_cache_size_tokens", "model"),
    }
    return [save(picture, folder / name) for name, picture in pictures.items()]


if __name__ == "__main__":
    if "--run" in sys.argv[1:]:
        compute()
    for path in draw(DOCS):
        print(path)
