"""Block hashes equal vLLM's byte for byte: vectors recorded from 0.33.0 and 0.16.0.

Each vector holds what a hash function is given, serialised, and the digest. They were recorded
under PYTHONHASHSEED=0; `conformance/record.py --hash-vectors` writes them.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from kvsim.cache import hashing
from kvsim.cache.hashing import (
    BlockContent,
    block_extra_keys,
    block_hashes,
    get_hash_fn_by_name,
    hash_block_tokens,
    make_block_hash_with_group_id,
    none_hash,
)
from kvsim.errors import KvsimError
from kvsim.rules import rules_for

DATA = Path(__file__).parent / "data"
FILES = {"0.33": "hash_vectors.json", "0.16": "hash_vectors-0.16.json"}
ALGORITHMS = ("sha256", "sha256_cbor", "xxhash", "xxhash_cbor")
SEEDED = {"PYTHONHASHSEED": "0"}


def load(version):
    return json.loads((DATA / FILES[version]).read_text())


def vectors(kind):
    """Vectors of both versions: "root", "map key" or "block"."""
    for version in FILES:
        for vector in load(version):
            what = vector["what"]
            found = {"NONE_HASH": "root"}.get(what, "map key" if what.startswith("map key") else "block")
            if found == kind:
                yield pytest.param(version, vector, id=f"{version} {vector['algo']}: {what}")


def serialised(algorithm, value):
    return (hashing._cbor if "cbor" in algorithm else hashing._pickled)(value)


def extra_keys(vector):
    """The keys as objects. A JSON string is a new object each time it is read, but pickle tells
    apart one object named twice from two equal ones: the vector's text says which is meant."""
    shared = {}
    distinct = "distinct" in vector["what"]

    def text(value):
        if not isinstance(value, str):
            return value
        if value in ("mm", "lora", "cache_salt"):  # literals of the code: one object each
            return {"mm": "mm", "lora": "lora", "cache_salt": "cache_salt"}[value]
        copy = "".join(list(value))
        return copy if distinct else shared.setdefault(value, copy)

    if vector["extra"] is None:
        return None
    return tuple(tuple(map(text, key)) if isinstance(key, list) else text(key) for key in vector["extra"])


def block_input(version, vector):
    """(parent, tokens, extra keys) of a block vector."""
    parent = none_hash(vector["algo"], rules_for(version), SEEDED)
    if vector["what"].startswith("second block"):
        parent = hash_block_tokens(get_hash_fn_by_name(vector["algo"]), parent, [1, 2, 3, 4])
    return parent, tuple(vector["tokens"]), extra_keys(vector)


def test_every_vector_is_tested():
    counts = [len([*vectors(kind)]) for kind in ("root", "block", "map key")]
    assert counts == [8, 56, 8]
    assert sum(counts) == sum(len(load(version)) for version in FILES)
    assert {vector["algo"] for version in FILES for vector in load(version)} == set(ALGORITHMS)


@pytest.mark.parametrize(("version", "vector"), [*vectors("root")])
def test_root(version, vector):
    assert serialised(vector["algo"], "0").hex() == vector["bytes"]
    assert none_hash(vector["algo"], rules_for(version), SEEDED).hex() == vector["digest"]


@pytest.mark.parametrize(("version", "vector"), [*vectors("block")])
def test_block(version, vector):
    value = block_input(version, vector)
    assert serialised(vector["algo"], value).hex() == vector["bytes"]
    assert hash_block_tokens(get_hash_fn_by_name(vector["algo"]), *value).hex() == vector["digest"]


@pytest.mark.parametrize(("version", "vector"), [*vectors("map key")])
def test_map_key(version, vector):
    root = none_hash(vector["algo"], rules_for(version), SEEDED)
    first = hash_block_tokens(get_hash_fn_by_name(vector["algo"]), root, [1, 2, 3, 4])
    assert make_block_hash_with_group_id(first, 1).hex() == vector["bytes"]


# The same digests from a request's content, which is how the engine asks for them.
CONTENTS = {
    "first block, no extra keys": BlockContent(4),
    "one image": BlockContent(4, (("aaaaaaaa", -3, 20),)),
    "two images, equal identifier, same str object": BlockContent(4, (("img-1", 0, 2), ("img-1", 2, 2))),
    "lora + image + salt": BlockContent(4, (("h", 1, 3),), ("ad", "/ad"), "s"),
}


@pytest.mark.parametrize("version", FILES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("what", CONTENTS)
def test_content(version, algorithm, what):
    (vector,) = [v for v in load(version) if (v["algo"], v["what"]) == (algorithm, what)]
    rules, content = rules_for(version), CONTENTS[what]
    root = none_hash(algorithm, rules, SEEDED)
    (digest,) = block_hashes(get_hash_fn_by_name(algorithm), root, content, vector["tokens"], 4, rules)
    assert digest.hex() == vector["digest"]


class TestRoot:
    """The parent of every first block without PYTHONHASHSEED."""

    @pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
    def test_a_constant_for_sha256_in_033(self, algorithm):
        root = none_hash(algorithm, rules_for("0.33"), {})
        assert root == get_hash_fn_by_name(algorithm)("vllm-none-hash")
        assert root != none_hash(algorithm, rules_for("0.33"), {"PYTHONHASHSEED": "1"})

    @pytest.mark.parametrize(
        ("version", "algorithm"),
        [("0.33", "xxhash"), ("0.33", "xxhash_cbor"), *(("0.16", algorithm) for algorithm in ALGORITHMS)],
    )
    def test_drawn_for_each_process_else(self, version, algorithm):
        drawn = {none_hash(algorithm, rules_for(version), {}) for _ in range(3)}
        assert len(drawn) == 3
        assert none_hash(algorithm, rules_for(version), SEEDED) == get_hash_fn_by_name(algorithm)("0")


class TestPromptEmbeddings:
    """Their keys come last: SHA-256 of the block's rows in 0.33, the rows themselves in 0.16."""

    def test_place_and_form(self):
        rows = np.arange(16, dtype=np.float32).reshape(8, 2)
        content = BlockContent(8, (), ("ad", "/ad"), "s", rows)
        raw = rows[:4].tobytes()
        new, _ = block_extra_keys(content, 0, 4, 0, rules_for("0.33"))
        old, _ = block_extra_keys(content, 0, 4, 0, rules_for("0.16"))
        digest = hashlib.sha256(raw).digest()
        assert new == (("lora", "ad", "/ad"), ("cache_salt", "s"), ("prompt_embeds", digest))
        assert old == ("ad", "s", raw)
        assert block_extra_keys(content, 4, 8, 0, rules_for("0.16"))[0] == ("ad", rows[4:].tobytes())


def test_group_number_is_packed_big_endian():
    assert make_block_hash_with_group_id(b"\xff", 258) == b"\xff\x00\x00\x01\x02"


def test_an_unknown_algorithm():
    with pytest.raises(KvsimError, match="'md5' is not one of sha256, sha256_cbor"):
        get_hash_fn_by_name("md5")
