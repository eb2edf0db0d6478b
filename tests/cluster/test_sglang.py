"""sglang's `cache_aware` over its tree; choices like those of the sglang-router 0.3.2 binary."""

import pytest
from asking import Asked, request

from kvsim.cluster.policies.sglang import CacheAware

STREAMS = {"A": 1, "B": 2, "C": 3, "X": 4, "Y": 5}


def piece(name: str, n: int, first: int = 0) -> tuple[int, int, int]:
    return STREAMS[name], first, n


def test_known_text_then_the_first_with_the_least_load():
    router = Asked(CacheAware(balance_abs_threshold=2, chars_per_token=1), ["r0", "r1"])
    sent = [router.choose(request(piece(name, 100))) for name in "AAAAAABB"]
    assert sent == [0, 0, 0, 1, 0, 1, 1, 1]


@pytest.mark.parametrize("chars_per_token", [1, 4])
def test_the_share_must_be_more_than_the_threshold(chars_per_token):
    router = Asked(CacheAware(chars_per_token=chars_per_token), ["r0", "r1", "r2"])
    for name in "ABC":
        router.choose(request(piece(name, 100)))
    assert router.choose(request(piece("A", 31), piece("X", 69))) == 0
    assert router.choose(request(piece("A", 30), piece("Y", 70))) == 1


def test_idle_targets_and_strangers():
    router = Asked(CacheAware(), ["r0", "r1", "r2"])
    for stream in range(10, 20):
        assert router.choose(request((stream, 0, 50))) == 0
        router.end(0)


def test_an_uneven_load_needs_both_thresholds():
    for relative, target in ((1.5, 0), (1.2, 1)):
        router = Asked(CacheAware(balance_abs_threshold=2, balance_rel_threshold=relative), ["r0", "r1"])
        router.choose(request(piece("A", 50)))
        router.targets["in_flight"] = [13, 10]
        assert router.choose(request(piece("A", 50))) == target


def test_single_precision():
    # 26 x 1.3 is 33.800000000000004 in double precision; in sglang's, both sides are what counts here
    router = Asked(CacheAware(balance_abs_threshold=0, balance_rel_threshold=1.1), ["r0", "r1"])
    router.choose(request(piece("A", 50)))
    router.targets["in_flight"] = [11, 10]
    assert router.choose(request(piece("A", 50))) == 0  # 11 > 11.0 does not hold


def test_what_was_not_used_for_long_is_forgotten():
    policy = CacheAware(eviction_interval_secs=10, max_tree_size=400)
    router = Asked(policy, ["r0", "r1"])
    for name in "AB":  # 400 characters each, on r0
        router.choose(request(piece(name, 100)))
        router.end(0)
    router.targets["in_flight"] = [1, 0]
    assert router.choose(request(piece("A", 100)), now=9.9) == 0
    assert router.choose(request(piece("B", 100)), now=10.0) == 1  # the eviction of second 10 took B from r0
    assert router.choose(request(piece("A", 100)), now=10.1) == 0


def test_no_eviction_at_interval_0():
    router = Asked(CacheAware(eviction_interval_secs=0, max_tree_size=1), ["r0", "r1"])
    router.choose(request(piece("A", 100)))
    assert router.choose(request(piece("A", 100)), now=1e9) == 0
