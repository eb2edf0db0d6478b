"""Memory at start-up, predicted part by part from a model's shape and the flags.

    available = total x utilization - weights - activation peak - encoder share - CUDA graphs - non-torch

Weights and activations are formulas that follow vLLM's layers and its profile run
(`GPUModelRunner.profile_run`: the largest encoder batch, a forward pass of max_num_batched_tokens, one
sampler call of max_num_seqs rows; the peak is the largest of the three, since each frees its tensors).
What no configuration tells (CUDA graphs, driver, NCCL) are constants in ``data/memory_constants.json``,
with their source.
"""

import json
import math
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu.model import ModelSpec
from kvsim.gpu.releases import Release
from kvsim.gpu.weights import loaded_bytes

GIB = 1 << 30
_BUDGET_TOKENS_OF_AN_IMAGE = 16384  # Qwen-VL processors' default upper limit
_MLA_WORKSPACE_TOKENS = 64 * 1024  # `MLACommonMetadataBuilder`: context tokens expanded at a time
_ROCM = ("rocm", "radeon", "rx 7", "rx 9", "mi2", "mi3", "strix")


@cache
def constants() -> dict[str, Any]:
    """Fitted constants, see the file for source and fit set."""
    path = Path(__file__).parent / "data" / "memory_constants.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@dataclass(frozen=True)
class MemorySetup:
    """The card and the flags that bear on memory, all settled.

    total_bytes: what the driver shows. image_pixels: upper limit of an image's area, None for the
    processor's own; images_per_prompt: None for no limit, 0 switches images off.
    """

    total_bytes: int
    gpu_name: str
    gpu_memory_utilization: float
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    enforce_eager: bool = False
    image_pixels: int | None = None
    images_per_prompt: int | None = None


@dataclass(frozen=True)
class MemoryPrediction:
    """Bytes on one GPU. `activation` is the peak of the profile run; `cause` says which part of it decides.

    peaks: bytes by cause ("language model", "sampler", "vision encoder"). error: half width of the
    honest range of `available`.
    """

    total: int
    requested: int
    weights: int
    activation: int
    cause: str
    peaks: dict[str, int]
    cuda_graphs: int
    non_torch: int
    error: int

    @property
    def available(self) -> int:
        used = self.weights + self.activation + self.cuda_graphs + self.non_torch
        return self.requested - used


def predict_memory(model: ModelSpec, release: Release, setup: MemorySetup) -> MemoryPrediction:
    """Predict what one GPU has left for its KV cache; may be negative.

    Raises KvsimError for a model without hidden_size or vocab_size.
    """
    if not (model.hidden_size and model.vocab_size):
        raise KvsimError(f"model: {model.name} needs hidden_size and vocab_size for a memory prediction")
    peaks = activation_peaks(model, release, setup)
    cause = max(peaks, key=peaks.__getitem__)
    return MemoryPrediction(
        total=setup.total_bytes,
        requested=math.ceil(setup.total_bytes * setup.gpu_memory_utilization),
        weights=weight_bytes(model, setup, release),
        activation=peaks[cause],
        cause=cause,
        peaks=peaks,
        cuda_graphs=_cuda_graphs(model, release, setup),
        non_torch=_non_torch(release, setup),
        error=_error(model, setup),
    )


# ---- weights ----


def weight_bytes(model: ModelSpec, setup: MemorySetup, release: Release | None = None) -> int:
    """Loaded bytes on one GPU: parameters, what ranks hold twice, tables and buffers made at load."""
    tp, pp = setup.tensor_parallel_size, setup.pipeline_parallel_size
    layers = model.num_hidden_layers / pp
    kernel = _mxfp4_kernel(setup.gpu_name, release)
    loaded = loaded_bytes(
        model,
        tp,
        tower=setup.images_per_prompt != 0,
        minor=release.minor if release else 33,
        mxfp4_kernel=kernel,
    )
    return int(loaded / pp + _absorbed(model, tp) * layers + _tables(model, setup))


