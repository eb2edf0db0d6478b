"""What is known by name of the requests at hand: compiled code has numbers only."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.cluster.state import ROUTED_DTYPE
from kvsim.cluster.window import content_key, session_key
from kvsim.engine.config import EngineConfig
from kvsim.tokens import Segments

_content_key = lru_cache(maxsize=1 << 16)(content_key)
_session_key = lru_cache(maxsize=1 << 16)(session_key)


class Roster:
    """Requests of the window by row: where each stands in its block, and why it is refused."""

    def __init__(self) -> None:
        self._places: list[tuple[Any, int]] = []  # block (`kvsim.workload.RequestBlock`), number in it
        self._reasons: dict[tuple[int, int], str] = {}

    def keep(self, kept: NDArray[np.int64], block: Any) -> None:
        """The window becomes the rows `kept` of the old one and then those of a block."""
        rows = {row: k for k, row in enumerate(kept.tolist())}
        self._reasons = {
            (kind, rows[row]): text for (kind, row), text in self._reasons.items() if row in rows
        }
        self._places = [self._places[row] for row in rows]
        self._places += [(block, i) for i in range(len(block))]

    def refuse(self, kind: int, row: int, reason: str) -> None:
        """Engines of a kind refuse a request."""
        self._reasons[kind, row] = reason

    def reason(self, row: int) -> str:
        """Why a request was refused: what the first kind of engines that refuses it says."""
        return next(text for (_, refused), text in sorted(self._reasons.items()) if refused == row)

    def request(self, row: int) -> Any:
        block, i = self._places[row]
        return block[i]

    def request_id(self, row: int) -> str:
        block, i = self._places[row]
        name: str = block.request_ids[i]
        return name

    def column(self, name: str, rows: list[int]) -> list[Any] | None:
        """A column of the blocks that may be missing; None if it is for all."""
        columns = [(getattr(self._places[row][0], name), self._places[row][1]) for row in rows]
        if all(column is None for column, _ in columns):
            return None
        return [None if column is None else column[i] for column, i in columns]

    def routed(self) -> tuple[NDArray[np.void], Segments]:
        """ROUTED_DTYPE rows without their hashes, and the prompts' segments."""
        parts, segments, first, at = [np.zeros(0, ROUTED_DTYPE)], [np.zeros((0, 3), np.uint64)], 0, 0
        while at < len(self._places):
            block, i = self._places[at]
            count = 1
            while at + count < len(self._places) and self._places[at + count] == (block, i + count):
                count += 1  # neighbours in a block
            part = block[i : i + count]
            rows = routed_of(part)
            rows["first_segment"] += first
            rows["end_segment"] += first
            parts.append(rows)
            segments.append(part.segments)
            first, at = first + len(part.segments), at + count
        return np.concatenate(parts), np.concatenate(segments)


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
