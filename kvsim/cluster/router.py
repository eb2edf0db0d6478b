"""A router: its policy, what it knows, and its choices; usable alone, without any engine."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.addresses import CHOICE, address_of, call_choice, function_address, words_of
from kvsim.cache.block_hasher import FastBlockHasher
from kvsim.cluster import booking, worker_sets
from kvsim.cluster.active_blocks import larger_held, new_held
from kvsim.cluster.hash_table import larger, new_table
from kvsim.cluster.policy import CompiledChooser, Policy, RoutedRequest, View
from kvsim.cluster.prompt_hashes import own_window
from kvsim.cluster.state import (
    BOOKING_DTYPE,
    FILL_DTYPE,
    IN_ACTIVE,
    IN_BOOKINGS,
    IN_HELD,
    IN_HOLDERS,
    IN_SHARED,
    NO_ROOM,
    ROUTED_DTYPE,
    ROUTER_DTYPE,
    TARGET_DTYPE,
    RouterState,
    drawn_below,
    router_at,
)
from kvsim.cluster.window import window_of
from kvsim.compiled import compiled
from kvsim.errors import KvsimError
from kvsim.rules import releases, rules_for
from kvsim.tokens import Segments, stream_key

_ROWS = 1024  # of a table at the start


@compiled
def _choose_at(choice_address, address, i, now):
    return call_choice(choice_address, address, i, now)


@compiled
def _draw_at(address, n):
    return drawn_below(router_at(address).scalars, n)


@compiled
def _room_at(address, uid, i):
    return booking.room_to_send(router_at(address), uid, i)


@compiled
def _send_at(address, uid, i, target, now):
    booking.send(router_at(address), uid, i, target, now)


@compiled
def _first_token_at(address, uid):
    booking.first_token(router_at(address), uid)


@compiled
def _end_at(address, uid):
    booking.end(router_at(address), uid)


@compiled
def _stored_at(address, target, block_hash):
    return booking.stored(router_at(address), target, block_hash)


@compiled
def _removed_at(address, target, block_hash):
    booking.removed(router_at(address), target, block_hash)


@compiled
def _cleared_at(address, target):
    booking.cleared(router_at(address), target)


@compiled
def _overlaps_at(address, i):
    booking.overlaps(router_at(address), i)


@dataclass(frozen=True)
class TargetFacts:
    """What a router is told once of a target: vLLM's names, tokens and blocks of one data-parallel rank."""

    name: str
    num_gpu_blocks: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192


