"""Draw the pictures of README and docs from the reference results in results/reference.

python docs/figures.py draws them, with --run it computes the reference results first, with --run --trace
conversation_trace.jsonl those of Mooncake's trace, too.
"""

import argparse
from pathlib import Path

from matplotlib.figure import Figure

import kvsim
from kvsim.plots import SweepPlots, save
from kvsim.sweep import SweepResult

DOCS = Path(__file__).parent
ROOT = DOCS.parent
REFERENCE = ROOT / "results" / "reference"
SWEPT = ("block_size", "qwen3vl_sizing", "routers")
REPLAYED = ("mooncake_routers",)  # of Mooncake's conversation trace, which is not part of this repository


def compute(trace: Path | None = None) -> None:
    """One folder for each scenario, as `kvsim sweep scenarios/NAME.yaml --out FOLDER` writes its tables."""
    for name in (*SWEPT, *(REPLAYED if trace else ())):
        path = ROOT / "scenarios" / f"{name}.yaml"
        kvsim.load_scenario(path, trace=trace if name in REPLAYED else None).sweep().save(REFERENCE / name)


def draw(folder: Path) -> list[Path]:
    """The pictures, written to `folder`."""
    pictures = {
        "block_size.png": result("block_size").plot.heatmap(
            "gpu_memory_utilization", "block_size", "hit_rate"
        ),
        "qwen3vl_sizing.png": sizing(result("qwen3vl_sizing")),
        "routers.png": result("routers").plot.routers(),
        "mooncake_routers.png": result("mooncake_routers").plot.routers(
            title="Mooncake's conversations on eight replicas"
        ),
    }
    return [save(picture, folder / name) for name, picture in pictures.items()]


def result(name: str) -> SweepResult:
    return SweepResult.load(REFERENCE / name)


def sizing(result: SweepResult) -> Figure:
    """Without the keys that change nothing, max_model_len and max_num_seqs."""
    frame = result.frame
    same = (frame["engine.max_model_len"] == 4096) & (frame["engine.max_num_seqs"] == 5)
    keys = ["engine.gpu_memory_utilization", "model", "engine.max_num_batched_tokens"]
    plots = SweepPlots(frame[same].reset_index(drop=True), keys, result.name)
    title = "KV cache by model, utilization and max_num_batched_tokens"
    return plots.lines(keys[0], "kv_cache_size_tokens", title=title)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", action="store_true", help="compute the reference results first")
    parser.add_argument(
        "--trace", type=Path, help="Mooncake's conversation trace, for the results of its replay"
    )
    args = parser.parse_args()
    if args.run:
        compute(args.trace)
    for path in draw(DOCS):
        print(path)
