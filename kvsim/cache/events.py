"""KV events: what a block pool tells the world about blocks stored, removed and cleared.

Followed: vLLM 0.33.0 `distributed/kv_events.py` and the emission points in
`v1/core/block_pool.py`; 0.16.0 names no group and lists no extra keys. The compiled core keeps a
log of numbers; `EventReader` turns it into events, for which it must know the requests' content.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.block_hasher import BlockHasher, VllmBlockHasher
from kvsim.cache.groups import KVCacheConfig
from kvsim.cache.hashing import (
    BlockContent,
    ExtraKeys,
    block_extra_keys,
    event_block_hash,
    event_extra_keys,
    first_feature_at,
)
from kvsim.cache.state import (
    LOG_CLEARED,
    LOG_REMOVED,
    LOG_STORED,
    LOG_STORED_PARTIAL,
    LOG_STORED_RUN,
)


@dataclass(frozen=True, slots=True)
class BlockStored:
    """A run of blocks of one request became reusable.

    block_hashes: low 64 bits of the digests of the blocks really cached; token_ids: of the whole
    run; extra_keys: per cached block, untagged (None under 0.16, as group_idx).
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_name: str | None
    group_idx: int | None
    extra_keys: list[ExtraKeys] | None


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """A block lost a hash: it was evicted, or its content grew."""

    block_hashes: list[int]
    group_idx: int | None


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """`reset_prefix_cache` forgot every block."""


KVCacheEvent = BlockStored | BlockRemoved | AllBlocksCleared


@dataclass(frozen=True, slots=True)
class _Known:
    """A request whose blocks may appear in the log: tokens (prompt, output), content, fine hashes."""

    token_ids: list[int]
    content: BlockContent
    keys: NDArray[np.uint64]


class EventReader:
    """Decodes a manager's log; tell it every request with `remember` before its blocks are logged."""

    def __init__(self, config: KVCacheConfig, hasher: BlockHasher) -> None:
        self._config, self._hasher = config, hasher
        self._known: dict[int, _Known] = {}
        self._leaving: list[int] = []  # ended, but the log may still name them
        self._left: list[int] = []  # ended before the latest log was taken
        self._run: list[tuple[int, int]] = []  # (block index, hash) of the run being read
        if isinstance(hasher, VllmBlockHasher):
            hasher.keep_digests()

    def remember(
        self, uid: int, token_ids: list[int], content: BlockContent, keys: NDArray[np.uint64]
    ) -> None:
        """keys: the request's block hashes, shape (n, 2), as given to the manager."""
        self._known[uid] = _Known(token_ids, content, keys)

    def forget(self, uid: int) -> None:
        """The request is gone; it is known until the log after the next one is taken."""
        self._leaving.append(uid)

    def log_taken(self) -> None:
        """A log was taken: it may name who has left since the one before, the next log will not."""
        for uid in self._left:
            self._known.pop(uid, None)
        self._left, self._leaving = self._leaving, []

    def read(self, log: NDArray[np.void]) -> list[KVCacheEvent]:
        """Events of a log (LOG_DTYPE), in the order in which vLLM emits them."""
        events: list[KVCacheEvent] = []
        for entry in log:
            kind, group_id = entry["kind"], int(entry["group_id"])
            first, last, uid = int(entry["first"]), int(entry["last"]), int(entry["request"])
            if kind == LOG_REMOVED:
                events.append(BlockRemoved([self._hash(entry)], self._group(group_id)))
            elif kind == LOG_CLEARED:
                events.append(AllBlocksCleared())
            elif kind == LOG_STORED:
                self._run.append((first, self._hash(entry)))
            elif kind == LOG_STORED_RUN:
                events.append(self._stored(self._known[uid], group_id, first, last))
                self._run = []
            elif kind == LOG_STORED_PARTIAL:
                events.append(self._stored_partial(self._known[uid], group_id, first, self._hash(entry)))
        return events

    def digest(self, lo: int, hi: int) -> bytes:
        """The whole digest behind a 128-bit key (the key itself for kvsim's own chain)."""
        key = int(lo).to_bytes(8, "little") + int(hi).to_bytes(8, "little")
        digests = self._hasher.digests if isinstance(self._hasher, VllmBlockHasher) else None
        return key if digests is None else digests[key]

    def _hash(self, entry: np.void) -> int:
        return event_block_hash(self.digest(entry["hash_lo"], entry["hash_hi"]))

    def _group(self, group_id: int) -> int | None:
        return group_id if self._config.rules.events_carry_group else None

    def _extra(self, content: BlockContent, start: int, end: int, index: int) -> tuple[ExtraKeys, int]:
        lookahead = self._config.num_hash_lookahead_tokens
        keys, index = block_extra_keys(content, start, end, index, self._config.rules, lookahead)
        return event_extra_keys(keys), index

    def _key_index(self, known: _Known, group_id: int, block_index: int) -> int:
        """Row of a block's key among a request's, for the block size of a group."""
        size = self._config.hash_block_size
        scale = self._config.group_block_sizes[group_id] // size
        if scale == 1 or not self._config.rules.concatenated_coarse_hashes:
            return (block_index + 1) * scale - 1
        fine = max(len(known.token_ids) - self._config.num_hash_lookahead_tokens, 0) // size
        earlier = (s // size for s in self._config.group_block_sizes[:group_id])
        return fine + sum(fine // other for other in earlier if other > 1) + block_index

    def _stored(self, known: _Known, group_id: int, first: int, end: int) -> BlockStored:
        size = self._config.group_block_sizes[group_id]
        parent = None
        if first:
            parent = event_block_hash(self.digest(*known.keys[self._key_index(known, group_id, first - 1)]))
        extras: list[ExtraKeys] | None = None
        if self._config.rules.events_carry_group:
            extras, index = [], 0
            for i, _ in self._run:
                keys, index = self._extra(known.content, i * size, (i + 1) * size, index)
                extras.append(keys)
        return BlockStored(
            [block_hash for _, block_hash in self._run],
            parent,
            known.token_ids[first * size : end * size],
            size,
            known.content.lora[0] if known.content.lora else None,
            self._group(group_id),
            extras or None,
        )

    def _stored_partial(self, known: _Known, group_id: int, boundary: int, block_hash: int) -> BlockStored:
        """The prompt's tail inside a coarser block, at hash granularity."""
        size = self._config.hash_block_size
        start = boundary - size
        index = first_feature_at(known.content.features, start) if start else 0
        keys, _ = self._extra(known.content, start, boundary, index)
        parent = event_block_hash(self.digest(*known.keys[start // size - 1])) if start else None
        lora = known.content.lora
        tokens = known.token_ids[start:boundary]
        return BlockStored([block_hash], parent, tokens, size, lora[0] if lora else None, group_id, [keys])
