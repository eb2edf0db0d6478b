"""From a scenario to what the engine is told: memory to blocks, flags to configuration."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from kvsim.cache.groups import KVGroup
from kvsim.cluster.policy import Policy
from kvsim.engine.config import EngineConfig
from kvsim.engine.core import EngineCore
from kvsim.engine.handle import arrays_of
from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.cost import CUDA_GRAPH_TOKENS, StepCost
from kvsim.gpu.cost.calibration import Calibration
from kvsim.gpu.memory import KVCacheOptions, KVCachePlan, KVCacheTooSmallError, plan_for_model
from kvsim.gpu.model import ModelSpec
from kvsim.gpu.startup import estimate_available
from kvsim.rules import rules_for
from kvsim.workload.request import Workload

# Flags that mean the same in a scenario, in vLLM and in `EngineConfig`.
_SAME_FLAGS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_prefix_caching",
    "prefix_caching_hash_algo",
    "prefix_cache_retention_interval",
    "enable_chunked_prefill",
    "long_prefill_token_threshold",
    "disable_chunked_mm_input",
    "scheduling_policy",
    "async_scheduling",
    "watermark",
    "scheduler_reserve_full_isl",
    "max_loras",
)
_SAME_OPTIONS = (
    "block_size",
    "max_num_batched_tokens",
    "async_scheduling",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "decode_context_parallel_size",
    "kv_cache_dtype",
    "num_gpu_blocks_override",
    "disable_hybrid_kv_cache_manager",
)


GIB = 1 << 30
WOULD_NOT_START = "vLLM would not start"  # begins the remark among the capacity's lines


class Served(Protocol):
    """What plans an engine: a scenario, or what a group of its cluster serves (`kvsim.scenario.served`)."""

    @property
    def vllm_version(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def model_spec(self) -> ModelSpec: ...
    @property
    def gpu(self) -> str: ...
    @property
    def step_calibration(self) -> Calibration | None: ...
    @property
    def engine(self) -> Any: ...
    @property
    def image_pixels(self) -> int | None: ...


class Scenario(Served, Protocol):
    """What a run reads of a scenario (`kvsim.scenario.Scenario`)."""

    @property
    def name(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def cluster(self) -> Any: ...
    @property
    def horizon(self) -> float | None: ...
    @property
    def warm_up(self) -> float: ...
    @property
    def limits(self) -> Mapping[str, float]: ...
    @property
    def record(self) -> Any: ...
    @property
    def scenario_hash(self) -> str: ...
    def cells(self) -> "tuple[Cell, ...]": ...
    def build_workload(self) -> Workload: ...
    def to_yaml(self) -> str: ...


@dataclass(frozen=True)
class EnginePlan:
    """What each replica of a scenario is, and the ``capacity`` part of the summary."""

    config: EngineConfig
    cost: StepCost
    capacity: Mapping[str, Any]


@dataclass(frozen=True)
class Link:
    """Between a router and the replicas of a group. bandwidth: bytes per second; latency: seconds."""

    name: str
    bandwidth: float
    latency: float


@dataclass(frozen=True)
class RouterSpec:
    """Who chooses, and what it is told how late.

    kv_event_delay: seconds. kv_event_loss: share of the messages. metrics_interval: seconds between
    snapshots, 0 for fresh ones at each choice, None for a policy that takes none.
    """

    policy: Policy
    kv_event_delay: float
    kv_event_loss: float
    metrics_interval: float | None


@dataclass(frozen=True)
class Group:
    """Replicas that are alike.

    data_parallel_size: engines of a replica, each with a cache of its own. internal_balancing: a replica
    is one target and its API servers (`api_server_count`) choose the rank; else each rank is a target.
    link: None where the router is next door.
    """

    name: str
    replicas: int
    data_parallel_size: int
    internal_balancing: bool
    api_server_count: int
    link: Link | None
    plan: EnginePlan
    gpus_per_engine: int = 1

    @property
    def replica_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}-{number}" for number in range(self.replicas))

    @property
    def engine_names(self) -> tuple[str, ...]:
        """Replicas in order, ranks of each in order."""
        if self.data_parallel_size == 1:
            return self.replica_names
        ranks = range(self.data_parallel_size)
        return tuple(f"{replica}/dp{rank}" for replica in self.replica_names for rank in ranks)

    @property
    def num_engines(self) -> int:
        return self.replicas * self.data_parallel_size


@dataclass(frozen=True)
class Cell:
    """A router and all that it chooses among; cells share nothing but the traffic.

    share: weight of this cell when requests are dealt out to several.
    """

    name: str
    router: RouterSpec
    share: float
    groups: tuple[Group, ...]


def plan_engine(scenario: Served) -> EnginePlan:
    """Raises KvsimError for a scenario without room for a request."""
    model = scenario.model_spec
    available, estimate = available_bytes(scenario, model)
    plan, too_small = plan_memory(scenario, model, available)
    return EnginePlan(
        engine_config(scenario, model, plan),
        step_cost(scenario, model),
        capacity_facts(plan, estimate, too_small),
    )


def check_single(scenario: Scenario) -> None:
    """Raises KvsimError for more than one engine, where one is looked at."""
    cluster, ranks = scenario.cluster, scenario.engine.data_parallel_size
    if not cluster.is_short or cluster.replicas * ranks > 1:
        what = f"{cluster.replicas * ranks:,}" if cluster.is_short else "groups of replicas"
        how = "--set cluster.replicas=1" if ranks == 1 else "--set engine.data_parallel_size=1"
        if not cluster.is_short:
            how = "--set 'cluster={replicas: 1}', which leaves the model, gpu and engine above the groups"
        raise KvsimError(f"cluster: the scenario has {what}, this looks at one engine; give {how}")


def make_cores(config: EngineConfig, cost: StepCost, replicas: int) -> list[EngineCore]:
    """Raises KvsimError if this machine has too little memory for them."""
    try:
        cores = [EngineCore(config, cost)]
        check_memory(replicas * table_bytes(cores[0]), replicas)
        return cores + [EngineCore(config, cost) for _ in range(replicas - 1)]
    except MemoryError:
        raise KvsimError(
            f"engine: {config.num_gpu_blocks:,} blocks and {config.max_num_seqs:,} sequences of "
            f"{config.max_model_len:,} tokens need more memory than this machine has; lower "
            "engine.num_gpu_blocks_override, engine.max_num_seqs or engine.max_model_len"
        ) from None


def table_bytes(core: EngineCore) -> int:
    """Bytes that an engine fills as soon as it is made: all but the block table, which fills later."""
    *tables, _ = arrays_of(core.state, None)  # the last would be the step times, which engines share
    return sum(table.nbytes for table in tables) - int(core.state.kv.block_tables.nbytes)


def check_memory(num_bytes: int, num_engines: int) -> None:
    """Raises KvsimError if engines' tables alone are more than this machine's memory, which would end the
    process without a word.
    """
    there = machine_memory()
    if num_bytes > there:
        raise KvsimError(
            f"cluster: {num_engines:,} engines need {num_bytes / GIB:,.1f} GiB for their tables, this "
            f"machine has {there / GIB:,.1f} GiB; lower replicas, engine.data_parallel_size or "
            "engine.num_gpu_blocks_override"
        )


def machine_memory() -> float:
    """Bytes of this machine; infinite where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return math.inf


