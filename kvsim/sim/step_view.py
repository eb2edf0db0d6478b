"""What is seen of one engine step: its batch, and the pool after it."""

from dataclasses import dataclass, field

import numpy as np

from kvsim.cache.state import NONE, NULL_BLOCK
from kvsim.engine.attention_metadata import AttentionMetadata
from kvsim.engine.core import EngineCore


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """A request of a batch. Counts in tokens; images are those that this step encodes."""

    request_id: str
    origin: str  # new, resumed (after a preemption) or continued
    num_computed_tokens: int  # before the step
    num_scheduled_tokens: int  # draft tokens included
    num_spec_tokens: int
    encoder_inputs: list[int]  # numbers of the images among the request's own
    images: list[str]  # their identifiers


@dataclass(frozen=True, slots=True)
class StepGroup:
    """The batch as one KV cache group sees it; `window` in tokens, None for full attention."""

    group: int
    kind: str
    block_size: int
    window: int | None
    attention_metadata: AttentionMetadata


@dataclass(frozen=True, slots=True)
class HashedBlock:
    """A block with the content that it was, or had been, cached under.

    hash: 32 hex digits, the first 16 bytes of vLLM's digest (or kvsim's own chain).
    """

    block_id: int
    group: int
    hash: str


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request in the waiting queue; `reason` is None where the engine names none."""

    request_id: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class EndedRequest:
    request_id: str
    status: str  # vLLM's RequestStatus


@dataclass(frozen=True, slots=True)
class MappedBlock:
    """A block that is in use or cached. `num_tokens`: slots of it that hold KV."""

    block_id: int
    ref_cnt: int
    group: int
    owners: list[str]
    num_tokens: int
    hashes: list[str]  # none: not cached; more than one: a prompt's tail has a hash of its own


@dataclass(frozen=True, slots=True)
class BlockMap:
    """A pool when a step's output has been processed; blocks by id, null block apart.

    latest_step: scheduled by then; with asynchronous scheduling the one after the step looked at.
    free_queue: ids in the order in which they are handed out; a hash is lost then.
    """

    latest_step: int
    num_gpu_blocks: int
    null_block: int
    blocks: list[MappedBlock]
    free_queue: list[int]


@dataclass(slots=True)
class StepView:
    """One engine step that had tokens. Times in seconds, ids in vLLM's order.

    finished_req_ids, preempted_req_ids: as in vLLM's SchedulerOutput, finished since the step
    before, preempted in this one. num_free_blocks, waiting: once the batch is scheduled.
    blocks_cached, blocks_evicted: by scheduling, then by processing the output. ended: with this
    step's output. block_map: only on request.
    """

    step: int  # from 1
    instance: int
    start_time: float
    end_time: float
    total_num_scheduled_tokens: int
    requests: list[ScheduledRequest]
    groups: list[StepGroup]
    finished_req_ids: list[str]
    preempted_req_ids: list[str]
    waiting: list[WaitingRequest]
    num_free_blocks: int
    blocks_cached: list[HashedBlock]
    blocks_evicted: list[HashedBlock]
    ended: list[EndedRequest] = field(default_factory=list)
    block_map: BlockMap | None = None


def hash_hex(entry: np.void) -> str:
    """A key (`hash_lo`, `hash_hi`) as 32 hex digits."""
    words = (int(entry["hash_lo"]), int(entry["hash_hi"]))
    return b"".join(word.to_bytes(8, "little") for word in words).hex()


# ---------------------------------------------------------------- the block map


def block_map(core: EngineCore, latest_step: int) -> BlockMap:
    """Blocks that have owners or cached content, and the free queue, as they stand now."""
    pool, n = core.kv.pool, core.config.num_gpu_blocks
    owned = _owned(core)
    cached = np.flatnonzero(pool.entries["hash_num_tokens"][:n]).tolist()
    blocks = []
    for block in sorted({*owned, *cached}):
        owners, group, num_tokens = owned.get(block, ([], int(pool.entries["group_id"][block]), 0))
        hashes, hashed_tokens = _hashes(core, block)
        blocks.append(
            MappedBlock(
                block,
                int(pool.blocks["ref_cnt"][block]),
                group,
                owners,
                max(num_tokens, hashed_tokens),
                hashes,
            )
        )
    return BlockMap(latest_step, n, int(NULL_BLOCK), blocks, core.kv_cache_manager.free_queue())


def _owned(core: EngineCore) -> dict[int, tuple[list[str], int, int]]:
    """Block -> its owners, its group, the tokens that are computed in it."""
    manager = core.kv_cache_manager
    sizes = manager.config.group_block_sizes
    out: dict[int, tuple[list[str], int, int]] = {}
    for slot in manager.live_slots():
        name, computed = manager.name_of(slot), int(core.requests["num_computed_tokens"][slot])
        for g, table in enumerate(manager.get_block_ids(name)):
            for i, block in enumerate(table):
                if block == NULL_BLOCK:
                    continue
                tokens = min(max(computed - i * sizes[g], 0), sizes[g])
                owners, _, most = out.get(block, ([], g, 0))
                owners.append(name)
                out[block] = owners, g, max(most, tokens)
    return out


def _hashes(core: EngineCore, block: int) -> tuple[list[str], int]:
    """Every hash of a block, and the tokens of it that they cover."""
    entries, sizes = core.kv.pool.entries, core.kv_cache_manager.config.group_block_sizes
    hashes, most = [], 0
    entry = block if entries["hash_num_tokens"][block] else int(NONE)
    while entry != NONE:
        size = sizes[int(entries["group_id"][entry])]
        hashes.append(hash_hex(entries[entry]))
        most = max(most, int(entries["hash_num_tokens"][entry] - 1) % size + 1)
        entry = int(entries["extra"][entry])
    return hashes, most
