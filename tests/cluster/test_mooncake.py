"""mooncake_conductor: queue plus prefill of what is not in cache, by hand."""

from routing_requests import block_keys, request, router_over, store

from kvsim.cluster.policies.mooncake import MooncakeConductor


def test_the_backlog_of_prefill_is_weighed_against_the_cached_prefix() -> None:
    router = router_over(MooncakeConductor(prefill_tokens_per_second=1000.0), 3)
    asked = request(("A", 320), ("B", 8))
    assert router.choose(asked, 0.0) == 0  # all alike: the first
    store(router, 1, block_keys(router, asked)[:10])
    assert router.choose(asked, 0.0) == 1
    assert router.state.targets["score"].tolist() == [0.328, 0.168, 0.328]
    router.send(1, asked, 1, 0.0)
    assert router.choose(asked, 0.0) == 0  # 168 + 168 tokens on the second
    assert router.state.targets["score"].tolist() == [0.328, 0.336, 0.328]
    router.send(2, asked, 0, 0.0)
    assert router.choose(asked, 0.0) == 2
    router.first_token(1)
    assert router.choose(asked, 0.0) == 1
    router.end(2)
    assert router.state.targets["prefill_tokens"].tolist() == [0, 0, 0]