def available_bytes(scenario: Served, model: ModelSpec) -> tuple[int, str | None]:
    """Bytes for the KV cache on one GPU; and where nobody gave them, the sentence that says so."""
    engine = scenario.engine
    given = engine.kv_cache_memory_bytes or engine.available_kv_cache_bytes
    if given is not None:
        return given, None
    estimate = estimate_available(
        model,
        catalog.gpu(scenario.gpu),
        rules_for(scenario.vllm_version),
        gpu_memory_utilization=engine.gpu_memory_utilization,
        tensor_parallel_size=engine.tensor_parallel_size,
        pipeline_parallel_size=engine.pipeline_parallel_size,
        data_parallel_size=engine.data_parallel_size,
        max_model_len=None if engine.max_model_len == "auto" else engine.max_model_len,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        image_pixels=scenario.image_pixels,
    )
    return estimate.available_bytes, estimate.text


def plan_memory(scenario: Served, model: ModelSpec, available: int) -> tuple[KVCachePlan, str | None]:
    """Blocks and the printed sizes; and, where vLLM would not start with them, the sentence that says so.

    vLLM wants room for one request of max_model_len. A simulation can do without: requests that do
    not fit the pool are refused one by one. Raises KvsimError if there is room for none at all.
    """
    engine = scenario.engine
    length = -1 if engine.max_model_len == "auto" else engine.max_model_len
    options = KVCacheOptions(max_model_len=length, **{flag: getattr(engine, flag) for flag in _SAME_OPTIONS})
    try:
        return plan_for_model(model, available, options, scenario.vllm_version), None
    except KVCacheTooSmallError as error:
        if error.estimated_max_model_len is None:
            raise
        small = replace(options, max_model_len_must_fit=False)
        plan = plan_for_model(model, available, small, scenario.vllm_version)
        return plan, (
            f"{WOULD_NOT_START}: {plan.max_model_len:,} tokens (max_model_len) do not fit the KV cache, "
            f"{error.estimated_max_model_len:,} would; requests that do not fit are refused"
        )


