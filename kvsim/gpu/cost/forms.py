"""Closed forms of kernel times: physics with a few fitted numbers. Microseconds throughout.

Each form is written once. Plain arithmetic on numbers or on numpy arrays, so that fits, tables and the
compiled step share it. Rates are those of one GPU: P flop/us, W byte/us, S streaming multiprocessors.

Sources: roofline after Williams, Waterman and Patterson (2009); softmax beside the matrix units after the
FlashAttention-3 paper (Shah et al. 2024); split-KV decoding after Flash-Decoding (Dao et al. 2023). How
they are put together, and the smooth padding, come from our own fits (docs/cost.md).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvsim.compiled import compiled_inline

Numbers = Any  # a float, or float64 arrays that broadcast
Parameters = dict[str, float]
Spec = dict[str, tuple[float, float, float, str]]  # name -> (start, lowest, highest, meaning) of a fit


@dataclass(frozen=True, slots=True)
class Device:
    """Rates of one GPU: dense 16-bit and fp8 flop/us (0: none), byte/us of memory and of a link one way."""

    name: str
    flops: float
    fp8_flops: float
    bandwidth: float
    sms: int
    l2_bytes: float
    link: float


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Attention of one layer on one GPU.

    n_q, n_kv: heads on this GPU. head_dim: of a query head, 0 for latent attention.
    kv_bytes: of one token's K and V. flops_per_pair: of one (query, key) pair over all heads.
    window: tokens that a query sees, 0 for all. Fits put arrays in, one entry a measurement.
    """

    n_q: Numbers
    n_kv: Numbers
    head_dim: Numbers
    kv_bytes: Numbers
    flops_per_pair: Numbers
    window: Numbers = 0

    @classmethod
    def dense(
        cls, n_q: Numbers, n_kv: Numbers, head_dim: Numbers, element_bytes: Numbers = 2.0, window: Numbers = 0
    ) -> "AttentionShape":
        """Multi-head, grouped or multi-query attention with equal K and V heads."""
        return cls(n_q, n_kv, head_dim, 2 * n_kv * head_dim * element_bytes, 4 * n_q * head_dim, window)

    @property
    def ratio(self) -> Any:
        """Query heads that share one KV head."""
        return np.maximum(self.n_q / self.n_kv, 1.0)


def joined(a: Numbers, b: Numbers, c: Numbers, norm: Numbers) -> Numbers:
    """Three overlapping times as a p-norm: norm 1 adds them up, a large one takes the longest."""
    return (a**norm + b**norm + c**norm) ** (1.0 / norm)


def padded_score(new: Numbers, context: Numbers, pad: Numbers, tile: Numbers) -> Numbers:
    """(query, key) pairs that the kernel computes for `new` tokens on `context` earlier ones.

    Queries are padded by about `pad` rows; on earlier context a row block has at least `tile` of them,
    which is what makes a decode beside a prefill chunk dear (no packing of the queries of a group).
    """
    rows = new + pad
    return np.maximum(rows, tile) * context + 0.5 * rows * rows


def window_score(new: Numbers, context: Numbers, pad: Numbers, tile: Numbers, window: Numbers) -> Numbers:
    """The same where a query sees at most `window` tokens back (a block of keys more, for the diagonal)."""
    rows = new + pad
    reach = window + tile
    below = np.minimum(np.maximum(reach - context, 0.0), rows)  # rows that still see all before them
    visible = below * np.minimum(context, reach) + 0.5 * below * below + (rows - below) * reach
    return visible + np.maximum(tile - rows, 0.0) * np.minimum(context, reach)


# ---------------------------------------------------------------- attention with more than one new token

PREFILL_PARAMETERS: Spec = {
    "launch": (8.0, 0.1, 60.0, "us: launch and fixed work of a call"),
    "flops_efficiency": (0.7, 0.05, 1.5, "share of the dense peak; only with softmax does it mean something"),
    "softmax": (1e-5, 1e-9, 1e-2, "us per (query, key) pair per SM"),
    "pad": (30.0, 0.1, 400.0, "query rows added to each sequence"),
    "bandwidth_efficiency": (
        0.7,
        0.05,
        3.0,
        "share of memory bandwidth; above 1 where the tables ran from L2",
    ),
    "walk": (0.01, 1e-5, 1.0, "us per key on the critical path of one thread block"),
    "norm": (1.5, 1.0, 8.0, "p-norm that joins arithmetic, memory and critical path"),
    "per_row": (0.01, 1e-6, 20.0, "us per sequence and query head per SM"),
}
MIXED_PARAMETERS: Spec = {
    "tile": (64.0, 1.0, 256.0, "query rows that earlier context is computed for at least"),
    "packed": (0.0, 0.0, 1.0, "1: the heads of a group share those rows"),
    "single_key": (0.5, 0.02, 1.0, "cost of a key of a sequence with one new token, against others'"),
    "single_walk": (1.0, 0.0, 1.0, "1: the critical path walks such a sequence too, without split KV"),
}


