"""A fleet with an event of the clock for each request and each engine step: the slow way, to check the other.

What routers do is the same code; who acts when is told by SimPy's clock here, by `kvsim.cluster.serve` there.
"""

import heapq
import math
from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from kvsim.cache.state import (
    FINISHED_LENGTH_CAPPED,
    FINISHED_STOPPED,
    LOG_CLEARED,
    LOG_FINISHED,
    LOG_FIRST_TOKEN,
    LOG_ON,
    LOG_REMOVED,
    LOG_STORED,
    log_of,
)
from kvsim.cluster.fleet import Replica, Sent
from kvsim.cluster.index_events import apply_event_at
from kvsim.cluster.notes import latest_tick
from kvsim.cluster.policy import Chooser
from kvsim.cluster.roster import add_hashes, routed_of
from kvsim.cluster.router import Router
from kvsim.cluster.serve import END_DTYPE, FOLLOW_UPS, MORE
from kvsim.engine.core import NO_ARRIVALS, WAITING_FOR_REQUESTS, Arrivals, EngineCore
from kvsim.sim.clock import delay_until, wait_until
from kvsim.tokens import mix64, stream_key

_EVENTS = (LOG_STORED, LOG_REMOVED, LOG_CLEARED)


@dataclass(order=True)
class _Pending:
    """A request that has not set out; arrivals and reasons by kind of engine."""

    time: float
    is_follow_up: bool
    number: int
    block: Any = field(compare=False)
    arrivals: list[Arrivals] = field(compare=False)
    reasons: list[str | None] = field(compare=False)


@dataclass
class _Member:
    """An engine, what is on its way to it, and what it has published: (time, log rows, metrics)."""

    number: int
    core: EngineCore
    target: int
    rank: int
    replica: Replica
    kind: int
    inbox: list[Arrivals] = field(default_factory=list)
    last_queued: float = 0.0
    wake_up: simpy.Event | None = None
    unpublished: list[NDArray[np.void]] = field(default_factory=list)
    published: list[tuple[float, NDArray[np.void]]] = field(default_factory=list)
    late: list[tuple[float, int, int]] = field(default_factory=list)  # time, kind, hash of KV events
    metrics: list[tuple[float, int, int, float]] = field(default_factory=list)
    num_messages: int = 0


