"""sglang's `cache_aware`: to whom a text is known, unless the load is uneven.

Source: sgl-project/sglang `sgl-model-gateway/src/policies/cache_aware.rs`; the choices are those of the
sglang-router 0.3.2 binary. Defaults are those of its command line. Routers that find targets in another
order ("first" below) than ours differ there.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Le

from kvsim.cluster.policies.text_tree import TextTree, runs_of
from kvsim.cluster.policy import Chooser, Policy, RoutedRequest, View

CHARS_PER_TOKEN = 4


@dataclass(frozen=True, kw_only=True)
class CacheAware(Policy):
    """The target that was first sent the longest known head of the text, or the first of those with the least
    load: if too little of the text is known, or if loads are uneven.

    cache_threshold: no more than this share of the text is too little. balance_abs_threshold,
    balance_rel_threshold: loads, numbers of requests in flight, are uneven if the largest exceeds the
    smallest by more than the one and by more than the factor of the other. eviction_interval_secs: between
    two looks for targets with too much text, which lose what was sent longest ago; 0 for never.
    max_tree_size: characters of a target that are not too much. chars_per_token: characters of a token.
    """

    names: ClassVar[tuple[str, ...]] = ("sglang_cache_aware", "cache_aware")

    cache_threshold: Annotated[float, Ge(0), Le(1)] = 0.3
    balance_abs_threshold: Annotated[int, Ge(0)] = 64
    balance_rel_threshold: Annotated[float, Ge(1)] = 1.5
    eviction_interval_secs: Annotated[float, Ge(0)] = 60.0
    max_tree_size: Annotated[int, Ge(1)] = 2**26
    chars_per_token: Annotated[int, Ge(1)] = CHARS_PER_TOKEN

    def start(self, router: Any) -> Chooser:
        return CacheAwareChooser(self)


class CacheAwareChooser(Chooser):
    def __init__(self, policy: CacheAware) -> None:
        self._policy = policy
        self._tree: TextTree | None = None
        self._next_eviction = policy.eviction_interval_secs or math.inf
        # sglang compares in single precision
        self._cache_threshold = np.float32(policy.cache_threshold)
        self._rel_threshold = np.float32(policy.balance_rel_threshold)

    def tree(self, num_targets: int) -> TextTree:
        """What was sent where."""
        self._tree = self._tree or TextTree(num_targets)
        return self._tree

    def choose(self, request: RoutedRequest, view: View) -> int:
        tree = self.tree(len(view.names))
        if view.now >= self._next_eviction:
            self._evict(tree, view.now)
        loads = view.targets["in_flight"].tolist()
        prompt = runs_of(request.prompt)
        target = None if self._is_imbalanced(loads) else self._holder(tree, prompt)
        if target is None:
            target = loads.index(min(loads))
        tree.insert(prompt, target)
        return int(target)

    def _is_imbalanced(self, loads: list[int]) -> bool:
        most, least = max(loads), min(loads)
        return most - least > self._policy.balance_abs_threshold and bool(
            np.float32(most) > np.float32(least) * self._rel_threshold
        )

    def _holder(self, tree: TextTree, prompt: list[tuple[int, int, int]]) -> int | None:
        """Who holds enough of the prompt."""
        matched, tenant = tree.prefix_match(prompt)
        if not matched:
            return None
        chars = self._policy.chars_per_token
        total = sum(length for _, _, length in prompt)
        rate = np.float32(matched * chars) / np.float32(total * chars)
        return tenant if rate > self._cache_threshold else None

    def _evict(self, tree: TextTree, now: float) -> None:
        """Only choices change the tree, so an eviction that was due since the last one can be done now."""
        interval = self._policy.eviction_interval_secs
        self._next_eviction = (now // interval + 1) * interval
        tree.evict(self._policy.max_tree_size // self._policy.chars_per_token)
