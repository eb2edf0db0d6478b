"""Values that vLLM derives at start-up where the scenario names none, and flags that do not go together.

Source: `EngineArgs.get_batch_defaults` and `_set_default_max_num_seqs_and_batched_tokens_args`
(vllm/engine/arg_utils.py, 0.33.0 and 0.16.0), as for the API server. Not reproduced: the raised batch
of prefix-LM models with pictures.
"""

from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu.catalog import GpuSpec
from kvsim.gpu.layers import check_split, check_stages
from kvsim.gpu.model import ModelSpec
from kvsim.rules import VllmRules
from kvsim.scenario.engine import MAX_INT, EngineSection
from kvsim.workload.checks import FieldError

GIB = 1 << 30
MAX_TABLE_ENTRIES = 1 << 30  # block ids of all sequences: 4 GiB
DEFAULT_MAX_LORAS = 1  # `LoRAConfig.max_loras`

_SMALL_CARDS = (2048, 256)  # max_num_batched_tokens, max_num_seqs
_LARGE_CARDS = (8192, 1024)
_LARGEST_CARDS = (16384, 1024)


def batch_defaults(gpu: GpuSpec, rules: VllmRules) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) of `vllm serve` on this GPU."""
    name = gpu.name.lower()
    if rules.largest_batch_tier and gpu.memory_bytes >= 160 * GIB:
        return _LARGEST_CARDS
    if gpu.memory_bytes >= 70 * GIB and "a100" not in name and "gb10" not in name:
        return _LARGE_CARDS
    return _SMALL_CARDS


def filled(
    engine: EngineSection, rules: VllmRules, gpu: GpuSpec, model: ModelSpec, num_loras: int
) -> EngineSection:
    """The engine section with what the release, the GPU and the workload settle.

    `model` is as served, see `kvsim.gpu.quantization`. Raises FieldError for flags that do not go together.
    """
    _check_ranks(engine, model)
    _check_data_parallel(engine, model)
    batched, seqs = batch_defaults(gpu, rules)
    seqs = engine.max_num_seqs or seqs
    batched = engine.max_num_batched_tokens or _fitting_batch(engine, rules, model, batched, seqs)
    if batched < (engine.max_num_seqs or 0):
        problem = f"{seqs} is above max_num_batched_tokens, {batched}; a step must have a token for each"
        raise FieldError("max_num_seqs", problem)
    update: dict[str, Any] = {
        "async_scheduling": _async_scheduling(engine, rules),
        "scheduler_reserve_full_isl": rules.full_sequence_gate
        if engine.scheduler_reserve_full_isl is None
        else engine.scheduler_reserve_full_isl,
        "max_num_batched_tokens": batched,
        "max_num_seqs": engine.max_num_seqs or min(seqs, batched),
        "gpu_memory_utilization": engine.gpu_memory_utilization or rules.default_gpu_memory_utilization,
        "max_loras": engine.max_loras or (DEFAULT_MAX_LORAS if num_loras else None),
        "api_server_count": engine.api_server_count or _api_servers(engine),
    }
    _check_length(engine, rules, model, update["max_num_seqs"])
    result = engine.model_copy(update=update)
    result._given = engine
    return result


def _check_ranks(engine: EngineSection, model: ModelSpec) -> None:
    try:
        check_split(model, engine)
        check_stages(model.num_hidden_layers, engine.pipeline_parallel_size)
    except KvsimError as error:
        raise as_field_error(error) from None


def _check_data_parallel(engine: EngineSection, model: ModelSpec) -> None:
    """`ParallelConfig.__post_init__`, `EngineArgs.create_engine_config` and
    `ModelConfig._verify_with_expert_parallelism`.
    """
    if engine.enable_expert_parallel and not model.num_experts:
        raise FieldError("enable_expert_parallel", f"{model.name} has no experts; leave it out")
    if not engine.data_parallel_external_lb:
        return
    if engine.data_parallel_size == 1:
        raise FieldError("data_parallel_external_lb", "goes with a data_parallel_size above 1; leave it out")
    if not model.num_experts:
        problem = f"{model.name} has no experts, so vLLM refuses it; give replicas of the cluster instead"
        raise FieldError("data_parallel_external_lb", problem)


def _api_servers(engine: EngineSection) -> int:
    """`ServeSubcommand.cmd` (vllm/entrypoints/cli/serve.py)."""
    return 1 if engine.data_parallel_external_lb else engine.data_parallel_size


def as_field_error(error: KvsimError) -> KvsimError:
    """A complaint "<flag>: <problem>" of the GPU side as one about that key; others as they are."""
    flag, colon, problem = str(error).partition(": ")
    return FieldError(flag, problem) if colon and flag in EngineSection.model_fields else error


def _check_length(engine: EngineSection, rules: VllmRules, model: ModelSpec, seqs: int) -> None:
    """The model allows it, and the block table has a row of it for each sequence."""
    own = model.own_length(rules.minor)
    length: Any = engine.max_model_len or (own.usual if own else None)
    if own is None and not isinstance(length, int):
        raise FieldError("max_model_len", f"missing; give tokens, the maximum of {model.name} is not known")
    if length == "auto":  # the memory will settle it
        return
    entries = seqs * -(-length // engine.block_size)
    if entries > MAX_TABLE_ENTRIES:
        table = f"{seqs:,} sequences of {length:,} tokens take a block table of {entries:,} entries"
        problem = f"{table}, more than {MAX_TABLE_ENTRIES:,}; lower it or max_num_seqs"
        raise FieldError("max_model_len", problem)
    words = own.too_long(length) if own else None
    if own is not None and words is not None:
        raise FieldError("max_model_len", f"{words} Give at most {int(own.most):,}")


def _async_scheduling(engine: EngineSection, rules: VllmRules) -> bool:
    """On, unless the release cannot combine it with the drafts (`VllmConfig.__post_init__`)."""
    method = engine.speculative_config.method if engine.speculative_config else None
    possible = rules.async_with_ngram_drafts or method != "ngram"
    if engine.async_scheduling and not possible:
        problem = f"true does not go with ngram drafts in vLLM {rules.version}; give false"
        raise FieldError("async_scheduling", problem)
    return possible if engine.async_scheduling is None else engine.async_scheduling


def _fitting_batch(engine: EngineSection, rules: VllmRules, model: ModelSpec, batched: int, seqs: int) -> int:
    length = engine.max_model_len
    tokens = length if isinstance(length, int) else model.usual_length(rules.minor) or MAX_INT
    if not engine.enable_chunked_prefill:
        batched = max(batched, tokens)
    return min(batched, seqs * tokens)
