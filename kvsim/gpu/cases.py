"""Capacity and memory cases from public reports, answered as a flat dictionary.

`observe_capacity(case)` takes one variant (already merged with its case) of kind ``capacity``:
``model`` (config.json keys, or a catalog name), ``available_kv_cache_bytes`` (or
``kv_cache_memory_bytes``; a number, or a list with one per stage), ``block_size``, ``max_model_len``,
``tensor_parallel_size`` and the other flags of `KVCacheOptions`, at the top or under ``engine``, and
``stages``: pipeline stages, each a layer count or a mapping with ``num_hidden_layers`` and, optionally,
its own ``available_kv_cache_bytes``.

`observe_memory(case)` takes kind ``memory``: ``gpu: {total_gib, used_by_others_gib}``,
``engine_use: {weights_and_runtime_gib, peak_activation_gib, cudagraph_gib}``, ``gpu_memory_utilization``.

Both return every figure that a case may expect, None where vLLM refused before it was known; ``refused``
says whether it did and ``reason`` in which words. GiB are rounded to two decimals as vLLM prints them.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.layers import kv_cache_layers, kv_heads_per_gpu
from kvsim.gpu.memory import KVCacheOptions, KVCachePlan, plan_for_model
from kvsim.gpu.model import ModelSpec
from kvsim.gpu.refusals import GIB, KVCacheTooSmallError
from kvsim.gpu.startup import ConsumedMemory, NotEnoughFreeMemoryError, available_kv_cache_memory
from kvsim.rules import rules_for

Case = Mapping[str, Any]


def _gib(size: int) -> float:
    return round(size / GIB, 2)


def observe_capacity(case: Case, version: str = "0.33") -> dict[str, Any]:
    """All figures of a capacity case; KvsimError for an input that cannot be read."""
    case = {**case, **case.get("engine", {})}
    stages = [
        stage if isinstance(stage, Mapping) else {"num_hidden_layers": stage}
        for stage in case.get("stages", ())
    ]
    model = _model(case, stages)
    options = KVCacheOptions(**{f.name: case[f.name] for f in fields(KVCacheOptions) if f.name in case})
    room = _available(case, stages)
    counts = [_layers(stage) for stage in stages] or None
    result = _shape_facts(model, options) | {
        "available_gib_printed": _gib(room[0] if isinstance(room, list) else room)
    }
    try:
        plan = plan_for_model(model, room, options, version, counts)
    except KVCacheTooSmallError as refusal:
        return result | _refusal(refusal)
    return result | _planned(plan)


def _model(case: Case, stages: list[Case]) -> ModelSpec:
    if isinstance(case.get("model"), str):
        return catalog.model(case["model"])
    config = dict(case.get("model", {}))
    if stages:
        config["num_hidden_layers"] = sum(_layers(stage) for stage in stages)
        config = {**stages[0].get("model", {}), **stages[0], **config}
    return ModelSpec.from_config(config)


def _layers(stage: Case) -> int:
    for source in (stage, stage.get("model", {})):
        for key in ("num_hidden_layers", "num_layers", "layers"):
            if key in source:
                return int(source[key])
    raise KvsimError("stages: a stage is a layer count or has num_hidden_layers")


def _available(case: Case, stages: list[Case]) -> Any:
    """Bytes per stage (list) or for all of them; --kv-cache-memory-bytes goes before the profiled figure."""
    for key in ("kv_cache_memory_bytes", "available_kv_cache_bytes"):
        if case.get(key) is not None:
            return case[key]
        if stages and all(stage.get(key) is not None for stage in stages):
            return [stage[key] for stage in stages]
    raise KvsimError("available_kv_cache_bytes: missing")


def _shape_facts(model: ModelSpec, options: KVCacheOptions) -> dict[str, Any]:
    layers = kv_cache_layers(model, options)
    heads = 1 if model.is_mla else kv_heads_per_gpu(model.num_key_value_heads, options.tensor_parallel_size)
    return {
        "kv_heads_per_gpu": heads,
        "bytes_per_token": sum(spec.bytes_per_token for spec in layers.values()),
    }


def _planned(plan: KVCachePlan) -> dict[str, Any]:
    return {
        "refused": False,
        "reason": None,
        "num_gpu_blocks": plan.num_gpu_blocks,
        "kv_cache_size_tokens": plan.kv_cache_size_tokens,
        "max_concurrency": round(plan.max_concurrency, 2),
        "max_model_len": plan.max_model_len,
        "num_kv_cache_groups": len(plan.groups),
        "bytes_per_block": plan.bytes_per_block[0],
        "blocks_per_request": plan.blocks_per_request,
        "needed_gib": None,
        "estimated_max_model_len": None,
    }


def _refusal(refusal: KVCacheTooSmallError) -> dict[str, Any]:
    nothing = ("num_gpu_blocks", "kv_cache_size_tokens", "max_concurrency", "max_model_len")
    return dict.fromkeys(nothing) | {
        "refused": True,
        "reason": refusal.vllm_message,
        "needed_gib": _gib(refusal.needed_bytes),
        "estimated_max_model_len": refusal.estimated_max_model_len,
    }


def observe_memory(case: Case, version: str = "0.33") -> dict[str, Any]:
    """All figures of a start-up memory case."""
    case = {**case, **case.get("engine", {})}
    rules = rules_for(version)
    gpu, use = case["gpu"], case.get("engine_use", {})
    total, others = _bytes(gpu, "total_gib"), _bytes(gpu, "used_by_others_gib")
    share = case.get("gpu_memory_utilization", rules.default_gpu_memory_utilization)
    consumed = ConsumedMemory(
        *(_bytes(use, key) for key in ("weights_and_runtime_gib", "peak_activation_gib", "cudagraph_gib"))
    )
    explicit = case.get("kv_cache_memory_bytes")
    result = {"requested_gib": round(gpu["total_gib"] * share, 2), "free_gib": _gib(total - others)}
    try:
        room = available_kv_cache_memory(
            total, share, consumed, rules, used_by_others=others, kv_cache_memory_bytes=explicit
        )
    except NotEnoughFreeMemoryError as refusal:
        return result | {"refused": True, "reason": str(refusal), "available_kv_gib": None}
    except KVCacheTooSmallError as refusal:
        left = _gib(refusal.available_bytes)
        return result | {"refused": True, "reason": refusal.vllm_message, "available_kv_gib": left}
    return result | {"refused": False, "reason": None, "available_kv_gib": _gib(room)}


def _bytes(facts: Case, key: str) -> int:
    return round(facts.get(key, 0) * GIB)
