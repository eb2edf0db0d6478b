"""Token content without token storage: counter-based random streams.

A *stream* is an endless list of token ids, a pure function of a 64-bit key. Content is an
array of segments of shape (k, 3), uint64, with columns (stream, start, length): "tokens
start .. start + length - 1 of that stream". Stream 0 is the image placeholder: every
position holds the same id, as in vLLM's expanded prompts.
"""

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kvsim.compiled import compiled

Segments = NDArray[np.uint64]

PLACEHOLDER_STREAM = 0
PLACEHOLDER_TOKEN = 151655  # <|image_pad|> of the Qwen2.5-VL and Qwen3-VL tokenizers
FIRST_TOKEN = 3  # 0..2 are kept free: padding, begin, end
NUM_TOKEN_IDS = 128_000

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


@compiled
def mix64(x: np.uint64) -> np.uint64:
    """A bijective 64-bit finaliser (splitmix64, Steele et al., OOPSLA 2014)."""
    x = (x ^ (x >> _S30)) * _MIX1
    x = (x ^ (x >> _S27)) * _MIX2
    return x ^ (x >> _S31)


@compiled
def token_at(stream: np.uint64, index: np.uint64) -> np.uint64:
    """Token id number `index` of a stream."""
    if stream == np.uint64(PLACEHOLDER_STREAM):
        return np.uint64(PLACEHOLDER_TOKEN)
    drawn = mix64(stream + index * _GOLDEN)
    return np.uint64(FIRST_TOKEN) + drawn % np.uint64(NUM_TOKEN_IDS)


@compiled
def fill_tokens(segments: Segments, out: NDArray[np.int64]) -> int:
    """Write the tokens of all segments to `out`, which is long enough; returns how many."""
    n = 0
    for k in range(segments.shape[0]):
        stream, start = segments[k, 0], segments[k, 1]
        for i in range(np.int64(segments[k, 2])):
            out[n] = np.int64(token_at(stream, start + np.uint64(i)))
            n += 1
    return n


def num_tokens(segments: Segments) -> int:
    return int(segments[:, 2].sum())


def first_tokens(segments: Segments, count: int) -> Segments:
    """The first `count` tokens of content (all of it, if it is shorter)."""
    if num_tokens(segments) <= count:
        return segments
    before = np.cumsum(segments[:, 2]) - segments[:, 2]
    kept = segments[before < count].copy()
    kept[-1, 2] = count - int(before[len(kept) - 1])
    return kept


def expand(segments: Segments) -> NDArray[np.int64]:
    """Token ids of all segments, shape (num_tokens,)."""
    out = np.empty(num_tokens(segments), np.int64)
    fill_tokens(segments, out)
    return out


def stream_key(*parts: object) -> int:
    """A 64-bit stream key from names and numbers; equal parts give equal keys, never 0.

    Independent of the process and of PYTHONHASHSEED.
    """
    digest = hashlib.blake2b(_spelled(*parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


def stream_keys(name: str, numbers: Iterable[int]) -> NDArray[np.uint64]:
    """`stream_key(name, number)` of many whole numbers, shape (numbers,)."""
    head = _spelled(name, 0)[:-1].encode()
    digests = [hashlib.blake2b(b"%b%d" % (head, number), digest_size=8).digest() for number in numbers]
    return np.maximum(np.frombuffer(b"".join(digests), "<u8"), np.uint64(1))


def _spelled(*parts: object) -> str:
    return "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)


def segments(*parts: tuple[int, int, int]) -> Segments:
    """Content from (stream, start, length) triples; empty ones are left out."""
    rows = [part for part in parts if part[2] > 0]
    return np.array(rows, np.uint64).reshape(len(rows), 3)
