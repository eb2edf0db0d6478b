"""The free queue: which block is handed out next, and so which cached content goes first.

Followed: `FreeKVCacheBlockQueue` of vLLM 0.33.0 `v1/core/kv_cache_utils.py`, a doubly linked list
through the blocks, since hits take blocks out of its middle. Its two sentinels are the rows
`num_gpu_blocks` (head) and `num_gpu_blocks + 1` (tail).
"""

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.state import PoolState
from kvsim.compiled import compiled_inline, compiled_part


@compiled_part
def link(blocks, left, right):
    blocks["next_free_block"][left] = right
    blocks["prev_free_block"][right] = left


@compiled_inline
def remove_free(pool, block):
    """Take a block out of the middle of the free queue."""
    blocks = pool.blocks
    link(blocks, np.int64(blocks["prev_free_block"][block]), np.int64(blocks["next_free_block"][block]))
    pool.scalars["num_free_blocks"][0] -= 1


@compiled_part
def insert_free(pool, after, block):
    """Put a block into the free queue behind `after` (a block or the head sentinel)."""
    blocks = pool.blocks
    link(blocks, block, np.int64(blocks["next_free_block"][after]))
    link(blocks, after, block)
    pool.scalars["num_free_blocks"][0] += 1


@compiled_inline
def append_free(pool, block):
    tail = pool.scalars["num_gpu_blocks"][0] + 1
    insert_free(pool, np.int64(pool.blocks["prev_free_block"][tail]), block)


def free_queue(pool: PoolState) -> list[int]:
    n = int(pool.scalars["num_gpu_blocks"][0])
    following: NDArray[np.int32] = pool.blocks["next_free_block"]
    out, block = [], int(following[n])
    while block != n + 1:
        out.append(block)
        block = int(following[block])
    return out
