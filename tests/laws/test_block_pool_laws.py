"""A block pool under any sequence of calls obeys the laws and hands out the blocks that vLLM would."""

import hashlib
from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from search import search

from kvsim.cache.block_pool import BlockPool
from kvsim.cache.integrity import check_integrity
from kvsim.errors import KvsimError

CONTENTS = st.integers(0, 5)
GROUPS = st.integers(0, 2)


def digest(content):
    return hashlib.sha256(str(content).encode()).digest()


class PoolMachine(RuleBasedStateMachine):
    """Owners take, share and give back blocks; plain lists say what the pool must look like."""

    tables = Bundle("tables")

    @initialize(
        num_gpu_blocks=st.integers(2, 12),
        version=st.sampled_from(["0.33", "0.16"]),
        caching=st.sampled_from([True, True, True, False]),
    )
    def start(self, num_gpu_blocks, version, caching):
        self.pool = BlockPool(num_gpu_blocks, caching, vllm_version=version)
        self.to_front, self.caching = version == "0.33", caching
        self.queue = list(range(1, num_gpu_blocks))
        self.owners = Counter()
        self.map = {}  # key -> blocks, oldest first
        self.keys = {}  # block -> key

    @rule(target=tables, n=st.integers(0, 5))
    def allocate(self, n):
        if n > len(self.queue):
            with pytest.raises(KvsimError, match=f"{n} blocks wanted, {len(self.queue)} are free"):
                self.pool.get_new_blocks(n)
            return []
        blocks = self.pool.get_new_blocks(n)
        assert blocks == self.queue[:n]
        del self.queue[:n]
        for block in blocks:
            self._forget(block)
        self.owners.update(blocks)
        return blocks

    def _forget(self, block):
        key = self.keys.pop(block, None)
        if key is not None:
            self.map[key].remove(block)

    @rule(table=tables, content=CONTENTS, group=GROUPS)
    def cache(self, table, content, group):
        block = next((block for block in table if block not in self.keys and self.owners[block]), None)
        if block is None or not self.caching:
            return
        self.pool.cache_block(block, digest(content), 16, group)
        self.keys[block] = content, group
        self.map.setdefault((content, group), []).append(block)

    @rule(content=CONTENTS, group=GROUPS)
    def look_up(self, content, group):
        oldest = next(iter(self.map.get((content, group), [])), None)
        assert self.pool.get_cached_block(digest(content), group) == oldest

    @rule(target=tables, content=CONTENTS, group=GROUPS)
    def share(self, content, group):
        block = self.pool.get_cached_block(digest(content), group)
        if block is None:
            return []
        self.pool.touch([block])
        if self.owners[block] == 0:
            self.queue.remove(block)
        self.owners[block] += 1
        return [block]

    @rule(table=consumes(tables), last_first=st.booleans())
    def free(self, table, last_first):
        ordered = table[::-1] if last_first else table
        self.pool.free_blocks(ordered)
        self.owners.subtract(ordered)
        freed = [block for block in ordered if self.owners[block] == 0]
        front = [block for block in freed if self.to_front and block not in self.keys]
        self.queue = front + self.queue + [block for block in freed if block not in front]

    @rule()
    def reset(self):
        in_use = self.owners.total()
        assert self.pool.reset_prefix_cache() == (in_use == 0)
        if not in_use:
            self.map.clear()
            self.keys.clear()

    @invariant()
    def laws_hold(self):
        check_integrity(self.pool)

    @invariant()
    def pool_is_as_foreseen(self):
        assert self.pool.free_queue() == self.queue
        assert self.pool.get_num_free_blocks() == len(self.queue)
        references = self.pool.state.blocks["ref_cnt"][: self.pool.num_gpu_blocks].tolist()
        assert references == [self.owners[block] for block in range(self.pool.num_gpu_blocks)]


TestPool = PoolMachine.TestCase
TestPool.settings = search(100)
