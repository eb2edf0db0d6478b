"""kvsim's block pool and map, open loop: each prompt of a trace is looked up, allocated, cached and freed.

    python open_loop_pool.py '{"trace": PATH or null, "requests": N, "pools": [blocks, ...]}'

Without a trace one of the same shape is made: as many prompts as in Mooncake's conversation trace, as
long on average, with about as much of them shared. Block hashes are made before the time is taken. Timed is
compiled code that goes through all prompts.
"""

import json
import sys
import time
from typing import Any

import numpy as np

from kvsim.cache.block_hasher import FastBlockHasher
from kvsim.cache.block_pool import make_pool
from kvsim.cache.open_loop import allocate_and_free
from kvsim.compiled import compiled
from kvsim.rules import rules_for
from kvsim.workload import SharedPrefixWorkload, TraceWorkload

BLOCK_SIZE = 16
MADE = SharedPrefixWorkload(
    rate=3.4,
    num_requests=12_031,
    num_prefixes=2000,
    prefix_len={"distribution": "lognormal", "average": 6500, "max": 120_000},
    suffix_len={"distribution": "lognormal", "average": 5500, "min": 1, "max": 120_000},
    popularity="zipf",
)


@compiled
def all_prompts(pool, hashes, starts, lengths, block_size, table):
    """Hit blocks of all prompts."""
    hits = 0
    for i in range(len(lengths)):
        own = hashes[starts[i] : starts[i + 1]]
        hits += max(allocate_and_free(pool, own, lengths[i], block_size, table), 0)
    return hits


def prompts_of(given: dict[str, Any]) -> tuple[Any, ...]:
    """Hashes (t, 2) of all full blocks, where each prompt's begin, prompt lengths in tokens."""
    hasher = FastBlockHasher(BLOCK_SIZE, rules_for("0.33"))
    workload = TraceWorkload(path=given["trace"]) if given["trace"] else MADE
    hashes, lengths, missing = [], [], given["requests"]
    for block in workload.blocks(0):
        part = block[:missing]
        hashes.append(hasher.hash_many(part.segments, part.bounds, part.num_prompt_tokens, None))
        lengths.append(part.num_prompt_tokens)
        missing -= len(part)
        if not missing:
            break
    tokens = np.concatenate(lengths)
    starts = np.concatenate([[0], np.cumsum(tokens // BLOCK_SIZE)])
    return np.concatenate(hashes), starts, tokens


def main() -> None:
    given = json.loads(sys.argv[1])
    hashes, starts, tokens = prompts_of(given)
    table = np.zeros(int(tokens.max()) // BLOCK_SIZE + 1, np.int32)
    size = np.int64(BLOCK_SIZE)
    all_prompts(make_pool(1000, vllm_version="0.33"), hashes[:0], starts[:1], tokens[:0], size, table)
    pools = []
    for num_gpu_blocks in given["pools"]:
        pool = make_pool(num_gpu_blocks, vllm_version="0.33")
        begin = time.process_time()
        hits = int(all_prompts(pool, hashes, starts, tokens, size, table))
        cpu = time.process_time() - begin
        evicted = int(pool.scalars["num_evicted"][0])
        pools.append({"cpu": cpu, "blocks": len(hashes), "hits": hits, "evicted": evicted})
    print(json.dumps({"pools": pools}))


if __name__ == "__main__":
    main()
