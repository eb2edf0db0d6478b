"""Hit rates of a stream of prompts without a scheduler: each is allocated whole and freed at once.

This is vLLM's block pool (lookup, allocation, eviction order, copies of a recomputed block) driven
"open loop": nothing overlaps in time, nothing waits, nothing is preempted, outputs are not cached.
It answers "how many hits could this traffic have in so many blocks" in seconds, for several pool
sizes in one pass over the requests. A simulation (`kvsim run`) has the requests overlap.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kvsim.cache.block_hasher import make_block_hasher
from kvsim.cache.block_map import (
    get_cached_block,
    insert_block_hash,
)
from kvsim.cache.block_pool import free_blocks_reversed, get_new_block, make_pool, touch
from kvsim.cache.manager import PromptLike, content_of
from kvsim.cache.state import NONE, ZERO, PoolState
from kvsim.compiled import compiled
from kvsim.rules import rules_for

_TOO_LONG = np.int64(-1)


@dataclass(slots=True)
class OpenLoopHits:
    """Counts of one pool size; num_gpu_blocks includes the null block, hits are whole blocks.

    num_too_long: requests that need more blocks than the pool has; they count as misses.
    """

    num_gpu_blocks: int
    block_size: int
    num_requests: int = 0
    num_tokens: int = 0
    num_full_blocks: int = 0
    hit_blocks: int = 0
    evictions: int = 0
    num_too_long: int = 0

    @property
    def block_hit_ratio(self) -> float:
        """Hit blocks per full block of the prompts, 0..1."""
        return self.hit_blocks / self.num_full_blocks if self.num_full_blocks else 0.0

    @property
    def token_hit_ratio(self) -> float:
        """Hit tokens per prompt token, 0..1: vLLM's hit rate."""
        return self.hit_blocks * self.block_size / self.num_tokens if self.num_tokens else 0.0


@compiled
def allocate_and_free(pool, block_hashes, num_prompt_tokens, block_size, table):
    """One prompt through the pool; its hit blocks, or -1 if it does not fit.

    block_hashes: of the prompt's full blocks, (n, 2). table: room for the prompt's blocks.
    The lookup leaves the last token to be computed, as `get_computed_blocks` does.
    """
    num_full = num_prompt_tokens // block_size
    num_blocks = (num_prompt_tokens + block_size - 1) // block_size
    if num_blocks > pool.scalars["num_gpu_blocks"][0] - 1:
        return _TOO_LONG
    hits = ZERO
    while hits < (num_prompt_tokens - 1) // block_size:
        block = get_cached_block(pool, block_hashes[hits, 0], block_hashes[hits, 1], ZERO)
        if block == NONE:
            break
        table[hits] = block
        hits += 1
    for i in range(hits):
        touch(pool, np.int64(table[i]))
    for i in range(hits, num_blocks):
        table[i] = get_new_block(pool)
    for i in range(hits, num_full):
        size = (i + 1) * block_size
        insert_block_hash(pool, np.int64(table[i]), block_hashes[i, 0], block_hashes[i, 1], ZERO, size)
    free_blocks_reversed(pool, table, ZERO, num_blocks)
    return hits


def open_loop(
    requests: Iterable[PromptLike],
    num_gpu_blocks: Sequence[int],
    *,
    block_size: int = 16,
    vllm_version: str = "0.33",
) -> list[OpenLoopHits]:
    """Hits of the requests, in their order, for each pool size.

    num_gpu_blocks as vLLM prints it: usable blocks plus the null block. Raises KvsimError for a
    pool without a usable block.
    """
    rules = rules_for(vllm_version)
    hasher = make_block_hasher("fast", block_size, rules)
    pools = [make_pool(n, vllm_version=vllm_version) for n in num_gpu_blocks]
    counts = [OpenLoopHits(n, block_size) for n in num_gpu_blocks]
    table = np.zeros(1, np.int32)
    for request in requests:
        content = content_of(request)
        length = content.num_prompt_tokens
        hashes = hasher(request.prompt, content)
        if len(table) <= len(hashes):
            table = np.zeros(2 * len(hashes) + 1, np.int32)
        for pool, count in zip(pools, counts, strict=True):
            hits = allocate_and_free(pool, hashes, np.int64(length), np.int64(block_size), table)
            _add(count, length, int(hits))
    for pool, count in zip(pools, counts, strict=True):
        count.evictions = _evictions(pool)
    return counts


def _add(count: OpenLoopHits, length: int, hits: int) -> None:
    count.num_requests += 1
    count.num_tokens += length
    count.num_full_blocks += length // count.block_size
    count.num_too_long += hits < 0
    count.hit_blocks += max(hits, 0)


def _evictions(pool: PoolState) -> int:
    return int(pool.scalars["num_evicted"][0])
