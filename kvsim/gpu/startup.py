"""Memory at start-up: what vLLM asks of the card, what is left for the KV cache, and a plain estimate of it.

Sources: `request_memory` (`v1/worker/utils.py`) and `determine_available_memory`
(`v1/worker/gpu_worker.py`) of vLLM 0.33.0 and 0.16.0.
"""

import math
from dataclasses import dataclass

from kvsim.errors import KvsimError
from kvsim.gpu.catalog import GpuSpec
from kvsim.gpu.model import ModelSpec
from kvsim.gpu.refusals import KVCacheTooSmallError, check_available, format_gib
from kvsim.rules import VllmRules

# What the estimate takes off besides the weights: activation peak of a profile run, CUDA graphs,
# library workspaces. Published start-up logs of single cards show 0.3 to 2 GiB together.
FLAT_ALLOWANCE_BYTES = 1 << 30


class NotEnoughFreeMemoryError(KvsimError):
    """Other processes hold too much of the card for the asked utilization. Fields are bytes."""

    def __init__(self, text: str, requested_bytes: int, free_bytes: int):
        super().__init__(text)
        self.requested_bytes = requested_bytes
        self.free_bytes = free_bytes


@dataclass(frozen=True)
class ConsumedMemory:
    """What the engine itself takes, in bytes on one GPU.

    weights: with runtime and buffers. peak_activation: of the profile run. cuda_graphs: their estimate.
    """

    weights: int
    peak_activation: int = 0
    cuda_graphs: int = 0


def check_utilization(gpu_memory_utilization: float) -> float:
    """The share itself; raises KvsimError unless it is above 0 and at most 1."""
    if not 0 < gpu_memory_utilization <= 1:
        raise KvsimError(f"gpu_memory_utilization: {gpu_memory_utilization!r} is not above 0 and at most 1")
    return gpu_memory_utilization


def request_memory(total_bytes: int, free_bytes: int, gpu_memory_utilization: float) -> int:
    """Bytes that vLLM claims: a share of the whole card, refused if less than that is free at start.

    Raises NotEnoughFreeMemoryError in vLLM's words.
    """
    requested = math.ceil(total_bytes * check_utilization(gpu_memory_utilization))
    if free_bytes < requested:
        raise NotEnoughFreeMemoryError(
            f"Free memory on device ({format_gib(free_bytes)}/{format_gib(total_bytes)} GiB) on startup is "
            f"less than desired GPU memory utilization ({gpu_memory_utilization}, {format_gib(requested)} "
            "GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
            requested,
            free_bytes,
        )
    return requested


def available_kv_cache_memory(
    total_bytes: int,
    gpu_memory_utilization: float,
    consumed: ConsumedMemory,
    rules: VllmRules,
    *,
    used_by_others: int = 0,
    kv_cache_memory_bytes: int | None = None,
) -> int:
    """Bytes for the KV cache on one GPU: what is requested less what the engine itself consumes.

    Another process's memory only counts against the free check; it is not subtracted a second time.
    kv_cache_memory_bytes, if given, is the answer, once the free check has passed (vLLM makes it first).
    Raises NotEnoughFreeMemoryError, or KVCacheTooSmallError for a budget that is not positive.
    """
    requested = request_memory(total_bytes, total_bytes - used_by_others, gpu_memory_utilization)
    if kv_cache_memory_bytes is not None:
        return kv_cache_memory_bytes
    graphs = consumed.cuda_graphs if rules.cuda_graph_memory_counted else 0
    available = requested - consumed.weights - consumed.peak_activation - graphs
    check_available(available, rules, "engine.gpu_memory_utilization")
    return available


@dataclass(frozen=True)
class AvailableEstimate:
    """A guess at the bytes for the KV cache on one GPU, and the sentence that says how it was made."""

    available_bytes: int
    text: str


def estimate_available(
    model: ModelSpec,
    gpu: GpuSpec,
    rules: VllmRules,
    *,
    gpu_memory_utilization: float | None = None,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    allowance_bytes: int = FLAT_ALLOWANCE_BYTES,
) -> AvailableEstimate:
    """Utilization x memory - weights - a flat allowance; an estimate, not vLLM's profile run.

    The weights are taken as split evenly over all ranks. Raises KVCacheTooSmallError if nothing is left.
    """
    utilization = check_utilization(gpu_memory_utilization or rules.default_gpu_memory_utilization)
    weights = model.weight_bytes // (tensor_parallel_size * pipeline_parallel_size)
    available = math.ceil(gpu.memory_bytes * utilization) - weights - allowance_bytes
    if available <= 0:
        larger = gpu.memory_bytes - weights - allowance_bytes > 0
        key = "engine.gpu_memory_utilization" if larger else "gpu"
        mend = "raise it" if larger else "take a larger one"
        raise KVCacheTooSmallError(
            f"{key}: {model.name} does not fit on {gpu.name}: {format_gib(weights)} GiB of weights per GPU "
            f"and {format_gib(allowance_bytes)} GiB allowance leave nothing of {utilization} x "
            f"{format_gib(gpu.memory_bytes)} GiB; {mend}, raise engine.tensor_parallel_size, or give "
            "engine.quantization",
            available_bytes=available,
        )
    text = (
        f"Estimate, not a measurement: {utilization} x {format_gib(gpu.memory_bytes)} GiB - "
        f"{format_gib(weights)} GiB weights - {format_gib(allowance_bytes)} GiB flat allowance = "
        f"{format_gib(available)} GiB for the KV cache; set available_kv_cache_bytes for the exact figure"
    )
    return AvailableEstimate(available, text)
