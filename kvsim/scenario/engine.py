"""The scenario's `engine` section: vLLM's flags, their defaults and ranges.

Defaults are those of vLLM 0.33's configuration classes. None means no value, or one that vLLM
derives; `kvsim.scenario.defaults` fills in what depends on release and GPU.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    WithJsonSchema,
    field_validator,
)

from kvsim.gpu.memory import MAX_GPU_BLOCKS
from kvsim.workload.checks import shown

MAX_INT = 2**31 - 1
MAX_BYTES = 2**60
MAX_RANKS = 4096
MAX_BLOCK_SIZE = 65_536
MAX_SEQS = 1_000_000
MAX_BATCH = 1 << 24

Count = Annotated[int, Field(ge=1, le=MAX_INT)]
CountFromZero = Annotated[int, Field(ge=0, le=MAX_INT)]
Blocks = Annotated[int, Field(ge=1, le=MAX_GPU_BLOCKS)]
Seqs = Annotated[int, Field(ge=1, le=MAX_SEQS)]
Batch = Annotated[int, Field(ge=1, le=MAX_BATCH)]
Bytes = Annotated[int, Field(ge=1, le=MAX_BYTES)]
Ranks = Annotated[int, Field(ge=1, le=MAX_RANKS)]
Servers = Annotated[int, Field(ge=1, le=1024)]
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]

# Flags that came later; at these values a scenario is what it was, see `Scenario.scenario_hash`.
LATER_FLAGS = {
    "data_parallel_size": 1,
    "data_parallel_external_lb": False,
    "api_server_count": 1,
    "enable_expert_parallel": False,
}

KVCacheDtype = Literal["auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla"]
Dtype = Literal["auto", "half", "float16", "bfloat16", "float", "float32"]
HashAlgo = Literal["fast", "sha256", "sha256_cbor", "xxhash", "xxhash_cbor"]


def _model_length(value: Any) -> int | str | None:
    """Tokens, "auto" for the longest that fits, or None for the model's own maximum."""
    if value is None or value == "auto" or (type(value) is int and 0 < value <= MAX_INT):
        return value
    raise ValueError(f"{shown(value)} is neither a whole number from 1 to {MAX_INT} nor auto")


_MODEL_LENGTH = {
    "anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_INT}, {"const": "auto"}, {"type": "null"}]
}