class SteppingFleet:
    """As `kvsim.cluster.fleet.Fleet`, with `go_on` a process of the clock."""

    def __init__(
        self,
        env: simpy.Environment,
        router: Router,
        replicas: list[Replica],
        collect: Any,
        *,
        seed: int = 0,
        max_concurrency: int | None = None,
        horizon: float = math.inf,
        has_follow_ups: bool = False,
        event_delay: float = 0.0,
        event_loss: float = 0.0,
        metrics_interval: float | None = None,
        logs_are_recorded: bool = False,
    ) -> None:
        self.env, self.router, self.replicas, self._collect = env, router, replicas, collect
        self._kinds = sorted({replica.kind for replica in replicas})
        self._of_kind = [next(r.cores[0] for r in replicas if r.kind == kind) for kind in self._kinds]
        self._members = [
            _Member(0, core, target, rank, replica, self._kinds.index(replica.kind))
            for target, replica in enumerate(replicas)
            for rank, core in enumerate(replica.cores)
        ]
        self._most = math.inf if max_concurrency is None else max_concurrency
        self._horizon, self._event_delay, self._event_loss = horizon, event_delay, event_loss
        interval = router.policy.scrapes_every if metrics_interval is None else metrics_interval
        self._interval = None if len(replicas) == 1 else interval
        self._loss_stream = stream_key(seed, "lost events", router.name)
        self._logs_are_recorded = logs_are_recorded
        self._numbers, self._pending = count(), list[_Pending]()
        self._in_flight, self._next_uid, self._known_until = 0, 1, -math.inf
        self._sent: list[tuple[_Pending, float, str | None]] = []
        self._first_sent = 1
        self._ends: list[tuple[int, float, int, int, float]] = []
        self._names: dict[int, str] = {}
        self._untold: list[tuple[float, int, int]] = []
        self._has_follow_ups, self._was_refused = has_follow_ups, False
        self._news: simpy.Event | None = None  # for `go_on`
        self._call: simpy.Event | None = None  # for the client
        kinds = [LOG_FIRST_TOKEN, LOG_FINISHED, *(_EVENTS if router.policy.reads_events else ())]
        for number, member in enumerate(self._members):
            member.number = number
            member.core.kv.pool.scalars["logged_kinds"] = log_of(*kinds) | (LOG_ON * logs_are_recorded)
            env.process(self._engine(member))
        env.process(self._client())

    # ------------------------------------------------------------ arrivals

    @property
    def now(self) -> float:
        return float(self.env.now)

    @property
    def has_waiting(self) -> bool:
        return bool(self._pending)

    def extend(self, block: Any, known_until: float, refusal: Any, *, are_follow_ups: bool = False) -> None:
        for i in range(len(block)):
            one = block[i : i + 1]
            reasons = []
            for core in self._of_kind:
                reasons.append(refusal(core.config, i))
            longest = max(core.config.max_model_len for core in self._of_kind)
            arrivals = [core.prepare(one, longest) for core in self._of_kind]
            if one.follow_ups is not None and one.follow_ups[0] is not None:
                for each in arrivals:
                    each.rows["think_time"] = one.follow_ups[0].think_time
            place = float(one.arrival_times[0]), are_follow_ups, next(self._numbers)
            heapq.heappush(self._pending, _Pending(*place, one, arrivals, reasons))
        self._known_until = known_until
        _ring(self._call)

    def _client(self) -> Generator[simpy.Event, None, None]:
        """Requests set out at their times, in order, and as places allow."""
        env = self.env
        while True:
            if not self._pending:
                self._call = env.event()
                yield self._call
                continue
            head = self._pending[0]
            if head.time > env.now:
                self._call = env.event()
                yield self._call | env.timeout(delay_until(env, head.time))
                continue
            if head.is_follow_up and head.time >= self._known_until:
                self._call = env.event()
                yield self._call  # others that arrive at this instant go first
                continue
            if self._in_flight >= self._most and None in head.reasons:
                self._call = env.event()
                yield self._call
                continue
            if env.now >= self._horizon:
                return
            heapq.heappop(self._pending)
            self._hand_over(head)

    def _hand_over(self, pending: _Pending) -> None:
        now = self.env.now
        target = self._choose(pending, now)
        replica, uid = self.replicas[target], self._next_uid
        rank = replica.balancer.choose(0, now) if replica.balancer else 0
        member = next(m for m in self._members if (m.target, m.rank) == (target, rank))
        self._next_uid += 1
        reason = pending.reasons[member.kind]
        self._sent.append((pending, now, reason))
        if reason:
            if self._has_follow_ups and None in pending.reasons:
                self._was_refused = True
                _ring(self._news)
            return
        self._in_flight += 1
        self._names[uid] = pending.block.request_ids[0]
        self.router.send(uid, 0, target, now)
        if replica.balancer:
            replica.balancer.send(uid, 0, rank, now)
        arrivals = pending.arrivals[member.kind]
        rows = arrivals.rows
        tokens = int(rows["num_prompt_tokens"][0])
        on_the_way = replica.latency + replica.seconds_per_token * tokens
        queued = max(now + on_the_way + float(rows["queued_time"][0]), member.last_queued)
        rows["uid"], rows["arrival_time"], rows["queued_time"] = uid, now, queued
        member.last_queued = queued
        member.inbox.append(arrivals)
        self.env.process(self._ring_at(member, queued))

    def _ring_at(self, member: _Member, time: float) -> Generator[simpy.Event, None, None]:
        yield from wait_until(self.env, time)
        _ring(member.wake_up)

    # ------------------------------------------------------------ what routers know

    def _choose(self, pending: _Pending, now: float) -> int:
        self._tell_routers(pending)
        for member in self._members:
            self._deliver(member, now)
        self._scrape(now)
        self._tell_ends()
        if len(self.replicas) == 1:
            return 0
        chooser = self.router.chooser
        if isinstance(chooser, Chooser):
            return chooser.choose(pending.block[0], self.router.view(now, 0))
        return self.router.choose(0, now)

    def _tell_ends(self) -> None:
        chooser, untold, self._untold = self.router.chooser, sorted(self._untold), []
        if isinstance(chooser, Chooser) and chooser.wants_ends:
            for time, uid, target in untold:
                chooser.ended(self._names[uid], target, time)

    def _tell_routers(self, pending: _Pending) -> None:
        routed = routed_of(pending.block)
        add_hashes(routed, pending.arrivals[0].rows, self._of_kind[0].config)
        for router in (self.router, *(r.balancer for r in self.replicas if r.balancer)):
            router.set_window(routed, pending.arrivals[0].hashes, pending.block.segments)

    def _deliver(self, member: _Member, now: float) -> None:
        """What the engine has published by now reaches the routers."""
        while member.published and member.published[0][0] <= now:
            time, rows = member.published.pop(0)
            self._read(member, time, rows)
        while member.late and member.late[0][0] <= now:
            _, kind, block_hash = member.late.pop(0)
            self._apply(member, kind, block_hash)

    def _read(self, member: _Member, time: float, rows: NDArray[np.void]) -> None:
        number = (member.number + int(mix64(np.uint64(member.num_messages)))) % (1 << 64)
        key = mix64(np.uint64(number))
        drawn = float(mix64(np.uint64((self._loss_stream + int(key)) % (1 << 64)))) / float(1 << 64)
        member.num_messages += 1
        if self.router.policy.reads_events and any(row["kind"] in _EVENTS for row in rows):
            counted = self.router.state.scalars
            counted["num_messages"] += 1
            counted["num_lost_messages"] += drawn < self._event_loss
        late, group = self._event_delay + member.replica.latency, member.core.config.index_group
        for row in rows:
            kind, uid = row["kind"], int(row["request"])
            if kind == LOG_FIRST_TOKEN:
                self.router.first_token(uid)
                if member.replica.balancer:
                    member.replica.balancer.first_token(uid)
            elif kind == LOG_FINISHED:
                self._end(member, time, row)
            elif not self.router.policy.reads_events or kind not in _EVENTS or drawn < self._event_loss:
                continue
            elif kind == LOG_CLEARED or row["group_id"] == group:
                if late > 0:
                    member.late.append((time + late, kind, int(row["hash_lo"])))
                else:
                    self._apply(member, kind, int(row["hash_lo"]))

    def _apply(self, member: _Member, kind: int, block_hash: int) -> None:
        outer, inner = self.router, member.replica.balancer
        inside = inner.address if inner else 0
        event = member.target, inside, member.rank, kind, np.uint64(block_hash)
        while full := apply_event_at(outer.address, *event):
            (outer if full == outer.address or inner is None else inner).grow()

    def _end(self, member: _Member, time: float, row: np.void) -> None:
        uid, request = int(row["request"]), member.core.requests[row["first"]]
        self.router.end(uid)
        if member.replica.balancer:
            member.replica.balancer.end(uid)
        self._in_flight -= 1
        in_full = row["last"] in (FINISHED_STOPPED, FINISHED_LENGTH_CAPPED)
        think_time = float(request["think_time"]) if in_full else math.inf
        num_outputs = int(request["num_tokens"] - request["num_prompt_tokens"])
        self._ends.append((uid, time, member.target, num_outputs, think_time))
        self._untold.append((time, uid, member.target))
        if math.isfinite(think_time):
            _ring(self._news)
        _ring(self._call)

    def _scrape(self, now: float) -> None:
        if self._interval is not None:
            at = now if self._interval == 0 else latest_tick(self._interval, now)
            for target in range(len(self.replicas)):
                seen = [_metrics_at(m, at) for m in self._members if m.target == target]
                usage = sum(each[2] / len(seen) for each in seen)
                waiting, running = sum(each[0] for each in seen), sum(each[1] for each in seen)
                if at >= 0:
                    self.router.snapshot(target, at, waiting, running, usage)
        for member in self._members:
            balancer = member.replica.balancer
            if balancer:
                interval = balancer.policy.scrapes_every or 0.1
                at = latest_tick(interval, now)
                balancer.snapshot(member.rank, at, *_metrics_at(member, at))

    # ------------------------------------------------------------ engines

    def _engine(self, member: _Member) -> Generator[simpy.Event, None, None]:
        env, core = self.env, member.core
        while True:
            for _ in range(3):
                yield env.timeout(0)  # ends, and those who arrive at this instant, go first
            if env.now >= self._horizon:
                return
            self._let_in(member, env.now)
            core.expect(NO_ARRIVALS)
            core.place["now"] = env.now
            before = int(core.place["num_collected"][0])
            why = core.advance(math.inf, most_steps=1)
            end = float(core.place["now"][0])
            # Recorders empty the log after each step, but a step's notes wait until its output is there.
            member.unpublished.append(core.kv.pool.log[: core.kv.pool.scalars["log_len"][0]].copy())
            if not self._logs_are_recorded:
                core.kv.pool.scalars["log_len"] = 0
            if core.place["num_collected"][0] != before:
                member.published.append((end, np.concatenate(member.unpublished)))
                member.unpublished = []
                s = core.state.scalars[0]
                usage = core.kv_cache_manager.usage
                member.metrics.append((end, int(s["num_waiting"]), int(s["num_running"]), usage))
            if why == WAITING_FOR_REQUESTS and end <= env.now:
                if not any(each.rows["queued_time"][0] <= env.now for each in member.inbox):
                    member.wake_up = env.event()
                    yield member.wake_up
                continue
            yield from wait_until(env, end)
            if end <= self._horizon:
                self._deliver(member, end)
            self._collect(member.number)

    def _let_in(self, member: _Member, now: float) -> None:
        while member.inbox and member.inbox[0].rows["queued_time"][0] <= now:
            member.core.expect(member.inbox.pop(0))
            member.core.place["now"] = now
            member.core.advance(math.inf, most_steps=0)

    # ------------------------------------------------------------ going on

    def go_on(self) -> Generator[simpy.Event, None, np.int64]:
        """Process: until follow-ups may be due, or the next requests must be known."""
        while True:
            if self._was_refused or any(math.isfinite(each[4]) for each in self._ends):
                return FOLLOW_UPS
            if self.env.now >= self._known_until:
                return MORE
            self._news = self.env.event()
            if math.isinf(self._known_until):
                yield self._news
            else:
                yield self._news | self.env.timeout(delay_until(self.env, self._known_until))

    def close(self) -> None:
        """Those who reached an engine during its last step wait there; routers learn what was published."""
        for member in self._members:
            self._deliver(member, self._horizon)
        self._tell_ends()
        for member in self._members:
            now = float(member.core.place["now"][0])
            while member.inbox and member.inbox[0].rows["queued_time"][0] < self._horizon:
                if member.inbox[0].rows["queued_time"][0] > now:
                    break
                self._let_in(member, float(member.inbox[0].rows["queued_time"][0]))
            member.core.place["now"] = now

    def take_sent(self) -> Sent:
        sent, first = self._sent, self._first_sent
        self._sent, self._first_sent = [], first + len(sent)
        blocks = [pending.block for pending, _, _ in sent]
        return Sent(
            first,
            [block.request_ids[0] for block in blocks],
            np.array([time for _, time, _ in sent]),
            np.array([block.num_prompt_tokens[0] for block in blocks], np.int64),
            {k: reason for k, (_, _, reason) in enumerate(sent) if reason},
            [None if block.follow_ups is None else block.follow_ups[0] for block in blocks],
            [None if block.sessions is None else block.sessions[0] for block in blocks],
        )

    def take_ends(self) -> NDArray[np.void]:
        ends = np.array(self._ends, END_DTYPE)
        self._ends, self._was_refused = [], False
        return ends


def _ring(event: simpy.Event | None) -> None:
    """Wake up whoever waits for an event."""
    if event is not None and not event.triggered:
        event.succeed()


def _metrics_at(member: _Member, time: float) -> tuple[int, int, float]:
    """Waiting, running, usage as last published by `time`."""
    known = [each[1:] for each in member.metrics if each[0] <= time]
    return known[-1] if known else (0, 0, 0.0)
