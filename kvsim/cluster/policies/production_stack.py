"""production-stack's `roundrobin`, `prefixaware` and `kvaware`.

Sources: vllm-project/production-stack `src/vllm_router/routers/routing_logic.py` (RoundRobinRouter,
PrefixAwareRouter, KvawareRouter) and `src/vllm_router/prefix/hashtrie.py`; LMCache
`lmcache/v1/cache_controller`. A node of the trie is known by the hash of all chunks down to it, so the trie
is a table of who was sent which head.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Gt, Unit

from kvsim.addresses import array_at, words_at
from kvsim.cluster.booking import overlaps, stored
from kvsim.cluster.hash_table import has_room
from kvsim.cluster.policies.request_stats import (
    REQUEST_STATS_WINDOW,
    RING_DTYPE,
    RequestStats,
    has_room_for_time,
    larger_times,
    lowest_qps,
    new_times,
    note_time,
)
from kvsim.cluster.policies.rings import SessionChooser
from kvsim.cluster.policy import Chooser, CompiledChooser, Policy, RoutedRequest, View
from kvsim.cluster.prompt_hashes import PromptHashing
from kvsim.cluster.state import IN_HOLDERS, NO_ROOM, NUM_ARRAYS, drawn_below, router_at
from kvsim.compiled import compiled_entry, compiled_inline

PARAMETERS = np.dtype([("min_chunks", "i8"), ("window", "f8")])


@compiled_inline
def _drawn_among_most(scalars, values, most):
    """Number of one of the values that are `most`, each with the same chance."""
    count = np.int64(0)
    for t in range(values.shape[0]):
        count += values[t] == most
    skip = drawn_below(scalars, count)
    for t in range(values.shape[0]):
        if values[t] == most:
            if skip == 0:
                return np.int64(t)
            skip -= 1
    return np.int64(0)


@compiled_entry
def _choose(address, i, now):
    router, words = router_at(address), words_at(address)
    parameters = array_at(words, NUM_ARRAYS, PARAMETERS, 1)
    times, rings = (
        array_at(words, NUM_ARRAYS + 1, np.float64, 2),
        array_at(words, NUM_ARRAYS + 2, RING_DTYPE, 1),
    )
    num_chunks, targets = router.routed["num_blocks"][i], router.targets
    if not has_room(router.holders, router.fill["used"][IN_HOLDERS], num_chunks):
        router.fill["lacks"][IN_HOLDERS] = 1
        return NO_ROOM
    rates_matter = parameters["min_chunks"][0] > 0
    if rates_matter and not has_room_for_time(times, rings, now - parameters["window"][0]):
        return NO_ROOM
    overlaps(router, i)
    most = np.int64(0)
    for t in range(targets.shape[0]):
        most = max(most, targets["overlap"][t])
    if most < parameters["min_chunks"][0]:
        target = lowest_qps(rings)
    else:
        target = _drawn_among_most(router.scalars, targets["overlap"], most)
    if rates_matter:
        note_time(times, rings, target, now)
    for chunk in range(num_chunks):
        stored(router, target, router.hashes[router.routed["first_hash"][i] + chunk, 0])
    return target


@compiled_entry
def _choose_next(address, i, now):
    words = words_at(address)
    counter, order = array_at(words, NUM_ARRAYS, np.int64, 1), array_at(words, NUM_ARRAYS + 1, np.int64, 1)
    target = order[counter[0] % order.shape[0]]
    counter[0] += 1
    return target


@dataclass(frozen=True, kw_only=True)
class SortedRoundRobin(Policy):
    """production-stack's `roundrobin`: each in turn, in the order of their names."""

    names: ClassVar[tuple[str, ...]] = ("production_stack_roundrobin", "roundrobin")
    blind: ClassVar[bool] = True

    def start(self, router: Any) -> CompiledChooser:
        order = sorted(range(router.num_targets), key=router.names.__getitem__)
        return CompiledChooser(_choose_next, [np.zeros(1, np.int64), np.array(order, np.int64)])


class _TrieChooser(CompiledChooser):
    def grow(self) -> None:
        times, rings = self.arrays[1:]
        if (rings["count"] == times.shape[1]).any():
            self.arrays[1:] = larger_times(times, rings)


@dataclass(frozen=True, kw_only=True)
class PrefixAware(Policy):
    """Any of the targets that were sent the longest head of this prompt's text; nothing is ever forgotten.

    prefix_min_match_length: a match of fewer characters goes to the target with the lowest rate of requests.
    chunk_size: characters that are compared at a time, a short last chunk as it is. request_stats_window:
    over which the rate is taken, seconds. chars_per_token: characters of a token.
    """

    names: ClassVar[tuple[str, ...]] = ("production_stack_prefixaware", "prefixaware")

    prefix_min_match_length: Annotated[int, Ge(0)] = 0
    chunk_size: Annotated[int, Ge(1)] = 128
    request_stats_window: Annotated[float, Gt(0), Unit("seconds")] = REQUEST_STATS_WINDOW
    chars_per_token: Annotated[int, Ge(1)] = 4

    def own_hashing(self, block_size: int) -> PromptHashing:
        return PromptHashing(self.chunk_size, self.chars_per_token, partial_block=True, text_only=True)

    def start(self, router: Any) -> CompiledChooser:
        # A short last chunk counts as a whole one.
        min_chunks = -(-self.prefix_min_match_length // self.chunk_size)
        parameters = np.array([(min_chunks, self.request_stats_window)], PARAMETERS)
        return _TrieChooser(_choose, [parameters, *new_times(router.num_targets)])


@dataclass(frozen=True, kw_only=True)
class KvAware(Policy):
    """The first target that has any of this prompt, unless too much is missing; then as with `session`.

    What targets have is what KV events tell of their GPUs, in engine blocks (the original asks LMCache's
    controller, in chunks of 256 tokens). kv_aware_threshold: more missing tokens are too much.
    request_stats_window: over which the rate of requests is taken, seconds.
    """

    names: ClassVar[tuple[str, ...]] = ("production_stack_kvaware", "kvaware")

    kv_aware_threshold: Annotated[int, Ge(0)] = 2000
    request_stats_window: Annotated[float, Gt(0), Unit("seconds")] = REQUEST_STATS_WINDOW

    @property
    def reads_events(self) -> bool:
        return True

    def start(self, router: Any) -> Chooser:
        stats = RequestStats(router.num_targets, self.request_stats_window)
        return KvAwareChooser(self.kv_aware_threshold, stats)


class KvAwareChooser(Chooser):
    def __init__(self, threshold: int, request_stats: RequestStats) -> None:
        self._threshold, self._request_stats = threshold, request_stats
        self._session = SessionChooser(request_stats)

    def choose(self, request: RoutedRequest, view: View) -> int:
        target = self._holder(request, view)
        if target is None:
            target = self._session.where(request, view)
        self._request_stats.note(target, view.now)
        return target

    def _holder(self, request: RoutedRequest, view: View) -> int | None:
        overlaps = view.targets["overlap"].tolist()
        target = next((target for target, blocks in enumerate(overlaps) if blocks), None)
        if target is None:
            return None
        matched = overlaps[target] * int(view.targets["block_size"][target])
        return target if matched >= request.num_prompt_tokens - self._threshold else None
