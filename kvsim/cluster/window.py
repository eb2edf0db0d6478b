"""The window of requests that a router looks at, as arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.block_hasher import BlockHasher
from kvsim.cache.manager import content_of
from kvsim.cluster.policy import RoutedRequest
from kvsim.cluster.state import ROUTED_DTYPE
from kvsim.errors import KvsimError
from kvsim.tokens import Segments, stream_key

Window = tuple[NDArray[np.void], NDArray[np.uint64], Segments]


def content_key(cache_salt: str | None, lora: Any) -> int:
    """What makes equal prompts different for a cache, as one number; 0 if nothing does."""
    if not cache_salt and lora is None:
        return 0
    return stream_key("content", cache_salt or "", "" if lora is None else lora.name)


def session_key(session: str | None) -> int:
    """A session as a number, 0 for none."""
    return 0 if session is None else stream_key("session", session)


def window_of(requests: Sequence[RoutedRequest], hasher: BlockHasher) -> Window:
    """(routed ROUTED_DTYPE (n,), hashes (t, 2), segments (s, 3)), with hashes as engines make them.

    Raises KvsimError for a request without a token, which vLLM refuses, too.
    """
    routed = np.zeros(len(requests), ROUTED_DTYPE)
    hashes = [np.zeros((0, 2), np.uint64)]
    segments = [np.zeros((0, 3), np.uint64)]
    first_hash = first_segment = 0
    for i, request in enumerate(requests):
        if request.num_prompt_tokens == 0:
            raise KvsimError(f"{request.request_id}: its prompt is empty; a request has at least one token")
        own = hasher(request.prompt, content_of(request))
        n = request.num_prompt_tokens // hasher.block_size
        end = first_segment + len(request.prompt)
        keys = content_key(request.cache_salt, request.lora), session_key(request.session)
        tokens = request.num_prompt_tokens, request.max_tokens
        routed[i] = (*tokens, first_hash, 1, n, *keys, first_segment, end)
        hashes.append(own[:n])
        segments.append(request.prompt)
        first_hash, first_segment = first_hash + n, end
    return routed, np.concatenate(hashes), np.concatenate(segments)
