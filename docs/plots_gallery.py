"""Draw the pictures of docs/plots.md.

python docs/plots_gallery.py
"""

from pathlib import Path

import kvsim
from kvsim.plots import Figure, save

HERE = Path(__file__).parent
SCENARIOS = HERE.parent / "scenarios"
DPI = 90
# A pool so small that a picture has room for all of its blocks, and that requests fight for it.
TINY = [
    "name=block-map",
    "engine.num_gpu_blocks_override=24",
    "engine.max_model_len=256",
    "engine.max_num_seqs=4",
    "workload.rate=60",
    "workload.num_requests=8",
    "workload.num_prefixes=2",
    "workload.prefix_len=64",
    "workload.suffix_len={distribution: uniform, min: 20, max: 60}",
    "workload.output_len={distribution: uniform, min: 60, max: 110}",
]
# Utilization decides the pool only where neither bytes nor blocks are given; the file sweeps the latter.
SWEPT = {
    "engine.num_gpu_blocks_override": [None],
    "engine.gpu_memory_utilization": [0.25, 0.3, 0.4, 0.6, 0.8, 0.95],
    "engine.block_size": [16, 64, 256, 1024],
}
# Pools too small for all prefixes, so that it matters where each of them is.
CLUSTER = [
    "cluster={replicas: 8, router: dynamo_kv}",
    "engine.num_gpu_blocks_override=1200",
    "workload.rate=80",
    "workload.num_prefixes=40",
]
POLICIES = ["random", "round_robin", "least_request", "dynamo_kv", "llm_d", "sglang_cache_aware"]
LOADED = {"engine.max_num_seqs": [4, 8, 16, 32, 64, 128], "workload.rate": [20, 40, 80]}
FIXED = ["engine.available_kv_cache_bytes=null", "workload.num_requests=1500"]


def run_figures() -> dict[str, Figure]:
    recorded = ["record.steps=true", "record.events=true", "slo.ttft=2"]
    busy = kvsim.load_scenario(SCENARIOS / "preemption.yaml", recorded).run()
    tiny = kvsim.load_scenario(SCENARIOS / "quickstart.yaml", TINY).run()
    cluster = kvsim.load_scenario(SCENARIOS / "quickstart.yaml", CLUSTER).run()
    return {
        "replicas": cluster.plot.replicas(),
        "memory": busy.plot.memory(),
        "timeseries": busy.plot.timeseries(),
        "cdf": busy.plot.cdf(),
        "cdf_blocks": busy.plot.cdf(["block_age", "reuse_gap"]),
        "blocks": tiny.plot.blocks((11, 40)),
    }


def sweep_figures() -> dict[str, Figure]:
    swept = kvsim.load_scenario(SCENARIOS / "shared_prefix.yaml", FIXED).sweep(SWEPT, progress=False)
    quickstart = kvsim.load_scenario(SCENARIOS / "quickstart.yaml", ["workload.num_requests=1000"])
    loaded = quickstart.sweep(LOADED, progress=False)
    sizing = kvsim.load_scenario(SCENARIOS / "qwen3vl_sizing.yaml").sweep(progress=False)
    clustered = kvsim.load_scenario(SCENARIOS / "quickstart.yaml", CLUSTER)
    policies = clustered.compare_routers(POLICIES, progress=False)
    return {
        "routers": policies.plot.routers(),
        "heatmap": swept.plot.heatmap(),
        "lines": swept.plot.lines(x="block_size", y="ttft_p99"),
        "pareto": loaded.plot.pareto(by="rate"),
        "effects": sizing.plot.effects("kv_cache_size_tokens"),
    }


def main() -> None:
    for name, figure in (run_figures() | sweep_figures()).items():
        save(figure, HERE / "plots" / f"{name}.png", DPI)


if __name__ == "__main__":
    main()
