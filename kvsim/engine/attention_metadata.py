"""What the attention kernels of a step are given: slots, block tables, lengths.

Followed: vLLM 0.33.0 `CommonAttentionMetadata` (`v1/attention/backend.py`), the slot mapping of
`v1/worker/gpu/block_table.py` and the captured sizes of `config/vllm.py`; 0.16.0 where
the rules say so. Not followed: 1,024 as the largest graph on data-centre Blackwell, performance modes,
draft lengths that change with the batch.
"""

from dataclasses import dataclass
from itertools import pairwise

from kvsim.engine.config import EngineConfig
from kvsim.engine.core import Scheduler

PAD_SLOT_ID = -1
_LARGEST_GRAPH = 512


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """One step as one KV cache group sees it. Requests in batch order, counts in tokens.

    slot_mapping: for each token the slot its KV goes to (block id x block size + place in the
    block), then PAD_SLOT_ID up to the size of the CUDA graph that the step runs in. The padding
    is never an image: picture tokens have slots like any other.
    block_table: block ids of each request. query_start_loc: num_reqs + 1 entries.
    """

    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    query_start_loc: list[int]
    seq_lens: list[int]
    slot_mapping: list[int]
    block_table: list[list[int]]

    @property
    def num_padding_tokens(self) -> int:
        """Tokens that only fill up the CUDA graph."""
        return len(self.slot_mapping) - self.num_actual_tokens


def attention_metadata(
    scheduler: Scheduler, group_id: int = 0, enforce_eager: bool = False
) -> AttentionMetadata:
    """Metadata of the batch that `scheduler` decided last; read it before the next step.

    enforce_eager: no CUDA graphs, hence no padding.
    """
    config = scheduler.config
    size = config.kv_cache_config().group_block_sizes[group_id]
    starts, seq_lens, slots, tables = [0], [], [], []
    for entry in scheduler.latest_batch():
        computed, new = int(entry["num_computed_tokens"]), int(entry["num_scheduled_tokens"])
        name = scheduler.kv_cache_manager.name_of(int(entry["request"]))
        table = scheduler.kv_cache_manager.get_block_ids(name)[group_id]
        slots += [table[p // size] * size + p % size for p in range(computed, computed + new)]
        starts.append(starts[-1] + new)
        seq_lens.append(computed + new)
        tables.append(table)
    num_tokens = len(slots)
    padded = num_tokens if enforce_eager else padded_num_tokens(config, num_tokens)
    return AttentionMetadata(
        num_reqs=len(tables),
        num_actual_tokens=num_tokens,
        max_query_len=max((b - a for a, b in pairwise(starts)), default=0),
        max_seq_len=max(seq_lens, default=0),
        query_start_loc=starts,
        seq_lens=seq_lens,
        slot_mapping=slots + [PAD_SLOT_ID] * (padded - num_tokens),
        block_table=tables,
    )


def _strided(largest: int) -> set[int]:
    """1, 2, 4, then steps of 8 below 256 and of 16 from there."""
    sizes = {1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)}
    return {size for size in sizes if size <= largest}


def cudagraph_capture_sizes(config: EngineConfig) -> list[int]:
    """Batch sizes, in tokens, for which vLLM captures CUDA graphs by default, ascending."""
    most, per_request = config.max_num_batched_tokens, 1 + config.num_speculative_tokens
    largest = min(config.max_num_seqs * per_request * 2, _LARGEST_GRAPH)
    sizes = _strided(min(largest, most))
    if config.rules.captures_full_batches:
        requests = min(config.max_num_seqs, _LARGEST_GRAPH)
        counts = {requests} | (_strided(requests) if per_request > 1 else set())
        decodes = {n * per_request for n in counts if n * per_request <= largest}
        sizes |= {size for size in (*decodes, most) if size <= min(largest, most)}
    return sorted(sizes)


def padded_num_tokens(config: EngineConfig, num_tokens: int) -> int:
    """Tokens a step really runs with: the next captured size; above the largest one, unpadded."""
    return next((size for size in cudagraph_capture_sizes(config) if size >= num_tokens), num_tokens)
