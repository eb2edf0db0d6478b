"""Many engines behind a router, as one thing that is told of arrivals and asked to go on.

The compiled loop (`kvsim.cluster.serve`) does the work; the class owns its arrays, makes room where it asks
for some, and lets policies in Python choose.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.addresses import STRETCH, address_of, function_address, words_of
from kvsim.cache.state import (
    LOG_CLEARED,
    LOG_FINISHED,
    LOG_FIRST_TOKEN,
    LOG_OFF,
    LOG_ON,
    LOG_REMOVED,
    LOG_STORED,
    NONE,
    log_of,
)
from kvsim.cluster.notes import DONE, FULL_NOTES, FULL_ROUTER, MEMBER_DTYPE, NOTE_DTYPE
from kvsim.cluster.policy import Chooser, Policy
from kvsim.cluster.roster import Roster, add_hashes
from kvsim.cluster.router import Router
from kvsim.cluster.serve import (
    ARRIVAL_DTYPE,
    CHOOSE,
    CLUSTER_DTYPE,
    COLLECT,
    END_DTYPE,
    FULL_ENGINE,
    ROUTE_DTYPE,
    ClusterState,
    catch_up,
    serve,
)
from kvsim.engine.config import EngineConfig
from kvsim.engine.core import EngineCore, Window
from kvsim.engine.step import advance
from kvsim.tokens import stream_key

_MOST_STEPS = 1 << 17  # between two looks at the outside: a fraction of a second
_ENDS, _NOTES = 4096, 1024  # rows at the start
_MOST_ENDED = 1 << 14  # requests of all engines that wait to be collected

Refusal = Callable[[EngineConfig, int], str | None]


@dataclass(frozen=True)
class Replica:
    """A target: engines of one kind, more than one if it balances data-parallel ranks itself.

    kind: replicas with the same number are alike (configuration and cost). balancer: chooses the rank.
    latency (s) and seconds_per_token (of a prompt): the way from the router to it.
    """

    name: str
    cores: Sequence[EngineCore]
    kind: int = 0
    balancer: Router | None = None
    latency: float = 0.0
    seconds_per_token: float = 0.0


@dataclass(frozen=True)
class Sent:
    """Requests that have set out, in order; their uids ascend by one.

    reasons: why a request was refused, by its place among these.
    """

    first_uid: int
    request_ids: list[str]
    times: NDArray[np.float64]
    num_prompt_tokens: NDArray[np.int64]
    reasons: dict[int, str]
    follow_ups: list[Any] | None
    sessions: list[str | None] | None


def logged_kinds(policy: Policy | None, are_recorded: bool) -> int:
    """What engines log: for routers with a policy that looks at them, and for the record if there is one."""
    kinds = LOG_ON if are_recorded else LOG_OFF
    if policy is not None:
        kinds |= log_of(LOG_FIRST_TOKEN, LOG_FINISHED)
        kinds |= log_of(LOG_STORED, LOG_REMOVED, LOG_CLEARED) if policy.reads_events else LOG_OFF
    return kinds


def _nobody(number: int) -> None:
    """Collects nothing."""


class Fleet:
    """Replicas behind a router.

    collect: called with the number of an engine whose ended requests and records are to be taken.
    max_concurrency: requests under way at most, the others wait at their client. horizon (s): nothing
    happens from then on. has_follow_ups: requests may follow from the end of others. event_delay (s) and
    event_loss (0..1): of the messages with KV events, one a step. metrics_interval (s): between snapshots;
    None for the policy's own. logs_are_recorded: somebody else reads the engines' logs, at `collect`.
    """

    def __init__(
        self,
        router: Router,
        replicas: Sequence[Replica],
        collect: Callable[[int], None],
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
        self.router, self.replicas, self._collect = router, replicas, collect
        self.cores = [core for replica in replicas for core in replica.cores]
        kinds = sorted({replica.kind for replica in replicas})
        self._of_kind = [next(r.cores[0] for r in replicas if r.kind == kind) for kind in kinds]
        self._longest = max(core.config.max_model_len for core in self._of_kind)
        self._windows = [Window() for _ in kinds]
        self._taken = 0  # position in the window up to which `take_sent` has told
        self._names: dict[int, str] = {}  # uid -> request id, for a policy that wants to know ends
        self._num_named = self._num_heard = 0  # of the window, of `ends`
        self._untold: list[tuple[float, int, int]] = []  # time, uid and target of ends
        policy = router.policy
        balanced = any(replica.balancer for replica in replicas)
        self._state = ClusterState(
            scalars=np.zeros(1, CLUSTER_DTYPE),
            members=np.zeros(len(self.cores), MEMBER_DTYPE),
            routes=np.zeros(len(replicas), ROUTE_DTYPE),
            arrivals=np.zeros(0, ARRIVAL_DTYPE),
            order=np.zeros(0, np.int64),
            refusals=np.zeros((len(kinds), 0), np.uint8),
            ends=np.zeros(_ENDS, END_DTYPE),
            notes=np.zeros(_NOTES if event_delay or any(r.latency for r in replicas) else 0, NOTE_DTYPE),
            due=np.full(len(self.cores), math.inf),
            unread=np.full(len(self.cores), math.inf),
            late=np.full(len(self.cores), math.inf),
        )
        self._fill_members(kinds)
        in_order = has_follow_ups or max_concurrency is not None
        blind = policy.blind or len(replicas) == 1
        s = self._state.scalars
        s["router"], s["choice"] = router.address, router.choice_address
        s["advance"] = function_address(advance, STRETCH)
        s["deals"] = blind and not in_order and not balanced
        s["in_order"] = in_order
        self._roster = Roster(is_routed=not s["deals"][0])
        s["known_until"], s["horizon"], s["follow_up_due"] = -math.inf, horizon, math.inf
        s["next_uid"], s["decided"] = 1, NONE
        s["max_concurrency"] = max_concurrency or 0
        interval = policy.scrapes_every if metrics_interval is None else metrics_interval
        s["scrape_interval"] = math.inf if interval is None or len(replicas) == 1 else interval
        balancers = [replica.balancer for replica in replicas if replica.balancer]
        inside = balancers[0].policy.scrapes_every if balancers else None
        s["rank_interval"] = math.inf if inside is None else inside
        s["scraped_time"] = s["rank_scraped_time"] = -math.inf
        is_told = isinstance(router.chooser, Chooser) and router.chooser.wants_ends
        s["wants_ends"], s["has_follow_ups"] = has_follow_ups or is_told, has_follow_ups
        s["first_spare_note"] = NONE
        s["event_delay"], s["event_loss"] = event_delay, event_loss
        s["loss_stream"] = stream_key(seed, "lost events", router.name)
        s["most_ended"] = max(_MOST_ENDED // len(self.cores), 64)
        s["reads_log"] = not s["deals"][0]
        s["logs_are_recorded"] = logs_are_recorded
        for core in self.cores:
            heard_by = policy if s["reads_log"][0] else None
            core.kv.pool.scalars["logged_kinds"] = logged_kinds(heard_by, logs_are_recorded)
        self.words = words_of(self._state)

    def _fill_members(self, kinds: list[int]) -> None:
        members, routes, m = self._state.members, self._state.routes, 0
        for t, replica in enumerate(self.replicas):
            routes["first_member"][t], routes["num_members"][t] = m, len(replica.cores)
            if replica.balancer:
                routes["router"][t] = replica.balancer.address
                routes["choice"][t] = replica.balancer.choice_address
            for rank, core in enumerate(replica.cores):
                number = kinds.index(replica.kind)
                members["engine"][m], members["place"][m] = address_of(core.words), address_of(core.place)
                members["window"][m], members["window_number"][m] = self._windows[number].address, number
                members["target"][m], members["rank"][m] = t, rank
                members["rank_router"][m] = replica.balancer.address if replica.balancer else 0
                members["latency"][m] = replica.latency
                members["seconds_per_token"][m] = replica.seconds_per_token
                members["index_group"][m] = core.config.index_group
                m += 1
        members["message_lost"] = members["first_note"] = members["last_note"] = NONE

    # ------------------------------------------------------------ arrivals

    @property
    def now(self) -> float:
        """How far the engine that is furthest has come, seconds."""
        return max(float(core.place["now"][0]) for core in self.cores)

    @property
    def has_waiting(self) -> bool:
        """Whether requests of the window have not set out."""
        s = self._state.scalars[0]
        return bool(s["position"] < s["num_ordered"])

    def extend(
        self, block: Any, known_until: float, refusal: Refusal, *, are_follow_ups: bool = False
    ) -> None:
        """Requests that come, a `kvsim.workload.RequestBlock` in order of arrival.

        known_until: seconds; all requests that set out by themselves before it are known now.
        refusal(config, i): why engines of that configuration refuse request i of the block, or None.
        are_follow_ups: they follow from ends, and go after others that set out at the same instant.
        """
        s = self._state.scalars
        waiting = self._state.order[s["position"][0] : s["num_ordered"][0]]
        kept, inboxes = self._still_needed(waiting)
        n, m = len(kept), len(block)
        for window, core in zip(self._windows, self._of_kind, strict=True):
            new = core.prepare(block, self._longest)
            if block.follow_ups is not None:
                new.rows["think_time"] = [
                    math.inf if each is None else each.think_time for each in block.follow_ups
                ]
            window.set(window.arrivals.take(kept).followed_by(new))
        old = self._state
        arrivals = np.zeros(n + m, ARRIVAL_DTYPE)
        arrivals[:n], arrivals["time"][n:] = old.arrivals[kept], block.arrival_times
        arrivals["is_follow_up"][n:] = are_follow_ups
        refusals = np.zeros((len(self._windows), n + m), np.uint8)
        refusals[:, :n] = old.refusals[:, kept]
        self._roster.keep(kept, block)
        for kind in range(len(self._windows)):
            refusals[kind, n:] = self._refused(kind, block, n, refusal)
        arrivals["is_refused"] = refusals.all(axis=0)
        order = np.concatenate([np.searchsorted(kept, waiting), np.arange(n, n + m)])
        order = order[np.lexsort((arrivals["is_follow_up"][order], arrivals["time"][order]))]
        self._relink(kept, inboxes)
        self._state = old._replace(arrivals=arrivals, order=order, refusals=refusals)
        s["position"], s["num_ordered"], s["known_until"] = 0, len(order), known_until
        self._taken = self._num_named = 0
        words_of(self._state, self.words)
        if not s["deals"][0]:
            self._tell_routers()

    def _refused(self, kind: int, block: Any, first: int, refusal: Refusal) -> NDArray[np.bool_]:
        """Which requests of a block engines of a kind refuse; the roster notes down why."""
        refused: NDArray[np.bool_] = self._of_kind[kind].config.may_refuse(
            block.num_prompt_tokens, block.num_output_tokens, block.largest_images()
        )
        for i in np.flatnonzero(refused).tolist():
            reason = refusal(self._of_kind[kind].config, i)
            if reason is None:
                refused[i] = False
            else:
                self._roster.refuse(kind, first + i, reason)
        return refused

    def _still_needed(self, waiting: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
        """Rows of the window that have not set out or not arrived, ascending; the inbox of each engine."""
        inboxes = []
        for core, member in zip(self.cores, self._state.members, strict=True):
            rows, links = [], self._windows[member["window_number"]].arrivals.rows["next_waiting"]
            row = int(core.place["next_row"][0])
            while row != NONE:
                rows.append(row)
                row = int(links[row])
            inboxes.append(np.array(rows, np.int64))
        return np.sort(np.concatenate([waiting, *inboxes])), inboxes

    def _relink(self, kept: NDArray[np.int64], inboxes: list[NDArray[np.int64]]) -> None:
        """The inboxes in the new window."""
        for core, member, inbox in zip(self.cores, self._state.members, inboxes, strict=True):
            if len(inbox):
                rows = np.searchsorted(kept, inbox)
                links = self._windows[member["window_number"]].arrivals.rows["next_waiting"]
                links[rows[:-1]], links[rows[-1]] = rows[1:], NONE
                core.place["next_row"], core.place["last_row"] = rows[0], rows[-1]

    def _tell_routers(self) -> None:
        window = self._windows[0].arrivals
        routed, segments = self._roster.routed()
        add_hashes(routed, window.rows, self._of_kind[0].config)
        for router in (self.router, *(r.balancer for r in self.replicas if r.balancer)):
            router.set_window(routed, window.hashes, segments)

    # ------------------------------------------------------------ going on

    def go_on(self) -> np.int64:
        """Serve until something is wanted: MORE requests, FOLLOW_UPS, PAUSE to look around, or DONE."""
        s, address = self._state.scalars, address_of(self.words)
        s["steps_left"] = _MOST_STEPS
        while True:
            why = serve(address)
            if why == FULL_ENGINE:
                core, member = self.cores[s["member"][0]], self._state.members[s["member"][0]]
                rows = self._windows[member["window_number"]].arrivals.rows
                core.make_room(rows[core.place["next_row"][0] :][:1])
            elif why == COLLECT:
                self.collect(int(s["member"][0]))
            elif why == CHOOSE:
                self._ask()
            elif why in (FULL_ROUTER, FULL_NOTES):
                self._grow(why)
            else:
                return why

    def collect(self, m: int) -> None:
        """Have the records of an engine taken, which all routers have read."""
        self._collect(m)
        self._state.members["num_read"][m] = 0

    def _grow(self, why: np.int64) -> None:
        """Make larger what was too small to go on."""
        if why == FULL_NOTES:
            self._grow_notes()
            return
        address = int(self._state.scalars["full_router"][0])
        for router in (self.router, *(r.balancer for r in self.replicas if r.balancer)):
            if router.address == address:
                router.grow()

    def _grow_notes(self) -> None:
        state, s = self._state, self._state.scalars
        if s["wants_ends"][0] and s["num_ends"][0] == len(state.ends):
            state = state._replace(ends=_doubled(state.ends))
        if s["end_of_notes"][0] == len(state.notes):
            state = state._replace(notes=_doubled(state.notes))
        self._state = state
        words_of(state, self.words)

    def _ask(self) -> None:
        """Let a policy in Python choose for the next request."""
        s, chooser = self._state.scalars, self.router.chooser
        assert isinstance(chooser, Chooser)
        i, time = int(self._state.order[s["position"][0]]), float(s["asked_time"][0])
        self._tell_ends(chooser)
        s["decided"] = chooser.choose(self._roster.request(i), self.router.view(time, i))

    def _hear_of_ends(self) -> None:
        """Keep for a policy that wants to know of ends what is about to be forgotten here."""
        s, chooser = self._state.scalars, self.router.chooser
        if not isinstance(chooser, Chooser) or not chooser.wants_ends:
            return
        rows = self._state.order[self._num_named : s["position"][0]]
        uids = self._state.arrivals["uid"][rows].tolist()
        self._names.update(zip(uids, self._roster.request_ids(rows), strict=True))
        self._num_named = int(s["position"][0])
        ends = self._state.ends[self._num_heard : s["num_ends"][0]]
        self._untold += zip(ends["time"].tolist(), ends["uid"].tolist(), ends["target"].tolist(), strict=True)
        self._num_heard = int(s["num_ends"][0])
        if math.isinf(s["follow_up_due"][0]):
            s["num_ends"] = self._num_heard = 0

    def _tell_ends(self, chooser: Chooser) -> None:
        """Such a policy hears of them in their order, when no earlier one can be unknown: at a choice."""
        self._hear_of_ends()
        for time, uid, target in sorted(self._untold):
            chooser.ended(self._names.pop(uid), target, time)
        self._untold = []

    def close(self) -> None:
        """At the end: those who reached an engine during a step that ends beyond the horizon wait there.

        What was published by then reaches the routers.
        """
        horizon = float(self._state.scalars["horizon"][0])
        for core, member in zip(self.cores, self._state.members, strict=True):
            core.advance(horizon, 0, self._windows[member["window_number"]])
        while (why := catch_up(address_of(self.words), horizon)) != DONE:
            self._grow(why)
        if isinstance(self.router.chooser, Chooser):
            self._tell_ends(self.router.chooser)
        self._collect = _nobody  # who collects may own this: let go, and the arrays are freed at once

    # ------------------------------------------------------------ what has happened

    def take_sent(self) -> Sent:
        """Requests that have set out since the last call; needed before `extend`."""
        state, s = self._state, self._state.scalars[0]
        self._hear_of_ends()
        rows, self._taken = state.order[self._taken : s["position"]], int(s["position"])
        arrivals = state.arrivals[rows]
        refused = np.flatnonzero(arrivals["refused_by"] != NONE).tolist()
        return Sent(
            first_uid=int(arrivals["uid"][0]) if len(rows) else int(s["next_uid"]),
            request_ids=self._roster.request_ids(rows),
            times=arrivals["sent_time"],
            num_prompt_tokens=self._windows[0].arrivals.rows["num_prompt_tokens"][rows],
            reasons={k: self._roster.reason(int(arrivals["refused_by"][k]), int(rows[k])) for k in refused},
            follow_ups=self._roster.column("follow_ups", rows),
            sessions=self._roster.column("sessions", rows),
        )

    def take_ends(self) -> NDArray[np.void]:
        """END_DTYPE rows of the requests that have ended since the last call, if anybody wants to know."""
        self._hear_of_ends()
        s = self._state.scalars
        ends = self._state.ends[: s["num_ends"][0]].copy()
        s["num_ends"], s["follow_up_due"] = 0, math.inf
        self._num_heard = 0
        return ends


def _doubled(array: NDArray[Any]) -> NDArray[Any]:
    grown = np.zeros(2 * max(len(array), 1), array.dtype)
    grown[: len(array)] = array
    return grown
