"""The scenario's `engine` and `cluster` sections: vLLM's flags, their defaults and ranges.

Defaults are those of vLLM 0.33's configuration classes. None means no value, or one that vLLM
derives; `kvsim.scenario.defaults` fills in what depends on release and GPU.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator

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
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]

KVCacheDtype = Literal["auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla"]
Dtype = Literal["auto", "half", "float16", "bfloat16", "float", "float32"]
HashAlgo = Literal["fast", "sha256", "sha256_cbor", "xxhash", "xxhash_cbor"]


def _model_length(value: Any) -> int | str | None:
    """Tokens, "auto" for the longest that fits, or None for the model's own maximum."""
    if value is None or value == "auto" or (type(value) is int and 0 < value <= MAX_INT):
        return value
    raise ValueError(f"{shown(value)} is neither a whole number from 1 to {MAX_INT} nor auto")


class Section(BaseModel):
    """A strict, frozen part of a scenario: no unknown keys, no silent conversion."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


class SpeculativeSection(Section):
    """`speculative_config`; `acceptance` is the chance that one draft token is accepted."""

    method: Literal["ngram", "eagle"]
    num_speculative_tokens: Annotated[int, Field(ge=1, le=1024)]
    acceptance: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
    disable_lookahead_block_hashes: bool = False


class EngineSection(Section):
    """vLLM's engine flags. `available_kv_cache_bytes` is what its start-up log prints as available."""

    block_size: Annotated[int, Field(ge=1, le=MAX_BLOCK_SIZE)] = 16
    num_gpu_blocks_override: Blocks | None = None
    kv_cache_memory_bytes: Bytes | None = None
    available_kv_cache_bytes: Bytes | None = None
    gpu_memory_utilization: Fraction | None = None
    max_model_len: Annotated[Any, BeforeValidator(_model_length)] = None
    max_num_seqs: Seqs | None = None
    max_num_batched_tokens: Batch | None = None
    enable_prefix_caching: bool = True
    prefix_caching_hash_algo: HashAlgo = "fast"
    prefix_cache_retention_interval: CountFromZero | None = 0
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: CountFromZero = 0
    disable_chunked_mm_input: bool = False
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    async_scheduling: bool | None = None
    watermark: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0
    scheduler_reserve_full_isl: bool | None = None
    disable_hybrid_kv_cache_manager: bool = False
    encoder_compute_budget: Batch | None = None
    encoder_cache_size: Batch | None = None
    max_loras: Count | None = None
    speculative_config: SpeculativeSection | None = None
    tensor_parallel_size: Ranks = 1
    pipeline_parallel_size: Ranks = 1
    decode_context_parallel_size: Ranks = 1
    dtype: Dtype = "auto"
    kv_cache_dtype: KVCacheDtype = "auto"
    quantization: Annotated[str, AfterValidator(str.lower)] | None = None

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


class ClusterSection(Section):
    """How many replicas serve the traffic, and who spreads it."""

    replicas: Annotated[int, Field(ge=1, le=100_000)] = 1
    router: Literal["round_robin"] = "round_robin"

    @field_validator("replicas")
    @classmethod
    def _replicas(cls, value: int) -> int:
        if value != 1:
            raise ValueError(f"{value} replicas are not simulated yet; give 1")
        return value
