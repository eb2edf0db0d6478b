"""An engine of any configuration, asked anything in any order, obeys the laws and drains."""

import math
from dataclasses import dataclass, field

import engine_laws as laws
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from search import search

from kvsim.cache.groups import KVGroup
from kvsim.engine.config import EngineConfig
from kvsim.engine.core import IDLE, EngineCore
from kvsim.gpu import catalog
from kvsim.gpu.cost import StepCost
from kvsim.tokens import PLACEHOLDER_STREAM, segments
from kvsim.workload.request import ImageFeature, LoRA, Request

COST = StepCost(catalog.model("Qwen3-VL-2B"), catalog.gpu("RTX 4090"))
MAX_STEPS = 3000


@st.composite
def configs(draw, version):
    """A small engine with any mix of features."""
    size = draw(st.sampled_from([1, 2, 4, 8]))
    window = st.integers(1, 5 * size)
    groups = draw(
        st.sampled_from(
            ["full"] * 4 + ["full+window", "window", "window+full+window", "full+local", "coarse"]
        )
    )
    kv_groups = {
        "full": lambda: (KVGroup(),),
        "full+window": lambda: (KVGroup(), KVGroup("sliding_window", window=draw(window))),
        "window": lambda: (KVGroup("sliding_window", window=draw(window)),),
        "window+full+window": lambda: (
            KVGroup("sliding_window", window=draw(window)),
            KVGroup(),
            KVGroup("sliding_window", window=draw(window)),
        ),
        "full+local": lambda: (KVGroup(), KVGroup("chunked_local", window=2 * size)),
        "coarse": lambda: (
            KVGroup("full", 2 * size),
            KVGroup("sliding_window", size, window=draw(window)),
        ),
    }[groups]()
    is_async = draw(st.booleans())
    method = draw(st.sampled_from([None, None, "eagle", None if is_async else "ngram"]))
    if groups == "full+local":  # vLLM has no draft heads there
        method = None
    max_model_len = draw(st.sampled_from([24, 60]))
    chunked = draw(st.sampled_from([True, True, True, False]))
    budget = draw(st.sampled_from([12, 20, 40])) if chunked else max_model_len
    return EngineConfig(
        num_gpu_blocks=2 + draw(st.integers(max_model_len // size, 3 * max_model_len // size)),
        max_model_len=max_model_len,
        block_size=size,
        max_num_seqs=draw(st.sampled_from([1, 3, 8])),
        max_num_batched_tokens=budget,
        enable_prefix_caching=draw(st.sampled_from([True] * 4 + [False])),
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 5])),
        disable_chunked_mm_input=draw(st.sampled_from([False, False, True])),
        scheduling_policy=draw(st.sampled_from(["fcfs", "priority"])),
        async_scheduling=is_async,
        scheduler_reserve_full_isl=draw(st.sampled_from([True, True, False])),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1])),
        encoder_compute_budget=draw(st.sampled_from([None, 10])),
        encoder_cache_size=draw(st.sampled_from([None, 10, 16])),
        spec_method=method,
        num_speculative_tokens=draw(st.integers(1, 3)) if method else 0,
        disable_lookahead_block_hashes=draw(st.booleans()),
        acceptance_rate=draw(st.sampled_from([0.0, 0.5, 1.0])),
        max_loras=draw(st.sampled_from([None, None, 1])),
        prefix_cache_retention_interval=draw(st.sampled_from([0, None, 4 * size])),
        kv_groups=kv_groups,
        vllm_version=version,
    )


