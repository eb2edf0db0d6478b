"""What to measure, as people write it."""

import re
from dataclasses import dataclass

from kvsim.errors import KvsimError

# In the order in which help and tables name them.
OPERATIONS = ("prefill", "cached", "decode", "mixed", "encoder", "gemm", "copy", "all_reduce")
DTYPES = ("bfloat16", "fp8")
HOT, COLD = "hot", "cold"
L2_STATES = {"hot": (HOT,), "cold": (COLD,), "both": (HOT, COLD)}

MOST_HEADS = 1024
HEAD_DIMS = range(8, 513, 8)
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)([smh])")


@dataclass(frozen=True, order=True)
class HeadShape:
    """Query heads, KV heads and head size on one GPU (already divided by tensor parallelism)."""

    n_q: int
    n_kv: int
    head_dim: int

    def __str__(self) -> str:
        return f"{self.n_q}/{self.n_kv}/{self.head_dim}"


@dataclass(frozen=True, order=True)
class LinearShape:
    """out[m, n] = in[m, k] x W[k, n] on one GPU."""

    n: int
    k: int


@dataclass(frozen=True, order=True)
class EncoderShape:
    """Heads of a vision encoder's attention on one GPU."""

    n_heads: int
    head_dim: int


@dataclass(frozen=True)
class Shapes:
    """All shapes to measure."""

    heads: tuple[HeadShape, ...] = ()
    linears: tuple[LinearShape, ...] = ()
    encoders: tuple[EncoderShape, ...] = ()

    def __add__(self, other: "Shapes") -> "Shapes":
        return Shapes(
            tuple(dict.fromkeys(self.heads + other.heads)),
            tuple(dict.fromkeys(self.linears + other.linears)),
            tuple(dict.fromkeys(self.encoders + other.encoders)),
        )


@dataclass(frozen=True)
class Request:
    """What one `calibrate measure` is to do. budget: seconds, None without a limit.

    kernels: words, of which a kernel's name must hold one; all kernels if empty.
    """

    shapes: Shapes
    operations: tuple[str, ...] = OPERATIONS
    dtypes: tuple[str, ...] = ("bfloat16",)
    l2: tuple[str, ...] = (HOT, COLD)
    kernels: tuple[str, ...] = ()
    budget: float | None = None
    device: str = "cuda"


def parse_heads(text: str) -> HeadShape:
    """``32/8/128``. Raises KvsimError naming the option."""
    parts = text.split("/")
    if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
        raise KvsimError(f"--heads {text}: write query heads/KV heads/head size, such as 32/8/128")
    n_q, n_kv, head_dim = map(int, parts)
    if not 1 <= n_kv <= n_q <= MOST_HEADS or n_q % n_kv:
        raise KvsimError(
            f"--heads {text}: query heads must be a multiple of the KV heads, from 1 to {MOST_HEADS}"
        )
    if head_dim not in HEAD_DIMS:
        raise KvsimError(f"--heads {text}: the head size must be a multiple of 8 from 8 to {HEAD_DIMS[-1]}")
    return HeadShape(n_q, n_kv, head_dim)


def parse_budget(text: str) -> float:
    """``8m``, ``90s``, ``1h30m`` in seconds. Raises KvsimError naming the option."""
    parts = _PART.findall(text)
    seconds = sum(float(count) * _SECONDS[unit] for count, unit in parts)
    if "".join(count + unit for count, unit in parts) != text or not seconds > 0:
        raise KvsimError(f"--budget {text}: write a time above 0 with its unit, such as 90s, 8m or 1h30m")
    return seconds


def one_of(option: str, text: str, known: tuple[str, ...]) -> str:
    """The word itself; raises KvsimError naming the option and what it may be."""
    if text not in known:
        raise KvsimError(f"{option} {text}: not known; one of {', '.join(known)}")
    return text
