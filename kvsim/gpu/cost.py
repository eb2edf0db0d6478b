"""How long one engine step takes: a roofline from data sheets and shape facts.

Per step, on one tensor-parallel rank, summed over all layers (seconds):

* linear layers: the larger of arithmetic (2 flop per weight and token) and reading the weights once;
* routed experts: the same, reading only the experts that the step's tokens are expected to reach,
  ``E * (1 - (1 - k/E)^tokens)``;
* attention: the larger of arithmetic over all (query, key) pairs and reading every request's KV once;
  window layers see at most their window;
* LM head for every request of the batch (vLLM computes logits for prefill chunks too);
* vision encoder: arithmetic per image token, and its weights once when there are any;
* two all-reduces per layer over the ranks; fixed times per step, per layer and per request.

The constants below are rounded from public kernel timings on A100 to B200 (vLLM, bf16): they are
averages, so expect 10 to 40 % error on a single step. Pipeline stages add up (their overlap across
batches is not modelled). A calibrated model can replace this one: the engine knows nothing of it but
`parameters` and `step_time`.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kvsim.compiled import compiled, compiled_part
from kvsim.errors import KvsimError
from kvsim.gpu.catalog import GpuSpec
from kvsim.gpu.layers import kv_cache_layers
from kvsim.gpu.memory import KVCacheOptions
from kvsim.gpu.model import DTYPE_BYTES, ModelSpec

# Share of the dense peak that large matrix products reach: 0.73-0.78 in bf16, 0.36-0.43 in fp8.
GEMM_FLOPS_EFFICIENCY = 0.75
GEMM_FP8_FLOPS_EFFICIENCY = 0.40
# Share of the memory bandwidth that weights are streamed at: 0.7-0.85.
GEMM_BANDWIDTH_EFFICIENCY = 0.80
# Share of the bf16 peak in attention prefill: 0.55-0.62 for head size 128 on A100 and H100.
ATTENTION_FLOPS_EFFICIENCY = 0.58
# Share of the memory bandwidth at which decode attention reads KV beyond the L2 cache: 0.69-0.91.
ATTENTION_BANDWIDTH_EFFICIENCY = 0.80
# Scheduling, input preparation and launch of a step that do not overlap with the GPU.
STEP_OVERHEAD_SECONDS = 0.3e-3
# Launch floor of attention (about 10 us) and the small kernels of a layer (norms, rotary, activation).
LAYER_OVERHEAD_SECONDS = 15e-6
# Sampling: 25 us for 1 and 311 us for 256 sequences on an RTX 4090.
REQUEST_OVERHEAD_SECONDS = 1.2e-6
# All-reduce: fixed time per call under CUDA graphs, and share of the one-way link bandwidth.
ALL_REDUCE_SECONDS = 8e-6
ALL_REDUCE_EFFICIENCY = 0.70
# Patches that one patch attends to in the vision encoder: those of an image of about 1,000 tokens.
ENCODER_ATTENTION_SPAN = 4096

_FIELDS = (
    "fixed",  # s per step
    "per_request",  # s per request
    "per_token_link",  # s per token in all-reduces
    "linear_per_token",  # s of arithmetic per token in dense linear layers
    "linear_read",  # s to read their weights
    "expert_per_token",  # s of arithmetic per token in routed experts
    "expert_read",  # s to read all routed experts
    "log_miss",  # ln(1 - k/E): one token misses one expert
    "head_per_request",  # s of arithmetic per request in the LM head
    "head_read",  # s to read it
    "score_full",  # s per (query, key) pair, all full layers together
    "score_window",  # the same, window layers
    "kv_full",  # s to read one token's KV, all full layers together
    "kv_window",  # the same, window layers
    "window",  # tokens
    "encoder_per_token",  # s of arithmetic per image token
    "encoder_read",  # s to read the encoder's weights
)

COST_DTYPE = np.dtype([(name, np.float64) for name in _FIELDS])
"""Parameters of `step_time`, one record of float64; the comments beside `_FIELDS` give the units."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """What one step computes.

    num_scheduled_tokens, num_computed_tokens: int32 (requests,): request i computes that many new tokens
        on that many tokens of context.
    num_encoder_tokens: image tokens whose embeddings are computed in this step.
    """

    num_scheduled_tokens: NDArray[np.int32]
    num_computed_tokens: NDArray[np.int32]
    num_encoder_tokens: int = 0


@compiled_part
def step_time(  # type: ignore[no-untyped-def]
    parameters, num_scheduled_tokens, num_computed_tokens, num_reqs, num_encoder_tokens
):
    """Seconds of one step: > 0, finite, and never less for more tokens or longer contexts.

    parameters: COST_DTYPE (1,). num_scheduled_tokens, num_computed_tokens: int32, read up to num_reqs.
    Allocates nothing; compiled code alone may call it (`StepCost.seconds` is the way from Python).
    """
    p = parameters[0]
    window, has_windows = p["window"], p["score_window"] > 0.0 or p["kv_window"] > 0.0
    tokens = full_scores = full_kv = window_scores = window_kv = 0.0
    for i in range(num_reqs):
        new = float(num_scheduled_tokens[i])
        context = float(num_computed_tokens[i])
        tokens += new
        full_scores += new * context + 0.5 * new * (new + 1.0)
        full_kv += context + new
        if not has_windows:
            continue
        below = min(max(window - context, 0.0), new)  # new tokens that still see all before them
        window_scores += below * context + 0.5 * below * (below + 1.0) + (new - below) * window
        window_kv += min(context, window) + new
    linear = max(tokens * p["linear_per_token"], p["linear_read"])
    reached = 1.0 - math.exp(tokens * p["log_miss"])
    experts = max(tokens * p["expert_per_token"], reached * p["expert_read"])
    head = max(num_reqs * p["head_per_request"], p["head_read"])
    arithmetic = full_scores * p["score_full"] + window_scores * p["score_window"]
    attention = max(arithmetic, full_kv * p["kv_full"] + window_kv * p["kv_window"])
    seconds = p["fixed"] + num_reqs * p["per_request"] + tokens * p["per_token_link"]
    seconds += linear + experts + head + attention
    if num_encoder_tokens > 0:
        seconds += max(num_encoder_tokens * p["encoder_per_token"], p["encoder_read"])
    return seconds


@compiled
def _step_time(  # type: ignore[no-untyped-def]
    parameters, num_scheduled_tokens, num_computed_tokens, num_reqs, num_encoder_tokens
):
    return step_time(parameters, num_scheduled_tokens, num_computed_tokens, num_reqs, num_encoder_tokens)


@dataclass(frozen=True)
class StepCost:
    """Step time of one model on GPUs of one kind. Raises KvsimError if the model's shape lacks a fact."""

    model: ModelSpec
    gpu: GpuSpec
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    kv_cache_dtype: str = "auto"

    def __post_init__(self) -> None:
        model = self.model
        needed = {
            "hidden_size": model.hidden_size,
            "vocab_size": model.vocab_size,
            "num_attention_heads": model.num_attention_heads,
            "intermediate_size": model.intermediate_size or model.moe_intermediate_size,
        }
        missing = [key for key, value in needed.items() if not value]
        if missing:
            raise KvsimError(f"model: {missing[0]} of {model.name} is needed for the step time")

    @cached_property
    def parameters(self) -> NDArray[np.void]:
        """COST_DTYPE record, shape (1,), for `step_time`."""
        record = np.zeros(1, COST_DTYPE)
        parts = {**self._fixed(), **self._linear(), **self._experts(), **self._attention(), **self._encoder()}
        for name, value in parts.items():
            record[name] = value
        return record

    def seconds(self, shape: StepShape) -> float:
        """Time of one step in seconds."""
        count = len(shape.num_scheduled_tokens)
        scheduled = np.ascontiguousarray(shape.num_scheduled_tokens, np.int32)
        computed = np.ascontiguousarray(shape.num_computed_tokens, np.int32)
        return float(_step_time(self.parameters, scheduled, computed, count, shape.num_encoder_tokens))

    @property
    def description(self) -> str:
        """One sentence for reports: what the times rest on."""
        return (
            f"Step times: roofline of {self.gpu.name} data-sheet rates ({self.gpu.source}) with average "
            f"efficiencies, not calibrated on this card"
        )

    @property
    def _peak_flops(self) -> float:
        """Dense peak of one GPU in the model's own type; float32 runs at TF32's half rate."""
        return self.gpu.bf16_flops * min(1.0, 2 / self._full_bytes)

    @property
    def _gemm_flops(self) -> float:
        """Attainable flop/s of the linear layers on all ranks together; fp8 weights use fp8 units if any."""
        fp8 = self.model.quantization == "fp8" and self.gpu.fp8_flops
        if fp8:
            return GEMM_FP8_FLOPS_EFFICIENCY * fp8 * self.tensor_parallel_size
        return self._full_gemm_flops

    @property
    def _full_gemm_flops(self) -> float:
        """The same for weights that are not quantised."""
        return GEMM_FLOPS_EFFICIENCY * self._peak_flops * self.tensor_parallel_size

    @property
    def _stream(self) -> float:
        """Attainable bytes/s of weights on all ranks together."""
        return GEMM_BANDWIDTH_EFFICIENCY * self.gpu.bandwidth * self.tensor_parallel_size

    @property
    def _full_bytes(self) -> int:
        return DTYPE_BYTES.get(self.model.dtype, 2)

    def _fixed(self) -> dict[str, float]:
        ranks, layers = self.tensor_parallel_size, self.model.num_hidden_layers
        calls = 2 * layers if ranks > 1 else 0
        link = ALL_REDUCE_EFFICIENCY * self.gpu.link_bandwidth
        sent = 2 * (ranks - 1) / ranks * self.model.hidden_size * self._full_bytes
        return {
            "fixed": STEP_OVERHEAD_SECONDS + layers * LAYER_OVERHEAD_SECONDS + calls * ALL_REDUCE_SECONDS,
            "per_request": REQUEST_OVERHEAD_SECONDS,
            "per_token_link": calls * sent / link,
        }

    def _linear(self) -> dict[str, float]:
        model = self.model
        dense_layers = model.num_hidden_layers - model.num_moe_layers
        weights = model.num_hidden_layers * model.attention_parameters
        weights += dense_layers * model.dense_mlp_parameters + model.num_moe_layers * model.shared_parameters
        head = model.vocab_size * model.hidden_size
        return {
            "linear_per_token": 2 * weights / self._gemm_flops,
            "linear_read": weights * model.weight_dtype_bytes / self._stream,
            "head_per_request": 2 * head / self._full_gemm_flops,
            "head_read": head * self._full_bytes / self._stream,
        }

    def _experts(self) -> dict[str, float]:
        model = self.model
        if not model.num_moe_layers:
            return {}
        expert = model.num_moe_layers * model.expert_parameters
        share = min(model.num_experts_per_tok / model.num_experts, 1 - 1e-12)
        return {
            "expert_per_token": 2 * model.num_experts_per_tok * expert / self._gemm_flops,
            "expert_read": model.num_experts * expert * model.weight_dtype_bytes / self._stream,
            "log_miss": math.log1p(-share),
        }

    def _attention(self) -> dict[str, float]:
        model = self.model
        options = KVCacheOptions(
            tensor_parallel_size=self.tensor_parallel_size, kv_cache_dtype=self.kv_cache_dtype
        )
        specs = list(kv_cache_layers(model, options).values())
        full = [spec for spec in specs if spec.kind in ("full", "mla")]
        windows = [spec for spec in specs if spec.kind not in ("full", "mla")]
        read = ATTENTION_BANDWIDTH_EFFICIENCY * self.gpu.bandwidth
        flops = ATTENTION_FLOPS_EFFICIENCY * self._peak_flops * self.tensor_parallel_size
        full_layers = sum(kind == "full" for kind in model.layer_types)
        return {
            "score_full": full_layers * self._flops_per_score(model.global_head_dim) / flops,
            "score_window": (model.num_hidden_layers - full_layers) * self._flops_per_score() / flops,
            "kv_full": sum(spec.bytes_per_token for spec in full) / read,
            "kv_window": sum(spec.bytes_per_token for spec in windows) / read,
            "window": float(model.sliding_window or 0),
        }

    def _flops_per_score(self, head_dim: int = 0) -> int:
        """Flops of one (query, key) pair in one layer: two products over all heads."""
        model = self.model
        if model.is_mla:
            return (
                2
                * model.num_attention_heads
                * (model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim)
            )
        if head_dim:
            return 4 * model.num_attention_heads * head_dim
        return 2 * model.num_attention_heads * (model.head_dim + model.v_head_dim)

    def _encoder(self) -> dict[str, float]:
        """Every weight meets each of the patches behind a token; attention spans one typical image."""
        vision = self.model.vision
        if vision is None:
            return {}
        patches = vision.spatial_merge_size**2
        attention = 4 * vision.hidden_size * vision.depth * ENCODER_ATTENTION_SPAN
        flops = patches * (2 * vision.num_parameters + attention)
        return {
            "encoder_per_token": flops / self._full_gemm_flops,
            "encoder_read": vision.num_parameters * self._full_bytes / self._stream,
        }