def engine_config(scenario: Served, model: ModelSpec, plan: KVCachePlan) -> EngineConfig:
    """Flags and the memory plan as one engine's configuration; raises KvsimError."""
    engine, dcp = scenario.engine, plan.limits.dcp
    budget = max(engine.max_num_batched_tokens, largest_image(model))
    return EngineConfig(
        num_gpu_blocks=plan.num_gpu_blocks,
        max_model_len=plan.max_model_len,
        block_size=plan.block_size * dcp,
        kv_groups=tuple(KVGroup(kind, size * dcp, window) for kind, size, window in plan.kv_groups),
        encoder_compute_budget=engine.encoder_compute_budget or budget,
        encoder_cache_size=engine.encoder_cache_size or budget,
        vllm_version=scenario.vllm_version,
        **{flag: getattr(engine, flag) for flag in _SAME_FLAGS},
        **_speculation(engine.speculative_config),
    )


def step_cost(scenario: Served, model: ModelSpec) -> StepCost:
    """The model's time per step on the scenario's GPUs."""
    engine = scenario.engine
    return StepCost(
        model,
        catalog.gpu(scenario.gpu),
        tensor_parallel_size=engine.tensor_parallel_size,
        pipeline_parallel_size=engine.pipeline_parallel_size,
        data_parallel_size=engine.data_parallel_size,
        kv_cache_dtype=engine.kv_cache_dtype,
        async_scheduling=engine.async_scheduling,
        calibration=scenario.step_calibration,
        cuda_graph_tokens=min(2 * engine.max_num_seqs, CUDA_GRAPH_TOKENS),
    )


def largest_image(model: ModelSpec) -> int:
    """Tokens of the largest picture that the model's processor makes; 0 if that is not known."""
    vision = model.vision
    if vision is None or vision.max_pixels is None:
        return 0
    return vision.max_pixels // vision.pixels_per_token_side**2


def capacity_facts(plan: KVCachePlan, *remarks: str | None) -> Mapping[str, Any]:
    """The ``capacity`` part of the summary: figures, vLLM's start-up lines, and remarks of ours."""
    return {
        "num_gpu_blocks": plan.num_gpu_blocks,
        "block_size": plan.block_size,
        "max_model_len": plan.max_model_len,
        "available_kv_cache_bytes": plan.available_bytes[0],
        "kv_cache_bytes": plan.num_gpu_blocks * plan.bytes_per_block[0],
        "kv_cache_size_tokens": plan.kv_cache_size_tokens,
        "max_concurrency": plan.max_concurrency,
        "lines": [*plan.log_lines(), *filter(None, remarks)],
    }


def _speculation(section: Any) -> dict[str, Any]:
    if section is None:
        return {}
    return {
        "spec_method": section.method,
        "num_speculative_tokens": section.num_speculative_tokens,
        "acceptance_rate": section.acceptance,
        "disable_lookahead_block_hashes": section.disable_lookahead_block_hashes,
    }
