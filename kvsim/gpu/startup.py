"""Memory at start-up: what vLLM asks of the card, what is left for the KV cache, and a prediction of it.

Sources: `request_memory` (`v1/worker/utils.py`) and `determine_available_memory`
(`v1/worker/gpu_worker.py`) of vLLM 0.33.0 and 0.16.0.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.errors import KvsimError
from kvsim.gpu.catalog import GpuSpec
from kvsim.gpu.memory_extras import MemoryExtra, memory_extras
from kvsim.gpu.memory_setup import MemorySetup
from kvsim.gpu.model import ModelSpec
from kvsim.gpu.prediction import MemoryPrediction, predict_memory
from kvsim.gpu.refusals import KVCacheTooSmallError, check_available, format_gib
from kvsim.gpu.releases import batch_limits, release
from kvsim.rules import VllmRules


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
    data_parallel_size: int = 1,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    image_pixels: int | None = None,
) -> AvailableEstimate:
    """What `kvsim.gpu.prediction` says is left; a prediction, not vLLM's profile run.

    max_model_len None or -1: the model's own maximum. Limits that are None: the release's defaults.
    image_pixels: greatest area of a picture, None for the processor's own. data_parallel_size: ranks that
    share out the routed experts, as in `kvsim.gpu.memory_extras`.
    Raises KVCacheTooSmallError if nothing is left.
    """
    of = release(rules.version)
    length = max_model_len if max_model_len and max_model_len > 0 else model.usual_length(of.minor) or 4096
    batched, seqs = batch_limits(
        of,
        gpu.memory_bytes,
        gpu.name,
        model,
        max_model_len=length,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    setup = MemorySetup(
        total_bytes=gpu.memory_bytes,
        gpu_name=gpu.name,
        gpu_memory_utilization=check_utilization(
            gpu_memory_utilization or rules.default_gpu_memory_utilization
        ),
        max_model_len=length,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        image_pixels=image_pixels,
    )
    found = predict_memory(model, of, setup)
    extras = memory_extras(model, setup, {"data_parallel_size": data_parallel_size})
    available = found.available - sum(extra.size for extra in extras)
    if available <= 0:
        raise _does_not_fit(model, gpu, setup, found, extras)
    text = (
        f"Predicted, not measured: {setup.gpu_memory_utilization} x {format_gib(found.total)} GiB - "
        f"{_parts(found, extras)} = {format_gib(available)} GiB for the KV cache, "
        f"± {format_gib(found.error)} GiB; set available_kv_cache_bytes for the exact figure"
    )
    return AvailableEstimate(available, text)


def _parts(found: MemoryPrediction, extras: Sequence[MemoryExtra]) -> str:
    parts = {
        "weights": found.weights,
        f"activation ({found.cause})": found.activation,
        "CUDA graphs": found.cuda_graphs,
        "non-torch": found.non_torch,
    }
    taken = " - ".join(f"{format_gib(size)} GiB {name}" for name, size in parts.items() if size)
    return taken + "".join(f" + {format_gib(-extra.size)} GiB {extra.name} ({extra.why})" for extra in extras)


def _does_not_fit(
    model: ModelSpec,
    gpu: GpuSpec,
    setup: MemorySetup,
    found: MemoryPrediction,
    extras: Sequence[MemoryExtra],
) -> KVCacheTooSmallError:
    spared = sum(-extra.size for extra in extras)
    larger = found.available + spared + found.total - found.requested > 0
    key = "engine.gpu_memory_utilization" if larger else "gpu"
    mend = "raise it" if larger else "take a larger one"
    return KVCacheTooSmallError(
        f"{key}: {model.name} does not fit on {gpu.name}: {_parts(found, extras)} leave nothing of "
        f"{setup.gpu_memory_utilization} x {format_gib(gpu.memory_bytes)} GiB; {mend}, raise "
        "engine.tensor_parallel_size, or give engine.quantization",
        available_bytes=found.available,
    )
