"""What explains a choice of AIBrix's prefix-cache, by the policy's own compiled parts."""

import numpy as np
from case_forms import Case
from case_router import block_keys, request_of

from kvsim.cluster.policies.aibrix import AibrixPrefixCache, _is_imbalanced, _limit
from kvsim.cluster.router import Router
from kvsim.compiled import compiled
from kvsim.workload.request import Request


@compiled
def _limit_of(counts, factor):
    return _limit(counts, factor)


@compiled
def _imbalance_of(counts, parameters):
    return _is_imbalanced(counts, parameters)


def explained(router: Router) -> Case:
    """The choice that was just made, before it is sent."""
    if not isinstance(router.policy, AibrixPrefixCache):
        return {}
    targets, parameters = router.state.targets, router.chooser.arrays[0]
    counts, num_blocks = targets["in_flight"], int(router.state.routed["num_blocks"][0])
    limit = float(_limit_of(counts, parameters["stddev_factor"][0]))
    imbalanced = bool(_imbalance_of(counts, parameters))
    matched = np.where((counts == counts.min()) | (not imbalanced), targets["overlap"], 0)
    percents = [100 * int(blocks) // max(num_blocks, 1) for blocks in matched]
    return {
        "limit": limit,
        "imbalanced": imbalanced,
        "fallback": None if (matched[counts <= limit] > 0).any() else "least-request",
        "match_percent": dict(zip(router.names, percents, strict=True)),
    }


def know_percent(router: Router, request: Request, target: int, percent: int) -> None:
    """A target was sent the head of a request that is `percent` of its blocks."""
    keys = block_keys(router, request)
    known = next((k for k in range(len(keys) + 1) if 100 * k // len(keys) == percent), None)
    assert known is not None, f"no number of {len(keys)} blocks is {percent} percent"
    for key in keys[:known]:
        router.stored(target, key)


def hundred_blocks(policy: AibrixPrefixCache) -> Request:
    """A request of a hundred blocks of the policy's index."""
    tokens = -(-100 * policy.prefix_cache_block_size // policy.chars_per_token)
    return request_of(f"P:{tokens}")
