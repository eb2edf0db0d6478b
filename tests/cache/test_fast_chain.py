"""kvsim's fast chain names the same prefixes as vLLM's hashes do, whatever the content."""

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.block_hasher import FastBlockHasher, VllmBlockHasher, make_block_hasher
from kvsim.cache.chain import ROOT, chain_hashes
from kvsim.cache.hashing import BlockContent
from kvsim.rules import rules_for
from kvsim.tokens import PLACEHOLDER_STREAM, expand, num_tokens, segments

VERSIONS = ("0.33", "0.16")
SEARCH = settings(max_examples=250, deadline=None, derandomize=True)
PICTURES = (("cat", 3), ("dog", 3), ("cat-large", 9))


@st.composite
def contents(draw):
    """Segments and content of a request; few streams, so that requests share much."""
    parts, features, at = [], [], 0
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            identifier, length = draw(st.sampled_from(PICTURES))
            features.append((identifier, at, length))
            parts.append((PLACEHOLDER_STREAM, 0, length))
        else:
            length = draw(st.integers(1, 24))
            parts.append((draw(st.integers(1, 2)), draw(st.sampled_from([0, 0, 8])), length))
        at += length
    output = (draw(st.integers(3, 4)), 0, draw(st.integers(0, 12)))
    lora = draw(st.sampled_from([None, None, ("a", "/a"), ("a", "/b"), ("b", "/b")]))
    salt = draw(st.sampled_from([None, None, "x", "y"]))
    return segments(*parts, output), BlockContent(at, tuple(features), lora, salt)


def names(hasher, requests):
    """Each block's hash, in order, replaced by the number of the hash's first appearance."""
    seen = {}
    hashes = [tuple(map(int, row)) for request in requests for row in hasher(*request)]
    return [seen.setdefault(value, len(seen)) for value in hashes]


@SEARCH
@given(
    requests=st.lists(contents(), min_size=2, max_size=6),
    block_size=st.integers(1, 16),
    lookahead=st.integers(0, 2),
    version=st.sampled_from(VERSIONS),
)
def test_equal_if_and_only_if_vllms_are(requests, block_size, lookahead, version):
    rules = rules_for(version)
    fast = FastBlockHasher(block_size, rules, lookahead)
    vllm = VllmBlockHasher("sha256_cbor", block_size, rules, lookahead, root=bytes(32))
    assert names(fast, requests) == names(vllm, requests)


@SEARCH
@given(
    requests=st.lists(contents(), min_size=2, max_size=5),
    scale=st.integers(2, 4),
    version=st.sampled_from(VERSIONS),
)
def test_coarser_groups_too(requests, scale, version):
    rules = rules_for(version)
    fast = make_block_hasher("fast", 4, rules, 0, (scale,))
    vllm = make_block_hasher("sha256", 4, rules, 0, (scale,))
    assert names(fast, requests) == names(vllm, requests)


@SEARCH
@given(request=contents(), block_size=st.integers(1, 64), lookahead=st.integers(0, 2))
def test_a_shared_leading_segment_gives_the_direct_chain(request, block_size, lookahead):
    """Hashed once per run or each time: the values are the same."""
    rules = rules_for("0.33")
    used = FastBlockHasher(block_size, rules, lookahead)
    once, again = used(*request), used(*request)
    fresh = FastBlockHasher(block_size, rules, lookahead)(*request)
    assert np.array_equal(once, again)
    assert np.array_equal(once, fresh)


def without_extra(all_segments, block_size, lookahead=0):
    n = max(num_tokens(all_segments) - lookahead, 0) // block_size
    out = np.empty((n, 2), np.uint64)
    none = np.empty(0, np.int64), np.empty((0, 2), np.uint64)
    with np.errstate(over="ignore"):
        chain_hashes(all_segments, block_size, lookahead, *ROOT, 0, *none, out)
    return out


@SEARCH
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    block_size=st.integers(1, 64),
    lookahead=st.integers(0, 3),
)
def test_where_segments_are_cut_does_not_matter(lengths, block_size, lookahead):
    whole = segments((7, 5, sum(lengths)))
    starts = accumulate(lengths, initial=5)
    cut = segments(*((7, start, length) for start, length in zip(starts, lengths, strict=False)))
    assert expand(cut).tolist() == expand(whole).tolist()
    content = BlockContent(sum(lengths))
    hashes = [FastBlockHasher(block_size, rules_for("0.33"), lookahead)(s, content) for s in (whole, cut)]
    assert np.array_equal(*hashes)
    assert np.array_equal(hashes[0], without_extra(whole, block_size, lookahead))


@pytest.mark.parametrize("block_size", [*range(1, 18), 31, 32, 33, 48, 63, 64])
def test_every_block_size(block_size):
    """A chain is prefix-closed, its values are all different, and one other token changes the rest."""
    tokens = segments((1, 0, 260))
    hashes = without_extra(tokens, block_size)
    assert len(hashes) == 260 // block_size == len({tuple(row) for row in hashes.tolist()})
    assert np.array_equal(without_extra(segments((1, 0, 130)), block_size), hashes[: 130 // block_size])
    other = without_extra(segments((1, 0, 100), (2, 0, 1), (1, 101, 159)), block_size)
    same = (hashes == other).all(axis=1)
    assert same.tolist() == [i < 100 // block_size for i in range(len(hashes))]


@pytest.mark.parametrize("version", VERSIONS)
def test_fewer_tokens_than_a_block(version):
    hasher = FastBlockHasher(16, rules_for(version))
    assert hasher(segments((1, 0, 15)), BlockContent(15)).shape == (0, 2)
    assert FastBlockHasher(16, rules_for(version), 1)(segments((1, 0, 16)), BlockContent(16)).shape == (0, 2)


def test_prompt_embeddings_make_blocks_their_own():
    tokens = segments((PLACEHOLDER_STREAM, 0, 12))
    rows = np.arange(24, dtype=np.float32).reshape(12, 2)
    other = rows.copy()
    other[5] += 1
    hasher = FastBlockHasher(4, rules_for("0.33"))
    a, b = (hasher(tokens, BlockContent(12, prompt_embeds=embeds)) for embeds in (rows, other))
    assert (a == b).all(axis=1).tolist() == [True, False, False]


def test_the_chain_is_the_same_in_every_run():
    """The values themselves are pinned: results may be compared across machines and releases of kvsim."""
    hashes = FastBlockHasher(16, rules_for("0.33"))(segments((1, 0, 33)), BlockContent(33))
    assert [f"{lo:016x}{hi:016x}" for lo, hi in hashes.tolist()] == PINNED


PINNED = ["3294e801cfa80618c9beebe4702e2e3d", "0dc6fc245c4357f229cedfdf166644d3"]
