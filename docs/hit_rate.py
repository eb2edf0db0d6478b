"""Draw docs/hit_rate.png: prefix cache hit rate against the size of the KV cache pool.

python docs/hit_rate.py
"""

from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

import kvsim

HERE = Path(__file__).parent
BLOCKS = [1000, 2000, 4000, 6000, 8000, 10_000, 14_000, 20_000, 28_000, 40_000]


def hit_rate(blocks: int) -> float:
    scenario = HERE.parent / "scenarios" / "shared_prefix.yaml"
    result = kvsim.load_scenario(scenario, [f"engine.num_gpu_blocks_override={blocks}"]).run()
    return result.metrics["prefix_cache_hit_rate"]


def main() -> None:
    figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
    axes.plot([16 * n / 1000 for n in BLOCKS], [100 * hit_rate(n) for n in BLOCKS], marker="o")
    axes.axvline(157.952, linestyle=":", color="grey")
    axes.annotate(" one RTX 4090\n at utilization 0.9", (157.952, 12), color="grey")
    axes.set(xlabel="KV cache, thousand tokens", ylabel="hit rate, % of prompt tokens", ylim=(0, 100))
    axes.set_title("200 shared prefixes of 2,000 tokens: when does the cache hold them?")
    axes.grid(alpha=0.3)
    figure.savefig(HERE / "hit_rate.png", dpi=120, metadata={"Software": None})


if __name__ == "__main__":
    main()
