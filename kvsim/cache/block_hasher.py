"""From a request's content to the 128-bit block hashes that the cache map is keyed by.

One call hashes prompt and output: which of those hashes count at a moment follows from the
number of known tokens alone.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.chain import ROOT, chain_hashes, join_hashes, mix_words
from kvsim.cache.hashing import (
    BlockContent,
    block_hashes,
    get_hash_fn_by_name,
    iter_extra_keys,
    none_hash,
)
from kvsim.rules import VllmRules
from kvsim.tokens import Segments, expand, num_tokens

Hashes = NDArray[np.uint64]

_FEW = 4096  # shared leading segments whose chain is kept


def _words(*key: object) -> tuple[int, int]:
    """128 bits of a tagged key, independent of the process."""
    digest = hashlib.blake2b("\x1f".join(map(str, key)).encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


class FastBlockHasher:
    """The compiled chain. A leading segment that requests share is hashed once per run."""

    def __init__(
        self, block_size: int, rules: VllmRules, lookahead: int = 0, coarse_scales: Sequence[int] = ()
    ) -> None:
        self.block_size = block_size
        self.lookahead = lookahead
        self._rules = rules
        self._coarse_scales = coarse_scales if rules.concatenated_coarse_hashes else ()
        self._shared: OrderedDict[tuple[object, ...], Hashes] = OrderedDict()

    def __call__(self, segments: Segments, content: BlockContent) -> Hashes:
        """Hashes of all full blocks, shape (n, 2); coarser groups' keys, if any, follow."""
        n = max(num_tokens(segments) - self.lookahead, 0) // self.block_size
        out = np.empty((n, 2), np.uint64)
        if n:
            self._fill(segments, content, out)
        return with_coarse_keys(out, self._coarse_scales, self._join)

    def _fill(self, segments: Segments, content: BlockContent, out: Hashes) -> None:
        root = self._root(content)
        blocks, words = self._extra_words(content, len(out))
        leading = self._leading_blocks(segments, blocks, len(out))
        start = 0
        if leading:
            out[:leading] = self._shared_chain(segments, root, leading)
            start, root = leading, (out[leading - 1, 0], out[leading - 1, 1])
        chain_hashes(segments, self.block_size, self.lookahead, *root, start, blocks, words, out)

    def _root(self, content: BlockContent) -> tuple[np.uint64, np.uint64]:
        """LoRA keys every block and the salt the first; through the chain both reach all blocks."""
        root = ROOT
        for key in (
            ("lora", *(content.lora if self._rules.tagged_extra_keys else content.lora[:1]))
            if content.lora
            else None,
            ("cache_salt", content.cache_salt) if content.cache_salt else None,
        ):
            if key:
                lo, hi = mix_words(*root, *map(np.uint64, _words(*key)))
                root = np.uint64(lo), np.uint64(hi)  # compiled code returns Python's own integers
        return root

    def _extra_words(self, content: BlockContent, num_blocks: int) -> tuple[NDArray[np.int64], Hashes]:
        if not content.features and content.prompt_embeds is None:
            return np.empty(0, np.int64), np.empty((0, 2), np.uint64)
        only_images = BlockContent(
            content.num_prompt_tokens, content.features, prompt_embeds=content.prompt_embeds
        )
        keys = iter_extra_keys(only_images, self.block_size, num_blocks, self.lookahead, self._rules)
        rows = [(i, *_words(*self._flat(key))) for i, extra in enumerate(keys) for key in extra or ()]
        blocks = np.array([row[0] for row in rows], np.int64)
        return blocks, np.array([row[1:] for row in rows], np.uint64).reshape(len(rows), 2)

    @staticmethod
    def _flat(key: object) -> tuple[object, ...]:
        return key if isinstance(key, tuple) else ("mm", key)

    def _leading_blocks(self, segments: Segments, extra_blocks: NDArray[np.int64], num_blocks: int) -> int:
        """Whole blocks of the first segment, if no image keys them."""
        if len(segments) < 2:
            return 0
        leading = min(max(int(segments[0, 2]) - self.lookahead, 0) // self.block_size, num_blocks)
        return min(leading, int(extra_blocks[0])) if len(extra_blocks) else leading

    def _shared_chain(self, segments: Segments, root: tuple[np.uint64, np.uint64], num_blocks: int) -> Hashes:
        key = (*map(int, segments[0]), *map(int, root))
        chain = self._shared.get(key)
        if chain is None or len(chain) < num_blocks:
            chain = np.empty((num_blocks, 2), np.uint64)
            none = np.empty(0, np.int64), np.empty((0, 2), np.uint64)
            chain_hashes(segments, self.block_size, self.lookahead, *root, 0, *none, chain)
            self._shared[key] = chain
            if len(self._shared) > _FEW:
                self._shared.popitem(last=False)
        else:
            self._shared.move_to_end(key)
        return chain[:num_blocks]

    @staticmethod
    def _join(fine: Hashes, scale: int) -> Hashes:
        out = np.empty((len(fine) // scale, 2), np.uint64)
        join_hashes(fine, scale, out)
        return out


class VllmBlockHasher:
    """One of vLLM's own algorithms; keys are the first 16 bytes of its digests.

    `digests` leads from a key back to the whole digest, for KV events and conformance.
    """

    def __init__(
        self,
        algorithm: str,
        block_size: int,
        rules: VllmRules,
        lookahead: int = 0,
        coarse_scales: Sequence[int] = (),
        root: bytes | None = None,
    ) -> None:
        self.block_size = block_size
        self.lookahead = lookahead
        self.root = none_hash(algorithm, rules) if root is None else root
        self.digests: dict[bytes, bytes] | None = None
        self._hash = get_hash_fn_by_name(algorithm)
        self._rules = rules
        self._coarse_scales = coarse_scales if rules.concatenated_coarse_hashes else ()

    def keep_digests(self) -> None:
        self.digests = {}

    def __call__(self, segments: Segments, content: BlockContent) -> Hashes:
        return self.hash_tokens(expand(segments).tolist(), content)

    def hash_tokens(self, token_ids: list[int], content: BlockContent) -> Hashes:
        """Keys of all full blocks of prompt and output, shape (n, 2)."""
        digests = block_hashes(
            self._hash, self.root, content, token_ids, self.block_size, self._rules, self.lookahead
        )
        fine = self._keys(digests)
        parts = [fine]
        for scale in self._coarse_scales:
            joined = [
                b"".join(digests[i : i + scale]) for i in range(0, len(digests) // scale * scale, scale)
            ]
            parts.append(self._keys(joined, [hashlib.sha256(value).digest()[:16] for value in joined]))
        return np.concatenate(parts)

    def _keys(self, digests: list[bytes], keys: list[bytes] | None = None) -> Hashes:
        keys = [digest[:16] for digest in digests] if keys is None else keys
        if self.digests is not None:
            self.digests.update(zip(keys, digests, strict=True))
        return np.frombuffer(b"".join(keys), "<u8").astype(np.uint64).reshape(len(keys), 2)


BlockHasher = FastBlockHasher | VllmBlockHasher


def with_coarse_keys(fine: Hashes, scales: Sequence[int], join: Callable[[Hashes, int], Hashes]) -> Hashes:
    return np.concatenate([fine, *(join(fine, scale) for scale in scales)]) if scales else fine


def make_block_hasher(
    algorithm: str,
    block_size: int,
    rules: VllmRules,
    lookahead: int = 0,
    coarse_scales: Sequence[int] = (),
) -> BlockHasher:
    """A hasher for `prefix_caching_hash_algo`: "fast" or one of vLLM's names (else KvsimError)."""
    if algorithm == "fast":
        return FastBlockHasher(block_size, rules, lookahead, coarse_scales)
    return VllmBlockHasher(algorithm, block_size, rules, lookahead, coarse_scales)
