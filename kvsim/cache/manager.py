"""A KV cache manager for people: the compiled functions under vLLM's method names.

It also keeps the table of live requests: a slot of `state.requests` each, and the room for their
block hashes. An engine schedules on top of the same table.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.block_hasher import Hashes, make_block_hasher
from kvsim.cache.block_pool import reset_prefix_cache
from kvsim.cache.events import EventReader, KVCacheEvent
from kvsim.cache.free_queue import free_queue
from kvsim.cache.groups import KVCacheConfig, make_kv_state
from kvsim.cache.hashing import BlockContent
from kvsim.cache.kv_cache_manager import allocate_slots, free_request, get_computed_blocks
from kvsim.cache.request_table import enter_request, release_request, with_room
from kvsim.cache.state import FREE_SLOT, HITS, NONE, REQUEST_DTYPE, RUNNING, WAITING, KVState
from kvsim.compiled import compiled
from kvsim.errors import KvsimError
from kvsim.tokens import Segments, expand, num_tokens


class PromptLike(Protocol):
    """What is read of a request."""

    @property
    def prompt(self) -> Segments: ...
    @property
    def features(self) -> Sequence[Any]: ...
    @property
    def lora(self) -> Any: ...
    @property
    def cache_salt(self) -> str | None: ...


def content_of(request: PromptLike) -> BlockContent:
    """What keys a request's blocks besides its tokens."""
    return BlockContent(
        num_tokens(request.prompt),
        tuple((f.identifier, f.offset, f.length) for f in request.features),
        (request.lora.name, request.lora.path) if request.lora else None,
        request.cache_salt,
    )


# Entries from Python, compiled only where they are used.


@compiled
def _get_computed_blocks(kv, r):
    return get_computed_blocks(kv, r)


@compiled
def _allocate_slots(kv, r, num_new_tokens, num_hit_tokens, num_lookahead_tokens, watermark):
    return allocate_slots(kv, r, num_new_tokens, num_hit_tokens, num_lookahead_tokens, watermark)


@compiled
def _free_request(kv, r):
    free_request(kv, r)


@compiled
def _enter_request(kv, new, i, hashes):
    return enter_request(kv, new, i, hashes)


@compiled
def _release_request(kv, r):
    release_request(kv, r)


def new_requests(count: int) -> NDArray[np.void]:
    """Rows (REQUEST_DTYPE) of requests to which nothing has happened yet."""
    rows = np.zeros(count, REQUEST_DTYPE)
    rows["status"] = WAITING
    for link in ("row", "prev_waiting", "next_waiting", "num_cached_tokens"):
        rows[link] = NONE
    for time in ("first_scheduled_time", "first_token_time", "last_token_time", "finish_time"):
        rows[time] = math.nan
    rows["think_time"] = math.inf
    return rows