def _mxfp4_kernel(gpu_name: str, release: Release | None) -> str:
    """Which kernels run MXFP4 experts; Triton's for Hopper came with vLLM from 0.12 on."""
    name = gpu_name.lower()
    if re.search(r"\b(g?b[23]00|gb10)\b", name):
        return "blackwell"
    hopper = not name or re.search(r"\b(g?h[12]00|h800|h20)\b", name)
    return "hopper" if hopper and (release is None or release.minor >= 12) else "marlin"


def _absorbed(model: ModelSpec, tp: int) -> float:
    """Bytes of MLA's 16-bit copies of the up-projections, made after loading for decode."""
    heads = model.num_attention_heads / tp
    return 2 * model.kv_lora_rank * heads * (model.qk_nope_head_dim + model.v_head_dim) if model.is_mla else 0


def _tables(model: ModelSpec, setup: MemorySetup) -> float:
    """Rotary cos/sin table of the model's full length, and the deepstack buffers of a vision model."""
    turned = model.qk_rope_head_dim or model.head_dim * model.partial_rotary_factor
    positions = (model.max_position_embeddings or 0) * (4 if model.multimodal_rope else 1)
    levels = model.vision.deepstack_levels if model.vision else 0
    return 2 * positions * turned + 2 * levels * setup.max_num_batched_tokens * model.hidden_size


# ---- activations ----


def activation_peaks(model: ModelSpec, release: Release, setup: MemorySetup) -> dict[str, int]:
    """Peak bytes of each phase of the profile run on one GPU."""
    held, encoder = _encoder(model, release, setup)
    peaks = {
        "language model": _language_peak(model, setup) + held,
        "sampler": _sampler_peak(model, release, setup) + held,
    }
    if encoder:
        peaks["vision encoder"] = encoder
    return {name: int(size) for name, size in peaks.items()}


def _language_peak(model: ModelSpec, setup: MemorySetup) -> float:
    """The widest layer of one forward pass of max_num_batched_tokens."""
    tp, hidden = setup.tensor_parallel_size, model.hidden_size
    widths = []
    if model.num_moe_layers < model.num_hidden_layers or not model.num_experts:
        # gate and up, their product; residual, normed input and output; one more without FlashAttention
        tensors = 4 if _lacks_flash_attention(setup.gpu_name) else 3
        widths.append(3 * model.intermediate_size / tp + tensors * hidden)
    if model.num_experts:
        expert = model.moe_intermediate_size / tp
        # Fused experts: one buffer serves gate+up and the down output, one holds the product, per chosen
        # expert; then the input, the output, the residual and the reduced sum.
        chosen = model.num_experts_per_tok * (max(2 * expert, hidden) + expert)
        widths.append(chosen + 4 * hidden)
    if model.linear is not None:
        # projection, convolution's output, gate and core output; residual, normed input and output
        widths.append((2 * model.linear.conv_dim + 2 * model.linear.inner_size) / tp + 3 * hidden)
    peak = 2 * setup.max_num_batched_tokens * max(widths)
    return peak + _mla_workspace(model, setup)


def _lacks_flash_attention(gpu_name: str) -> bool:
    """Cards before compute capability 8.0."""
    return bool(re.match(r"(tesla\s+)?(t4|v100|rtx 20|p100)\b", gpu_name.lower()))


def _mla_workspace(model: ModelSpec, setup: MemorySetup) -> float:
    """Context tokens expanded back to heads in a chunked prefill: the largest chunk is profiled."""
    if not model.is_mla:
        return 0
    tokens = min(max(8 * setup.max_model_len, 64 * setup.max_num_seqs), _MLA_WORKSPACE_TOKENS)
    heads = model.num_attention_heads / setup.tensor_parallel_size
    latent = model.kv_lora_rank + model.qk_rope_head_dim
    return 2 * tokens * (heads * (model.qk_nope_head_dim + model.v_head_dim) + latent)


def _sampler_peak(model: ModelSpec, release: Release, setup: MemorySetup) -> float:
    facts = constants()["sampler_bytes_per_logit"]
    kinds = [kind for kind in ("sorting", "copy") if release.minor <= facts[f"{kind}_up_to_minor"]]
    kind = kinds[0] if kinds else "fused"
    per_logit = facts["v0" if release.v0 else kind]
    rows = min(setup.max_num_seqs, setup.max_num_batched_tokens)
    hidden_states = 2 * model.hidden_size * setup.max_num_batched_tokens
    return per_logit * rows * model.vocab_size + hidden_states


