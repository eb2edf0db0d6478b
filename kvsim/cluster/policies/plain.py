"""Policies that look at no prompt: random, round robin, fewer requests of two, fewest requests."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvsim.addresses import array_at, words_at
from kvsim.cluster.policies.picking import drawn_among_least
from kvsim.cluster.policy import CompiledChooser, Policy
from kvsim.cluster.state import NUM_ARRAYS, drawn_below, router_at
from kvsim.compiled import compiled_entry


@compiled_entry
def _choose_random(address, i, now):
    scalars = router_at(address).scalars
    return drawn_below(scalars, scalars["num_targets"][0])


@compiled_entry
def _choose_next(address, i, now):
    counter = array_at(words_at(address), NUM_ARRAYS, np.int64, 1)
    target = counter[0] % router_at(address).scalars["num_targets"][0]
    counter[0] += 1
    return target


@compiled_entry
def _choose_fewest(address, i, now):
    router = router_at(address)
    return drawn_among_least(router.scalars, router.targets["in_flight"])


@compiled_entry
def _choose_of_two(address, i, now):
    router = router_at(address)
    scalars, targets = router.scalars, router.targets
    n = scalars["num_targets"][0]
    if n == 1:
        return np.int64(0)
    first = drawn_below(scalars, n)
    second = (first + np.int64(1) + drawn_below(scalars, n - 1)) % n
    return first if targets["in_flight"][first] <= targets["in_flight"][second] else second


@dataclass(frozen=True, kw_only=True)
class RandomChoice(Policy):
    """Each target with the same chance. As sglang-router 0.3.2 `random`."""

    names: ClassVar[tuple[str, ...]] = ("random",)
    blind: ClassVar[bool] = True

    def start(self, router: object) -> CompiledChooser:
        return CompiledChooser(_choose_random, [])


@dataclass(frozen=True, kw_only=True)
class RoundRobin(Policy):
    """One after the other from the first, as sglang-router `round_robin`."""

    names: ClassVar[tuple[str, ...]] = ("round_robin",)
    blind: ClassVar[bool] = True

    def start(self, router: object) -> CompiledChooser:
        return CompiledChooser(_choose_next, [np.zeros(1, np.int64)])


@dataclass(frozen=True, kw_only=True)
class LeastRequest(Policy):
    """The fewest requests in flight, by the router's own count; a random one of several.

    As AIBrix `pkg/plugins/gateway/algorithms/least_request.go` (Aug 2026).
    """

    names: ClassVar[tuple[str, ...]] = ("least_request", "least-request")

    def start(self, router: object) -> CompiledChooser:
        return CompiledChooser(_choose_fewest, [])


@dataclass(frozen=True, kw_only=True)
class PowerOfTwo(Policy):
    """Of two different targets drawn at random that with fewer requests in flight; the first drawn on a tie.

    As sglang `sgl-model-gateway/src/policies/power_of_two.rs` without polled loads of its workers.
    """

    names: ClassVar[tuple[str, ...]] = ("power_of_two",)

    def start(self, router: object) -> CompiledChooser:
        return CompiledChooser(_choose_of_two, [])
