"""Clusters drawn at random, and a run of one: for laws that hold of all of them."""

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from kvsim.cache.groups import KVGroup
from kvsim.cluster.policies.aibrix import AibrixPrefixCache
from kvsim.cluster.policies.dynamo import DynamoKv
from kvsim.cluster.policies.llm_d import LlmD
from kvsim.cluster.policies.longest_prefix import LongestPrefix
from kvsim.cluster.policies.mooncake import MooncakeConductor
from kvsim.cluster.policies.plain import LeastRequest, PowerOfTwo, RandomChoice, RoundRobin
from kvsim.cluster.policies.prefix_hash import PrefixHash
from kvsim.cluster.policies.production_stack import KvAware, PrefixAware, SortedRoundRobin
from kvsim.cluster.policies.rings import ConsistentHashing, Session
from kvsim.cluster.policies.sglang import CacheAware
from kvsim.cluster.policies.user import UserPolicy
from kvsim.cluster.policies.vllm_dp import VllmDp
from kvsim.cluster.policy import Policy
from kvsim.engine.config import EngineConfig
from kvsim.engine.core import EngineCore
from kvsim.gpu import catalog
from kvsim.gpu.cost import COST_DTYPE, StepCost
from kvsim.results import EventLog, MemorySink, RequestLog, StepLog
from kvsim.sim.deployment import Deployment, Seat
from kvsim.sim.recorder import Recorder, with_notes
from kvsim.sim.run import Simulation
from kvsim.workload import ChatWorkload, ImageWorkload, MixPart, MixWorkload, SharedPrefixWorkload
from kvsim.workload.request import blocks_of

TICK = 1 / 64  # s; sums of it are exact, so that what can fall on one instant does


@dataclass(frozen=True, repr=False)
class Price:
    """Step times, with an API server in front that takes its time for each request."""

    name: str
    parameters: np.ndarray
    seconds: float = 0.0
    per_token: float = 0.0

    def __repr__(self):
        return self.name

    def frontend_seconds(self, prompt_tokens):
        return self.seconds + self.per_token * prompt_tokens


def constant(seconds):
    """Parameters of steps that take so many seconds, whatever is in them."""
    parameters = np.zeros(1, COST_DTYPE)
    parameters["tokens"] = seconds
    return parameters


class Wanderer:
    """A user's policy that looks at all it is told: snapshots with their age, counters, overlaps, ends."""

    def __init__(self):
        self.num_ended, self.latest = 0, 0.0

    def choose(self, request, view):
        targets = view.targets
        load = targets["num_waiting"] * 3 + targets["num_running"] + targets["in_flight"]
        load = load + 10 * targets["kv_cache_usage"] - targets["overlap"] - (view.now - self.latest)
        return (int(load.argmin()) + self.num_ended) % len(targets)

    def ended(self, request_id, target, now):
        assert now >= self.latest
        self.num_ended, self.latest = self.num_ended + 1 + len(request_id), now


def _wanderer(wants_events, metrics_interval):
    return UserPolicy(
        name="w.py:W", make=Wanderer, wants_events=wants_events, metrics_interval=metrics_interval
    )


ALL_SCORERS = {
    "queue": 1,
    "kv-cache-utilization": 1,
    "running-requests-size": 1,
    "active-request": 1,
    "token-load": 1,
    "prefix-cache": 2,
    "no-hit-lru": 1,
}
POLICIES: list[Policy] = [
    RandomChoice(),
    RoundRobin(),
    PowerOfTwo(),
    LeastRequest(),
    SortedRoundRobin(),
    Session(request_stats_window=0.5),
    ConsistentHashing(),
    PrefixHash(prefix_token_count=40),
    CacheAware(balance_abs_threshold=2, eviction_interval_secs=0.5, max_tree_size=500),
    DynamoKv(),
    DynamoKv(router_temperature=0.5, overlap_score_credit_decay=0.5, decode_active_request_weight=1.0),
    DynamoKv(use_kv_events=False, router_ttl_secs=0.5),
    LlmD(),
    LlmD(weights=ALL_SCORERS),
    LlmD(prefix_data="precise", speculative_indexing=True, speculative_ttl=0.1),
    LlmD(prefix_cache_affinity_filter=True, picker="weighted-random-picker"),
    AibrixPrefixCache(prefix_cache_eviction_duration_mins=0.01, prefix_cache_block_number=40),
    PrefixAware(request_stats_window=0.5),
    KvAware(kv_aware_threshold=40),
    MooncakeConductor(),
    VllmDp(),
    VllmDp(client_count=2),
    LongestPrefix(),
    _wanderer(False, 0.0),
    _wanderer(True, 4 * TICK),
    _wanderer(True, None),
]

