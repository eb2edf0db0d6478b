"""Chained hashes of prompts in a router's own blocks, for routers that do not see the engines' hashes.

Such a router cuts a prompt where it likes: in tokens, or in the characters of its text, of which a fixed
number stands for each token (no character stands for two different ones, so a cut inside a token tells it,
too). All pictures look alike to it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.compiled import compiled
from kvsim.tokens import Segments, mix64, token_at

_ROOT, _PARTIAL = np.uint64(0x72_6F75_7465_7220), np.uint64(0x9AE16A3B2F90404F)
_PRIME, _GOLDEN = np.uint64(0x100000001B3), np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class PromptHashing:
    """Blocks of `block_size` characters (tokens, with one character for each).

    partial_block: the last one counts, too, if it is not full. max_blocks: of a prompt, None for no limit.
    text_only: equal prompts are equal whatever their cache salt and LoRA adapter.
    """

    block_size: int
    chars_per_token: int = 1
    partial_block: bool = False
    max_blocks: int | None = None
    text_only: bool = False

    def num_blocks(self, num_tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Blocks of prompts of so many tokens, shape (n,)."""
        chars = num_tokens * self.chars_per_token
        blocks = -(-chars // self.block_size) if self.partial_block else chars // self.block_size
        return blocks if self.max_blocks is None else np.minimum(blocks, self.max_blocks)


@compiled
def _fill_hashes(routed, segments, block_size, chars_per_token, out):
    """out[first_hash + i, 0] of each request: FNV-1a over its tokens, stirred at each end of a block."""
    for r in range(routed.shape[0]):
        first, num_blocks = routed["first_hash"][r], routed["num_blocks"][r]
        state = _ROOT ^ mix64(routed["content_key"][r])
        block, chars, end = np.int64(0), np.int64(0), block_size
        for s in range(routed["first_segment"][r], routed["end_segment"][r]):
            stream, start = segments[s, 0], segments[s, 1]
            i, length = np.int64(0), np.int64(segments[s, 2])
            while i < length and block < num_blocks:
                state = (state ^ token_at(stream, start + np.uint64(i))) * _PRIME
                chars += chars_per_token
                while chars >= end and block < num_blocks:
                    state = mix64(state + _GOLDEN)
                    out[first + block, 0] = state
                    block += 1
                    end += block_size
                i += 1
        if block < num_blocks:
            out[first + block, 0] = mix64(state ^ _PARTIAL)


def own_window(
    hashing: PromptHashing, routed: NDArray[np.void], segments: Segments
) -> tuple[NDArray[np.void], NDArray[np.uint64]]:
    """Requests (ROUTED_DTYPE (n,), a copy) with hashes of their own, (t, 1), in place of the engines'."""
    routed = routed.copy()
    if hashing.text_only:
        routed["content_key"] = 0
    routed["num_blocks"] = hashing.num_blocks(routed["num_prompt_tokens"])
    ends = np.cumsum(routed["num_blocks"])
    routed["first_hash"], routed["hash_step"] = ends - routed["num_blocks"], 1
    hashes = np.empty((int(ends[-1]) if len(ends) else 0, 1), np.uint64)
    _fill_hashes(routed, segments, np.int64(hashing.block_size), np.int64(hashing.chars_per_token), hashes)
    return routed, hashes
