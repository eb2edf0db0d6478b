"""AIBrix `prefix-cache`: the longest known prefix whose target is not much busier than the others.

Followed: vllm-project/aibrix `pkg/plugins/gateway/algorithms/prefix_cache.go`,
`pkg/utils/prefixcacheindexer/hash.go`, `pkg/utils/lrustore/lru_store.go` (Aug 2026). Requests in flight are
the gateway's own count. Its table is one for all targets, of text in blocks of a few characters, least
recently written first out: of a prompt that is the head.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Gt

from kvsim.addresses import array_at, words_at
from kvsim.cluster.booking import overlaps, stored
from kvsim.cluster.policies.picking import drawn_among_least
from kvsim.cluster.policy import CompiledChooser, Policy
from kvsim.cluster.prompt_hashes import PromptHashing
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
from kvsim.cluster.state import IN_HOLDERS, NO_ROOM, NUM_ARRAYS, drawn_below, router_at
from kvsim.cluster.worker_sets import forget
from kvsim.compiled import compiled_entry, compiled_inline, compiled_part

PARAMETERS = np.dtype(
    [
        ("imbalance_abs", "i8"),
        ("imbalance_factor", "f8"),  # nan: not asked
        ("stddev_factor", "f8"),
        ("capacity", "i8"),
        ("ttl", "f8"),
        ("interval", "f8"),
    ]
)
_ALL = np.int64(0)  # owner of the one list


@compiled_inline
def _limit(counts, factor):
    """Mean and `factor` sample standard deviations of requests in flight."""
    n, total, squares = counts.shape[0], 0.0, 0.0
    for t in range(n):
        total += counts[t]
    mean = total / n
    for t in range(n):
        squares += (counts[t] - mean) ** 2
    return mean + factor * np.sqrt(squares / (n - 1)) if n > 1 else mean


@compiled_inline
def _is_imbalanced(counts, parameters):
    least, most, total = counts[0], counts[0], counts[0]
    for t in range(1, counts.shape[0]):
        least, most = min(least, counts[t]), max(most, counts[t])
        total += counts[t]
    factor = parameters["imbalance_factor"][0]
    if math.isnan(factor):
        return most - least > parameters["imbalance_abs"][0]
    far = most - least >= parameters["imbalance_abs"][0]
    return far and most > factor * (total / counts.shape[0] + 1.0)


@compiled_part
def _best_match(router, parameters, i):
    """Of the targets that match, and are not too busy, the one that matches most; -1 for none."""
    targets, scalars = router.targets, router.scalars
    counts, num_blocks = targets["in_flight"], router.routed["num_blocks"][i]
    limit = _limit(counts, parameters["stddev_factor"][0])
    only_least = _is_imbalanced(counts, parameters)
    least = counts[0]
    for t in range(1, counts.shape[0]):
        least = min(least, counts[t])
    best, best_percent, equals = np.int64(-1), np.int64(0), np.int64(0)
    for t in range(counts.shape[0]):
        overlap = targets["overlap"][t]
        if overlap == 0 or counts[t] > limit or (only_least and counts[t] > least):
            continue
        percent = 100 * overlap // num_blocks
        targets["score"][t] = percent
        fewer = best < 0 or percent > best_percent or counts[t] < counts[best]
        if best < 0 or percent > best_percent or (percent == best_percent and fewer):
            best, best_percent, equals = np.int64(t), percent, np.int64(1)
        elif percent == best_percent and counts[t] == counts[best]:
            equals += 1
            if drawn_below(scalars, equals) == 0:
                best = np.int64(t)
    return best


@compiled_part
def _forget_oldest(router, recency):
    forget(router.holders, router.fill, IN_HOLDERS, drop_oldest(recency, _ALL))


@compiled_part
def _remember(router, recency, parameters, i, target, now):
    routed, capacity = router.routed, parameters["capacity"][0]
    for block in range(routed["num_blocks"][i]):
        block_hash = router.hashes[routed["first_hash"][i] + block, 0]
        if touch(recency, block_hash, _ALL, now) and recency.lists["size"][_ALL] > capacity:
            _forget_oldest(router, recency)
        stored(router, target, block_hash)


@compiled_entry
def _choose(address, i, now):
    router, words = router_at(address), words_at(address)
    parameters, recency = array_at(words, NUM_ARRAYS, PARAMETERS, 1), recency_at(words, NUM_ARRAYS + 1)
    interval = parameters["interval"][0]
    swept = np.floor(now / interval) * interval  # a background task looks for old entries
    while swept - oldest_time(recency, _ALL) > parameters["ttl"][0]:
        _forget_oldest(router, recency)
    num_blocks = router.routed["num_blocks"][i]
    if not room_to_remember(router, recency, num_blocks):
        return NO_ROOM
    overlaps(router, i)
    router.targets["score"][:] = 0.0
    target = _best_match(router, parameters, i)
    if target < 0:
        target = drawn_among_least(router.scalars, router.targets["in_flight"])
    _remember(router, recency, parameters, i, target, now)
    return target


class _TableChooser(CompiledChooser):
    def grow(self) -> None:
        self.arrays[1:] = grown(Recency(*self.arrays[1:]))


@dataclass(frozen=True, kw_only=True)
class AibrixPrefixCache(Policy):
    """The target that matches the largest whole percentage of the prompt's blocks, then the less busy one.

    Only those count that have at most mean + `stddev_factor` sample standard deviations requests in flight;
    if nobody is left, the least busy one gets it, a random one of several. If the busiest has more than
    `imbalance_abs` requests more than the least busy one, only the least busy ones may match (with
    `imbalance_factor`, the rule of later sources: at least so many more, and more than the factor times mean
    plus one). The table has `prefix_cache_block_number` blocks of `prefix_cache_block_size` characters,
    `chars_per_token` for each token, forgotten `prefix_cache_eviction_duration_mins` after they were last
    sent (looked for every `prefix_cache_eviction_interval_seconds`).
    """

    names: ClassVar[tuple[str, ...]] = ("aibrix_prefix_cache", "prefix-cache")

    imbalance_abs: Annotated[int, Ge(0)] = 8
    imbalance_factor: Annotated[float, Ge(0)] | None = None
    stddev_factor: Annotated[float, Ge(0)] = 1
    prefix_cache_block_number: Annotated[int, Ge(1)] = 200_000
    prefix_cache_block_size: Annotated[int, Ge(1)] = 4
    prefix_cache_eviction_duration_mins: Annotated[float, Gt(0)] = 20
    prefix_cache_eviction_interval_seconds: Annotated[float, Gt(0)] = 1
    chars_per_token: Annotated[int, Ge(1)] = 4

    def own_hashing(self, block_size: int) -> PromptHashing:
        return PromptHashing(self.prefix_cache_block_size, self.chars_per_token)

    def start(self, router: Any) -> CompiledChooser:
        factor = math.nan if self.imbalance_factor is None else self.imbalance_factor
        ttl, interval = (
            60 * self.prefix_cache_eviction_duration_mins,
            self.prefix_cache_eviction_interval_seconds,
        )
        row = self.imbalance_abs, factor, self.stddev_factor, self.prefix_cache_block_number, ttl, interval
        return _TableChooser(_choose, [np.array([row], PARAMETERS), *new_recency(1)])
