"""A model's attention layers as vLLM's KV cache specs, on one GPU of a tensor and pipeline split."""

from collections.abc import Sequence
from typing import Protocol

from kvsim.errors import KvsimError
from kvsim.gpu.deepseek_v4 import compressed_layers
from kvsim.gpu.kv_cache_spec import Kind, KVCacheSpec
from kvsim.gpu.model import DTYPE_BYTES, ModelSpec

# `fp8_ds_mla` keeps 512 fp8 values, 4 scales and 64 16-bit rope values per token (v1/kv_cache_interface.py).
_FP8_DS_MLA_BYTES = 656
# The sparse indexer keeps its fp8 key and one 4-byte scale per token and layer.
_INDEXER_SCALE_BYTES = 4


class ParallelOptions(Protocol):
    """The flags that decide what one GPU holds of a layer."""

    @property
    def block_size(self) -> int: ...
    @property
    def kv_cache_dtype(self) -> str: ...
    @property
    def tensor_parallel_size(self) -> int: ...
    @property
    def decode_context_parallel_size(self) -> int: ...


def kv_dtype_bytes(kv_cache_dtype: str, model_dtype: str) -> int:
    """Bytes of one cached value for --kv-cache-dtype; "auto" is the model's own type."""
    name = model_dtype if kv_cache_dtype == "auto" else kv_cache_dtype
    if name in DTYPE_BYTES:
        return DTYPE_BYTES[name]
    if name in ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla"):
        return 1
    whose = ", the model's dtype," if kv_cache_dtype == "auto" else ""
    raise KvsimError(
        f"kv_cache_dtype: {name!r}{whose} is not modelled; give bfloat16, float16, float32 or fp8"
    )


def cache_value_bytes(model: ModelSpec, kv_cache_dtype: str) -> int:
    """The same for a model: a checkpoint with scales for an fp8 cache makes "auto" fp8."""
    fp8 = kv_cache_dtype == "auto" and model.kv_cache_fp8
    return 1 if fp8 else kv_dtype_bytes(kv_cache_dtype, model.dtype)


