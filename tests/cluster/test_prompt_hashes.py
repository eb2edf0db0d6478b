"""A router's own blocks of a prompt."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_requests import request

from kvsim.cache.block_hasher import FastBlockHasher
from kvsim.cluster.prompt_hashes import PromptHashing, own_window
from kvsim.cluster.window import window_of
from kvsim.rules import rules_for
from kvsim.tokens import expand
from kvsim.workload.request import LoRA, Request

HASHER = FastBlockHasher(16, rules_for("0.33"))


def hashes_of(hashing: PromptHashing, *requests: Request) -> list[list[int]]:
    routed, _, segments = window_of(requests, HASHER)
    own, hashes = own_window(hashing, routed, segments)
    return [hashes[row["first_hash"] :][: row["num_blocks"], 0].tolist() for row in own]


@pytest.mark.parametrize(
    ("hashing", "tokens", "blocks"),
    [
        (PromptHashing(64), 130, 2),
        (PromptHashing(64, partial_block=True), 130, 3),
        (PromptHashing(64, partial_block=True), 128, 2),
        (PromptHashing(64, partial_block=True, max_blocks=2), 1000, 2),
        (PromptHashing(4, 4), 7, 7),
        (PromptHashing(128, 4), 100, 3),
        (PromptHashing(6, 4), 3, 2),
        (PromptHashing(1, 4), 2, 8),
    ],
)
def test_how_many_blocks(hashing: PromptHashing, tokens: int, blocks: int) -> None:
    keys = hashes_of(hashing, request(("A", tokens)))[0]
    assert len(keys) == blocks == len(set(keys))


pieces = st.lists(st.tuples(st.sampled_from("AB"), st.integers(1, 30)), min_size=1, max_size=4)


@given(pieces, pieces, st.integers(1, 9), st.integers(1, 5), st.booleans())
def test_equal_heads_and_only_those_have_equal_hashes(one, other, size, chars, partial) -> None:
    requests = request(*one), request(*other)
    keys, others = hashes_of(PromptHashing(size, chars, partial), *requests)
    tokens, other_tokens = (expand(each.prompt).repeat(chars) for each in requests)
    for i, (key, its) in enumerate(zip(keys, others, strict=False)):
        end = (i + 1) * size
        full = end <= len(tokens) and end <= len(other_tokens)
        # a character tells its token
        same = np.array_equal(tokens[:end], other_tokens[:end]) and (full or len(tokens) == len(other_tokens))
        assert (key == its) == same


def test_salt_and_adapter_make_hashes_of_their_own() -> None:
    lora = LoRA("a", 1, "/a")
    asked = [request(("A", 64)), request(("A", 64), salt="x"), request(("A", 64), lora=lora)]
    firsts = [keys[0] for keys in hashes_of(PromptHashing(16), *asked, request(("A", 64), salt="x"))]
    assert len(set(firsts)) == 3
    assert firsts[1] == firsts[3]
