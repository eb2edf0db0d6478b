"""A run looked at step by step: the batch of each engine step, as the attention backend sees it.

The requests of a scenario arrive as in a run and the engine decides the same batches; nothing is
kept of a step once the next one is asked for. One replica, as scenarios allow.

A step is complete when its output has been processed. With asynchronous scheduling the next step
has been scheduled by then, so the block map after a step already holds that one's blocks.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from kvsim.cache.block_hasher import VllmBlockHasher
from kvsim.cache.state import (
    LOG_EVICTED,
    LOG_FINISHED,
    LOG_PREEMPTED,
    LOG_REMOVED,
    LOG_STORED,
    LOG_STORED_PARTIAL,
    NONE,
    NULL_BLOCK,
    STATUS_NAMES,
)
from kvsim.engine.attention_metadata import AttentionMetadata, attention_metadata
from kvsim.engine.config import EngineConfig
from kvsim.engine.core import IDLE, EngineCore
from kvsim.engine.state import CONTINUED, NEW, RESUMED
from kvsim.errors import KvsimError
from kvsim.sim.build import Scenario, make_cores, plan_engine
from kvsim.sim.run import check_any_ran, refusal
from kvsim.workload.request import Request

# Called before each step: how many there were, simulated seconds.
OnStep = Callable[[int, float], None]

_ORIGINS: dict[int, str] = {int(NEW): "new", int(RESUMED): "resumed", int(CONTINUED): "continued"}
_SPARE_LOG = 1 << 20  # for lookups of a long waiting queue; memory is only taken when it is written


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """A request of a batch. Counts in tokens; images are those that this step encodes."""

    request_id: str
    origin: str  # new, resumed (after a preemption) or continued
    num_computed_tokens: int  # before the step
    num_scheduled_tokens: int  # draft tokens included
    num_spec_tokens: int
    encoder_inputs: list[int]  # numbers of the images among the request's own
    images: list[str]  # their identifiers


@dataclass(frozen=True, slots=True)
class StepGroup:
    """The batch as one KV cache group sees it; `window` in tokens, None for full attention."""

    group: int
    kind: str
    block_size: int
    window: int | None
    attention_metadata: AttentionMetadata


@dataclass(frozen=True, slots=True)
class HashedBlock:
    """A block with the content that it was, or had been, cached under.

    hash: 32 hex digits, the first 16 bytes of vLLM's digest (or kvsim's own chain).
    """

    block_id: int
    group: int
    hash: str


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request in the waiting queue; `reason` is None where the engine names none."""

    request_id: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class EndedRequest:
    request_id: str
    status: str  # vLLM's RequestStatus


@dataclass(frozen=True, slots=True)
class MappedBlock:
    """A block that is in use or cached. `num_tokens`: slots of it that hold KV."""

    block_id: int
    ref_cnt: int
    group: int
    owners: list[str]
    num_tokens: int
    hashes: list[str]  # none: not cached; more than one: a prompt's tail has a hash of its own


@dataclass(frozen=True, slots=True)
class BlockMap:
    """A pool when a step's output has been processed; blocks by id, null block apart.

    free_queue: ids in the order in which they are handed out; a hash is lost then.
    """

    num_gpu_blocks: int
    null_block: int
    blocks: list[MappedBlock]
    free_queue: list[int]


@dataclass(slots=True)
class StepView:
    """One engine step that had tokens. Times in seconds, ids in vLLM's order.

    finished_req_ids, preempted_req_ids: as in vLLM's SchedulerOutput, finished since the step
    before, preempted in this one. num_free_blocks, waiting: once the batch is scheduled.
    blocks_cached, blocks_evicted: by scheduling, then by processing the output. ended: with this
    step's output. block_map: only on request.
    """

    step: int  # from 1
    instance: int
    start_time: float
    end_time: float
    total_num_scheduled_tokens: int
    requests: list[ScheduledRequest]
    groups: list[StepGroup]
    finished_req_ids: list[str]
    preempted_req_ids: list[str]
    waiting: list[WaitingRequest]
    num_free_blocks: int
    blocks_cached: list[HashedBlock]
    blocks_evicted: list[HashedBlock]
    ended: list[EndedRequest] = field(default_factory=list)
    block_map: BlockMap | None = None


