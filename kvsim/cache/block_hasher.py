"""From a request's content to the 128-bit block hashes that the cache map is keyed by.

One call hashes prompt and output: which of those hashes count at a moment follows from the
number of known tokens alone.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.chain import ROOT, chain_hashes, chain_many, join_hashes, mix_words
from kvsim.cache.hashing import (
    BlockContent,
    block_hashes,
    get_hash_fn_by_name,
    iter_extra_keys,
    none_hash,
)
from kvsim.rules import VllmRules
from kvsim.tokens import Segments, expand, first_tokens, num_tokens

Hashes = NDArray[np.uint64]

_FEW = 4096  # shared leading segments whose chain is kept
_NO_BLOCKS, _NO_WORDS = np.empty(0, np.int64), np.empty((0, 2), np.uint64)
_KEY_WEIGHTS = np.arange(1, 7, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1)


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
        self._shared: OrderedDict[tuple[int, ...], Hashes] = OrderedDict()

    def __call__(self, segments: Segments, content: BlockContent) -> Hashes:
        """Hashes of all full blocks, shape (n, 2); coarser groups' keys, if any, follow."""
        bounds, sizes = np.array([0, len(segments)]), np.array([num_tokens(segments)])
        return self.hash_many(segments, bounds, sizes, [content])

    def hash_many(
        self,
        segments: Segments,
        bounds: NDArray[np.int64],
        sizes: NDArray[np.int64],
        contents: Sequence[BlockContent] | None,
    ) -> Hashes:
        """The same for many requests, one after the other; see `KVCacheManager.hash_contents`."""
        n = len(sizes)
        num_blocks = np.maximum(sizes - self.lookahead, 0) // self.block_size
        roots = np.tile(np.array(ROOT, np.uint64), (n, 1))
        extra_bounds, extra_blocks, extra_words = np.zeros(n + 1, np.int64), _NO_BLOCKS, _NO_WORDS
        if contents is not None:
            roots[:] = [self._root(content) for content in contents]
            extras = [self._extra_words(*pair) for pair in zip(contents, num_blocks.tolist(), strict=True)]
            extra_bounds[1:] = np.cumsum([len(blocks) for blocks, _ in extras])
            extra_blocks = np.concatenate([blocks for blocks, _ in extras])
            extra_words = np.concatenate([words for _, words in extras])
        leading = self._leading_blocks(segments, bounds, num_blocks, extra_bounds, extra_blocks)
        chains, chain_starts = self._shared_chains(segments[bounds[:-1]], roots, leading)
        total = num_blocks.copy()
        for scale in self._coarse_scales:
            total += num_blocks // scale
        starts = np.cumsum(total) - total
        out = np.empty((int(total.sum()), 2), np.uint64)
        chain_many(
            segments,
            bounds,
            self.block_size,
            self.lookahead,
            roots,
            chains,
            chain_starts,
            leading,
            extra_bounds,
            extra_blocks,
            extra_words,
            starts,
            num_blocks,
            out,
        )
        if self._coarse_scales:
            self._join_coarse(out, starts, num_blocks)
        return out

    def _leading_blocks(
        self,
        segments: Segments,
        bounds: NDArray[np.int64],
        num_blocks: NDArray[np.int64],
        extra_bounds: NDArray[np.int64],
        extra_blocks: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Whole blocks of each request's first segment, if no image keys them and more follows."""
        first_sizes = segments[bounds[:-1], 2].astype(np.int64)
        leading = np.minimum(np.maximum(first_sizes - self.lookahead, 0) // self.block_size, num_blocks)
        leading[np.diff(bounds) < 2] = 0
        keyed = np.flatnonzero(np.diff(extra_bounds))
        leading[keyed] = np.minimum(leading[keyed], extra_blocks[extra_bounds[keyed]])
        return leading

    def _shared_chains(
        self, first_segments: Segments, roots: Hashes, leading: NDArray[np.int64]
    ) -> tuple[Hashes, NDArray[np.int64]]:
        """Chains of first segments that several requests begin with, and where each request's begins.

        `leading` becomes 0 for the others.
        """
        if not leading.any():
            return _NO_WORDS, np.zeros(len(leading), np.int64)
        keys = np.column_stack([first_segments, roots, leading.astype(np.uint64)])
        if len(keys) == 1:  # it comes alone, others like it may follow
            chain = self._shared_chain(tuple(keys[0].tolist()), True) if leading[0] else _NO_WORDS
            return chain, np.zeros(1, np.int64)
        mixed = keys @ _KEY_WEIGHTS  # equal keys, equal numbers; the rare reverse is looked at below
        _, first, inverse, counts = np.unique(mixed, True, True, True)
        chains, starts, total = [_NO_WORDS], np.zeros(len(first), np.int64), 0
        shared = np.zeros(len(first), bool)
        candidates = (leading[first] > 0) & ((counts > 1) | bool(self._shared))
        for k in np.flatnonzero(candidates).tolist():
            chain = self._shared_chain(tuple(keys[first[k]].tolist()), bool(counts[k] > 1))
            if len(chain):
                chains.append(chain)
                shared[k], starts[k], total = True, total, total + len(chain)
        alone = ~shared[inverse] | (keys != keys[first[inverse]]).any(axis=1)
        leading[alone] = 0
        return np.concatenate(chains), starts[inverse]

    def _shared_chain(self, key: tuple[int, ...], is_shared: bool) -> Hashes:
        """The chain of a first segment if it is known, or made now because it `is_shared`; else empty."""
        chain = self._shared.get(key, _NO_WORDS)
        if len(chain):
            self._shared.move_to_end(key)
        elif is_shared:
            chain = np.empty((key[-1], 2), np.uint64)
            segments = np.array([key[:3]], np.uint64)
            root = np.uint64(key[3]), np.uint64(key[4])
            chain_hashes(segments, self.block_size, self.lookahead, *root, 0, _NO_BLOCKS, _NO_WORDS, chain)
            self._shared[key] = chain
            if len(self._shared) > _FEW:
                self._shared.popitem(last=False)
        return chain

    def _join_coarse(self, out: Hashes, starts: NDArray[np.int64], num_blocks: NDArray[np.int64]) -> None:
        """Keys of coarser blocks behind each request's fine ones."""
        for start, n in zip(starts.tolist(), num_blocks.tolist(), strict=True):
            at = start + n
            for scale in self._coarse_scales:
                join_hashes(out[start : start + n], scale, out[at : at + n // scale])
                at += n // scale

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
            return _NO_BLOCKS, _NO_WORDS
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

    def hash_many(
        self,
        segments: Segments,
        bounds: NDArray[np.int64],
        sizes: NDArray[np.int64],
        contents: Sequence[BlockContent] | None,
    ) -> Hashes:
        """Keys of many requests, one after the other; see `KVCacheManager.hash_contents`."""
        parts = []
        for i, size in enumerate(sizes.tolist()):
            own = first_tokens(segments[bounds[i] : bounds[i + 1]], size)
            parts.append(self(own, BlockContent(size) if contents is None else contents[i]))
        return np.concatenate(parts)

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
