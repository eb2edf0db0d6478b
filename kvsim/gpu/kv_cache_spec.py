"""What one attention layer stores per block: vLLM's KVCacheSpec classes as one record.

Formulas: `v1/kv_cache_interface.py` of vLLM 0.33.0 and 0.16.0. Sizes are bytes on one GPU.
"""

from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["full", "mla", "sliding_window", "chunked_local"]

_CLASS_NAMES: dict[Kind, str] = {
    "full": "FullAttentionSpec",
    "mla": "MLAAttentionSpec",
    "sliding_window": "SlidingWindowSpec",
    "chunked_local": "ChunkedLocalAttentionSpec",
}


def cdiv(a: int, b: int) -> int:
    """Ceiling of a / b."""
    return -(-a // b)


@dataclass(frozen=True)
class RequestLimits:
    """What bounds one request's blocks.

    max_model_len: tokens, prompt and output together.
    max_in_flight_tokens: tokens scheduled but not yet settled, which a window layer must still hold
        (0.33: one token budget per batch in flight; 0.16: one budget).
    dcp: decode context parallel ranks that share a request's tokens.
    """

    max_model_len: int
    max_in_flight_tokens: int
    dcp: int = 1


@dataclass(frozen=True)
class KVCacheSpec:
    """KV cache format of one layer.

    head_size_v None means head_size; an MLA layer has one latent "head" and no separate V.
    window: tokens of a sliding-window layer, or chunk length of a chunked-local one; on a full layer
        it only records the window of a layer that is stored as full attention.
    page_size_padded: bytes a page is stretched to so that all groups' pages agree.
    """

    kind: Kind
    block_size: int
    num_kv_heads: int
    head_size: int
    dtype_bytes: int
    head_size_v: int | None = None
    window: int | None = None
    page_size_padded: int | None = None

    @property
    def class_name(self) -> str:
        """Name of vLLM's class for this kind."""
        return _CLASS_NAMES[self.kind]

    @property
    def bytes_per_token(self) -> int:
        v = 0 if self.kind == "mla" else self.head_size if self.head_size_v is None else self.head_size_v
        return self.num_kv_heads * (self.head_size + v) * self.dtype_bytes

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block of this layer."""
        return self.page_size_padded or self.block_size * self.bytes_per_token

    def blocks_per_request(self, limits: RequestLimits) -> int:
        """Most blocks that one request can hold at once in this layer's group.

        The extra window block is there because a window need not begin on a block border.
        """
        if self.kind == "sliding_window":
            held = min((self.window or 1) - 1 + limits.max_in_flight_tokens, limits.max_model_len)
            return cdiv(held, self.block_size) + 1
        if self.kind == "chunked_local":
            held = min((self.window or 0) + limits.max_in_flight_tokens, limits.max_model_len)
            return cdiv(held, self.block_size)
        return cdiv(cdiv(limits.max_model_len, limits.dcp), self.block_size)

    def max_memory_usage_bytes(self, limits: RequestLimits) -> int:
        return self.blocks_per_request(limits) * self.page_size_bytes

    def as_full(self) -> "KVCacheSpec":
        """The same layer stored for all tokens: what happens when the hybrid manager is off."""
        return self if self.kind in ("full", "mla") else replace(self, kind="full")
