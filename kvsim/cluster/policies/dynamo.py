"""Dynamo's KV router: prompt tokens to compute plus blocks in use, by its own books and an index of blocks.

Followed: ai-dynamo 1.6.1 `lib/kv-router/src`: `scheduling/selector/default.rs` (cost and pick), `sequences`
(active blocks), `approx.rs` (index without events). Host, disk and shared caches, taints and output blocks
are not modelled, nor the queue of `router_queue_threshold`, which is off by default.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Gt

from kvsim.addresses import array_at, words_at
from kvsim.cluster.active_blocks import blocks_in_use
from kvsim.cluster.booking import overlaps, removed, stored
from kvsim.cluster.policies.picking import drawn_among_least, drawn_by_softmax
from kvsim.cluster.policy import CompiledChooser, Policy
from kvsim.cluster.recency import (
    Recency,
    drop_oldest,
    grown,
    new_recency,
    oldest_time,
    recency_at,
    room_to_remember,
    touch,
)
from kvsim.cluster.state import NO_ROOM, NUM_ARRAYS, router_at
from kvsim.compiled import compiled_entry, compiled_once, compiled_part

PARAMETERS = np.dtype(
    [
        ("credit", "f8"),
        ("decay", "f8"),
        ("scale", "f8"),
        ("request_weight", "f8"),
        ("temperature", "f8"),
        ("ttl", "f8"),
        ("tracks_prefill", "i8"),
    ]
)


@compiled_once
def _choose_by_cost(router, words, i):
    """The target of least cost; targets.overlap is filled in."""
    parameters, in_use = (
        array_at(words, NUM_ARRAYS, PARAMETERS, 1),
        array_at(words, NUM_ARRAYS + 1, np.int64, 1),
    )
    targets, routed = router.targets, router.routed
    block_size = np.float64(router.scalars["block_size"][0])
    tokens, num_blocks = routed["num_prompt_tokens"][i], routed["num_blocks"][i]
    if router.scalars["tracks_blocks"][0] != 0:
        blocks_in_use(router, i, in_use)
        num_active = num_blocks
    else:
        num_active = np.int64(0)
    tracks_prefill = parameters["tracks_prefill"][0] != 0
    decay = parameters["decay"][0] if tracks_prefill else 0.0
    least_prefill = targets["prefill_tokens"][0]
    for t in range(1, targets.shape[0]):
        least_prefill = min(least_prefill, targets["prefill_tokens"][t])
    request_blocks = np.ceil(tokens / block_size)
    for t in range(targets.shape[0]):
        prefill = (targets["prefill_tokens"][t] + tokens) / block_size
        credit = parameters["credit"][0]
        if decay > 0.0:
            excess = (targets["prefill_tokens"][t] - least_prefill) / block_size
            credit *= 1.0 / (1.0 + decay * (excess / request_blocks))
        cached = credit * targets["overlap"][t]
        in_use_then = np.float64(targets["active_blocks"][t] + num_active - in_use[t])
        if tracks_prefill:
            cost = parameters["scale"][0] * max(0.0, prefill - cached) + in_use_then
        else:
            cost = max(0.0, in_use_then - cached)
        cost += parameters["request_weight"][0] * targets["in_flight"][t]
        targets["score"][t] = cost
    if parameters["temperature"][0] > 0.0:
        chosen = drawn_by_softmax(router.scalars, targets["score"], parameters["temperature"][0])
    else:
        chosen = drawn_among_least(router.scalars, targets["score"])
    cached = targets["overlap"][chosen] * router.scalars["block_size"][0]
    router.scalars["booked_prefill_tokens"][0] = max(0, tokens - cached) if tracks_prefill else 0
    return chosen


@compiled_entry
def _choose_from_events(address, i, now):
    router = router_at(address)
    overlaps(router, i)
    return _choose_by_cost(router, words_at(address), i)


@compiled_part
def _forget_expired(router, recency, before):
    for target in range(router.targets.shape[0]):
        while oldest_time(recency, target) <= before:
            removed(router, np.int64(target), drop_oldest(recency, target))


@compiled_part
def _expect(router, recency, i, target, now):
    """The prompt's blocks are thought to be on the target from now on."""
    routed = router.routed
    first, step = routed["first_hash"][i], routed["hash_step"][i]
    for block in range(routed["num_blocks"][i]):
        block_hash = router.hashes[first + block * step, 0]
        touch(recency, block_hash, target, now)
        stored(router, target, block_hash)


