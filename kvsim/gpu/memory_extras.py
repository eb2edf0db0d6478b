"""What flags add to a GPU's memory or take off it: adapters, offloading, experts that are elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvsim.gpu.drafts import draft_weight_bytes, drafts_of
from kvsim.gpu.layers import kv_heads_per_gpu
from kvsim.gpu.memory_setup import MemorySetup
from kvsim.gpu.model import DTYPE_BYTES, ModelSpec
from kvsim.gpu.model_length import LENGTH_KEYS, ROPE_KEYS
from kvsim.gpu.prediction import GIB, weight_bytes

_USED_OVERRIDES = {*LENGTH_KEYS, *ROPE_KEYS, "original_max_position_embeddings", "rope_theta", "text_config"}
_LORA_RANK, _LORAS = 16, 1  # vLLM's defaults (`config/lora.py`)


@dataclass(frozen=True)
class MemoryExtra:
    """One line of the bridge. size: bytes on one GPU; negative where it gives memory back."""

    name: str
    size: int
    why: str


def memory_extras(model: ModelSpec, setup: MemorySetup, flags: Mapping[str, Any]) -> tuple[MemoryExtra, ...]:
    """The lines that these flags need; empty for most servers."""
    found = []
    if flags.get("enable_lora"):
        loras, rank = flags.get("max_loras", _LORAS), flags.get("max_lora_rank", _LORA_RANK)
        sharded = flags.get("fully_sharded_loras", False)
        size = lora_bytes(model, setup, loras, rank, fully_sharded=sharded)
        found.append(MemoryExtra("LoRA slots", size, f"max_loras {loras} x max_lora_rank {rank}"))
    drafts = drafts_of(flags)
    size = draft_weight_bytes(drafts, model, setup)
    if size:
        name = "draft model" if drafts.model else "draft layers"
        found.append(MemoryExtra(name, size, drafts.model.name if drafts.model else drafts.method))
    copies = flags.get("data_parallel_size", 1)
    if copies > 1 and model.num_experts:
        size = -round(_expert_bytes(model, setup) * (1 - 1 / copies))
        found.append(MemoryExtra("experts elsewhere", size, f"shared by data_parallel_size {copies}"))
    offload = flags.get("cpu_offload_gb", 0)
    if offload:
        size = -min(round(offload * GIB), weight_bytes(model, setup))
        found.append(MemoryExtra("weights in CPU memory", size, f"cpu_offload_gb {offload:g}"))
    return tuple(found)


def _expert_bytes(model: ModelSpec, setup: MemorySetup) -> float:
    """Routed experts on one GPU of a single replica."""
    experts = model.num_moe_layers * model.num_experts * model.expert_parameters
    ranks = setup.tensor_parallel_size * setup.pipeline_parallel_size
    return experts * model.weight_dtype_bytes / ranks


def lora_bytes(
    model: ModelSpec, setup: MemorySetup, loras: int, rank: int, *, fully_sharded: bool = False
) -> int:
    """Slots that vLLM sets aside at load for adapters of the language model's linear layers, on one GPU.

    Every layer that an adapter may touch gets A (rank x input) and B (output x rank) for each slot
    (`create_lora_weights` of `lora/layers/`). A column-parallel layer splits B over the ranks, a
    row-parallel layer A; --fully-sharded-loras splits both.
    """
    tp = setup.tensor_parallel_size
    half = tp if fully_sharded else 1
    hidden, query = model.hidden_size, model.num_attention_heads * model.head_dim
    kv = kv_heads_per_gpu(model.num_key_value_heads, tp) * model.head_dim

    def mlp(width: int) -> float:
        column = 2 * (hidden / half + width / tp)  # gate and up
        row = width / tp + hidden / half  # down
        return column + row

    attention = 0.0
    if not model.is_mla:
        attention = 3 * hidden / half + query / tp + 2 * kv + query / tp + hidden / half
    full = sum(kind not in ("linear", "none") for kind in model.layer_types)
    dense = model.num_hidden_layers - (model.num_moe_layers if model.num_experts else 0)
    values = full * attention + dense * mlp(model.intermediate_size)
    values += (model.num_hidden_layers - dense) * model.num_experts * mlp(model.moe_intermediate_size)
    size = DTYPE_BYTES.get(model.dtype, 2)
    return round(loras * rank * values * size / setup.pipeline_parallel_size)


def unmodelled(model: ModelSpec, flags: Mapping[str, Any]) -> tuple[str, ...]:
    """Flags that bear on memory in a way that is not modelled, a sentence each."""
    notes = []
    drafts = drafts_of(flags)
    if drafts.tokens and drafts.name and drafts.model is None:
        notes.append(
            f"speculative_config: {drafts.name[:80]} is not in the catalog; its weights and cache are not "
            "counted, give the path of its config.json"
        )
    if flags.get("enable_lora") and (model.is_mla or "linear" in model.layer_types):
        notes.append("enable_lora: adapters of latent and linear attention are not counted")
    if flags.get("enable_expert_parallel"):
        notes.append("enable_expert_parallel: workspaces of the all-to-all exchange are not counted")
    if flags.get("data_parallel_size", 1) > 1:
        notes.append("data_parallel_size: every replica has a cache of its own; the lines are those of one")
    unused = sorted(set(flags.get("hf_overrides") or {}) - _USED_OVERRIDES)
    if unused:
        notes.append(f"hf_overrides: {', '.join(unused)[:80]} not used; give a config.json with it instead")
    return tuple(notes)