class Section(BaseModel):
    """A strict, frozen part of a scenario: no unknown keys, no silent conversion."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


def key(
    default: Any,
    meaning: str,
    unit: str | None = None,
    *,
    examples: Sequence[Any] = (),
    **schema: Any,
) -> Any:
    """A key of a section, as the JSON Schema and docs/scenario.md tell it.

    `default` is ... if the key is needed; `schema` adds JSON Schema keywords for what a validator checks.
    """
    extra = {"x-unit": unit, **schema} if unit else schema
    return Field(
        default, description=meaning, examples=list(examples) or None, json_schema_extra=extra or None
    )


class SpeculativeSection(Section):
    """Drafts. What they would say is not simulated, so `acceptance` has no default: it is the chance that a
    draft token is accepted once those before it were. A server shows it for the first token of its drafts:
    `vllm:spec_decode_num_accepted_tokens_per_pos` at position 0 / `vllm:spec_decode_num_drafts`.
    """

    method: Literal["ngram", "eagle"] = key(..., "how drafts are made")
    num_speculative_tokens: Annotated[int, Field(ge=1, le=1024)] = key(..., "drafts of a step", "tokens")
    acceptance: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = key(
        ..., "chance that a draft is accepted", examples=[0.7]
    )
    disable_lookahead_block_hashes: bool = key(False, "EAGLE hashes without the next token (0.33)")


class EngineSection(Section):
    """vLLM's flags under vLLM's names."""

    block_size: Annotated[int, Field(ge=1, le=MAX_BLOCK_SIZE)] = key(
        16,
        "tokens of a KV block: 1, 2, 4, 8 or a multiple of 16",
        "tokens",
        examples=[16, 32, 64, 128],
        anyOf=[{"multipleOf": 16}, {"enum": [1, 2, 4, 8]}],
    )
    num_gpu_blocks_override: Blocks | None = key(None, "blocks of the pool, whatever the memory", "blocks")
    kv_cache_memory_bytes: Bytes | None = key(
        None, "memory for the KV cache on one GPU; goes before all other ways", "bytes"
    )
    available_kv_cache_bytes: Bytes | None = key(
        None,
        "the same, as vLLM's log prints it; without either an estimate is made",
        "bytes",
        examples=[18_115_198_976],
    )
    gpu_memory_utilization: Fraction | None = key(
        None, "for the estimate; by release (0.92, 0.9) if absent", "share of the card", examples=[0.9]
    )
    max_model_len: Annotated[Any, BeforeValidator(_model_length), WithJsonSchema(_MODEL_LENGTH)] = key(
        None,
        "of one request, prompt and output; auto: the longest that fits; the model's own maximum if absent",
        "tokens",
        examples=[8192, "auto"],
    )
    max_num_seqs: Seqs | None = key(None, "requests in a step; by release and GPU if absent", "requests")
    max_num_batched_tokens: Batch | None = key(
        None, "tokens in a step; by release and GPU if absent", "tokens", examples=[2048, 8192]
    )
    enable_prefix_caching: bool = key(True, "reuse of cached prefixes")
    prefix_caching_hash_algo: HashAlgo = key(
        "fast", "vLLM's block hashes, or a faster chain that tells apart the same"
    )
    prefix_cache_retention_interval: CountFromZero | None = key(
        0, "tokens between window blocks kept; 0: the last only, null: all tails", "tokens"
    )
    enable_chunked_prefill: bool = key(True, "long prompts may be split over steps")
    long_prefill_token_threshold: CountFromZero = key(
        0, "most tokens of one prompt in a step; 0 for no limit", "tokens"
    )
    disable_chunked_mm_input: bool = key(False, "a picture is computed in one step")
    scheduling_policy: Literal["fcfs", "priority"] = key(
        "fcfs", "first come first served, or by the requests' priority"
    )
    async_scheduling: bool | None = key(None, "schedule a step ahead; on where the release can, if absent")
    watermark: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = key(
        0.0, "kept free at admission (0.33)", "share of the blocks"
    )
    scheduler_reserve_full_isl: bool | None = key(
        None, "admit a prompt only if all of it fits; on in 0.33 if absent (the flag came with 0.19)"
    )
    disable_hybrid_kv_cache_manager: bool = key(False, "window layers are stored as full attention")
    encoder_compute_budget: Batch | None = key(
        None, "picture tokens encoded in a step; by model and batch if absent", "tokens"
    )
    encoder_cache_size: Batch | None = key(
        None, "picture tokens kept encoded; by model and batch if absent", "tokens"
    )
    max_loras: Count | None = key(
        None, "adapters in one step; 1 with a workload of adapters if absent", "adapters"
    )
    speculative_config: SpeculativeSection | None = key(
        None,
        "drafts of speculative decoding",
        examples=[{"method": "eagle", "num_speculative_tokens": 3, "acceptance": 0.7}],
    )
    tensor_parallel_size: Ranks = key(1, "GPUs that share each layer; divides the attention heads", "GPUs")
    pipeline_parallel_size: Ranks = key(1, "GPUs that take layers in turn; at most the layers", "GPUs")
    decode_context_parallel_size: Ranks = key(
        1, "ranks that share a request's tokens; divides tensor_parallel_size", "ranks"
    )
    data_parallel_size: Ranks = key(1, "engines of a replica, each with a cache of its own", "ranks")
    data_parallel_external_lb: bool = key(
        False, "each rank is a target of the cluster's router; else the API server balances them"
    )
    api_server_count: Servers | None = key(
        None, "API servers that balance the ranks; data_parallel_size if absent, 1 if balanced outside"
    )
    enable_expert_parallel: bool = key(False, "whole experts on each GPU instead of a slice of every one")
    dtype: Dtype = key("auto", "of weights, and of the KV cache for auto; float32 doubles both")
    kv_cache_dtype: KVCacheDtype = key("auto", "of the KV cache; auto is the model's")
    quantization: Annotated[str, AfterValidator(str.lower)] | None = key(
        None,
        "a method of vLLM: sets the bytes of a weight; the model's own if absent",
        examples=["fp8", "awq", "gptq"],
    )

    _given: "EngineSection | None" = PrivateAttr(default=None)

    @property
    def num_gpus(self) -> int:
        """Of a replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def given(self) -> dict[str, Any]:
        """The keys that were given, before defaults were filled in."""
        source = self._given or self
        return {name: getattr(source, name) for name in source.model_fields_set}

    @field_validator("block_size")
    @classmethod
    def _block_size(cls, value: int) -> int:
        if value % 16 and value not in (1, 2, 4, 8):
            raise ValueError(f"{value} is not a block size; give a multiple of 16 (or 1, 2, 4, 8)")
        return value

    @field_validator("max_num_batched_tokens")
    @classmethod
    def _batch(cls, value: int | None, info: Any) -> int | None:
        """vLLM refuses to start otherwise (`SchedulerConfig.verify_max_model_len`)."""
        if value is None:
            return value
        seqs = info.data.get("max_num_seqs")
        if seqs is not None and value < seqs:
            raise ValueError(f"{value} is below max_num_seqs, {seqs}; a step must have a token for each")
        return value
