"""Block hashes as vLLM computes them, bit for bit.

Followed: vLLM 0.33.0 `utils/hashing.py` and `v1/core/kv_cache_utils.py` (`init_none_hash`,
`hash_block_tokens`, `generate_block_hash_extra_keys`, `get_request_block_hasher`); 0.16.0 where
the rules say so. A block's hash covers (parent digest, token ids, extra keys), so it names the
whole prefix that ends with the block.
"""

import hashlib
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cbor2
import xxhash as _xxhash
from numpy.typing import NDArray

from kvsim.errors import KvsimError
from kvsim.rules import VllmRules

ExtraKeys = tuple[Any, ...] | None
Feature = tuple[str, int, int]  # identifier, offset in the prompt, placeholder tokens


def _pickled(value: Any) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def _cbor(value: Any) -> bytes:
    return cbor2.dumps(value, canonical=True)


def sha256(value: Any) -> bytes:
    return hashlib.sha256(_pickled(value)).digest()


def sha256_cbor(value: Any) -> bytes:
    return hashlib.sha256(_cbor(value)).digest()


def xxhash(value: Any) -> bytes:
    return _xxhash.xxh3_128_digest(_pickled(value))


def xxhash_cbor(value: Any) -> bytes:
    return _xxhash.xxh3_128_digest(_cbor(value))


HASH_FUNCTIONS: dict[str, Callable[[Any], bytes]] = {
    "sha256": sha256,
    "sha256_cbor": sha256_cbor,
    "xxhash": xxhash,
    "xxhash_cbor": xxhash_cbor,
}


def get_hash_fn_by_name(name: str) -> Callable[[Any], bytes]:
    """Raises KvsimError for a name that vLLM's `prefix_caching_hash_algo` does not know."""
    if name not in HASH_FUNCTIONS:
        raise KvsimError(f"prefix_caching_hash_algo: {name!r} is not one of {', '.join(HASH_FUNCTIONS)}")
    return HASH_FUNCTIONS[name]


DEFAULT_NONE_HASH_SEED = "vllm-none-hash"


def none_hash(algorithm: str, rules: VllmRules, environ: Mapping[str, str] = os.environ) -> bytes:
    """The parent of every first block.

    PYTHONHASHSEED seeds it if set. Else 0.33 takes a constant for the sha256 algorithms, so that
    processes agree; the xxhash ones, and all of 0.16, draw a random seed per process.
    """
    seed = environ.get("PYTHONHASHSEED")
    if seed is None and rules.fixed_root_seed and algorithm.startswith("sha256"):
        seed = DEFAULT_NONE_HASH_SEED
    if seed is not None:
        return get_hash_fn_by_name(algorithm)(seed)
    drawn = os.urandom(32)
    if not rules.fixed_root_seed:
        return drawn
    return get_hash_fn_by_name(algorithm)(drawn.hex())


def hash_block_tokens(
    hash_function: Callable[[Any], bytes],
    parent_block_hash: bytes,
    token_ids: Sequence[int],
    extra_keys: ExtraKeys = None,
) -> bytes:
    """Digest of one full block; `parent_block_hash` is NONE_HASH for the first."""
    return hash_function((parent_block_hash, tuple(token_ids), extra_keys))


def make_block_hash_with_group_id(block_hash: bytes, group_id: int) -> bytes:
    """Key of the cache map: digest, then the group as four big-endian bytes."""
    return block_hash + group_id.to_bytes(4, "big")


@dataclass(frozen=True, slots=True)
class BlockContent:
    """What, besides the tokens, makes a request's blocks its own.

    features: images in prompt order. prompt_embeds: rows (num_tokens, hidden), or None.
    """

    num_prompt_tokens: int
    features: tuple[Feature, ...] = ()
    lora: tuple[str, str] | None = None  # name, path
    cache_salt: str | None = None
    prompt_embeds: NDArray[Any] | None = None


def first_feature_at(features: tuple[Feature, ...], start: int) -> int:
    """Index of the first image that reaches beyond `start`."""
    for i, (_, offset, length) in enumerate(features):
        if offset + length > start:
            return i
    return len(features)


