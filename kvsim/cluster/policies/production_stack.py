"""production-stack's `prefixaware` and `kvaware`.

Sources: vllm-project/production-stack `src/vllm_router/routers/routing_logic.py` (PrefixAwareRouter,
KvawareRouter) and `src/vllm_router/prefix/hashtrie.py`; LMCache `lmcache/v1/cache_controller`.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt

from kvsim.cluster.policies.hash_trie import CHARS_PER_TOKEN, CHUNK_SIZE, HashTrie
from kvsim.cluster.policies.request_stats import REQUEST_STATS_WINDOW, RequestStats
from kvsim.cluster.policies.rings import SessionChooser
from kvsim.cluster.policy import Chooser, Policy, RoutedRequest, View


@dataclass(frozen=True, kw_only=True)
class PrefixAware(Policy):
    """Any of the targets that were sent the longest head of this prompt's text.

    Text is compared in chunks of 128 characters, and `chars_per_token` of them stand for each token. A match
    of less than `prefix_min_match_length` characters goes to the target with the lowest rate of requests.
    """

    names: ClassVar[tuple[str, ...]] = ("production_stack_prefixaware", "prefixaware")
    blind: ClassVar[bool] = True

    prefix_min_match_length: Annotated[int, Ge(0)] = 0
    request_stats_window: Annotated[float, Gt(0)] = REQUEST_STATS_WINDOW
    chars_per_token: Annotated[int, Ge(1)] = CHARS_PER_TOKEN

    def start(self, router: Any) -> Chooser:
        return PrefixAwareChooser(self)


class PrefixAwareChooser(Chooser):
    def __init__(self, policy: PrefixAware) -> None:
        self._policy = policy
        self._trie: HashTrie | None = None
        self._request_stats = RequestStats(policy.request_stats_window)

    def trie(self, num_targets: int) -> HashTrie:
        """What was sent where."""
        if self._trie is None:
            self._trie = HashTrie(num_targets, CHUNK_SIZE, self._policy.chars_per_token)
        return self._trie

    def choose(self, request: RoutedRequest, view: View) -> int:
        trie = self.trie(len(view.names))
        num_chars, candidates = trie.longest_prefix_match(request.prompt)
        if num_chars < self._policy.prefix_min_match_length:
            target = self._request_stats.lowest_qps(len(view.names), view.now)
        else:
            target = candidates[view.draw(len(candidates))]
        self._request_stats.note(target, view.now)
        trie.insert(request.prompt, target)
        return target


@dataclass(frozen=True, kw_only=True)
class KvAware(Policy):
    """The first target that has any of this prompt, if no more than `kv_aware_threshold` tokens are missing.

    What targets have is what KV events tell of their GPUs, in engine blocks (the original asks LMCache's
    controller, in chunks of 256 tokens). Otherwise the session decides, as with `session`.
    """

    names: ClassVar[tuple[str, ...]] = ("production_stack_kvaware", "kvaware")

    kv_aware_threshold: Annotated[int, Ge(0)] = 2000
    request_stats_window: Annotated[float, Gt(0)] = REQUEST_STATS_WINDOW

    @property
    def reads_events(self) -> bool:
        return True

    def start(self, router: Any) -> Chooser:
        return KvAwareChooser(self)


class KvAwareChooser(Chooser):
    def __init__(self, policy: KvAware) -> None:
        self._threshold = policy.kv_aware_threshold
        self._request_stats = RequestStats(policy.request_stats_window)
        self._session = SessionChooser(self._request_stats)

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


FAMILY = (PrefixAware, KvAware)
