"""What explains a choice of AIBrix's prefix-cache, by the policy's own compiled parts."""

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
    targets = router.state.targets
    parameters = router.chooser.arrays[0]
    return {
        "limit": float(_limit_of(targets["in_flight"], parameters["stddev_factor"][0])),
        "imbalanced": bool(_imbalance_of(targets["in_flight"], parameters)),
        "fallback": None if targets["score"].any() else "least-request",
        "match_percent": dict(zip(router.names, targets["score"].astype(int).tolist(), strict=True)),
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
