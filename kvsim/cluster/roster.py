"""What is known by name of the requests at hand: compiled code has numbers only."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.cluster.state import ROUTED_DTYPE
from kvsim.cluster.window import content_key, session_key
from kvsim.engine.config import EngineConfig
from kvsim.engine.core import ranges
from kvsim.tokens import Segments

_content_key = lru_cache(maxsize=1 << 16)(content_key)
_session_key = lru_cache(maxsize=1 << 16)(session_key)


class Roster:
    """Requests of the window by row: where each stands in its block, and why it is refused.

    is_routed: routers look at the requests, so `routed` must tell of them.
    """

    def __init__(self, is_routed: bool) -> None:
        self._is_routed = is_routed
        self._blocks: list[Any] = []  # `kvsim.workload.RequestBlock`
        self._block_of = np.zeros(0, np.int64)
        self._number = np.zeros(0, np.int64)  # in its block
        self._ids: list[str] = []
        self._routed, self._segments = np.zeros(0, ROUTED_DTYPE), np.zeros((0, 3), np.uint64)
        self._reasons: dict[tuple[int, int], str] = {}

    def keep(self, kept: NDArray[np.int64], block: Any) -> None:
        """The window becomes the rows `kept` of the old one and then those of a block."""
        rows = {row: k for k, row in enumerate(kept.tolist())}
        self._reasons = {
            (kind, rows[row]): text for (kind, row), text in self._reasons.items() if row in rows
        }
        used, kept_in = np.unique(self._block_of[kept], return_inverse=True)
        self._blocks = [*(self._blocks[number] for number in used.tolist()), block]
        self._block_of = np.concatenate([kept_in, np.full(len(block), len(used))])
        self._number = np.concatenate([self._number[kept], np.arange(len(block))])
        self._ids = [*(self._ids[row] for row in rows), *block.request_ids]
        if self._is_routed:
            self._add_routed(kept, block)

    def _add_routed(self, kept: NDArray[np.int64], block: Any) -> None:
        old, new = self._routed[kept], routed_of(block)
        lengths = old["end_segment"] - old["first_segment"]
        segments, old["first_segment"] = ranges(self._segments, old["first_segment"], lengths)
        old["end_segment"] = old["first_segment"] + lengths
        new["first_segment"] += len(segments)
        new["end_segment"] += len(segments)
        self._routed = np.concatenate([old, new])
        self._segments = np.concatenate([segments, block.segments])

    def refuse(self, kind: int, row: int, reason: str) -> None:
        """Engines of a kind refuse a request."""
        self._reasons[kind, row] = reason

    def reason(self, kind: int, row: int) -> str:
        """Why engines of a kind refuse a request."""
        return self._reasons[kind, row]

    def request(self, row: int) -> Any:
        """A request of the window (`kvsim.workload.Request`)."""
        return self._blocks[self._block_of[row]][int(self._number[row])]

    def request_ids(self, rows: NDArray[np.int64]) -> list[str]:
        return [self._ids[row] for row in rows.tolist()]

    def column(self, name: str, rows: NDArray[np.int64]) -> list[Any] | None:
        """A column of the blocks that may be missing; None if it is for all."""
        columns = [getattr(block, name) for block in self._blocks]
        if all(column is None for column in columns):
            return None
        places = zip(self._block_of[rows].tolist(), self._number[rows].tolist(), strict=True)
        return [None if columns[block] is None else columns[block][number] for block, number in places]

    def routed(self) -> tuple[NDArray[np.void], Segments]:
        """ROUTED_DTYPE rows without their hashes, and the prompts' segments."""
        return self._routed.copy(), self._segments


def routed_of(block: Any) -> NDArray[np.void]:
    """ROUTED_DTYPE rows of a block's requests, without their hashes."""
    rows = np.zeros(len(block), ROUTED_DTYPE)
    rows["num_prompt_tokens"], rows["max_tokens"] = block.num_prompt_tokens, block.max_tokens
    rows["first_segment"], rows["end_segment"] = block.bounds[:-1], block.prompt_ends
    if block.cache_salts is not None or block.loras is not None:
        none = [None] * len(block)
        pairs = zip(block.cache_salts or none, block.loras or none, strict=True)
        rows["content_key"] = [_content_key(salt, lora) for salt, lora in pairs]
    if block.sessions is not None:
        rows["session"] = [_session_key(session) for session in block.sessions]
    return rows


def add_hashes(routed: NDArray[np.void], rows: NDArray[np.void], config: EngineConfig) -> None:
    """Where each request's block keys stand, of the group whose KV events the index follows.

    rows: REQUEST_DTYPE, the requests as that engine has them.
    """
    kv, group = config.kv_cache_config(), config.index_group
    size = kv.group_block_sizes[group]
    scale = size // kv.hash_block_size
    fine = rows["num_hash_blocks"]
    routed["num_blocks"] = np.minimum(rows["num_prompt_tokens"] // size, fine // scale)
    routed["first_hash"], routed["hash_step"] = rows["hash_offset"] + scale - 1, scale
    if scale > 1 and kv.rules.concatenated_coarse_hashes:  # 0.16: keys of coarser blocks follow the fine ones
        earlier = [other // kv.hash_block_size for other in kv.group_block_sizes[:group]]
        before = sum((fine // other for other in earlier if other > 1), np.zeros(len(rows), np.int64))
        routed["first_hash"], routed["hash_step"] = rows["hash_offset"] + fine + before, 1