@compiled_entry
def _choose_from_history(address, i, now):
    router, words = router_at(address), words_at(address)
    recency = recency_at(words, NUM_ARRAYS + 2)
    ttl = array_at(words, NUM_ARRAYS, PARAMETERS, 1)["ttl"][0]
    _forget_expired(router, recency, now - ttl)
    num_blocks = router.routed["num_blocks"][i]
    if not room_to_remember(router, recency, num_blocks):
        return NO_ROOM
    overlaps(router, i)
    target = _choose_by_cost(router, words, i)
    _expect(router, recency, i, target, now)
    return target


class _HistoryChooser(CompiledChooser):
    def grow(self) -> None:
        self.arrays[2:] = grown(Recency(*self.arrays[2:]))


@dataclass(frozen=True, kw_only=True)
class DynamoKv(Policy):
    """Dynamo's KV-aware router (aggregated serving), by the names of `KvRouterConfig`.

    overlap_score_credit, overlap_score_credit_decay: what a cached block takes off the prompt, and how that
    fades with the target's backlog of prefill over the least one. prefill_load_scale: weight of prefill
    against blocks in use (overlap_score_weight is its old name; 0 takes the credit away, too).
    decode_active_request_weight: blocks that each request in flight counts. router_temperature: 0 takes the
    least cost, uniform among equals. use_kv_events: False guesses the cache from its own choices, for
    router_ttl_secs. router_track_active_blocks: whether its books count blocks in use.
    router_track_prefill_tokens: the same of tokens to compute; without them cached blocks are taken off the
    blocks in use.
    """

    names: ClassVar[tuple[str, ...]] = ("dynamo_kv", "kv")

    overlap_score_credit: Annotated[float, Ge(0)] = 1.0
    overlap_score_credit_decay: Annotated[float, Ge(0)] = 0.0
    prefill_load_scale: Annotated[float, Ge(0)] = 1.0
    decode_active_request_weight: Annotated[float, Ge(0)] = 0.0
    router_temperature: Annotated[float, Ge(0)] = 0.0
    use_kv_events: bool = True
    router_ttl_secs: Annotated[float, Gt(0)] = 120.0
    router_track_active_blocks: bool = True
    router_track_prefill_tokens: bool = True
    overlap_score_weight: Annotated[float, Ge(0)] | None = None

    @property
    def reads_events(self) -> bool:
        return self.use_kv_events

    @property
    def tracks_blocks(self) -> bool:
        return self.router_track_active_blocks

    def start(self, router: Any) -> CompiledChooser:
        scale, credit = self.prefill_load_scale, self.overlap_score_credit
        if self.overlap_score_weight is not None:
            scale, credit = self.overlap_score_weight, credit if self.overlap_score_weight > 0 else 0.0
        decay, temperature = self.overlap_score_credit_decay, self.router_temperature
        weight, tracks = self.decode_active_request_weight, self.router_track_prefill_tokens
        row = (credit, decay, scale, weight, temperature, self.router_ttl_secs, tracks)
        arrays = [np.array([row], PARAMETERS), np.zeros(router.num_targets, np.int64)]
        if self.use_kv_events:
            return CompiledChooser(_choose_from_events, arrays)
        return _HistoryChooser(_choose_from_history, [*arrays, *new_recency(router.num_targets)])
