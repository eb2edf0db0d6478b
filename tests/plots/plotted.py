"""What the plot tests draw: a small run that is recorded, and a table as a sweep writes it."""

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

SMALL = """\
name: small
model: Qwen/Qwen3-VL-2B-Instruct
gpu: rtx-4090
engine: {num_gpu_blocks_override: 24, max_model_len: 256, max_num_seqs: 4}
workload:
  type: shared_prefix
  rate: 60
  num_requests: 8
  num_prefixes: 2
  prefix_len: 64
  suffix_len: {distribution: uniform, min: 20, max: 60}
  output_len: {distribution: uniform, min: 60, max: 110}
slo: {ttft: 0.05}
record: {steps: true, events: true}
"""
UTILIZATION, BLOCK_SIZE = "engine.gpu_memory_utilization", "engine.block_size"
HIT_RATE, E2E = "prefix_cache_hit_rate", "vllm:e2e_request_latency_seconds.p99"
TOKENS = "generation_tokens_per_second"


def small(folder: Path) -> Path:
    path = folder / "small.yaml"
    path.write_text(SMALL)
    return path


def sweep_frame(utilizations=(0.4, 0.7, 0.9), block_sizes=(16, 32, 64)) -> pd.DataFrame:
    """Points below utilization 0.5 failed."""
    rows = []
    for u in utilizations:
        for b in block_sizes:
            keys = {UTILIZATION: u, BLOCK_SIZE: b}
            if u < 0.5:
                rows.append({**keys, "error": "engine.gpu_memory_utilization: the model does not fit"})
            else:
                figures = {HIT_RATE: u - b / 1000, TOKENS: 1000 * u - b, E2E: 10 - 5 * u + b / 100}
                rows.append({**keys, **figures, "error": None})
    return pd.DataFrame(rows)


def axes_of(figure: Figure) -> list[Axes]:
    return [ax for ax in figure.axes if ax.get_visible()]


def words_of(figure: Figure) -> list[str]:
    """Every text in the picture: titles, remarks, keys."""
    found = [text.get_text() for ax in figure.axes for text in ax.texts]
    legends = [*figure.legends, *(ax.get_legend() for ax in figure.axes)]
    return found + [text.get_text() for legend in legends if legend for text in legend.get_texts()]


def says(figure: Figure, part: str) -> bool:
    return any(part in " ".join(words.split("\n")) for words in words_of(figure))