class KVCacheManager:
    """Blocks for requests, without a scheduler.

    algorithm: vLLM's `prefix_caching_hash_algo`, or "fast" for kvsim's own chain. With
    `config.log_capacity` > 0 the pool's events can be read (`take_events`).
    """

    def __init__(self, config: KVCacheConfig, algorithm: str = "fast") -> None:
        self.config = config
        self.hasher = make_block_hasher(
            algorithm,
            config.hash_block_size,
            config.rules,
            config.num_hash_lookahead_tokens,
            config.coarse_scales,
        )
        self.state: KVState = make_kv_state(config)
        read = config.log_capacity and config.kv_events
        self.reader = EventReader(config, self.hasher) if read else None
        self._slots: dict[str, int] = {}
        self._names: dict[int, str] = {}  # slot -> request id
        self._next_uid = 1

    # ------------------------------------------------------------ the table of requests

    @property
    def requests(self) -> NDArray[np.void]:
        """Rows (REQUEST_DTYPE) of live requests, by slot."""
        return self.state.requests

    def slot_of(self, request_id: str) -> int | None:
        return self._slots.get(request_id)

    def name_of(self, slot: int) -> str:
        return self._names[slot]

    def live_slots(self) -> Iterator[int]:
        """Slots of the requests that have not ended, in the order of their addition."""
        status = self.requests["status"]
        live = np.flatnonzero((status > FREE_SLOT) & (status <= RUNNING))
        yield from live[np.argsort(self.requests["uid"][live])].tolist()

    def add_request(
        self,
        request_id: str,
        prompt: Segments,
        output: Segments | None = None,
        *,
        features: tuple[tuple[str, int, int], ...] = (),
        lora: tuple[str, str] | None = None,
        cache_salt: str | None = None,
    ) -> int:
        """Enter a request with its content and return its slot; raises KvsimError for an id in use.

        output: tokens it will generate, if its later blocks are to be cached as well.
        """
        content = BlockContent(num_tokens(prompt), features, lora, cache_salt)
        segments = prompt if output is None else np.concatenate([prompt, output])
        return self.enter(request_id, content, self.hash_content(segments, content), segments)

    def hash_content(self, segments: Segments, content: BlockContent) -> Hashes:
        """Block hashes of prompt and output, shape (n, 2); none with prefix caching off."""
        if not self.config.enable_prefix_caching:
            return np.empty((0, 2), np.uint64)
        return self.hasher(segments, content)

    def hash_contents(
        self,
        segments: Segments,
        bounds: NDArray[np.int64],
        sizes: NDArray[np.int64],
        contents: Sequence[BlockContent] | None,
    ) -> tuple[Hashes, NDArray[np.int64], NDArray[np.int64]]:
        """Block hashes of many requests, (t, 2), one after the other; how many each has; fine ones of them.

        Request i has segments[bounds[i]:bounds[i + 1]], of which the first sizes[i] tokens count.
        contents: None if nothing but tokens keys their blocks.
        """
        if not self.config.enable_prefix_caching:
            none = np.zeros(len(sizes), np.int64)
            return np.empty((0, 2), np.uint64), none, none
        fine = np.maximum(sizes - self.config.num_hash_lookahead_tokens, 0) // self.config.hash_block_size
        hashes = self.hasher.hash_many(segments, bounds, sizes, contents)
        counts = fine.copy()
        if self.config.rules.concatenated_coarse_hashes:
            for scale in self.config.coarse_scales:
                counts += fine // scale
        return hashes, counts, fine

    def enter(
        self,
        request_id: str,
        content: BlockContent,
        block_hashes: Hashes,
        tokens: Segments | list[int],
    ) -> int:
        """Enter a request whose block hashes are known; its other fields keep their defaults."""
        row = self.new_row(request_id, content, block_hashes)
        self.make_room(row)
        slot = int(_enter_request(self.state, row, 0, block_hashes))
        self.remember(request_id, slot, content, block_hashes, tokens)
        return slot

    def new_row(self, request_id: str, content: BlockContent, block_hashes: Hashes) -> NDArray[np.void]:
        """A request as it enters the table, shape (1,); raises KvsimError for an id in use."""
        if request_id in self._slots:
            raise KvsimError(f"request id {request_id!r} is in use")
        row = new_requests(1)
        row["uid"] = self._next_uid
        row["num_hashes"] = len(block_hashes)
        row["num_hash_blocks"] = self._num_fine(len(block_hashes))
        row["num_prompt_tokens"] = row["num_tokens"] = content.num_prompt_tokens
        self._next_uid += 1
        return row

    def make_room(self, rows: NDArray[np.void]) -> None:
        """See to it that the first of these rows can enter the table, if not all; `state` may change."""
        self.state = with_room(self.state, len(rows), int(rows["num_hashes"].sum()))

    def remember(
        self,
        request_id: str,
        slot: int,
        content: BlockContent,
        block_hashes: Hashes,
        tokens: Segments | list[int],
    ) -> None:
        """Name a request that has entered, and keep what its events will tell."""
        self._slots[request_id], self._names[slot] = slot, request_id
        if self.reader:
            ids = tokens if isinstance(tokens, list) else expand(tokens).tolist()
            self.reader.remember(int(self.requests["uid"][slot]), ids, content, block_hashes)

    def release(self, slot: int) -> str:
        """Give a slot back; the id of the request that had it."""
        _release_request(self.state, slot)
        return self.forget(slot)

    def forget(self, slot: int) -> str:
        """Drop the name of a request whose slot has been given back."""
        name = self._names.pop(slot)
        self._slots.pop(name)
        if self.reader:
            self.reader.forget(int(self.requests["uid"][slot]))
        return name

    def _num_fine(self, n: int) -> int:
        """Fine hashes among `n` keys of a request, the coarser groups' keys (0.16) set apart."""
        if not self.config.rules.concatenated_coarse_hashes:
            return n
        fine = n
        while fine + sum(fine // scale for scale in self.config.coarse_scales) > n:
            fine -= 1
        return fine

    # ------------------------------------------------------------ vLLM's methods

    def get_computed_blocks(self, request_id: str) -> tuple[list[list[int]], int]:
        """Cached blocks of a request's prefix, per group, and the tokens they hold. Changes nothing."""
        hit = int(_get_computed_blocks(self.state, self._slot(request_id)))
        lengths = self.state.groups["num_hit_blocks"]
        found = self.state.block_tables[HITS]
        return [row[:n].tolist() for row, n in zip(found, lengths, strict=True)], hit

    def allocate_slots(
        self, request_id: str, num_new_tokens: int, num_lookahead_tokens: int = 0
    ) -> list[list[int]] | None:
        """Slots for tokens to compute; the blocks newly taken per group, or None if there is no room.

        A request without blocks first takes what the cache holds of its prefix; the tokens then
        count as computed.
        """
        slot = self._slot(request_id)
        if self.requests["row"][slot] == NONE:
            hit = _get_computed_blocks(self.state, slot)
            known = self.state.groups["num_hit_blocks"].tolist()
        else:
            hit = np.int64(0)
            known = [len(ids) for ids in self.get_block_ids(request_id)]
        sizes = np.int64(num_new_tokens), hit, np.int64(num_lookahead_tokens), np.int64(0)
        if not _allocate_slots(self.state, slot, *sizes):
            return None
        self.requests["status"][slot] = RUNNING
        self.requests["num_computed_tokens"][slot] += hit + num_new_tokens
        tables = self.get_block_ids(request_id)
        return [ids[n:] for ids, n in zip(tables, known, strict=True)]

    def append_output(self, request_id: str, num_output_tokens: int = 1) -> None:
        """Tokens that the request has sampled: they will be computed, and cached, next."""
        self.requests["num_tokens"][self._slot(request_id)] += num_output_tokens

    def free(self, request_id: str) -> None:
        """Give a request's blocks back, last one first, and forget the request."""
        slot = self._slot(request_id)
        _free_request(self.state, slot)
        self.release(slot)

    def get_block_ids(self, request_id: str) -> list[list[int]]:
        """Block table per group; null blocks (0) stand for tokens behind the window."""
        row = int(self.requests["row"][self._slot(request_id)])
        if row == NONE:
            return [[] for _ in self.config.groups]
        tables, lengths = self.state.block_tables[row], self.state.rows["num_blocks"][row]
        return [table[:n].tolist() for table, n in zip(tables, lengths, strict=True)]

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; refused (false) while blocks are in use."""
        return bool(reset_prefix_cache(self.state.pool))

    @property
    def usage(self) -> float:
        """Share of the usable blocks that live requests hold, 0..1."""
        pool = self.state.pool.scalars[0]
        return 1.0 - float(pool["num_free_blocks"]) / float(pool["num_gpu_blocks"] - 1)

    def free_queue(self) -> list[int]:
        """Free block ids in the order in which they will be handed out."""
        return free_queue(self.state.pool)

    def take_log(self) -> NDArray[np.void]:
        """Block and request events (LOG_DTYPE) since the last call; needs `log_capacity`."""
        pool = self.state.pool
        n, lost = int(pool.scalars["log_len"][0]), int(pool.scalars["log_lost"][0])
        if lost:
            raise RuntimeError(f"log_capacity {len(pool.log)} is too small: {lost} events were lost")
        pool.scalars["log_len"] = 0
        if self.reader:
            self.reader.log_taken()
        return pool.log[:n].copy()

    def take_events(self) -> list[KVCacheEvent]:
        """KV events since the last call; none without `log_capacity`."""
        return self.reader.read(self.take_log()) if self.reader else []

    def _slot(self, request_id: str) -> int:
        if request_id not in self._slots:
            raise KvsimError(f"no request {request_id!r}")
        return self._slots[request_id]
