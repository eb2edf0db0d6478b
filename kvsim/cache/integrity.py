"""A full walk over a pool or a manager that checks the laws of block management.

Cheap things are checked where they happen; this reads every list and every map entry, so call it between
steps while debugging, or in tests. Nothing is changed. The laws:

1. Blocks are conserved: free ones, owned ones and the null block make up the pool.
2. A block is in the free queue if and only if its `ref_cnt` is 0; the null block never is.
3. The cache map leads to a block under a key if and only if the block carries that hash.
4. A block's `ref_cnt` is the number of its places in the block tables of live requests.
5. A block in a request's table that is cached is cached as that request's content.
"""

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.block_map import find_entry, oldest_entries
from kvsim.cache.lookup import hash_index
from kvsim.cache.state import FREE_SLOT, NONE, NULL_BLOCK, RUNNING, KVState, PoolState
from kvsim.compiled import compiled

Key = tuple[int, int, int]  # hash_lo, hash_hi, group_id


@compiled
def _find_entry(pool, hash_lo, hash_hi, group_id):
    return find_entry(pool, hash_lo, hash_hi, group_id)


_hash_index: Any = getattr(hash_index, "py_func", hash_index)  # compiled, it cannot be called from here


class IntegrityError(AssertionError):
    """A law is broken: a bug of kvsim, or state that was changed from outside."""


def check_integrity(owner: Any) -> None:
    """Check all laws of a `BlockPool`, `KVCacheManager`, `Scheduler` or `EngineCore`, or of its state.

    Raises IntegrityError with the numbers that disagree. Takes about a microsecond per block and
    map entry, so a second for a million blocks.
    """
    state = getattr(owner, "kv", None) or getattr(owner, "state", owner)
    if isinstance(state, PoolState):
        _Pool(state).check()
    elif isinstance(state, KVState):
        pool = _Pool(state.pool)
        pool.check()
        _check_manager(state, pool)
    else:
        raise TypeError(f"check_integrity: {type(owner).__name__} is neither a pool, a manager nor an engine")


def _fail(message: str) -> NoReturn:
    raise IntegrityError(message)


def _columns(rows: NDArray[np.void]) -> Any:
    return SimpleNamespace(**{name: rows[name].tolist() for name in rows.dtype.names or ()})


class _Pool:
    """The columns of a pool as lists, which are quicker to walk than arrays."""

    def __init__(self, pool: PoolState) -> None:
        self.state = pool
        self.n = int(pool.scalars["num_gpu_blocks"][0])
        self.num_entries = int(pool.scalars["end_of_entries"][0])
        self.blocks, self.entries = _columns(pool.blocks), _columns(pool.entries)

    def scalar(self, name: str) -> int:
        return int(self.state.scalars[name][0])

    def check(self) -> None:
        self._check_free_queue()
        carried = self._check_carried()
        self._check_map(carried)

    # ------------------------------------------------------------ free queue

    def _free_queue(self) -> list[int]:
        head, tail = self.n, self.n + 1
        out: list[int] = []
        before, block = head, self.blocks.next_free_block[head]
        while block != tail:
            if not 0 <= block < self.n:
                _fail(f"free queue: block {before} is followed by {block}, the pool has {self.n} blocks")
            if len(out) == self.n:
                _fail(f"free queue: more than {self.n} steps without reaching its end")
            if self.blocks.prev_free_block[block] != before:
                back = self.blocks.prev_free_block[block]
                _fail(f"free queue: {block} follows {before} but points back to {back}")
            out.append(block)
            before, block = block, self.blocks.next_free_block[block]
        if self.blocks.prev_free_block[tail] != before:
            back = self.blocks.prev_free_block[tail]
            _fail(f"free queue: it ends with {before} but its tail points to {back}")
        return out

    def _check_free_queue(self) -> None:
        queue = self._free_queue()
        if len(queue) != self.scalar("num_free_blocks"):
            _fail(f"num_free_blocks is {self.scalar('num_free_blocks')}, the free queue holds {len(queue)}")
        free = set(queue)
        if NULL_BLOCK in free:
            _fail("the null block is in the free queue")
        for block in range(1, self.n):
            references = self.blocks.ref_cnt[block]
            if references < 0 or (references == 0) != (block in free):
                where = "in" if block in free else "not in"
                _fail(f"block {block} has ref_cnt {references} and is {where} the free queue")
        if self.blocks.ref_cnt[NULL_BLOCK] != 0:
            _fail(f"the null block has ref_cnt {self.blocks.ref_cnt[NULL_BLOCK]}, not 0")
        owned = sum(1 for block in range(1, self.n) if self.blocks.ref_cnt[block] > 0)
        if len(free) + owned + 1 != self.n:
            _fail(f"{len(free)} free, {owned} owned and 1 null block do not make up {self.n} blocks")

    # ------------------------------------------------------------ hashes and map

    def key(self, entry: int) -> Key:
        return self.entries.hash_lo[entry], self.entries.hash_hi[entry], self.entries.group_id[entry]

    def _chain(self, first: int, following: list[int], name: str) -> Iterator[int]:
        steps = 0
        while first != NONE:
            if not 0 <= first < self.num_entries or steps == self.num_entries:
                _fail(f"{name}: leads to entry {first} after {steps} steps; there are {self.num_entries}")
            yield first
            first, steps = following[first], steps + 1

    def entries_of(self, block: int) -> list[int]:
        """Map entries of a block's hashes, its own row first."""
        if self.entries.hash_num_tokens[block] == 0:
            return []
        return list(self._chain(block, self.entries.extra, f"hashes of block {block}"))

    def _check_carried(self) -> dict[int, int]:
        """Every entry that stands for a hash of a block -> that block; spare ones are accounted for."""
        carried: dict[int, int] = {}
        for block in range(self.n):
            entries = self.entries_of(block)
            keys = [self.key(entry) for entry in entries]
            if len(set(keys)) != len(keys):
                _fail(f"block {block} carries a hash twice: {keys}")
            for entry in entries:
                if (
                    self.entries.block_id[entry] != block
                    or entry in carried
                    or self.entries.hash_num_tokens[entry] <= 0
                ):
                    _fail(
                        f"entry {entry} of block {block} names block {self.entries.block_id[entry]} "
                        f"and covers {self.entries.hash_num_tokens[entry]} tokens"
                    )
                carried[entry] = block
        if carried and NULL_BLOCK in carried.values():
            _fail("the null block carries a hash")
        if carried and not self.scalar("enable_caching"):
            _fail(f"{len(carried)} hashes although caching is off")
        further = sum(1 for entry in carried if entry >= self.n + 2)
        spare = len(list(self._chain(self.scalar("spare"), self.entries.extra, "spare entries")))
        if further + spare != self.num_entries - self.n - 2:
            _fail(f"{further} further entries and {spare} spare ones of {self.num_entries - self.n - 2}")
        return carried

    def _check_map(self, carried: dict[int, int]) -> None:
        reached: set[int] = set()
        keys: set[Key] = set()
        for oldest in oldest_entries(self.state):
            key = self.key(oldest)
            found = int(_find_entry(self.state, *map(np.uint64, key[:2]), np.int64(key[2])))
            if found != oldest or key in keys:
                _fail(
                    f"key {key} is noted for entry {oldest}, looked up it gives {found}; "
                    f"seen before: {key in keys}"
                )
            keys.add(key)
            reached |= self._check_same_key(oldest)
        if reached != set(carried):
            lost, stray = sorted(set(carried) - reached), sorted(reached - set(carried))
            _fail(f"cache map: entries {lost} carry a hash but are not found, {stray} are found without one")

    def _check_same_key(self, oldest: int) -> set[int]:
        """Entries under one key, oldest first; their links must agree."""
        chain = list(self._chain(oldest, self.entries.newer, f"entries like {oldest}"))
        for older, entry in zip([int(NONE), *chain], chain, strict=False):
            if self.entries.older[entry] != older or self.key(entry) != self.key(oldest):
                noted = self.entries.older[entry]
                _fail(
                    f"entry {entry} under {self.key(entry)} comes after {older} under {self.key(oldest)}, "
                    f"its older one is {noted}"
                )
        if len(chain) > 1 and self.entries.newest[oldest] != chain[-1]:
            _fail(f"newest entry like {oldest} is {chain[-1]}, noted is {self.entries.newest[oldest]}")
        return set(chain)