def kv_heads_per_gpu(num_kv_heads: int, tensor_parallel_size: int) -> int:
    """KV heads that one rank holds: never below one, so beyond that heads are copied."""
    return max(1, num_kv_heads // tensor_parallel_size)


def kv_cache_layers(model: ModelSpec, options: ParallelOptions) -> dict[str, KVCacheSpec]:
    """Every cached layer of the model, in order, as one tensor-parallel rank holds it.

    Raises KvsimError for splits that vLLM refuses and for layers that are not modelled (linear attention).
    """
    check_split(model, options)
    if model.compress_ratios:
        return compressed_layers(model, options.block_size, options.kv_cache_dtype)
    size = cache_value_bytes(model, options.kv_cache_dtype)
    cached = model.num_hidden_layers - model.num_kv_shared_layers
    layers: dict[str, KVCacheSpec] = {}
    for i, kind in enumerate(model.layer_types[:cached]):
        if kind == "none":
            continue
        if kind == "linear":
            raise KvsimError(
                f"model: layer {i} of {model.name} is linear attention, whose state cache is not modelled"
            )
        layers[f"layers.{i}.attn"] = (
            _mla(model, options, size) if model.is_mla else _attention(model, options, kind, size)
        )
        if i in model.indexed_layers:
            layers[f"layers.{i}.indexer"] = _indexer(model, options)
    return layers


def _indexer(model: ModelSpec, options: ParallelOptions) -> KVCacheSpec:
    """One key per token: fp8 with a scale beside latents, 16 bits beside plain heads (MiniMax M3)."""
    if not model.is_mla:
        return KVCacheSpec("mla", options.block_size, 1, model.index_head_dim, 2)
    return KVCacheSpec("mla", options.block_size, 1, model.index_head_dim + _INDEXER_SCALE_BYTES, 1)


def _mla(model: ModelSpec, options: ParallelOptions, size: int) -> KVCacheSpec:
    """One latent vector per token, the same on every tensor-parallel rank."""
    latent = model.kv_lora_rank + model.qk_rope_head_dim
    head = _FP8_DS_MLA_BYTES if options.kv_cache_dtype == "fp8_ds_mla" else latent
    return KVCacheSpec("mla", options.block_size, 1, head, size)


def _attention(model: ModelSpec, options: ParallelOptions, kind: str, size: int) -> KVCacheSpec:
    heads, head, head_v = model.num_key_value_heads, model.head_dim, model.v_head_dim
    if kind == "full" and model.global_head_dim:
        heads = model.global_num_key_value_heads or heads
        head = model.global_head_dim
        head_v = model.global_v_head_dim or head
    per_gpu = kv_heads_per_gpu(heads, options.tensor_parallel_size)
    if kind == "full":
        return KVCacheSpec("full", options.block_size, per_gpu, head, size, head_v)
    window_kind: Kind = "sliding_window" if kind == "sliding" else "chunked_local"
    return KVCacheSpec(window_kind, options.block_size, per_gpu, head, size, head_v, model.sliding_window)


def check_split(model: ModelSpec, options: ParallelOptions) -> None:
    """`ModelConfig.verify_with_parallel_config` and the parallel config's own check.

    Raises KvsimError "<flag>: <value> ...".
    """
    tp, heads = options.tensor_parallel_size, model.num_attention_heads
    if model.compress_ratios and options.decode_context_parallel_size > 1:
        raise KvsimError(f"decode_context_parallel_size: not with the windows of {model.name}; give 1")
    if not model.is_mla and not (model.num_key_value_heads and model.head_dim):
        raise KvsimError(f"model: {model.name} needs num_key_value_heads and head_dim (or kv_lora_rank)")
    if not _splits(model, tp):
        right = ", ".join(str(ranks) for ranks in range(1, heads + 1) if _splits(model, ranks))
        undivided = f"{heads} attention heads" if heads % tp else f"{model.num_key_value_heads} KV heads"
        raise KvsimError(
            f"tensor_parallel_size: {tp} does not divide the {undivided} of {model.name}; give one of {right}"
        )
    if options.decode_context_parallel_size > 1:
        _check_context_split(model, tp, options.decode_context_parallel_size)


def _splits(model: ModelSpec, ranks: int) -> bool:
    """Whether vLLM's attention layers work so: KV heads are dealt out, or copied equally often."""
    kv_heads = model.num_key_value_heads
    equally = model.is_mla or kv_heads % ranks == 0 or ranks % kv_heads == 0
    return model.num_attention_heads % ranks == 0 and equally


def _check_context_split(model: ModelSpec, tp: int, dcp: int) -> None:
    kv_heads, problem = model.num_key_value_heads, f"decode_context_parallel_size: {dcp}"
    if tp % dcp:
        raise KvsimError(
            f"{problem} does not divide tensor_parallel_size, {tp}, whose ranks it shares; give a divisor"
        )
    if not model.is_mla and dcp > max(tp // kv_heads, 1):
        raise KvsimError(
            f"{problem} is more than the copies that tensor_parallel_size {tp} makes of each of the "
            f"{kv_heads} KV heads; give at most {max(tp // kv_heads, 1)}, or tensor_parallel_size "
            f"{dcp * kv_heads} or more"
        )
    if not model.is_mla and model.num_attention_heads // kv_heads % dcp:
        shared = model.num_attention_heads // kv_heads
        raise KvsimError(
            f"{problem} does not divide the {shared} query heads of each KV head; give a divisor"
        )
    if {"sliding", "chunked"} & set(model.layer_types):
        raise KvsimError(f"{problem} does not go with the sliding-window layers of {model.name}; give 1")


def check_stages(num_layers: int, stages: int) -> None:
    """Raises KvsimError "pipeline_parallel_size: ..." if a stage would have no layer."""
    if not 1 <= stages <= num_layers:
        raise KvsimError(
            f"pipeline_parallel_size: {stages} is more than the model's layers; give 1 to {num_layers}"
        )


def layers_per_stage(num_layers: int, stages: int) -> list[int]:
    """vLLM's split (`get_pp_indices`): what is left over goes to the stages before the last."""
    check_stages(num_layers, stages)
    counts = [num_layers // stages] * stages
    for i in range(2, num_layers % stages + 2):
        counts[-i] += 1
    return counts


def pipeline_stages(
    layers: dict[str, KVCacheSpec], num_layers: int, size: int, counts: Sequence[int] | None = None
) -> list[dict[str, KVCacheSpec]]:
    """Deal the layers out to pipeline stages, `counts` layers each or vLLM's own split."""
    counts = list(counts) if counts is not None else layers_per_stage(num_layers, size)
    if sum(counts) != num_layers or min(counts) < 1:
        raise KvsimError(f"stages: {counts} do not add up to the model's {num_layers} layers")
    stages, first = [], 0
    for count in counts:
        names = {f"layers.{i}" for i in range(first, first + count)}
        stages.append({n: spec for n, spec in layers.items() if n.rpartition(".")[0] in names})
        first += count
    return stages
