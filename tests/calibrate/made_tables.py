"""Tables of kernel times made by the closed forms themselves, with noise."""

from itertools import product

import numpy as np
import pandas as pd

from kvsim.gpu import catalog
from kvsim.gpu.cost import forms
from kvsim.gpu.cost.calibration import device
from kvsim.gpu.cost.curves import prefill_us
from kvsim.gpu.cost.forms import AttentionShape

PREFILL = {
    "launch": 11.0,
    "flops_efficiency": 0.8,
    "softmax": 2e-5,
    "pad": 20.0,
    "bandwidth_efficiency": 0.5,
    "walk": 0.006,
    "norm": 1.2,
    "per_row": 0.3,
    "tile": 128.0,
    "packed": 1.0,
    "single_key": 0.4,
    "single_walk": 0.0,
}
DECODE = {
    "launch": 9.0,
    "grouped": 0.5,
    "per_head": 2.0,
    "per_sequence": 0.01,
    "bandwidth_efficiency": 0.88,
    "l2_efficiency": 2.0,
    "walk": 0.05,
    "pad": 4.0,
    "norm": 1.5,
}
GEMM = {
    "launch": 3.0,
    "flops_efficiency": 0.7,
    "bandwidth_efficiency": 0.75,
    "norm": 16.0,
    "walk": 0.0,
    "quantise": 0.0,
}
HEADS = ((8, 1), (16, 2), (32, 4), (32, 8), (16, 8), (64, 8), (40, 8))


def noisy(times, share=0.02, seed=0):
    return times * np.exp(np.random.default_rng(seed).normal(0, share, len(times)))


def attention(gpu="H100-SXM-80GB", heads=HEADS, kernel="vllm_flash_attn_fa3", window=0, kv_dtype="bfloat16"):
    """Prefill and decode rows in one frame."""
    card = device(catalog.gpu(gpu))
    rows = [
        (batch, length, length, n_q, n_kv)
        for (n_q, n_kv), batch, length in product(heads, (1, 4, 16, 64), 2 ** np.arange(4, 14))
    ]
    rows += [
        (batch, 1, length, n_q, n_kv)
        for (n_q, n_kv), batch, length in product(heads, (1, 4, 16, 64, 256), 2 ** np.arange(1, 16))
    ]
    frame = pd.DataFrame(rows, columns=["batch", "q_len", "kv_len", "n_q", "n_kv"])
    frame["head_dim"], frame["window"], frame["kv_dtype"] = 128, window, kv_dtype
    frame["gpu"], frame["kernel"] = gpu, kernel
    n_q, n_kv, batch, q, kv = (frame[c].to_numpy(float) for c in ("n_q", "n_kv", "batch", "q_len", "kv_len"))
    shape = AttentionShape.dense(n_q, n_kv, 128.0)
    many = prefill_us(PREFILL, shape, card, batch, q)
    single = forms.decode_time(DECODE, shape, card, batch, kv, 1.0)
    frame["latency_us"] = noisy(np.where(q > 1, many, single))
    return frame


def gemm(gpu="H100-SXM-80GB", sizes=(512, 1024, 2048, 4096, 8192, 14336)):
    card = device(catalog.gpu(gpu))
    rows = list(product(2 ** np.arange(14), sizes, sizes))
    frame = pd.DataFrame(rows, columns=["m", "n", "k"])
    m, n, k = (frame[c].to_numpy(float) for c in "mnk")
    frame["gpu"], frame["kernel"], frame["dtype"] = gpu, "torch", "bfloat16"
    frame["latency_us"] = noisy(forms.gemm_time(GEMM, card.flops, card.bandwidth, m, n, k))
    return frame


def collectives(gpu="H100-SXM-80GB"):
    card = device(catalog.gpu(gpu))
    rows = list(product((2, 4, 8), 2 ** np.arange(8, 29)))
    frame = pd.DataFrame(rows, columns=["num_gpus", "bytes"])
    p = {"launch": 4.0, "per_doubling": 0.6, "link_efficiency": 0.7, "ramp": 0.1}
    times = forms.all_reduce_time(p, card.link, frame.num_gpus.to_numpy(float), frame.bytes.to_numpy(float))
    frame["gpu"], frame["source"], frame["kernel"] = gpu, "vllm 0.24", "vLLM_custom_graph"
    frame["latency_us"] = noisy(times)
    return frame


def written(frame, path):
    frame.to_parquet(path) if path.suffix == ".parquet" else frame.to_csv(path, index=False)
    return path