def scenario_steps(
    scenario: Scenario,
    first: int = 1,
    *,
    count: int | None = None,
    blocks: bool = False,
    on_step: OnStep | None = None,
) -> Iterator[StepView]:
    """Steps number `first` and on, `count` of them or to the end; nothing is simulated beyond.

    blocks: with the block map. Raises KvsimError as a run does, and if the run has fewer steps
    than `first`.
    """
    plan = plan_engine(scenario)
    (core,) = make_cores(_with_log(plan.config), plan.cost, replicas=1)
    _keep_numbers_only(core)
    steps = _Steps(core, scenario.build_workload().requests(scenario.seed), first, blocks, on_step)
    shown = 0
    for view in steps.run(scenario.horizon):
        yield view
        shown += 1
        if shown == count:
            return
    if shown == 0:
        check_any_ran(steps.counts(), steps.first_refusal, scenario.engine)
        raise KvsimError(f"step {first:,} is beyond the last one: the run has {steps.num_steps:,}")


def _with_log(config: EngineConfig) -> EngineConfig:
    """Room for what one step can do to blocks: store, evict and remove each, for every group."""
    smallest = min(config.kv_cache_config().group_block_sizes)
    blocks = config.max_num_batched_tokens // smallest + 2 * config.max_num_seqs
    return replace(config, log_capacity=4 * len(config.kv_groups) * blocks + _SPARE_LOG)


def _keep_numbers_only(core: EngineCore) -> None:
    """The log is read here; events would want the token ids of every request."""
    core.kv_cache_manager.reader = None
    if isinstance(core.hasher, VllmBlockHasher):
        core.hasher.digests = None


class _Arrivals:
    """Requests that enter an engine when their time has come; those that never fit are counted."""

    def __init__(self, core: EngineCore, requests: Iterable[Request]) -> None:
        self.images: dict[str, list[str]] = {}  # identifiers, of live requests
        self.names: dict[int, str] = {}  # uid -> id of live requests
        self.first_refusal: str | None = None
        self.num_refused = 0
        self.num_admitted = 0
        self._core, self._requests = core, iter(requests)
        self._next = next(self._requests, None)

    @property
    def next_time(self) -> float:
        """Seconds; inf if nobody comes any more."""
        return math.inf if self._next is None else self._next.arrival_time

    def admit(self, now: float) -> None:
        """Let in everyone who has arrived by `now`."""
        while self._next is not None and self._next.arrival_time <= now:
            self._submit(self._next)
            self._next = next(self._requests, None)

    def _submit(self, request: Request) -> None:
        reason = refusal(self._core.config, request, request.num_prompt_tokens)
        if reason is not None:
            self.first_refusal = self.first_refusal or reason
            self.num_refused += 1
            return
        self.num_admitted += 1
        name = request.request_id
        self._core.add_request(request, request.arrival_time)
        slot = self._core.slot_of(name)
        self.names[int(self._core.requests["uid"][slot])] = name
        if request.features:
            self.images[name] = [feature.identifier for feature in request.features]

    def forget(self, request_ids: list[str], rows: np.ndarray) -> None:
        for name, uid in zip(request_ids, rows["uid"].tolist(), strict=True):
            self.names.pop(uid)
            self.images.pop(name, None)


@dataclass(slots=True)
class _BlockLog:
    """What a log says, in people's words."""

    cached: list[HashedBlock] = field(default_factory=list)
    evicted: list[HashedBlock] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    ended: list[EndedRequest] = field(default_factory=list)

    def read(self, log: np.ndarray, names: dict[int, str]) -> None:
        block = 0
        for entry in log:
            kind = entry["kind"]
            if kind == LOG_EVICTED:  # the hashes that it loses follow
                block = int(entry["first"])
            elif kind == LOG_REMOVED:
                self.evicted.append(_hashed(entry, block))
            elif kind in (LOG_STORED, LOG_STORED_PARTIAL):
                self.cached.append(_hashed(entry, int(entry["last"])))
            elif kind == LOG_PREEMPTED:
                self.preempted.append(names[int(entry["request"])])
            elif kind == LOG_FINISHED:
                status = STATUS_NAMES[int(entry["last"])]
                self.ended.append(EndedRequest(names[int(entry["request"])], status))


