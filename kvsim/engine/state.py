"""Arrays that hold the state of one engine: scheduler, batches in flight, encoder cache.

Followed version: vLLM 0.33.0 `v1/core/sched/scheduler.py` and `v1/engine/core.py`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.state import NUM_REASONS, REASONS, KVState

FCFS, PRIORITY = map(np.int64, range(2))

# How a request came into a batch
NEW, RESUMED, CONTINUED = map(np.int64, range(3))

ENGINE_DTYPE = np.dtype(
    [
        # configuration
        ("max_num_seqs", "i8"),
        ("max_num_batched_tokens", "i8"),
        ("max_model_len", "i8"),
        ("policy", "i8"),
        ("enable_chunked_prefill", "i8"),
        ("long_prefill_token_threshold", "i8"),
        ("disable_chunked_mm_input", "i8"),
        ("full_sequence_must_fit", "i8"),
        ("async_scheduling", "i8"),
        ("queue_depth", "i8"),  # batches in flight
        ("max_loras", "i8"),  # 0: no LoRA limit
        ("num_spec_tokens", "i8"),
        ("num_lookahead_tokens", "i8"),  # draft slots with KV of their own
        ("encoder_shift", "i8"),  # a draft head reads one token further
        ("encoder_compute_budget", "i8"),
        ("acceptance_rate", "f8"),  # of each draft token, where a request brings no pattern
        ("acceptance_stream", "u8"),
        # rules
        ("lone_request_ignores_threshold", "i8"),
        ("self_preemption_continues", "i8"),
        ("loras_of_all_running", "i8"),
        ("blocked_encoder_input_is_skipped", "i8"),
        ("pads_drafts_at_admission", "i8"),
        ("stale_output_accounting", "i8"),
        ("encoder_released_after_output", "i8"),
        ("encoder_reference_per_input", "i8"),
        ("empty_batches_wait", "i8"),
        ("stats_at_admission", "i8"),
        ("lookahead_slots_at_admission", "i8"),
        # queues
        ("num_running", "i8"),
        ("num_waiting", "i8"),
        ("waiting_head", "i8"),
        ("waiting_tail", "i8"),
        ("first_finished", "i8"),  # ended requests whose record has not been collected
        ("last_finished", "i8"),
        ("num_finished", "i8"),
        ("waiting_steps", "i8", (NUM_REASONS,)),  # scans of the queue that ended for each reason
        ("end_of_features", "i8"),
        ("finished_to_flush", "i8"),
        # the step being scheduled
        ("new_batch", "i8"),  # its place in the ring
        ("current_step", "i8"),
        ("token_budget", "i8"),
        ("encoder_budget", "i8"),
        ("preempted_in_step", "i8"),
        ("prefill_scheduled", "i8"),
        ("num_scheduled_running", "i8"),
        ("prefill_threshold", "i8"),
        # batches in flight: a ring
        ("first_batch", "i8"),
        ("num_batches", "i8"),
        # encoder cache
        ("num_free_slots", "i8"),
        ("num_freeable_slots", "i8"),
        ("first_entry", "i8"),
        ("spare_entry", "i8"),
        ("oldest_freeable", "i8"),
        ("newest_freeable", "i8"),
        ("num_mismatched", "i8"),
        # clock and totals
        ("busy_until", "f8"),
        ("num_steps", "i8"),
        ("num_preemptions", "i8"),
        ("num_preempted_blocks", "i8"),
        ("num_lost_tokens", "i8"),
        ("num_recomputed_tokens", "i8"),
        ("waiting_request_steps", "i8", (NUM_REASONS,)),
        # rows of steps
        ("num_step_rows", "i8"),
        # the latest scan of the queue: requests by reason, the first one not reached, and its reason
        ("waiting_now", "i8", (NUM_REASONS,)),
        ("unreached", "i8"),
        ("unreached_reason", "i8"),
        ("preemptions_before", "i8"),
        ("queries_before", "i8"),
        ("hits_before", "i8"),
        ("cached_before", "i8"),
        ("evicted_before", "i8"),
        ("prompt_tokens", "i8"),
        ("generation_tokens", "i8"),
        ("scheduled_tokens", "i8"),
        ("num_draft_tokens", "i8"),
        ("num_accepted_tokens", "i8"),
        ("encoder_tokens", "i8"),
        ("busy_time", "f8"),
        ("usage_time", "f8"),  # integral of kv_cache_usage over busy time
        ("peak_usage", "f8"),
        ("peak_running", "i8"),
        ("peak_waiting", "i8"),
        ("running_time", "f8"),
        ("waiting_time", "f8"),
    ]
)

BATCH_DTYPE = np.dtype(
    [
        ("num_reqs", "i8"),
        ("num_tokens", "i8"),
        ("num_encoder_tokens", "i8"),
        ("start_time", "f8"),
        ("end_time", "f8"),
        ("step", "i8"),  # steps with tokens up to here
        ("row", "i8"),  # of `steps`, or NONE
    ]
)

SCHEDULED_DTYPE = np.dtype(
    [
        ("uid", "i8"),
        ("request", "i8"),
        ("num_scheduled_tokens", "i8"),
        ("num_computed_tokens", "i8"),  # before the step
        ("num_spec_tokens", "i8"),
        ("origin", "i8"),  # NEW, RESUMED or CONTINUED
        ("samples", "i8"),
    ]
)

FEATURE_DTYPE = np.dtype(
    [
        ("identifier", "u8"),
        ("offset", "i8"),
        ("length", "i8"),
        ("scheduled_step", "i8"),  # step that encodes it
        ("referenced", "i8"),  # the request holds the encoder-cache entry through this image
        ("accepted", "i8"),  # rows that hold an acceptance pattern: accepted drafts
    ]
)

ENCODER_ENTRY_DTYPE = np.dtype(
    [
        ("identifier", "u8"),
        ("num_embeds", "i8"),
        ("ref_cnt", "i8"),
        ("prev_entry", "i8"),
        ("next_entry", "i8"),
        ("prev_freeable", "i8"),
        ("next_freeable", "i8"),
    ]
)


# Where an engine stands in simulated time, and what is on its way to it
PLACE_DTYPE = np.dtype(
    [
        ("now", "f8"),  # when its next iteration begins, seconds
        ("next_row", "i8"),  # its inbox: rows of a window, linked by `next_waiting` in order of `queued_time`
        ("last_row", "i8"),
        ("last_queued", "f8"),  # when it sees the latest of them, seconds
        ("num_collected", "i8"),  # iterations that processed a step's output
        ("num_waiting", "i8"),  # at the end of the latest one, without those who came meanwhile
    ]
)

# One batch with tokens; `kvsim.results` has units and meanings.
STEP_DTYPE = np.dtype(
    [
        ("step", "i8"),
        ("start_time", "f8"),
        ("end_time", "f8"),
        ("num_reqs", "i8"),
        ("num_new_reqs", "i8"),
        ("num_resumed_reqs", "i8"),
        ("num_tokens", "i8"),
        ("num_prefill_tokens", "i8"),
        ("num_encoder_tokens", "i8"),
        ("num_spec_tokens", "i8"),
        ("num_preempted", "i8"),
        ("num_running", "i8"),
        ("num_waiting", "i8"),
        ("num_blocks_used", "i8"),
        *((f"waiting_{reason}", "i8") for reason in REASONS),
        ("prefix_cache_queries", "i8"),
        ("prefix_cache_hits", "i8"),
        ("blocks_cached", "i8"),
        ("blocks_evicted", "i8"),
    ]
)


SEAT_DTYPE = np.dtype(
    [
        ("running", "i8"),  # request slots in running order
        ("lora", "i8"),  # adapters in use during the admission scan
    ]
)


class EngineState(NamedTuple):
    """One engine.

    seats (max_num_seqs + 1,); batches (queue_depth,) and scheduled (queue_depth, max_num_seqs):
    batches in flight, a ring; features: images and acceptance patterns of live requests; steps:
    STEP_DTYPE rows not yet taken, room for none if they are not wanted.
    """

    kv: KVState
    scalars: NDArray[np.void]
    seats: NDArray[np.void]
    batches: NDArray[np.void]
    scheduled: NDArray[np.void]
    features: NDArray[np.void]
    encoder_cache: NDArray[np.void]
    steps: NDArray[np.void]