@st.composite
def contents(draw):
    """Prompts share leading segments, repeat each other and hold images; outputs repeat too."""
    root = (draw(st.integers(1, 2)), 0, draw(st.integers(1, 20)))
    tail = (draw(st.integers(10, 12)), 0, draw(st.integers(0, 12)))
    features, parts, at = (), [root], root[2]
    for picture in draw(st.sampled_from([(), (), (), (0,), (1,), (0, 1), (0, 0)])):
        length = (4, 7)[picture]
        features += (ImageFeature(f"picture-{picture}", at, length),)
        parts.append((PLACEHOLDER_STREAM, 0, length))
        at += length
    output = (draw(st.integers(20, 22)), 0, draw(st.integers(1, 16)))
    adapter = draw(st.sampled_from([0, 0, 0, 1, 2]))
    return Content(
        segments(*parts, tail),
        segments(output),
        output[2] + draw(st.integers(0, 2)),
        features,
        draw(st.sampled_from([None, None, "tenant"])),
        LoRA(f"adapter-{adapter}", adapter, f"/adapters/{adapter}") if adapter else None,
        draw(st.integers(0, 2)),
    )


@dataclass
class Content:
    prompt: object
    output: object
    max_tokens: int
    features: tuple
    cache_salt: str | None
    lora: LoRA | None
    priority: int

    def request(self, request_id, now):
        return Request(
            request_id,
            now,
            self.prompt,
            self.output,
            self.max_tokens,
            self.features,
            self.cache_salt,
            self.lora,
            self.priority,
        )


@dataclass
class Driver:
    """One engine, what was asked of it, and who has ended.

    A second engine is asked the same, but its iterations are taken in halves, as vLLM's loop does
    and as the recorded traces are replayed.
    """

    config: EngineConfig
    core: EngineCore = field(init=False)
    halves: EngineCore = field(init=False)
    now: float = 0.0
    added: list = field(default_factory=list)
    ended: list = field(default_factory=list)
    calls: list = field(default_factory=list)
    has_images: bool = False

    def __post_init__(self):
        self.core = EngineCore(self.config, COST)
        self.halves = EngineCore(self.config)

    def call(self, name, *args):
        self.calls.append((name, args))
        return getattr(self, name)(*args)

    def add(self, content):
        self.now += 1e-6  # no two arrive at once: vLLM's choice among equals can go round in circles
        name = f"r{len(self.added)}"
        for core in (self.core, self.halves):
            core.add_request(content.request(name, self.now), self.now)
        self.added.append(name)
        self.has_images |= bool(content.features)

    def abort(self, index):
        for core in (self.core, self.halves):
            core.abort_request(self.added[index], self.now)

    def reset(self, running):
        done = self.core.reset_prefix_cache(running)
        assert self.halves.reset_prefix_cache(running) == done

    def wait(self, seconds):
        self.now += seconds

    def collect(self):
        names, rows = self.core.take_finished()
        for row in rows:
            laws.check_end(self.core, row, self.now)
        self.ended += names
        assert self.halves.take_finished()[0] == names

    def step(self):
        """One iteration; whether it went on (an engine that is IDLE waits for a call from outside)."""
        q, s = self.core.requests, self.core.state.scalars
        before = {int(q["uid"][slot]): int(q["num_tokens"][slot]) for slot in range(len(q))}
        b = int(s["first_batch"][0] + s["num_batches"][0]) % self.config.queue_depth
        scheduled, busy_until = int(s["current_step"][0]), float(s["busy_until"][0])
        then = self.core.step(self.now)
        self._step_by_halves()
        laws.check_same_decisions(self.core, self.halves)
        if s["current_step"][0] > scheduled:
            laws.check_batch(self.core, b, before)
            laws.check_batch_times(self.core, b, max(self.now, busy_until))
        assert then >= self.now
        if then == IDLE:
            return False
        self.now = then
        return True

    def _step_by_halves(self):
        core = self.halves
        scheduled, tried = 0, core.has_unscheduled_work()
        if tried:
            scheduled = core.schedule(self.now)
        waits = scheduled or (core.config.rules.empty_batches_wait and tried and core.has_unscheduled_work())
        in_flight = core.state.scalars["num_batches"][0]
        if not (waits and in_flight < core.config.queue_depth) and in_flight:
            core.update_from_output(self.now)


