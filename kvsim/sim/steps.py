"""A run looked at step by step: the batch of each engine step, as the attention backend sees it.

The requests of a scenario arrive as in a run and the engine decides the same batches; nothing is
kept of a step once the next one is asked for. One replica, as scenarios allow.

A step is complete when its output has been processed. With asynchronous scheduling the next step
has been scheduled by then, so the block map after a step already holds that one's blocks.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from kvsim.cache.state import (
    FINISHED_LENGTH_CAPPED,
    FINISHED_STOPPED,
    LOG_EVICTED,
    LOG_FINISHED,
    LOG_PREEMPTED,
    LOG_REMOVED,
    LOG_STORED,
    LOG_STORED_PARTIAL,
    STATUS_NAMES,
)
from kvsim.engine.attention_metadata import attention_metadata
from kvsim.engine.core import IDLE, EngineCore
from kvsim.engine.state import CONTINUED, NEW, RESUMED
from kvsim.errors import KvsimError
from kvsim.sim.build import Scenario, check_single, make_cores, plan_engine
from kvsim.sim.recorder import events_of_a_step
from kvsim.sim.run import check_any_ran, refusal
from kvsim.sim.sessions import OVER, Clients
from kvsim.sim.step_view import (
    EndedRequest,
    HashedBlock,
    ScheduledRequest,
    StepGroup,
    StepView,
    WaitingRequest,
    block_map,
    hash_hex,
)
from kvsim.workload.request import FollowUp, Request, Workload

# Called before each step: how many there were, simulated seconds.
OnStep = Callable[[int, float], None]

_ORIGINS: dict[int, str] = {int(NEW): "new", int(RESUMED): "resumed", int(CONTINUED): "continued"}


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
    for name, value in (("first", first), ("count", count)):
        if value is not None and value < 1:
            raise KvsimError(f"{name} must be at least 1, not {value}")
    check_single(scenario)
    plan = plan_engine(scenario)
    config = replace(plan.config, log_capacity=events_of_a_step(plan.config), kv_events=False)
    (core,) = make_cores(config, plan.cost, replicas=1)
    workload = scenario.build_workload()
    arrivals = _Arrivals(core, workload, scenario.seed)
    steps = _Steps(core, arrivals, first, blocks, on_step)
    shown = 0
    for view in steps.run(scenario.horizon):
        yield view
        shown += 1
        if shown == count:
            return
    if shown == 0:
        check_any_ran(steps.counts(), steps.first_refusal, scenario.engine)
        raise KvsimError(f"step {first:,} is beyond the last one: the run has {steps.num_steps:,}")


class _Arrivals:
    """Requests that enter an engine when their time has come; those that never fit are counted."""

    def __init__(self, core: EngineCore, workload: Workload, seed: int) -> None:
        self.images: dict[str, list[str]] = {}  # identifiers, of live requests
        self.names: dict[int, str] = {}  # uid -> id of live requests
        self.first_refusal: str | None = None
        self.num_refused = 0
        self.num_admitted = 0
        self._core, self._requests, most = core, workload.requests(seed), workload.max_concurrency
        self._follow_ups: dict[str, FollowUp] = {}  # of live requests, by their ids
        self._going_on: list[Request] = []  # what follows from requests that have ended, by arrival
        self._clients: Clients | None = None
        if workload.has_follow_ups and most is not None:
            self._clients, most = Clients(self._requests, most, [core.config]), None
            self._requests = iter(self._clients.begin())
        self._first = next(self._requests, None)
        self._most_under_way = math.inf if most is None else most
        self._num_open = self._most_under_way  # requests that may go out during a step
        self._sent: deque[tuple[float, Request]] = deque()  # when the engine sees them
        self._last_queued = 0.0

    @property
    def next_time(self) -> float:
        """When the next request can reach an idle engine, seconds; inf if nobody comes any more."""
        if self._sent:
            return self._sent[0][0]
        return math.inf if self._next is None else self._next.arrival_time

    @property
    def _next(self) -> Request | None:
        """Who sets out next; a session that goes on before one that begins."""
        following = self._going_on[0] if self._going_on else None
        if self._first is None or following is None:
            return following or self._first
        return following if following.arrival_time < self._first.arrival_time else self._first

    def _drop_next(self) -> None:
        if self._next is self._first:
            self._first = next(self._requests, None)
        else:
            self._going_on.pop(0)

    def admit(self, now: float) -> None:
        """Let in everyone who has arrived by `now`."""
        self._send(now)
        while self._sent and self._sent[0][0] <= now:
            self._submit(self._sent.popleft()[1])

    def _send(self, now: float) -> None:
        """What goes out by `now`, as `kvsim.cluster.serve` has it."""
        while (request := self._next) is not None and request.arrival_time <= now:
            reason = refusal(self._core.config, request)
            if reason is not None:
                self.first_refusal = self.first_refusal or reason
                self.num_refused += 1
            elif len(self.names) + len(self._sent) < self._most_under_way:
                time = request.arrival_time if self._num_open > 0 else now
                self._num_open -= 1
                (delay,) = self._core.frontend_seconds(np.array([request.num_prompt_tokens]))
                self._last_queued = max(time + float(delay), self._last_queued)
                self._sent.append((self._last_queued, replace(request, arrival_time=time)))
            else:
                break
            self._drop_next()
        self._num_open = self._most_under_way - len(self.names) - len(self._sent)

    def _submit(self, request: Request) -> None:
        self.num_admitted += 1
        name = request.request_id
        self._core.add_request(request, request.arrival_time)
        slot = self._core.slot_of(name)
        self.names[int(self._core.requests["uid"][slot])] = name
        if request.follow_up is not None:
            self._follow_ups[name] = request.follow_up
        if request.features:
            self.images[name] = [feature.identifier for feature in request.features]

    def forget(self, request_ids: list[str], rows: np.ndarray) -> None:
        for name, row in zip(request_ids, rows, strict=True):
            self.names.pop(int(row["uid"]))
            self.images.pop(name, None)
            follow_up = self._follow_ups.pop(name, None)
            if follow_up is not None and row["status"] in (FINISHED_STOPPED, FINISHED_LENGTH_CAPPED):
                self._going_on += self._following(follow_up, row)
        self._going_on.sort(key=lambda request: request.arrival_time)

    def _following(self, follow_up: FollowUp, row: np.void) -> list[Request]:
        end = float(row["finish_time"])
        if self._clients is not None and follow_up is OVER:
            return self._clients.over(end)
        num_outputs = int(row["num_tokens"] - row["num_prompt_tokens"])
        request = follow_up.next_request(end + follow_up.think_time, num_outputs)
        return [request] if self._clients is None else self._clients.go_on(request)


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
        arrivals: _Arrivals,
        first: int,
        blocks: bool,
        on_step: OnStep | None,
    ) -> None:
        self.num_steps = 0
        self._core, self._arrivals = core, arrivals
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
            view.block_map = block_map(self._core, self.num_steps)
        return view


def _groups(core: EngineCore) -> list[StepGroup]:
    kv = core.config.kv_cache_config()
    return [
        StepGroup(g, group.kind, size, group.window, attention_metadata(core, g))
        for g, (group, size) in enumerate(zip(kv.groups, kv.group_block_sizes, strict=True))
    ]


def _waiting(core: EngineCore) -> list[WaitingRequest]:
    """The waiting queue, its head first."""
    name_of = core.kv_cache_manager.name_of
    return [WaitingRequest(name_of(slot), reason) for slot, reason in core.waiting_slots()]


def _hashed(entry: np.void, block: int) -> HashedBlock:
    return HashedBlock(block, int(entry["group_id"]), hash_hex(entry))