def least_rows(p: Parameters, shape: Any) -> Any:
    """Query rows of each head that a row block has at least."""
    return p["tile"] / shape.ratio if p["packed"] else p["tile"]


def prefill_coefficients(p: Parameters, shape: Any, device: Device) -> dict[str, Any]:
    """us per padded pair, per new token's Q and O, per key's K and V, per sequence."""
    bandwidth = p["bandwidth_efficiency"] * device.bandwidth
    arithmetic = shape.flops_per_pair / (p["flops_efficiency"] * device.flops)
    return {
        "pair": arithmetic + shape.n_q * p["softmax"] / device.sms,
        "new": shape.flops_per_pair / bandwidth,  # 2 bytes for each of Q and O: 4 * n_q * head_dim
        "key": shape.kv_bytes / bandwidth,
        "row": p["per_row"] * shape.n_q / device.sms,
    }


def prefill_body(
    score: Numbers,
    new: Numbers,
    keys: Numbers,
    longest: Numbers,
    pair_us: Numbers,
    new_us: Numbers,
    key_us: Numbers,
    walk: Numbers,
    norm: Numbers,
) -> Numbers:
    """A batch beyond its launch: padded pairs, new tokens and keys of all sequences, keys of the longest."""
    arithmetic, memory, critical = score * pair_us, new * new_us + keys * key_us, walk * longest
    return (arithmetic**norm + memory**norm + critical**norm) ** (1.0 / norm)


# ---------------------------------------------------------------- attention with one new token each

DECODE_PARAMETERS: Spec = {
    "launch": (6.0, 0.1, 40.0, "us: launch and fixed work of a call, the write of the new KV included"),
    "grouped": (1.0, 1e-3, 20.0, "us more with several KV heads (FlashAttention-2 swaps rows and heads)"),
    "per_head": (0.5, 1e-4, 20.0, "us per sequence and KV head per SM"),
    "per_sequence": (0.01, 1e-6, 0.2, "us per sequence"),
    "bandwidth_efficiency": (0.85, 0.80, 0.95, "share of memory bandwidth, KV beyond the L2 cache"),
    "l2_efficiency": (1.2, 0.5, 20.0, "the same while KV fits in L2 (measurements without a flush)"),
    "walk": (0.02, 1e-5, 2.0, "us per square root of the context: split KV and its reduction"),
    "pad": (16.0, 0.01, 400.0, "query rows added to the heads of a group"),
    "norm": (2.0, 1.0, 8.0, "p-norm that joins memory, arithmetic and reduction"),
}
SPLIT = 256  # keys per split: a thread block each, as far as there are SMs
DECODE_FLOPS_EFFICIENCY = 0.5


def decode_time(p: Any, shape: Any, device: Device, batch: Numbers, context: Numbers, hot: Any) -> Numbers:
    """One decode step of `batch` sequences of `context` keys each.

    shape: AttentionShape, or arrays under the same names. hot: KV below the size of L2 is read from
    there, as in loops that time one kernel over and over; a real step streams the weights in between.
    """
    keys = np.minimum(context, shape.window) if np.any(shape.window) else context
    kv = batch * keys * shape.kv_bytes
    efficiency = p["bandwidth_efficiency"]
    in_l2 = hot / (1.0 + (kv / (0.5 * device.l2_bytes)) ** 3)
    efficiency = efficiency * (1.0 - in_l2) + p["l2_efficiency"] * in_l2
    busy = np.clip(batch * shape.n_kv * np.ceil(keys / SPLIT) / device.sms, 0.02, 1.0)
    memory = kv / (device.bandwidth * efficiency) / busy
    rows = (shape.ratio + p["pad"]) / shape.ratio
    arithmetic = batch * keys * rows * shape.flops_per_pair / (DECODE_FLOPS_EFFICIENCY * device.flops)
    fixed = p["launch"] + p["grouped"] * (shape.n_kv > 1)
    fixed = fixed + batch * (p["per_head"] * shape.n_kv / device.sms + p["per_sequence"])
    return fixed + joined(memory, arithmetic, p["walk"] * np.sqrt(keys), p["norm"])


# ---------------------------------------------------------------- vision encoder

ENCODER_PARAMETERS: Spec = {name: row for name, row in PREFILL_PARAMETERS.items() if name != "per_row"}


def encoder_time(
    p: Any,
    device: Device,
    batch: Numbers,
    length: Numbers,
    heads: Numbers,
    head_dim: Numbers,
) -> Numbers:
    """Attention of a vision encoder, not causal: `batch` images of `length` patches."""
    score = batch * heads * (length + p["pad"]) ** 2
    arithmetic = score * (4 * head_dim / (p["flops_efficiency"] * device.flops) + p["softmax"] / device.sms)
    memory = 8 * batch * length * heads * head_dim / (p["bandwidth_efficiency"] * device.bandwidth)
    return p["launch"] + joined(arithmetic, memory, p["walk"] * length, p["norm"])


# ---------------------------------------------------------------- linear layers and small kernels

