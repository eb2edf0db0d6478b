"""The tables of a router against plain dicts and sets."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from routing_requests import router_over

from kvsim.cluster.policies.longest_prefix import LongestPrefix
from kvsim.cluster.router import Router
from kvsim.cluster.state import ROUTED_DTYPE

NO_SEGMENTS = np.zeros((0, 3), np.uint64)


def window(router: Router, prompts: list[list[int]]) -> None:
    """Prompts as lists of block keys."""
    routed = np.zeros(len(prompts), ROUTED_DTYPE)
    ends = np.cumsum([0, *map(len, prompts)])
    routed["first_hash"], routed["hash_step"] = ends[:-1], 1
    routed["num_blocks"] = [len(prompt) for prompt in prompts]
    routed["num_prompt_tokens"] = 16 * routed["num_blocks"] + 1
    hashes = np.zeros((ends[-1], 2), np.uint64)
    hashes[:, 0] = [key for prompt in prompts for key in prompt]
    router.set_window(routed, hashes, NO_SEGMENTS)


class Tracking(LongestPrefix):
    @property
    def tracks_blocks(self) -> bool:
        return True


# Few and clashing keys: equal low bits at every size, and the key that marks a free row
keys = st.sampled_from([0, 1, 2, 3, 1023, 1024, 1025, 2047, 2048, 1 << 20, (1 << 20) + 1, (1 << 64) - 1])
targets = st.integers(0, 69)
events = st.one_of(
    st.tuples(st.just("stored"), targets, keys),
    st.tuples(st.just("removed"), targets, keys),
    st.tuples(st.just("cleared"), targets, st.just(0)),
)


@given(st.lists(events, max_size=60), st.lists(keys, max_size=6, unique=True))
def test_worker_sets_are_sets(told: list[tuple[str, int, int]], prompt: list[int]) -> None:
    router = router_over(LongestPrefix(), 70)
    held: dict[int, set[int]] = {t: set() for t in range(70)}
    for kind, target, key in told:
        if kind == "stored":
            router.stored(target, key)
            held[target].add(key or 1)
        elif kind == "removed":
            router.removed(target, key)
            held[target].discard(key or 1)
        else:
            router.cleared(target)
            held[target].clear()
    assert int(router.state.fill["used"][1]) == len(set().union(*held.values()))
    window(router, [prompt])
    expected = [
        next((k for k, key in enumerate(prompt) if (key or 1) not in held[t]), len(prompt)) for t in range(70)
    ]
    assert router.overlaps(0).tolist() == expected


def test_the_index_grows_with_what_it_holds() -> None:
    router = router_over(LongestPrefix(), 3)
    rng = np.random.default_rng(1)
    drawn = rng.integers(0, 1 << 64, 3000, np.uint64).tolist()
    for k, key in enumerate(drawn):
        router.stored(k % 3, key)
    window(router, [[key] for key in drawn])
    assert [int(router.choose(k, 0.0)) for k in range(3000)] == [k % 3 for k in range(3000)]
    for key in drawn:
        for target in range(3):
            router.removed(target, key)
    assert not router.state.holders.any()


prompts = st.lists(st.integers(0, 3), max_size=40)  # a path in a tree of blocks


def path_keys(path: list[int]) -> list[int]:
    """Keys that name all that came before, as chained hashes do."""
    keys, key = [], 7
    for step in path:
        key = (key * 6364136223846793005 + step + 1) & ((1 << 64) - 1)
        keys.append(key)
    return keys


@given(st.lists(st.tuples(prompts, st.integers(0, 4), st.booleans()), max_size=30), st.randoms())
def test_active_blocks_count_distinct_blocks_of_requests_in_flight(requests, random) -> None:
    router = router_over(Tracking(), 5)
    window(router, [path_keys(path) for path, _, _ in requests])
    in_flight: dict[int, tuple[list[int], int]] = {}
    for i, (path, target, ends_one) in enumerate(requests):
        router.send(i + 1, i, target, 0.0)
        in_flight[i + 1] = path_keys(path), target
        if ends_one:
            uid = random.choice(sorted(in_flight))
            router.end(uid)
            del in_flight[uid]
        distinct = Counter(target for key, target in {(k, t) for keys, t in in_flight.values() for k in keys})
        assert router.state.targets["active_blocks"].tolist() == [distinct[t] for t in range(5)]
    for uid in in_flight:
        router.end(uid)
    state = router.state
    assert not state.active.any()
    assert not state.shared.any()
    assert state.fill["used"].tolist() == [0] * 5


def test_a_long_prompt_gets_room() -> None:
    router = router_over(Tracking(), 2)
    window(router, [path_keys([1] * 3), path_keys([1] * 20_000)])
    router.send(1, 0, 0, 0.0)
    router.send(2, 1, 1, 0.0)
    assert router.state.targets["active_blocks"].tolist() == [3, 20_000]
    router.end(2)
    assert router.state.targets["active_blocks"].tolist() == [3, 0]


def test_one_that_stays_long_does_not_block_a_slot() -> None:
    router = router_over(Tracking(), 2)
    window(router, [path_keys([1, 2])])
    router.send(1, 0, 0, 0.0)
    for uid in range(2, 3000):
        router.send(uid, 0, 1, 0.0)
        router.end(uid)
    assert router.state.targets["in_flight"].tolist() == [1, 0]
    assert router.state.targets["num_routed"].tolist() == [1, 2998]
    router.end(1)
    router.end(1)  # told twice, or never sent: nothing happens
    assert router.state.targets["in_flight"].tolist() == [0, 0]
