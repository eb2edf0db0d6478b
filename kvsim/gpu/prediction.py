"""Memory at start-up, predicted part by part from a model's shape and the flags.

    available = total x utilization - weights - activation peak - encoder share - CUDA graphs - non-torch

Weights and activations are formulas that follow vLLM's layers and its profile run
(see `kvsim.gpu.activations`).
What no configuration tells (CUDA graphs, driver, NCCL) are constants in ``data/memory_constants.json``,
with their source.
"""

import math
from dataclasses import dataclass

from kvsim.errors import KvsimError
from kvsim.gpu.activations import SORTED_BELOW, activation_peaks
from kvsim.gpu.memory_setup import MemorySetup, constants
from kvsim.gpu.model import ModelSpec
from kvsim.gpu.releases import Release
from kvsim.gpu.weights import loaded_bytes, mxfp4_kernel

GIB = 1 << 30
_ROCM = ("rocm", "radeon", "rx 7", "rx 9", "mi2", "mi3", "strix")


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
    minor = release.minor if release else 33
    layers = model.num_hidden_layers / pp
    loaded = loaded_bytes(
        model,
        tp,
        tower=setup.images_per_prompt != 0,
        minor=minor,
        mxfp4_kernel=mxfp4_kernel(setup.gpu_name, minor),
    )
    return int(loaded / pp + _absorbed(model, tp) * layers + _tables(model, setup))


def _absorbed(model: ModelSpec, tp: int) -> float:
    """Bytes of MLA's 16-bit copies of the up-projections, made after loading for decode."""
    heads = model.num_attention_heads / tp
    return 2 * model.kv_lora_rank * heads * (model.qk_nope_head_dim + model.v_head_dim) if model.is_mla else 0


def _tables(model: ModelSpec, setup: MemorySetup) -> float:
    """Rotary cos/sin table of the model's full length, and the deepstack buffers of a vision model."""
    turned = model.qk_rope_head_dim or model.head_dim * model.partial_rotary_factor
    positions = model.length_facts.table_rows * (4 if model.multimodal_rope else 1)
    levels = model.vision.deepstack_levels if model.vision else 0
    size = 2
    if model.is_mla or model.compress_ratios:  # `DeepseekScalingRotaryEmbedding` keeps its table in float32
        size = 4 * (2 if model.compress_ratios and min(model.compress_ratios) <= 1 else 1)  # one per base
    return size * positions * turned + 2 * levels * setup.max_num_batched_tokens * model.hidden_size


# ---- what the configuration does not tell ----


def _cuda_graphs(model: ModelSpec, release: Release, setup: MemorySetup) -> int:
    if setup.enforce_eager or not release.counts_cuda_graphs:
        return 0
    facts = constants()["cuda_graph_gib"]
    if release.runs_v2(model) and release.minor <= 28:
        return 0  # the estimate was a stub
    if release.minor >= 27:
        return int(facts["from_0.27"] * GIB)
    return int(facts["per_layer_to_0.26"] * model.num_hidden_layers / setup.pipeline_parallel_size * GIB)


def _non_torch(release: Release, setup: MemorySetup) -> int:
    facts = constants()["non_torch_gib"]
    ranks = "tensor_parallel" if setup.tensor_parallel_size > 1 else "single"
    if release.v0:
        kind = f"{ranks}_v0"
        if ranks == "single":
            kind += "_to_0.6" if release.minor <= 6 else ""
    elif release.frees_by_device:
        kind = f"{ranks}_from_0.27"
    elif release.minor <= 16 or setup.max_num_seqs < SORTED_BELOW:
        kind = f"{ranks}_to_0.16"
    else:
        kind = f"{ranks}_to_0.26"
    if ranks == "single" and any(word in setup.gpu_name.lower() for word in _ROCM):
        kind = "single_rocm"
    elif kind in ("single_v0", "single_to_0.16") and setup.lacks_flash_attention:
        kind = "single_turing"
    return int(facts[kind] * GIB)


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