GEMM_PARAMETERS: Spec = {
    "launch": (5.0, 0.1, 60.0, "us: launch and fixed work of a call"),
    "flops_efficiency": (0.6, 0.02, 1.2, "share of the dense peak of the type"),
    "bandwidth_efficiency": (0.7, 0.02, 5.0, "share of memory bandwidth"),
    "norm": (2.0, 1.0, 8.0, "p-norm that joins arithmetic, memory and critical path"),
    "walk": (1e-3, 1e-6, 0.1, "us per inner element on the critical path of one thread block"),
    "quantise": (1.0, 0.01, 20.0, "passes over the activations that turn them into fp8"),
}


def gemm_time(
    p: Any,
    flops: Numbers,
    bandwidth: float,
    rows: Numbers,
    columns: Numbers,
    inner: Numbers,
    weight_bytes: Numbers = 2.0,
    activation_bytes: Numbers = 2.0,
) -> Numbers:
    """out[rows, columns] = in[rows, inner] x W[inner, columns]. Quantising reads 2 bytes and writes 1."""
    arithmetic = 2.0 * rows * columns * inner / (p["flops_efficiency"] * flops)
    moved = weight_bytes * columns * inner + activation_bytes * rows * inner + 2.0 * rows * columns
    memory = moved / (p["bandwidth_efficiency"] * bandwidth)
    before = p["quantise"] * 3.0 * rows * inner / bandwidth * (np.asarray(activation_bytes) < 2.0)
    return p["launch"] + before + joined(arithmetic, memory, p["walk"] * inner, p["norm"])


SMALL_PARAMETERS: Spec = {
    "launch": (2.0, 0.1, 60.0, "us: floor of a norm, rotary or activation kernel"),
    "bandwidth_efficiency": (0.6, 0.02, 8.0, "share of memory bandwidth; above 1 where rows ran from L2"),
}


def small_time(p: Any, bandwidth: float, moved: Numbers) -> Numbers:
    """A kernel that moves `moved` bytes and computes next to nothing."""
    return p["launch"] + moved / (p["bandwidth_efficiency"] * bandwidth)


MOE_PARAMETERS: Spec = {
    "launch": (20.0, 0.1, 300.0, "us: routing, sorting and launches of one MoE block"),
    "flops_efficiency": (0.4, 0.02, 1.2, "share of the dense peak of the type"),
    "bandwidth_efficiency": (0.7, 0.02, 1.5, "share of memory bandwidth over the weights of active experts"),
    "pad": (8.0, 0.01, 256.0, "rows added to each active expert's"),
}


def active_experts(tokens: Numbers, experts: float, per_token: float) -> Numbers:
    """Experts that `tokens` tokens are expected to reach when each takes `per_token` at random."""
    miss = np.log1p(-min(per_token / experts, 1 - 1e-12))
    return -experts * np.expm1(tokens * miss)


def moe_time(
    p: Any,
    flops: float,
    bandwidth: float,
    pairs: Numbers,
    active: Numbers,
    expert_weights: Numbers,
    weight_bytes: Numbers = 2.0,
) -> Numbers:
    """Experts' two matrix products: `pairs` (token, expert) pairs over `active` experts' weights."""
    rows = pairs + p["pad"] * active
    arithmetic = 2.0 * rows * expert_weights / (p["flops_efficiency"] * flops)
    read = active * expert_weights * weight_bytes / (p["bandwidth_efficiency"] * bandwidth)
    return p["launch"] + joined(arithmetic, read, 0.0 * read, 2.0)


# ---------------------------------------------------------------- between GPUs

ALL_REDUCE_PARAMETERS: Spec = {
    "launch": (4.0, 0.3, 100.0, "us"),
    "per_doubling": (1.0, 1e-3, 30.0, "us per doubling of the ranks"),
    "link_efficiency": (0.7, 0.005, 6.0, "share of the one-way link bandwidth"),
    "ramp": (1.0, 1e-4, 50.0, "us per square root of a kilobyte"),
}


def all_reduce_time(p: Any, link: float, ranks: Numbers, size: Numbers) -> Numbers:
    """Ring or one-shot all-reduce of `size` bytes: alpha-beta with a ramp for middle sizes."""
    moved = 2.0 * (ranks - 1.0) / ranks * size / (p["link_efficiency"] * link)
    return p["launch"] + p["per_doubling"] * np.log2(ranks) + moved + p["ramp"] * np.sqrt(size / 1000.0)


SEND_PARAMETERS: Spec = {
    "launch": (8.0, 0.3, 200.0, "us"),
    "link_efficiency": (0.7, 0.005, 6.0, "share of the one-way link bandwidth"),
}


def send_time(p: Any, link: float, size: Numbers) -> Numbers:
    """Activations of `size` bytes to the next pipeline stage."""
    return p["launch"] + size / (p["link_efficiency"] * link)


padded_score_inline = compiled_inline(padded_score)
window_score_inline = compiled_inline(window_score)
prefill_body_inline = compiled_inline(prefill_body)
