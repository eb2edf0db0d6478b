"""Values that vLLM derives at start-up where the scenario names none.

Source: `EngineArgs.get_batch_defaults` and `_set_default_max_num_seqs_and_batched_tokens_args`
(vllm/engine/arg_utils.py, 0.33.0), as for the API server. Not reproduced: 0.16 has no tier of
160 GiB, and the raised batch of prefix-LM models with pictures.
"""

from typing import Any

from kvsim.gpu.catalog import GpuSpec
from kvsim.gpu.model import ModelSpec
from kvsim.rules import VllmRules
from kvsim.scenario.engine import MAX_INT, EngineSection
from kvsim.workload.checks import FieldError

GIB = 1 << 30
DEFAULT_MAX_LORAS = 1  # `LoRAConfig.max_loras`

_SMALL_CARDS = (2048, 256)  # max_num_batched_tokens, max_num_seqs
_LARGE_CARDS = (8192, 1024)
_LARGEST_CARDS = (16384, 1024)


def batch_defaults(gpu: GpuSpec) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) of `vllm serve` on this GPU."""
    name = gpu.name.lower()
    if gpu.memory_bytes >= 160 * GIB:
        return _LARGEST_CARDS
    if gpu.memory_bytes >= 70 * GIB and "a100" not in name and "gb10" not in name:
        return _LARGE_CARDS
    return _SMALL_CARDS


def filled(
    engine: EngineSection, rules: VllmRules, gpu: GpuSpec, model: ModelSpec, num_loras: int
) -> EngineSection:
    """The engine section with what the release, the GPU and the workload settle."""
    batched, seqs = batch_defaults(gpu)
    seqs = engine.max_num_seqs or seqs
    batched = engine.max_num_batched_tokens or _fitting_batch(engine, model, batched, seqs)
    update: dict[str, Any] = {
        "async_scheduling": _async_scheduling(engine, rules),
        "max_num_batched_tokens": batched,
        "max_num_seqs": engine.max_num_seqs or min(seqs, batched),
        "gpu_memory_utilization": engine.gpu_memory_utilization or rules.default_gpu_memory_utilization,
        "max_loras": engine.max_loras or (DEFAULT_MAX_LORAS if num_loras else None),
    }
    return engine.model_copy(update=update)


def _async_scheduling(engine: EngineSection, rules: VllmRules) -> bool:
    """On, unless the release cannot combine it with the drafts (`VllmConfig.__post_init__`)."""
    method = engine.speculative_config.method if engine.speculative_config else None
    possible = rules.async_with_ngram_drafts or method != "ngram"
    if engine.async_scheduling and not possible:
        problem = f"true does not go with ngram drafts in vLLM {rules.version}; give false"
        raise FieldError("async_scheduling", problem)
    return possible if engine.async_scheduling is None else engine.async_scheduling


def _fitting_batch(engine: EngineSection, model: ModelSpec, batched: int, seqs: int) -> int:
    length = engine.max_model_len
    tokens = length if isinstance(length, int) else model.max_position_embeddings or MAX_INT
    if not engine.enable_chunked_prefill:
        batched = max(batched, tokens)
    return min(batched, seqs * tokens)