class _Steps:
    """The engine's loop, with a look at each batch between its scheduling and its output."""

    def __init__(
        self,
        core: EngineCore,
        requests: Iterable[Request],
        first: int,
        blocks: bool,
        on_step: OnStep | None,
    ) -> None:
        self.num_steps = 0
        self._core, self._arrivals = core, _Arrivals(core, requests)
        self._first, self._blocks, self._on_step = first, blocks, on_step
        self._in_flight: list[StepView | None] = []  # None: no tokens, or not asked for
        self._scheduled = _BlockLog()  # since the latest step with tokens
        self._finished: list[str] = []

    @property
    def first_refusal(self) -> str | None:
        return self._arrivals.first_refusal

    def counts(self) -> dict[str, int]:
        """Requests so far."""
        refused = self._arrivals.num_refused
        return {"total": refused + self._arrivals.num_admitted, "refused": refused}

    def run(self, horizon: float | None = None) -> Iterator[StepView]:
        """Steps begun before the horizon."""
        end = math.inf if horizon is None else horizon
        now = 0.0
        while now < end:
            self._arrivals.admit(now)
            until = IDLE
            if self._core.has_requests():
                tokens, goes_on = self._launch(now)
                if goes_on:
                    continue
                until = self._core.collect(now, tokens)
                yield from self._collected()
            now = self._arrivals.next_time if until == IDLE else until
        for view in filter(None, self._in_flight):
            yield self._with_blocks(view)

    def _launch(self, now: float) -> tuple[int, bool]:
        if self._on_step is not None:
            self._on_step(self.num_steps, now)
        schedules = self._core.has_unscheduled_work()  # else it only waits for the batches in flight
        tokens, goes_on = self._core.launch(now)
        self._scheduled.read(self._core.take_log(), self._arrivals.names)
        if schedules:
            self._in_flight.append(self._launched(tokens))
        return tokens, goes_on

    def _launched(self, tokens: int) -> StepView | None:
        """The step with this batch, if it is one to show; its number is taken."""
        if tokens == 0:
            return None
        self.num_steps += 1
        view = self._view() if self.num_steps >= self._first else None
        self._scheduled, self._finished = _BlockLog(), []
        return view

    def _view(self) -> StepView:
        core, seen = self._core, self._scheduled
        state = core.state
        latest = (state.scalars["first_batch"][0] + state.scalars["num_batches"][0] - 1) % len(state.batches)
        batch = state.batches[latest]
        return StepView(
            step=self.num_steps,
            instance=0,
            start_time=float(batch["start_time"]),
            end_time=float(batch["end_time"]),
            total_num_scheduled_tokens=int(batch["num_tokens"]),
            requests=[self._request(entry) for entry in core.latest_batch()],
            groups=_groups(core),
            finished_req_ids=self._finished,
            preempted_req_ids=seen.preempted,
            waiting=_waiting(core),
            num_free_blocks=int(core.kv.pool.scalars["num_free_blocks"][0]),
            blocks_cached=seen.cached,
            blocks_evicted=seen.evicted,
        )

    def _request(self, entry: np.void) -> ScheduledRequest:
        slot = int(entry["request"])
        name = self._core.kv_cache_manager.name_of(slot)
        encoded = self._core.images_encoded_now(slot)
        return ScheduledRequest(
            name,
            _ORIGINS[int(entry["origin"])],
            int(entry["num_computed_tokens"]),
            int(entry["num_scheduled_tokens"]),
            int(entry["num_spec_tokens"]),
            encoded,
            [self._arrivals.images[name][i] for i in encoded],
        )

    def _collected(self) -> Iterator[StepView]:
        """The step whose output was processed; those who ended leave the engine."""
        seen = _BlockLog()
        seen.read(self._core.take_log(), self._arrivals.names)
        self._finished += [request.request_id for request in seen.ended]
        self._arrivals.forget(*self._core.take_finished())
        view = self._in_flight.pop(0) if self._in_flight else None
        if view is None:
            return
        view.blocks_cached += seen.cached
        view.blocks_evicted += seen.evicted
        view.ended = seen.ended
        yield self._with_blocks(view)

    def _with_blocks(self, view: StepView) -> StepView:
        if self._blocks:
            view.block_map = block_map(self._core)
        return view