def _image_keys(
    content: BlockContent, start: int, end: int, index: int, rules: VllmRules
) -> tuple[list[Any], int]:
    """Keys of the images in block [start, end), scanned from image `index` on; the next index.

    0.16 compares strictly: an image that ends exactly at `start` still counts.
    """
    keys: list[Any] = []
    slack = 1 if rules.last_image_keys_output_blocks else 0
    features = content.features
    if not features or features[-1][1] + features[-1][2] + slack <= start:
        return keys, index
    while index < len(features) and end > features[index][1]:
        identifier, offset, length = features[index]
        if start >= offset + length + slack:
            index += 1
            continue
        keys.append(("mm", identifier, offset - start) if rules.tagged_extra_keys else identifier)
        if end < offset + length:
            break
        index += 1
    return keys, index


def _embeds_keys(content: BlockContent, start: int, end: int, rules: VllmRules) -> list[Any]:
    if content.prompt_embeds is None:
        return []
    rows = content.prompt_embeds[start:end].tobytes()
    return [("prompt_embeds", hashlib.sha256(rows).digest())] if rules.tagged_extra_keys else [rows]


def block_extra_keys(
    content: BlockContent, start: int, end: int, index: int, rules: VllmRules, lookahead: int = 0
) -> tuple[ExtraKeys, int]:
    """Extra keys of block [start, end), in vLLM's order: LoRA, images, salt, embeddings.

    Images are scanned from `index` on; the index for the next block comes back. With `lookahead`
    tokens the window reaches that far beyond the block.
    """
    window_end = end + lookahead
    tagged = rules.tagged_extra_keys
    keys: list[Any] = []
    if content.lora:
        keys.append(("lora", *content.lora) if tagged else content.lora[0])
    image_keys, index = _image_keys(content, start, window_end, index, rules)
    keys += image_keys
    if start == 0 and content.cache_salt:
        keys.append(("cache_salt", content.cache_salt) if tagged else content.cache_salt)
    keys += _embeds_keys(content, start, window_end, rules)
    while lookahead and index > 0 and sum(content.features[index - 1][1:]) > end:
        index -= 1  # images that overlap the next block are looked at again
    return (tuple(keys) if keys else None), index


def iter_extra_keys(
    content: BlockContent, block_size: int, num_blocks: int, lookahead: int, rules: VllmRules
) -> Iterator[ExtraKeys]:
    """Extra keys of blocks 0 .. num_blocks - 1 in the order in which vLLM hashes them.

    The prompt's blocks are hashed in one call, each later block in a call of its own, which
    matters for where the scan of the images starts. With `lookahead` tokens the window of a
    block reaches that far beyond its end.
    """
    index = 0
    num_prompt_blocks = max(content.num_prompt_tokens - lookahead, 0) // block_size
    for i in range(num_blocks):
        start, end = i * block_size, (i + 1) * block_size
        if i >= num_prompt_blocks and i > 0:
            if rules.last_image_keys_output_blocks:
                index = max(len(content.features) - 1, 0)
            else:
                index = first_feature_at(content.features, start)
        elif i == num_prompt_blocks:
            index = 0
        keys, index = block_extra_keys(content, start, end, index, rules, lookahead)
        yield keys


def block_hashes(
    hash_function: Callable[[Any], bytes],
    root: bytes,
    content: BlockContent,
    token_ids: Sequence[int],
    block_size: int,
    rules: VllmRules,
    lookahead: int = 0,
) -> list[bytes]:
    """Digests of all full blocks of `token_ids` (prompt, then output).

    With `lookahead` L > 0 (draft heads) a block is hashed only once the L tokens after it are
    known, and its extra keys become (keys, token, ...).
    """
    num_blocks = max(len(token_ids) - lookahead, 0) // block_size
    digests: list[bytes] = []
    parent = root
    for i, extra in enumerate(iter_extra_keys(content, block_size, num_blocks, lookahead, rules)):
        end = (i + 1) * block_size
        if lookahead:
            extra = (extra, *token_ids[end : end + lookahead])
        parent = hash_block_tokens(hash_function, parent, token_ids[end - block_size : end], extra)
        digests.append(parent)
    return digests


def event_extra_keys(keys: ExtraKeys) -> ExtraKeys:
    """Extra keys as KV events publish them: untagged (vLLM 0.33.0 `to_event_extra_keys`)."""
    if keys is None:
        return None
    return tuple(key[1:] if key[0] == "mm" else key[1] for key in keys)


def event_block_hash(digest: bytes) -> int:
    """The low 64 bits of a digest, as KV events publish it by default."""
    return int.from_bytes(digest, "big") & ((1 << 64) - 1)
