"""The tables of a run: which columns they have, their units and what they mean.

Times are simulated seconds since the start of the run; an empty cell means that there is nothing to
tell, such as the first token of a request that never got one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

STATUSES = ("unfinished", "finished", "refused", "aborted")  # told apart by their first letters
UNFINISHED, FINISHED, REFUSED, ABORTED = range(4)
# How a request ended, in vLLM's words (v1/engine/__init__.py, 0.33); where it stood at the horizon.
REASONS = (None, "stop", "length", "abort", "error", "waiting", "preempted", "running")

# Why a request waits in a step -> what that means; in the order of the engine's numbers.
WAITING_REASONS = {
    "no_room": "the KV cache has no room for it",
    "preemption": "a request was preempted in the step, so none is admitted",
    "queue_head": "it stands behind one that cannot be admitted",
    "sequence_limit": "max_num_seqs requests run",
    "token_budget": "the step's max_num_batched_tokens are used up",
    "encoder_budget": "the step's encoder budget is used up, or the encoder cache is full",
    "lora_limit": "the step has max_loras adapters",
    "output_in_flight": "it was preempted, and its output of a step in flight is still to come",
}

# What is kept of a request while the run goes on; NaN marks an instant not reached.
ROW = np.dtype(
    [
        ("arrival_time", "f8"),
        ("queued_time", "f8"),
        ("first_scheduled_time", "f8"),
        ("first_token_time", "f8"),
        ("finish_time", "f8"),
        ("num_prompt_tokens", "i8"),
        ("num_output_tokens", "i8"),
        ("num_cached_tokens", "i8"),
        ("num_preemptions", "i4"),
        ("num_preempted_blocks", "i8"),
        ("num_lost_tokens", "i8"),
        ("num_recomputed_tokens", "i8"),
        *((f"waiting_steps_{reason}", "i4") for reason in WAITING_REASONS),
        ("instance", "i4"),
        ("status", "u1"),
        ("reason", "u1"),
    ]
)


@dataclass(frozen=True)
class Column:
    """One column of a table; `unit` is empty for numbers without one and for text."""

    name: str
    type: pa.DataType
    unit: str
    meaning: str


SECONDS, FRACTION, COUNT, SMALL, TEXT = pa.float64(), pa.float64(), pa.int64(), pa.int32(), pa.string()

COLUMNS = (
    Column("request_id", TEXT, "", "name of the request"),
    Column("arrival_time", SECONDS, "s", "when it reached the server"),
    Column("queued_time", SECONDS, "s", "when the API server had handed it to the engine"),
    Column("status", TEXT, "", "finished, refused (can never fit), aborted, or unfinished at the horizon"),
    Column(
        "reason", TEXT, "", "refusal in words; length or stop; if unfinished: running, waiting or preempted"
    ),
    Column("instance", SMALL, "", "number of the serving instance, -1 if none took it"),
    Column("first_scheduled_time", SECONDS, "s", "start of the first step that computed it"),
    Column("first_token_time", SECONDS, "s", "when its first output token was out"),
    Column("finish_time", SECONDS, "s", "when its last output token was out"),
    Column("num_prompt_tokens", COUNT, "tokens", "length of the prompt, image placeholders included"),
    Column("num_output_tokens", COUNT, "tokens", "output tokens generated"),
    Column("num_cached_tokens", COUNT, "tokens", "prompt tokens hit in the prefix cache at first admission"),
    Column("num_preemptions", SMALL, "", "how often it lost its blocks and started over"),
    Column("num_preempted_blocks", COUNT, "blocks", "blocks that it lost so"),
    Column("num_lost_tokens", COUNT, "tokens", "tokens with KV, computed or hit, that it lost so"),
    Column(
        "num_recomputed_tokens",
        COUNT,
        "tokens",
        "tokens computed again, beyond what it hit on its return",
    ),
    *(
        Column(f"waiting_steps_{reason}", SMALL, "steps", f"steps in which it waited because {meaning}")
        for reason, meaning in WAITING_REASONS.items()
    ),
    Column("queue_time", SECONDS, "s", "first_scheduled_time - queued_time"),
    Column("ttft", SECONDS, "s", "time to first token: first_token_time - arrival_time"),
    Column("tpot", SECONDS, "s", "time per output token after the first; empty for a single token"),
    Column("e2e", SECONDS, "s", "finish_time - arrival_time"),
)

# Second column of the requests' table, only where requests come in sessions.
SESSION = Column("session", TEXT, "", "conversation that it belongs to (only where there are any)")

# One row per batch that computed something; as `kvsim.engine.state.STEP_DTYPE`, with what follows from it.
STEP_COLUMNS = (
    Column("instance", SMALL, "", "number of the serving instance"),
    Column("step", COUNT, "", "number of the step, counted by the instance"),
    Column(
        "start_time",
        SECONDS,
        "s",
        "when the GPU began it; if asynchronous, scheduled before",
    ),
    Column("end_time", SECONDS, "s", "when its output was there"),
    Column("duration", SECONDS, "s", "end_time - start_time"),
    Column("num_reqs", SMALL, "requests", "in the batch"),
    Column("num_new_reqs", SMALL, "requests", "of them admitted for the first time"),
    Column("num_resumed_reqs", SMALL, "requests", "of them back after a preemption"),
    Column("num_tokens", SMALL, "tokens", "computed by the model in the batch"),
    Column("num_prefill_tokens", SMALL, "tokens", "of them not decoding: prompts, and what is recomputed"),
    Column("num_encoder_tokens", SMALL, "tokens", "picture tokens that the vision encoder computed"),
    Column("num_spec_tokens", SMALL, "tokens", "draft tokens in the batch"),
    Column("num_preempted", SMALL, "requests", "that lost their blocks while it was scheduled"),
    Column("num_running", SMALL, "requests", "running after scheduling"),
    Column("num_waiting", SMALL, "requests", "waiting after scheduling"),
    Column("num_blocks_used", SMALL, "blocks", "of the pool that requests hold"),
    Column("kv_cache_usage_perc", FRACTION, "0..1", "their share of the pool"),
    *(
        Column(f"waiting_{reason}", SMALL, "requests", f"waiting because {meaning}")
        for reason, meaning in WAITING_REASONS.items()
    ),
    Column(
        "prefix_cache_queries",
        COUNT,
        "tokens",
        "looked up, first admissions only (0.16: each lookup)",
    ),
    Column("prefix_cache_hits", COUNT, "tokens", "of them found"),
    Column("blocks_cached", SMALL, "blocks", "that became reusable by its scheduling or its output"),
    Column("blocks_evicted", SMALL, "blocks", "that lost their cached content"),
)

EVENT_KINDS = (
    "stored",
    "stored_partial",
    "evicted",
    "key_removed",
    "cleared",
    "lookup",
    "preempted",
    "finished",
)
EVENT_COLUMNS = (
    Column("instance", SMALL, "", "number of the serving instance"),
    Column("step", COUNT, "", "step that it was scheduled in, or whose output brought it"),
    Column("time", SECONDS, "s", "when it happened"),
    Column("kind", TEXT, "", "what happened, see below"),
    Column("request", COUNT, "", "row of the request in requests.parquet, from 0; empty if it is about none"),
    Column("group_id", SMALL, "", "number of the KV cache group, from 0"),
    Column("block_id", SMALL, "", "number of the block"),
    Column("block_index", SMALL, "", "which block of its request that is, from 0"),
    Column("block_hash", TEXT, "", "first 16 bytes of vLLM's block hash, as 32 hex digits"),
    Column("num_tokens", COUNT, "tokens", "hit (lookup), covered (stored_partial), lost (preempted)"),
    Column("num_blocks", SMALL, "blocks", "lost (preempted)"),
    Column("reason", TEXT, "", "how the request ended (finished): stop, length, abort or error"),
)
# Only in the DataFrame: the request's name, looked up in the table of requests.
REQUEST_ID_OF_EVENT = Column("request_id", TEXT, "", "name of the request (joined by `RunResult.events`)")


def schema(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([pa.field(column.name, column.type) for column in columns])


def with_session(columns: Sequence[Column]) -> tuple[Column, ...]:
    """The columns of requests, the session among them."""
    return (columns[0], SESSION, *columns[1:])


SCHEMA, STEP_SCHEMA, EVENT_SCHEMA = map(schema, (COLUMNS, STEP_COLUMNS, EVENT_COLUMNS))
SESSION_SCHEMA = schema(with_session(COLUMNS))