def _encoder(model: ModelSpec, release: Release, setup: MemorySetup) -> tuple[int, int]:
    """Bytes of the encoder outputs that stay alive during the forward pass, and of the encoder's own peak.

    V0 profiled with prompts of max_num_batched_tokens whose images hardly mattered: none.
    """
    if model.encoder is not None and not release.v0:
        return _audio(model, setup)
    vision = model.vision
    if vision is None or setup.images_per_prompt == 0 or release.v0:
        return 0, 0
    tokens = image_tokens(model, setup)
    most = setup.max_num_seqs * (setup.images_per_prompt or 999)
    items = max(1, min(max(setup.max_num_batched_tokens, tokens) // tokens, most))
    merge = vision.spatial_merge_size**2
    patches = items * tokens * merge
    pixels = 3 * vision.patch_size**2 * vision.temporal_patch_size
    out = vision.out_hidden_size or model.hidden_size
    # Input pixels; two tensors of the MLP; residual, its normed copy, positions, two of attention's;
    # and what every deepstack level has put aside.
    width = pixels + _mlp(model, setup) + 5 * vision.hidden_size + vision.deepstack_levels * out / merge
    held = 2 * items * tokens * out * (1 + vision.deepstack_levels)
    return held, int(2 * patches * width)


def _audio(model: ModelSpec, setup: MemorySetup) -> tuple[int, int]:
    """The same of an encoder-decoder model: as many inputs as the token budget admits."""
    encoder = model.encoder
    assert encoder is not None
    tokens = max(setup.max_num_batched_tokens // encoder.num_tokens, 1) * encoder.num_tokens
    width = 2 * encoder.intermediate_size / setup.tensor_parallel_size + 5 * model.hidden_size
    return 2 * tokens * model.hidden_size, int(2 * tokens * width)


def _mlp(model: ModelSpec, setup: MemorySetup) -> float:
    vision = model.vision
    assert vision is not None
    return (3 if vision.gated_mlp else 2) * vision.intermediate_size / setup.tensor_parallel_size


def image_tokens(model: ModelSpec, setup: MemorySetup) -> int:
    """Language tokens of the largest image that the processor lets through."""
    vision = model.vision
    if vision is None:
        return 0
    pixels = setup.image_pixels or vision.max_pixels
    if pixels is None:
        return _BUDGET_TOKENS_OF_AN_IMAGE if vision.spatial_merge_size > 1 else 576
    return max(1, pixels // max(1, vision.pixels_per_token_side**2))


# ---- what the configuration does not tell ----


def _cuda_graphs(model: ModelSpec, release: Release, setup: MemorySetup) -> int:
    if setup.enforce_eager or not release.counts_cuda_graphs:
        return 0
    facts = constants()["cuda_graph_gib"]
    if release.frees_by_device:
        return int(facts["flat_from_0.27"] * GIB)
    return int(facts["per_layer_to_0.26"] * model.num_hidden_layers / setup.pipeline_parallel_size * GIB)


def _non_torch(release: Release, setup: MemorySetup) -> int:
    facts = constants()["non_torch_gib"]
    if setup.tensor_parallel_size > 1:
        kind = "tensor_parallel_v0" if release.v0 else "tensor_parallel"
    elif any(word in setup.gpu_name.lower() for word in _ROCM):
        kind = "single_rocm"
    else:
        kind = "single_v0_to_0.6" if release.v0 and release.minor <= 6 else "single"
    by_device = f"{kind}_by_device"
    return int(facts[by_device if release.frees_by_device and by_device in facts else kind] * GIB)


def _error(model: ModelSpec, setup: MemorySetup) -> int:
    facts = constants()["error_gib"]
    large = setup.total_bytes >= facts["large_from_gib"] * GIB
    kinds = ["single_large" if large else "single"]
    if setup.tensor_parallel_size > 1:
        kinds.append("tensor_parallel")
    if model.num_experts:
        kinds.append("moe")
    if "gb10" in setup.gpu_name.lower():
        kinds.append("unified_memory")
    return int(max(facts[kind] for kind in kinds) * GIB)