class EngineMachine(RuleBasedStateMachine):
    version = "0.33"

    @initialize(data=st.data())
    def start(self, data):
        self.driver = Driver(data.draw(configs(self.version)))

    def ask(self, name, *args):
        return self.driver.call(name, *args)

    @rule(content=contents())
    def add(self, content):
        self._add(content)

    @rule(content=contents(), n=st.integers(2, 4))
    def add_twins(self, content, n):
        for _ in range(n):
            self._add(content)

    def _add(self, content):
        largest = max((f.length for f in content.features), default=0)
        sizes = int(content.prompt[:, 2].sum()), content.max_tokens
        if self.driver.config.refusal(*sizes, largest) is None:
            self.ask("add", content)

    @precondition(lambda self: self.driver.added)
    @rule(data=st.data())
    def abort(self, data):
        self.ask("abort", data.draw(st.integers(0, len(self.driver.added) - 1)))

    @rule(running=st.booleans())
    def reset(self, running):
        config = self.driver.config
        if running and config.async_scheduling and config.vllm_version == "0.16":
            return  # its own assertion fails on output that was in flight
        self.ask("reset", running)

    @rule(seconds=st.sampled_from([0.0, 0.001, 1.0]))
    def wait(self, seconds):
        self.ask("wait", seconds)

    @rule()
    def collect(self):
        self.ask("collect")

    @rule(n=st.integers(1, 6))
    def step(self, n):
        for _ in range(n):
            self.ask("step")
            laws.check_engine(self.driver.core)

    @invariant()
    def laws_hold(self):
        laws.check_engine(self.driver.core)

    @invariant()
    def requests_are_conserved(self):
        driver, core = self.driver, self.driver.core
        uncollected = []
        slot = int(core.state.scalars["first_finished"][0])
        while slot >= 0:
            uncollected.append(core.kv_cache_manager.name_of(slot))
            slot = int(core.requests["next_waiting"][slot])
        everyone = core.live_requests()[0] + uncollected + driver.ended
        assert sorted(everyone) == sorted(driver.added)

    def teardown(self):
        if not hasattr(self, "driver"):
            return
        self._drain()
        again = Driver(self.driver.config)
        for name, args in self.driver.calls:
            getattr(again, name)(*args)
        assert laws.state_bytes(again.core) == laws.state_bytes(self.driver.core)

    def _images_can_block(self):
        """vLLM's own dead ends: an image that must not be split and is longer than every chunk; a draft
        head (0.16) that needs the next image before the last one, which fills the encoder, is passed."""
        config = self.driver.config
        dead_end = config.disable_chunked_mm_input or (
            self.version == "0.16" and config.spec_method == "eagle"
        )
        return self.driver.has_images and dead_end

    def _drain(self):
        """No idle engine with runnable work: left alone, all requests end and all blocks return."""
        driver, core = self.driver, self.driver.core
        steps = idle = 0
        while idle < 2 + driver.config.queue_depth:  # it stays idle (empty batches in flight may come out)
            idle = 0 if self.ask("step") else idle + 1
            steps += 1
            assert steps < MAX_STEPS, f"still at work: {core.stats()}"
        laws.check_engine(core)
        self.ask("collect")
        stuck = core.live_requests()[0]
        assert not stuck or self._images_can_block()
        if not stuck:
            assert not core.has_requests()
            assert sorted(driver.ended) == sorted(driver.added)
            assert core.kv.pool.scalars["num_free_blocks"][0] == driver.config.num_gpu_blocks - 1
            assert math.isclose(core.stats()["kv_cache_usage_perc"], 0.0)


class EngineMachine016(EngineMachine):
    version = "0.16"


TestEngine033 = EngineMachine.TestCase
TestEngine033.settings = search(300)
TestEngine016 = EngineMachine016.TestCase
TestEngine016.settings = search(300)