COST = StepCost(catalog.model("Qwen/Qwen3-VL-2B-Instruct"), catalog.gpu("l4"))
PRICES = [
    Price("1", constant(TICK)),
    Price("3", constant(3 * TICK)),
    Price("1 after 0.5", constant(TICK), 0.5 * TICK),
    Price("2 after 3", constant(2 * TICK), 3 * TICK),
    Price("L4", COST.parameters),
    Price("L4 after more", COST.parameters, 0.01, 3e-4),
]
THINK_TIMES = [0.0, TICK, 4 * TICK, {"distribution": "exponential", "mean": 0.2}, 100.0]


def _uniform(low, high):
    return {"distribution": "uniform", "min": low, "max": high}


def _pace(count, least=1):
    return {
        "rate": st.sampled_from([64.0, 16.0, 5.0, 50.0, float("inf")]),
        count: st.integers(least, 40),
        "max_concurrency": st.sampled_from([None, None, 1, 2, 7]),
        "arrival": st.sampled_from(["poisson", "constant", "constant"]),
    }


TEXTS = {
    "num_prefixes": st.integers(1, 5),
    "prefix_len": st.integers(0, 80),
    "suffix_len": st.sampled_from([1, _uniform(1, 120)]),
    "output_len": st.sampled_from([1, 4, _uniform(1, 30)]),
    "popularity": st.sampled_from(["uniform", "zipf"]),
    "num_tenants": st.sampled_from([0, 0, 2]),
    "num_loras": st.sampled_from([0, 0, 3]),
    "priority": st.sampled_from([0, _uniform(0, 2)]),
}
CHATS = {
    "num_turns": st.sampled_from([1, 2, _uniform(1, 4)]),
    "num_system_prompts": st.integers(1, 3),
    "system_prompt_len": st.integers(0, 40),
    "context_len": st.sampled_from([0, _uniform(0, 30)]),
    "question_len": st.sampled_from([1, 16, _uniform(1, 40)]),
    "output_len": st.sampled_from([1, 8, _uniform(1, 20)]),
    "reasoning_len": st.sampled_from([0, 0, _uniform(0, 20)]),
    "keep_answers": st.just(True),
    "keep_reasoning": st.booleans(),
    "think_time": st.sampled_from(THINK_TIMES),
    "num_tenants": st.sampled_from([0, 0, 2]),
}
PICTURES = {
    "num_images": st.integers(0, 5),
    "image_tokens": st.just(_uniform(5, 60)),
    "instruction_len": st.integers(1, 30),
    "output_len": st.just(_uniform(1, 15)),
}
texts = st.builds(SharedPrefixWorkload, **TEXTS, **_pace("num_requests"))
many_texts = st.builds(SharedPrefixWorkload, **TEXTS, **_pace("num_requests", 30))
chats = st.builds(ChatWorkload, **CHATS, **_pace("num_sessions"))
pictures = st.builds(ImageWorkload, **PICTURES, **_pace("num_requests"))
PART = {"rate": st.just(1.0)}
parts = st.one_of(
    st.builds(SharedPrefixWorkload, **TEXTS, **PART),
    st.builds(ChatWorkload, **CHATS, **PART),
    st.builds(ImageWorkload, **PICTURES, **PART),
)
mixes = st.builds(
    MixWorkload,
    parts=st.dictionaries(
        st.sampled_from(["a", "b", "c"]), st.builds(MixPart, st.sampled_from([1.0, 2.0]), parts), min_size=1
    ),
    **_pace("num_arrivals"),
)
workloads = st.one_of(texts, chats, chats, mixes, pictures)

CONFIG = {
    "num_gpu_blocks": st.integers(12, 90),  # from hardly one request to plenty
    "max_model_len": st.sampled_from([120, 256]),
    "max_num_seqs": st.sampled_from([1, 4, 16]),
    "max_num_batched_tokens": st.sampled_from([64, 200]),
    "async_scheduling": st.booleans(),
    "enable_prefix_caching": st.sampled_from([True, True, False]),
    "scheduling_policy": st.sampled_from(["fcfs", "fcfs", "priority"]),
    "encoder_cache_size": st.just(120),
    "kv_groups": st.sampled_from(
        [(KVGroup("full"),), (KVGroup("full"),), (KVGroup("full"), KVGroup("sliding_window", 16, 40))]
    ),
}