# ---------------------------------------------------------------- block tables


def _check_manager(kv: KVState, pool: _Pool) -> None:
    status = kv.requests["status"]
    live = np.flatnonzero((status > FREE_SLOT) & (status <= RUNNING))
    seated = [int(r) for r in live if kv.requests["row"][r] != NONE]
    _check_rows(kv, seated)
    owners: Counter[int] = Counter()
    for r in seated:
        for g in range(pool.scalar("num_groups")):
            owners.update(_check_table(kv, pool, r, g))
    for block in range(1, pool.n):
        if pool.blocks.ref_cnt[block] != owners[block]:
            _fail(f"block {block} has ref_cnt {pool.blocks.ref_cnt[block]} and {owners[block]} owners")


def _check_rows(kv: KVState, seated: list[int]) -> None:
    """Every row of the block tables belongs to one request or is free."""
    used = [int(kv.requests["row"][r]) for r in seated]
    free: list[int] = []
    row = int(kv.pool.scalars["first_free_row"][0])
    while row < len(kv.rows) and len(free) <= len(kv.rows):
        free.append(row)
        row = int(kv.rows["next_free_row"][row, 0])
    if sorted(used + free) != list(range(len(kv.rows))):
        _fail(f"rows {sorted(used)} in use and {sorted(free)} free are not the {len(kv.rows)} rows")


def _check_table(kv: KVState, pool: _Pool, r: int, g: int) -> list[int]:
    """Blocks that a request owns in a group; each cached one must be cached as its content."""
    row, uid = int(kv.requests["row"][r]), int(kv.requests["uid"][r])
    n, num_cached = int(kv.rows["num_blocks"][row, g]), int(kv.rows["num_cached_blocks"][row, g])
    if num_cached > n:
        _fail(f"request {uid}: {num_cached} blocks cached of {n} in group {g}")
    table = kv.block_tables[row, g, :n].tolist()
    owned = [block for block in table if block != NULL_BLOCK]
    if len(set(owned)) != len(owned):
        _fail(f"request {uid} holds a block twice in group {g}: {table}")
    size = int(kv.groups["block_size"][g])
    for i, block in enumerate(table):
        if block == NULL_BLOCK or pool.entries.hash_num_tokens[block] != (i + 1) * size:
            continue
        lo, hi = map(int, kv.block_hashes[int(_hash_index(kv, r, g, i))])
        if (lo, hi, g) not in map(pool.key, pool.entries_of(block)):
            _fail(
                f"request {uid}: block {block} at {i} of group {g} is cached under {pool.key(block)}, "
                f"the request's hash is {(lo, hi, g)}"
            )
    return owned
