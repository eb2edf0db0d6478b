"""Stretches change nothing: a run in compiled stretches and one with an event per step are the same."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from clusters import InBlocks
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.groups import KVGroup
from kvsim.cache.state import REASONS
from kvsim.engine.config import EngineConfig
from kvsim.engine.core import EngineCore
from kvsim.gpu import catalog
from kvsim.gpu.cost import StepCost
from kvsim.results import EventLog, MemorySink, RequestLog, StepLog
from kvsim.sim.deployment import Deployment
from kvsim.sim.recorder import Recorder, with_notes
from kvsim.sim.run import Simulation
from kvsim.workload import ImageWorkload, SharedPrefixWorkload

LOSSES = ("num_preempted_blocks", "num_lost_tokens", "num_recomputed_tokens")
IN_STEPS = {
    "num_tokens": "scheduled_tokens",
    "num_preempted": "num_preemptions",
    "prefix_cache_queries": "prefix_cache_queries",
    "prefix_cache_hits": "prefix_cache_hits",
    "blocks_cached": "blocks_cached",
    "blocks_evicted": "blocks_evicted",
    **{f"waiting_{reason}": f"waiting_steps_{reason}" for reason in REASONS},
}
COST = StepCost(catalog.model("Qwen/Qwen3-VL-2B-Instruct"), catalog.gpu("l4"))

texts = st.builds(
    SharedPrefixWorkload,
    rate=st.sampled_from([0.5, 5.0, 50.0, float("inf")]),
    num_requests=st.integers(1, 60),
    max_concurrency=st.sampled_from([None, None, 1, 2, 7, 40]),
    arrival=st.sampled_from(["poisson", "constant"]),
    num_prefixes=st.integers(1, 4),
    prefix_len=st.integers(0, 60),
    suffix_len=st.just({"distribution": "uniform", "min": 1, "max": 120}),
    output_len=st.just({"distribution": "uniform", "min": 1, "max": 40}),
    num_tenants=st.sampled_from([0, 0, 2]),
    num_loras=st.sampled_from([0, 0, 3]),
    priority=st.sampled_from([0, {"distribution": "uniform", "min": 0, "max": 2}]),
)
pictures = st.builds(
    ImageWorkload,
    rate=st.sampled_from([2.0, 20.0, float("inf")]),
    num_requests=st.integers(1, 30),
    max_concurrency=st.sampled_from([None, None, 3]),
    num_images=st.integers(0, 5),
    image_tokens=st.just({"distribution": "uniform", "min": 5, "max": 60}),
    images_per_request=st.integers(1, 2),
    text_before=st.integers(0, 4),
    instruction_len=st.integers(1, 30),
    output_len=st.just({"distribution": "uniform", "min": 1, "max": 30}),
)
configs = st.builds(
    EngineConfig,
    num_gpu_blocks=st.integers(24, 120),  # from hardly one request to plenty
    max_model_len=st.just(256),
    block_size=st.just(16),
    max_num_seqs=st.sampled_from([1, 4, 16]),
    max_num_batched_tokens=st.sampled_from([64, 200]),
    async_scheduling=st.booleans(),
    enable_prefix_caching=st.booleans(),
    scheduling_policy=st.sampled_from(["fcfs", "priority"]),
    scheduler_reserve_full_isl=st.booleans(),
    watermark=st.sampled_from([0.0, 0.05]),
    max_loras=st.sampled_from([None, 1]),
    encoder_cache_size=st.just(120),
    kv_groups=st.sampled_from([(KVGroup("full"),), (KVGroup("full"), KVGroup("sliding_window", 16, 40))]),
    vllm_version=st.sampled_from(["0.33", "0.16"]),
)
drafts = st.sampled_from([{}, {"spec_method": "ngram", "num_speculative_tokens": 2, "acceptance_rate": 0.5}])


@dataclass(frozen=True)
class BehindAServer:
    """Step times with an API server in front, which takes its time for each request."""

    parameters: np.ndarray
    seconds: float
    per_token: float

    def frontend_seconds(self, prompt_tokens):
        return self.seconds + self.per_token * prompt_tokens


COSTS = [BehindAServer(COST.parameters, *delay) for delay in ((0.0, 0.0), (0.004, 0.0), (0.01, 3e-4))]


def simulate(config, workload, cost, horizon, num_instances, step_by_step, policy=None):
    """All that a run gives: tables, counters, the last instant."""
    config = with_notes(config, steps=True, events=True)
    sinks = requests, steps, events = MemorySink(), MemorySink(), MemorySink()
    recorder = Recorder(StepLog(steps, config.num_gpu_blocks), EventLog(events))
    cores = [EngineCore(config, cost) for _ in range(num_instances)]
    simulation = Simulation(
        Deployment.of(cores, policy),
        workload,
        seed=7,
        log=RequestLog(requests),
        horizon=horizon,
        recorder=recorder,
        step_by_step=step_by_step,
    )
    simulation.run()
    recorder.close()
    tables = [sink.read() for sink in sinks]
    return tables, simulation.stats(), simulation.simulated_seconds, simulation.first_refusal


def in_order(table):
    """Rows of each instance in its own order: when instances take turns is not part of the result."""
    return table.take(pa.array(np.argsort(table["instance"].to_numpy(), kind="stable")))


def by_step(table, what):
    """Per (instance, step): the number of events of some kinds, or a column of the steps."""
    keys = list(zip(table["instance"].to_pylist(), table["step"].to_pylist(), strict=True))
    if isinstance(what, str):
        return dict(zip(keys, table[what].to_pylist(), strict=True))
    return Counter(key for key, kind in zip(keys, table["kind"].to_pylist(), strict=True) if kind in what)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    configs,
    drafts,
    st.one_of(texts, texts, pictures),
    st.sampled_from(COSTS),
    st.sampled_from([None, None, 0.3, 5.0]),
    st.sampled_from([1, 1, 3]),
    st.sampled_from([1, 3, 7, 64]),
)
def test_stretches_and_single_steps_give_the_same(config, spec, workload, cost, horizon, num_instances, size):
    workload = InBlocks(workload, size)
    config = EngineConfig(**{**config.__dict__, **spec}) if spec else config
    arguments = config, workload, cost, horizon, num_instances
    (requests, steps, events), stats, end, refusal = simulate(*arguments, step_by_step=False)
    (requests_, steps_, events_), stats_, end_, refusal_ = simulate(*arguments, step_by_step=True)
    assert requests.equals(requests_)
    assert (stats, end, refusal) == (stats_, end_, refusal_)
    assert in_order(steps).equals(in_order(steps_))
    assert in_order(events).equals(in_order(events_))
    assert steps.num_rows == stats["num_steps"]
    for column, total in IN_STEPS.items():
        assert sum(steps[column].to_pylist()) == stats[total], column
    for column, kinds in (("blocks_evicted", ["evicted"]), ("num_preempted", ["preempted"])):
        assert by_step(events, kinds) == {k: n for k, n in by_step(steps, column).items() if n}, column
    waiting = [name for name in requests.column_names if name.startswith("waiting_steps_")]
    for name in (*waiting, "num_preemptions", *LOSSES):
        assert sum(requests[name].to_pylist()) == stats[name], name
    assert stats["num_recomputed_tokens"] <= stats["num_lost_tokens"]
