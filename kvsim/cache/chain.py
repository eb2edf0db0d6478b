"""kvsim's own fast block-hash chain: 128 bits, compiled, over the same inputs as vLLM's.

The parent is the state, the tokens are mixed in four at a time with the round of
MurmurHash3_x64_128 (Appleby, public domain), then the block's extra keys, then its length.
Two blocks share a hash if and only if vLLM's would (unless 128 bits collide), so hits are the
same; the values are not comparable with a server's.
"""

import numpy as np

from kvsim.compiled import compiled, compiled_inline, compiled_part
from kvsim.tokens import token_at

_C1, _C2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
_ADD1, _ADD2 = np.uint64(0x52DCE729), np.uint64(0x38495AB5)
_F1, _F2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_ONE, _TWO, _FIVE = np.uint64(1), np.uint64(2), np.uint64(5)
_S27, _S31, _S33 = np.uint64(27), np.uint64(31), np.uint64(33)
_WORD = np.uint64(64)

ROOT = (np.uint64(0x6B7673696D20726F), np.uint64(0x6F7420626C6F636B))  # "kvsim ro", "ot block"


@compiled_part
def _rotl(x, r):
    return (x << r) | (x >> (_WORD - r))


@compiled_part
def _absorb(lo, hi, k1, k2):
    lo ^= _rotl(k1 * _C1, _S31) * _C2
    lo = (_rotl(lo, _S27) + hi) * _FIVE + _ADD1
    hi ^= _rotl(k2 * _C2, _S33) * _C1
    hi = (_rotl(hi, _S31) + lo) * _FIVE + _ADD2
    return lo, hi


@compiled_part
def _avalanche(x):
    x = (x ^ (x >> _S33)) * _F1
    x = (x ^ (x >> _S33)) * _F2
    return x ^ (x >> _S33)


@compiled_part
def _finish(lo, hi, length):
    lo ^= length
    hi ^= length
    lo += hi
    hi += lo
    lo, hi = _avalanche(lo), _avalanche(hi)
    lo += hi
    return lo, hi + lo


@compiled_inline
def _pair_at(stream, index):
    """Two tokens of a stream as one word."""
    return token_at(stream, index) | token_at(stream, index + _ONE) << np.uint64(32)


@compiled_part
def _token_of(segments, position):
    """Token at a position of the content (only used for look-ahead tokens)."""
    k = 0
    while position >= np.int64(segments[k, 2]):
        position -= np.int64(segments[k, 2])
        k += 1
    return token_at(segments[k, 0], segments[k, 1] + np.uint64(position))


@compiled
def chain_hashes(segments, block_size, lookahead, lo, hi, start_block, extra_blocks, extra_words, out):
    """Fill out[start_block:] with the chained hashes of `segments`, (n, 2) uint64.

    lo, hi: hash of block start_block - 1, or ROOT mixed with what holds for every block.
    extra_blocks (m,) ascending and extra_words (m, 2): extra keys, by block.
    """
    num_blocks = out.shape[0]
    block = start_block
    skip = start_block * block_size
    e, k1, k2, filled = 0, np.uint64(0), np.uint64(0), 0
    length = np.uint64(block_size)
    for s in range(segments.shape[0]):
        stream, start = segments[s, 0], segments[s, 1]
        n = np.int64(segments[s, 2])
        if skip >= n:
            skip -= n
            continue
        i = skip
        while i < n:
            if block == num_blocks:
                return
            lane = filled & 3
            if lane == 0 and i + 4 <= n and filled + 4 <= block_size:  # nearly always
                at = start + np.uint64(i)
                lo, hi = _absorb(lo, hi, _pair_at(stream, at), _pair_at(stream, at + _TWO))
                filled += 4
                i += 4
            else:
                token = token_at(stream, start + np.uint64(i))
                if lane == 0:
                    k1 = token
                elif lane == 1:
                    k1 |= token << np.uint64(32)
                elif lane == 2:
                    k2 = token
                else:
                    k2 |= token << np.uint64(32)
                    lo, hi = _absorb(lo, hi, k1, k2)
                    k1, k2 = np.uint64(0), np.uint64(0)
                filled += 1
                i += 1
            if filled < block_size:
                continue
            if filled & 3:
                lo, hi = _absorb(lo, hi, k1, k2)
                k1, k2 = np.uint64(0), np.uint64(0)
            while e < extra_blocks.shape[0] and extra_blocks[e] <= block:
                if extra_blocks[e] == block:
                    lo, hi = _absorb(lo, hi, extra_words[e, 0], extra_words[e, 1])
                    length += np.uint64(1 << 32)
                e += 1
            for ahead in range(lookahead):
                after = _token_of(segments, (block + 1) * block_size + ahead)
                lo, hi = _absorb(lo, hi, after, np.uint64(ahead + 1))
            lo, hi = _finish(lo, hi, length)
            out[block, 0], out[block, 1] = lo, hi
            length = np.uint64(block_size)
            filled = 0
            block += 1
        skip = 0


@compiled
def chain_many(
    segments,
    bounds,
    block_size,
    lookahead,
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
):
    """`chain_hashes` for many requests: request i has segments[bounds[i]:bounds[i + 1]] and fills
    out[starts[i]:][:num_blocks[i]].

    roots (n, 2). Its first leading[i] blocks stand in chains[chain_starts[i]:] already; its extra keys
    are those from extra_bounds[i] to extra_bounds[i + 1].
    """
    for r in range(len(num_blocks)):
        lo, hi, ready = roots[r, 0], roots[r, 1], leading[r]
        own = out[starts[r] : starts[r] + num_blocks[r]]
        for k in range(ready):
            own[k, 0], own[k, 1] = chains[chain_starts[r] + k, 0], chains[chain_starts[r] + k, 1]
        if ready > 0:
            lo, hi = own[ready - 1, 0], own[ready - 1, 1]
        first, end = extra_bounds[r], extra_bounds[r + 1]
        content = segments[bounds[r] : bounds[r + 1]]
        blocks, words = extra_blocks[first:end], extra_words[first:end]
        chain_hashes(content, block_size, lookahead, lo, hi, ready, blocks, words, own)


@compiled
def mix_words(lo, hi, a, b):
    """Fold one 128-bit word into a chain state."""
    lo, hi = _absorb(lo, hi, a, b)
    return _finish(lo, hi, np.uint64(1))


@compiled
def join_hashes(fine, scale, out):
    """Keys of coarser blocks from `scale` fine hashes each (vLLM 0.16 concatenates them)."""
    for i in range(out.shape[0]):
        lo, hi = fine[i * scale, 0], fine[i * scale, 1]
        for j in range(1, scale):
            lo, hi = _absorb(lo, hi, fine[i * scale + j, 0], fine[i * scale + j, 1])
        out[i, 0], out[i, 1] = _finish(lo, hi, np.uint64(scale))
