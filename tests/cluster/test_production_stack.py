"""production-stack's trie of chunks against one over text, and the policies `prefixaware` and `kvaware`."""

import pytest
from asking import Asked, request, shares
from hypothesis import given
from hypothesis import strategies as st

from kvsim.cluster.policies.hash_trie import HashTrie
from kvsim.cluster.policies.production_stack import KvAware, PrefixAware

PIECES = st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 12))
PROMPTS = st.lists(PIECES, max_size=4)


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


@given(
    st.integers(1, 5),
    st.integers(1, 9),
    st.lists(st.tuples(PROMPTS, st.integers(0, 69)), max_size=12),
    st.lists(st.tuples(PROMPTS, st.sets(st.integers(0, 69), min_size=1)), max_size=6),
)
def test_matches_are_those_of_a_trie_of_text(chars, chunk_size, inserted, asked):
    trie, model = HashTrie(70, chunk_size, chars), TextTrie(chunk_size)
    for prompt, target in inserted:
        trie.insert(request(*prompt).prompt, target)
        model.insert(text_of(prompt, chars), target)
    for prompt, available in [*asked, *((prompt, set(range(70))) for prompt, _ in inserted)]:
        found = trie.longest_prefix_match(request(*prompt).prompt, available)
        assert found == model.match(text_of(prompt, chars), available)


def test_the_table_grows():
    trie = HashTrie(3)
    prompts = [request((stream, 0, 640)).prompt for stream in range(1, 600)]
    for number, prompt in enumerate(prompts):
        trie.insert(prompt, number % 3)
    for number, prompt in enumerate(prompts):
        assert trie.longest_prefix_match(prompt) == (2560, [number % 3])


class TestPrefixAware:
    def test_first_anywhere_then_where_it_is_known(self):
        choices = {
            Asked(PrefixAware(), ["a", "b", "c"], seed).choose(request((1, 0, 99))) for seed in range(30)
        }
        assert choices == {0, 1, 2}
        router = Asked(PrefixAware(), ["a", "b", "c"])
        first = router.choose(request((1, 0, 99)))
        for n in (99, 200, 64):
            assert router.choose(request((1, 0, 64), (n, 0, n))) == first

    def test_uniform_among_those_who_know_as_much(self):
        def once() -> int:
            router = Asked(PrefixAware(), ["a", "b", "c", "d"], next(seeds))
            trie = router.chooser.trie(4)
            for target in (1, 3):
                trie.insert(request((1, 0, 64)).prompt, target)
            return router.choose(request((1, 0, 64), (9, 0, 64)))

        seeds = iter(range(10_000))
        assert shares(once, 4, 1000) == pytest.approx([0, 0.5, 0, 0.5], abs=0.06)

    def test_short_prompts_of_one_chunk_never_extend(self):
        router = Asked(PrefixAware(), ["a", "b"], seed=3)
        router.choose(request((1, 0, 20)))
        router.choose(request((1, 0, 21)))
        assert router.draws == [2, 2]  # 80 characters are another chunk than 84

    def test_a_short_match_goes_to_the_lowest_rate_and_is_noted(self):
        router = Asked(PrefixAware(prefix_min_match_length=256), ["a", "b", "c"])
        assert [router.choose(request((s, 0, 64))) for s in (1, 2, 3, 4)] == [0, 1, 2, 0]
        assert router.choose(request((4, 0, 64))) == 0  # 256 characters
        assert router.choose(request((3, 0, 63))) == 1  # one chunk and a part that nobody has

    def test_characters_per_token(self):
        router = Asked(PrefixAware(chars_per_token=1, prefix_min_match_length=128), ["a", "b"])
        router.choose(request((1, 0, 128)))
        assert router.choose(request((1, 0, 127))) == 1
        assert router.choose(request((1, 0, 128), (2, 0, 5))) == 0


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
