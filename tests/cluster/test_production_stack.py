"""production-stack's trie of chunks against one over text, and the policies `prefixaware` and `kvaware`."""

import pytest
import routing_requests
from asking import Asked, request, shares
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cluster.policies.production_stack import KvAware, PrefixAware
from kvsim.cluster.router import Router

PIECES = st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 12))
PROMPTS = st.lists(PIECES, min_size=1, max_size=4)


def text_of(prompt, chars_per_token: int) -> list[tuple[object, int]]:
    """Characters, as (token, number within the token)."""
    tokens = ["image" if s == 0 else (s, first + i) for s, first, n in prompt for i in range(n)]
    return [(token, c) for token in tokens for c in range(chars_per_token)]


class TextTrie:
    """The rules of hashtrie.py, over text."""

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size
        self.holders: dict[tuple, set[int]] = {}

    def heads(self, text: list) -> list[tuple]:
        return [
            (*text[: i + self.chunk_size], "end", min(len(text) - i, self.chunk_size))
            for i in range(0, len(text), self.chunk_size)
        ]

    def insert(self, text: list, target: int) -> None:
        for head in self.heads(text):
            self.holders.setdefault(head, set()).add(target)

    def match(self, text: list, available: set[int]) -> tuple[int, list[int]]:
        matched = 0
        for head in self.heads(text):
            if not (left := self.holders.get(head, set()) & available):
                break
            matched, available = matched + self.chunk_size, left
        return matched, sorted(available)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 9),
    st.lists(PROMPTS, max_size=25),
    st.lists(st.tuples(PROMPTS, st.sets(st.integers(0, 69), min_size=1)), max_size=6),
)
def test_heads_known_are_those_of_a_trie_of_text(chars, chunk_size, sent, asked):
    policy = PrefixAware(chunk_size=chunk_size, chars_per_token=chars)
    router, model = routing_requests.router_over(policy, 70), TextTrie(chunk_size)
    for prompt in sent:
        text = text_of(prompt, chars)
        _, candidates = model.match(text, set(range(70)))
        target = router.choose(request(*prompt), 0.0)
        assert target in candidates
        model.insert(text, target)
    for prompt, available in asked:
        overlaps = router.overlaps(request(*prompt))
        most = max(int(overlaps[target]) for target in available)
        found = most * chunk_size, sorted(target for target in available if overlaps[target] == most)
        assert found == model.match(text_of(prompt, chars), available)


def behind(policy: PrefixAware, num_targets: int = 3, seed: int = 0) -> Router:
    return routing_requests.router_over(policy, num_targets, seed)


def know(router: Router, target: int, *pieces) -> None:
    router.overlaps(request(*pieces))
    for key in router.state.hashes[:, 0].tolist():
        router.stored(target, key)


class TestPrefixAware:
    def test_first_anywhere_then_where_it_is_known(self):
        first = {behind(PrefixAware(), 3, seed).choose(request((1, 0, 99)), 0.0) for seed in range(30)}
        assert first == {0, 1, 2}
        router = behind(PrefixAware())
        first = router.choose(request((1, 0, 99)), 0.0)
        for n in (99, 200, 64):
            assert router.choose(request((1, 0, 64), (n, 0, n)), 0.0) == first

    def test_uniform_among_those_who_know_as_much(self):
        def once() -> int:
            router = behind(PrefixAware(), 4, next(seeds))
            for target in (1, 3):
                know(router, target, (1, 0, 64))
            return router.choose(request((1, 0, 64), (9, 0, 64)), 0.0)

        seeds = iter(range(10_000))
        assert shares(once, 4, 600) == pytest.approx([0, 0.5, 0, 0.5], abs=0.06)

    def test_short_prompts_of_one_chunk_never_extend(self):
        router = behind(PrefixAware())
        router.choose(request((1, 0, 20)), 0.0)
        assert router.overlaps(request((1, 0, 20))).max() == 1
        assert router.overlaps(request((1, 0, 21))).max() == 0  # 84 characters are another chunk than 80

    def test_a_short_match_goes_to_the_lowest_rate_and_is_noted(self):
        router = behind(PrefixAware(prefix_min_match_length=256))
        assert [router.choose(request((s, 0, 64)), 0.0) for s in (1, 2, 3, 4)] == [0, 1, 2, 0]
        assert router.choose(request((4, 0, 64)), 0.0) == 0  # 256 characters
        assert router.choose(request((3, 0, 63)), 0.0) == 1  # one chunk and a part that nobody has
        assert router.choose(request((9, 0, 63)), 60.0) == 2
        assert router.choose(request((8, 0, 63)), 60.1) == 0  # all but c's latest have left the window

    def test_a_minimum_between_two_chunks(self):
        router = behind(PrefixAware(prefix_min_match_length=129))
        know(router, 2, (1, 0, 64))
        assert router.choose(request((1, 0, 32), (7, 0, 9)), 0.0) == 0
        assert router.choose(request((1, 0, 64), (7, 0, 9)), 0.0) == 2

    def test_many_requests_in_the_window(self):
        router = behind(PrefixAware(prefix_min_match_length=10**9))
        sent = [router.choose(request((1, 0, 9)), i / 100) for i in range(1000)]
        assert sent == [i % 3 for i in range(1000)]

    def test_characters_per_token(self):
        router = behind(PrefixAware(chars_per_token=1, prefix_min_match_length=128))
        router.choose(request((1, 0, 128)), 0.0)
        assert router.choose(request((1, 0, 127)), 0.0) == 1
        assert router.choose(request((1, 0, 128), (2, 0, 5)), 0.0) == 0

    def test_text_does_not_tell_salts_apart(self):
        router = behind(PrefixAware())
        first = router.choose(routing_requests.request(("A", 99), salt="x"), 0.0)
        assert router.overlaps(routing_requests.request(("A", 99), salt="y"))[first] == 4


class TestKvAware:
    def asked(self, overlap, **parameters) -> Asked:
        router = Asked(KvAware(**parameters), ["a", "b", "c"])
        router.targets["overlap"] = overlap
        return router

    def test_without_a_match_the_first_unused(self):
        router = self.asked([0, 0, 0])
        assert [router.choose(request((1, 0, 50))) for _ in range(4)] == [0, 1, 2, 0]

    def test_the_first_that_has_any(self):
        assert self.asked([0, 0, 1]).choose(request((1, 0, 500))) == 2
        assert self.asked([0, 1, 30]).choose(request((1, 0, 500))) == 1

    def test_too_much_is_missing(self):
        assert self.asked([0, 0, 10]).choose(request((1, 0, 2160))) == 2
        assert self.asked([0, 0, 10]).choose(request((1, 0, 2161))) == 0
        assert self.asked([0, 0, 10], kv_aware_threshold=0).choose(request((1, 0, 160))) == 2
        assert self.asked([0, 0, 10], kv_aware_threshold=0).choose(request((1, 0, 161))) == 0

    def test_nobody_has_any(self):
        ring = {self.asked([0, 0, 0]).choose(request((1, 0, 50), session=f"s{i}")) for i in range(40)}
        assert ring == {0, 1, 2}