@dataclass(frozen=True)
class Kind:
    """Replicas of one kind; ranks: engines of each, which it balances itself if they are several."""

    config: EngineConfig
    price: Price
    replicas: int
    ranks: int = 1
    clients: int = 1
    latency: float = 0.0
    seconds_per_token: float = 0.0


@dataclass(frozen=True)
class Cluster:
    """Kinds of replicas behind a router, and how late it is told what (`Deployment`)."""

    kinds: tuple[Kind, ...]
    policy: Policy
    event_delay: float = 0.0
    event_loss: float = 0.0
    metrics_interval: float | None = None

    @property
    def num_engines(self):
        return sum(kind.replicas * kind.ranks for kind in self.kinds)

    def deployment(self, step_rows=0, events=False):
        """A new one, its engines empty; step_rows: steps that each notes down before they must be read."""
        seats = []
        for number, kind in enumerate(self.kinds):
            config = replace(with_notes(kind.config, steps=True, events=events), step_capacity=step_rows)
            for k in range(kind.replicas):
                cores = [EngineCore(config, kind.price) for _ in range(kind.ranks)]
                way = kind.clients, kind.latency, kind.seconds_per_token
                seats.append(Seat(f"replica-{number}-{k}", cores, number, *way))
        told = self.event_delay, self.event_loss, self.metrics_interval
        return Deployment(seats, self.policy, *told)


kinds = st.builds(
    Kind,
    st.builds(EngineConfig, **CONFIG),
    st.sampled_from(PRICES),
    replicas=st.integers(1, 3),
    ranks=st.sampled_from([1, 1, 1, 2, 3]),
    clients=st.sampled_from([1, 1, 2]),
    latency=st.sampled_from([0.0, 0.0, TICK, 0.003]),
    seconds_per_token=st.sampled_from([0.0, 0.0, 1e-4]),
)


@st.composite
def clusters(draw, policy):
    """Replicas of one block size: an index of KV events needs one, and so do the window's requests."""
    size = draw(st.sampled_from([16, 16, 4]))
    drawn = draw(st.lists(kinds, min_size=1, max_size=3))
    return Cluster(
        tuple(replace(kind, config=replace(kind.config, block_size=size)) for kind in drawn),
        policy,
        draw(st.sampled_from([0.0, 0.0, TICK, 5 * TICK, 0.03])) if policy.reads_events else 0.0,
        draw(st.sampled_from([0.0, 0.0, 0.3])) if policy.reads_events else 0.0,
        draw(st.sampled_from([None, None, 0.0, TICK, 0.05])) if policy.scrapes_every is not None else None,
    )


class InBlocks:
    """A workload whose requests come in blocks of a given size."""

    def __init__(self, workload, size):
        self.num_requests, self.max_concurrency = workload.num_requests, workload.max_concurrency
        self.has_follow_ups, self.has_sessions = workload.has_follow_ups, workload.has_sessions
        self._workload, self._size = workload, size

    def blocks(self, seed):
        return blocks_of(self._workload.requests(seed), self._size)


class Run:
    """A run of a cluster to its end, and all that it gave; step_rows: 0 records no steps and events."""

    def __init__(self, cluster, workload, horizon=None, step_rows=0, *, step_by_step=False):
        self.deployment = cluster.deployment(step_rows, events=step_rows > 0)
        requests, steps, events = MemorySink(), MemorySink(), MemorySink()
        blocks = [core.config.num_gpu_blocks for core in self.deployment.cores]
        recorder = Recorder(StepLog(steps, blocks), EventLog(events)) if step_rows else Recorder()
        simulation = Simulation(
            self.deployment,
            workload,
            seed=7,
            log=RequestLog(requests, has_sessions=workload.has_sessions),
            horizon=horizon,
            recorder=recorder,
            step_by_step=step_by_step,
        )
        simulation.run()
        recorder.close()
        self.requests = requests.read()
        self.steps, self.events = (steps.read(), events.read()) if step_rows else (None, None)
        self.stats, self.router_stats = simulation.stats(), simulation.router_stats()
        self.end, self.first_refusal = simulation.simulated_seconds, simulation.first_refusal
        self.num_not_sent = simulation.num_not_sent
        fleet = simulation._fleet
        self.router = fleet.router
        self.balancers = [replica.balancer for replica in fleet.replicas if replica.balancer]
        self.deals = not step_by_step and bool(fleet._state.scalars["deals"][0])  # and so keeps no books