class Router:
    """A policy at work over some targets.

    `words` say where the arrays of `state` and the policy's own are (`kvsim.addresses`); the array stays, its
    contents change with `grow`. `address` is that of the words, `choice_address` that of the policy's
    compiled choice, 0 for a policy in Python, which `chooser` then is. Requests are rows of a window
    (`set_window`), or `Request` objects given one by one. Draws come from the stream of `seed` and `name`.
    Raises KvsimError for a policy that cannot work over these targets.
    """

    def __init__(
        self, policy: Policy, targets: Sequence[TargetFacts], seed: int = 0, name: str = "router"
    ) -> None:
        _check_block_sizes(policy, targets, name)
        self.policy, self.name, self.facts = policy, name, tuple(targets)
        self.names = tuple(target.name for target in targets)
        self.state = _new_state(policy, targets, stream_key(seed, "router", name))
        self._own_hashing = policy.own_hashing(self.block_size)
        self.chooser = policy.start(self)
        self.words = words_of(self._arrays())
        self.address = address_of(self.words)
        self.choice_address = 0
        if isinstance(self.chooser, CompiledChooser):
            self.choice_address = function_address(self.chooser.function, CHOICE)
        self._hasher = FastBlockHasher(self.block_size, rules_for(releases()[0]))

    @property
    def num_targets(self) -> int:
        return len(self.facts)

    @property
    def block_size(self) -> int:
        """Tokens of a block of the index."""
        return int(self.state.scalars["block_size"][0])

    def _arrays(self) -> list[NDArray[np.generic]]:
        return [*self.state, *(self.chooser.arrays if isinstance(self.chooser, CompiledChooser) else ())]

    def set_window(self, routed: NDArray[np.void], hashes: NDArray[np.uint64], segments: Segments) -> None:
        """The requests to come: ROUTED_DTYPE (n,), the engines' block hashes (t, 2), prompts (s, 3)."""
        if self._own_hashing:
            routed, hashes = own_window(self._own_hashing, routed, segments)
        self._make_room(int(routed["num_blocks"].max(initial=0)))
        self.state = self.state._replace(routed=routed, hashes=hashes, segments=segments)
        words_of(self._arrays(), self.words)

    def _make_room(self, num_blocks: int) -> None:
        """Tables so large that no single request fills more than a quarter of what can be used."""
        if not self.policy.tracks_blocks:
            return
        state = self.state
        while len(state.active) < 8 * num_blocks:
            state = state._replace(active=larger(state.active), shared=larger(state.shared))
        while len(state.held) < num_blocks:
            state = state._replace(held=larger_held(state.held, state.fill))
        self.state = state

    def grow(self) -> None:
        """Double what lacks room, and what is more than half full; changes no decision."""
        state, fill = self.state, self.state.fill
        lacks = fill["lacks"] != 0
        if lacks[IN_BOOKINGS]:
            state = state._replace(bookings=_larger_bookings(state.bookings))
        if lacks[IN_HELD]:
            state = state._replace(held=larger_held(state.held, fill))
        for k, field in ((IN_HOLDERS, "holders"), (IN_ACTIVE, "active"), (IN_SHARED, "shared")):
            table = getattr(state, field)
            if lacks[k] or 4 * fill["used"][k] > len(table):
                state = state._replace(**{field: larger(table)})
        fill["lacks"] = 0
        self.state = state
        if isinstance(self.chooser, CompiledChooser):
            self.chooser.grow()
        words_of(self._arrays(), self.words)

    def _row(self, request: int | RoutedRequest) -> int:
        """Number in the window; a request that is given as such becomes the window."""
        if isinstance(request, int | np.integer):
            return int(request)
        self.set_window(*window_of([request], self._hasher))
        return 0

    def choose(self, request: int | RoutedRequest, now: float) -> int:
        """The target for a request (its number in the window, or itself, which a policy in Python needs).

        It is not booked: that is what `send` does.
        """
        if not isinstance(self.chooser, CompiledChooser):
            if isinstance(request, int | np.integer):
                raise TypeError("a policy in Python needs the request, not its number")
            return self.chooser.choose(request, self.view(now, self._row(request)))
        i = self._row(request)
        while (target := _choose_at(self.choice_address, self.address, i, now)) == NO_ROOM:
            self.grow()
        return int(target)

    def send(self, uid: int, request: int | RoutedRequest, target: int, now: float) -> None:
        """Book a request as number `uid` (ascending from 1) on a target at `now` (s)."""
        i = self._row(request)
        while not _room_at(self.address, uid, i):
            self.grow()
        _send_at(self.address, uid, i, target, now)

    def first_token(self, uid: int) -> None:
        """The first token of a request has come back."""
        _first_token_at(self.address, uid)

    def end(self, uid: int) -> None:
        """A request has ended in whatever way."""
        _end_at(self.address, uid)

    def stored(self, target: int, block_hash: int) -> None:
        """KV event: a target holds a block; `block_hash` is the first word of its hash."""
        while not _stored_at(self.address, target, np.uint64(block_hash)):
            self.grow()

    def removed(self, target: int, block_hash: int) -> None:
        """KV event: a target holds a block no longer."""
        _removed_at(self.address, target, np.uint64(block_hash))

    def cleared(self, target: int) -> None:
        """KV event: a target holds nothing any more."""
        _cleared_at(self.address, target)

    def snapshot(self, target: int, time: float, waiting: int, running: int, usage: float) -> None:
        """Metrics of a target as they were at `time` (s); usage of the KV cache 0..1."""
        row = self.state.targets[target : target + 1]
        row["snapshot_time"], row["num_waiting"], row["num_running"] = time, waiting, running
        row["kv_cache_usage"] = usage

    def overlaps(self, request: int | RoutedRequest) -> NDArray[np.int64]:
        """Leading blocks of a request that each target holds by the KV events, shape (n,)."""
        _overlaps_at(self.address, self._row(request))
        return np.array(self.state.targets["overlap"])

    def view(self, now: float, i: int | None = None) -> View:
        """What is known at `now`; for request i of the window with its `overlap`, if KV events are read."""
        if i is not None and self.policy.reads_events:
            _overlaps_at(self.address, i)
        targets = self.state.targets.copy()  # whatever a policy does to it, the router's own books stay
        targets.flags.writeable = False
        return View(now, self.names, targets, self._draw)

    def _draw(self, n: int) -> int:
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise ValueError(f"draw({n!r}): give a whole number from 1 on")
        return int(_draw_at(self.address, n))


def _check_block_sizes(policy: Policy, targets: Sequence[TargetFacts], name: str) -> None:
    """Hashes of blocks of different sizes never agree, so one index of KV events could not be read."""
    sizes = {target.block_size: target.name for target in targets}
    if policy.reads_events and len(sizes) > 1:
        named = " and ".join(f"{size} of {of}" for size, of in sorted(sizes.items())[:2])
        raise KvsimError(
            f"router {name}: {policy.names[0]} reads KV events and needs one block size, not {named} tokens"
        )


def _new_state(policy: Policy, targets: Sequence[TargetFacts], stream: int) -> RouterState:
    scalars = np.zeros(1, ROUTER_DTYPE)
    scalars["num_targets"] = len(targets)
    scalars["block_size"] = targets[0].block_size
    scalars["stream"] = stream
    scalars["tracks_blocks"], scalars["reads_events"] = policy.tracks_blocks, policy.reads_events
    rows = np.zeros(len(targets), TARGET_DTYPE)
    for field in ("num_gpu_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens"):
        rows[field] = [getattr(target, field) for target in targets]
    rows["last_routed_time"] = -np.inf
    words = worker_sets.num_words(len(targets))
    return RouterState(
        scalars,
        rows,
        np.zeros(_ROWS, BOOKING_DTYPE),
        np.zeros(0, ROUTED_DTYPE),
        np.zeros((0, 2), np.uint64),
        np.zeros((0, 3), np.uint64),
        np.zeros(5, FILL_DTYPE),
        new_table(_ROWS, words),
        new_table(_ROWS, words),
        new_table(_ROWS, 1),
        new_held(_ROWS),
        np.zeros((policy.num_clients, len(targets)), np.int64),
    )


def _larger_bookings(bookings: NDArray[np.void]) -> NDArray[np.void]:
    new = np.zeros(2 * len(bookings), BOOKING_DTYPE)
    taken = bookings[bookings["uid"] != 0]
    new[taken["uid"] & (len(new) - 1)] = taken
    return new