def _hashed(entry: np.void, block: int) -> HashedBlock:
    return HashedBlock(block, int(entry["group_id"]), _hex(entry))


def _hex(entry: np.void) -> str:
    words = (int(entry["hash_lo"]), int(entry["hash_hi"]))
    return b"".join(word.to_bytes(8, "little") for word in words).hex()


def _groups(core: EngineCore) -> list[StepGroup]:
    kv = core.config.kv_cache_config()
    return [
        StepGroup(g, group.kind, size, group.window, attention_metadata(core, g))
        for g, (group, size) in enumerate(zip(kv.groups, kv.group_block_sizes, strict=True))
    ]


def _waiting(core: EngineCore) -> list[WaitingRequest]:
    """The waiting queue, its head first."""
    out, slot = [], int(core.state.scalars["waiting_head"][0])
    while slot != NONE:
        out.append(WaitingRequest(core.kv_cache_manager.name_of(slot), _waiting_reason(core, slot)))
        slot = int(core.requests["next_waiting"][slot])
    return out


def _waiting_reason(core: EngineCore, slot: int) -> str | None:
    return None


# ---------------------------------------------------------------- the block map


def block_map(core: EngineCore) -> BlockMap:
    """Blocks that have owners or cached content, and the free queue, as they stand now."""
    pool, n = core.kv.pool, core.config.num_gpu_blocks
    rows = pool.blocks[:n]
    owned = _owned(core)
    cached = np.flatnonzero(rows["hash_num_tokens"]).tolist()
    blocks = []
    for block in sorted({*owned, *cached}):
        owners, group, num_tokens = owned.get(block, ([], int(rows["group_id"][block]), 0))
        hashes, hashed_tokens = _hashes(core, block)
        blocks.append(
            MappedBlock(
                block, int(rows["ref_cnt"][block]), group, owners, max(num_tokens, hashed_tokens), hashes
            )
        )
    return BlockMap(n, int(NULL_BLOCK), blocks, core.kv_cache_manager.free_queue())


def _owned(core: EngineCore) -> dict[int, tuple[list[str], int, int]]:
    """Block -> its owners, its group, the tokens that are computed in it."""
    manager = core.kv_cache_manager
    sizes = manager.config.group_block_sizes
    out: dict[int, tuple[list[str], int, int]] = {}
    for slot in manager.live_slots():
        name, computed = manager.name_of(slot), int(core.requests["num_computed_tokens"][slot])
        for g, table in enumerate(manager.get_block_ids(name)):
            for i, block in enumerate(table):
                if block == NULL_BLOCK:
                    continue
                tokens = min(max(computed - i * sizes[g], 0), sizes[g])
                owners, _, most = out.get(block, ([], g, 0))
                owners.append(name)
                out[block] = owners, g, max(most, tokens)
    return out


def _hashes(core: EngineCore, block: int) -> tuple[list[str], int]:
    """Every hash of a block, and the tokens of it that they cover."""
    rows, sizes = core.kv.pool.blocks, core.kv_cache_manager.config.group_block_sizes
    hashes, most = [], 0
    entry = block if rows["hash_num_tokens"][block] else int(NONE)
    while entry != NONE:
        size = sizes[int(rows["group_id"][entry])]
        hashes.append(_hex(rows[entry]))
        most = max(most, int(rows["hash_num_tokens"][entry] - 1) % size + 1)
        entry = int(rows["extra"][entry])
    return hashes, most
