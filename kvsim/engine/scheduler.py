"""One scheduling step: running requests first, then waiting ones, within the token budget.

Followed: vLLM 0.33.0 `v1/core/sched/scheduler.py` (`schedule`, `_preempt_request`,
`_update_after_schedule`) and `async_scheduler.py`; 0.16.0 where the scalars say so.
"""

import numpy as np

from kvsim.cache.event_log import log
from kvsim.cache.kv_cache_manager import (
    allocate_slots,
    free_request,
    full_sequence_fits,
    get_computed_blocks,
    lookup_enabled,
    num_blocks_held,
    record_stats,
    slots_are_held,
)
from kvsim.cache.state import (
    LOG_PREEMPTED,
    NO_HASH,
    NONE,
    NUM_REASONS,
    PREEMPTED,
    RUNNING,
    WAITING,
    ZERO,
)
from kvsim.compiled import compiled, compiled_inline, compiled_once, compiled_part
from kvsim.engine.batch import add_to_batch, new_batch_index, schedule_encoder, take_from_batch
from kvsim.engine.encoder_cache import (
    forget_schedule,
    free_all_encoder_inputs,
    free_passed_encoder_inputs,
    try_schedule_encoder_inputs,
)
from kvsim.engine.queues import (
    append_running,
    lowest_priority_running,
    prepend_waiting,
    remove_running_at,
    remove_waiting,
)
from kvsim.engine.state import CONTINUED, NEW, PRIORITY, RESUMED

NO_ROOM, PREEMPTION, QUEUE_HEAD, SEQUENCE_LIMIT = map(np.int64, range(4))  # as in REASONS
TOKEN_BUDGET, ENCODER_BUDGET, LORA_LIMIT, OUTPUT_IN_FLIGHT = map(np.int64, range(4, NUM_REASONS))

# ---------------------------------------------------------------- preemption


@compiled_part
def _count_losses(eng, r, num_computed, num_blocks):
    """Note what a preemption costs: blocks, computed tokens. What is hit on return is not lost after all."""
    s, q = eng.scalars, eng.kv.requests
    q["num_preempted_blocks"][r] += num_blocks
    q["num_lost_tokens"][r] += num_computed
    s["num_preempted_blocks"][0] += num_blocks
    s["num_lost_tokens"][0] += num_computed
    # Its return counted everything up to the most computed before; it did not get that far.
    not_recomputed = max(q["most_computed_tokens"][r] - num_computed, 0)
    q["num_recomputed_tokens"][r] -= not_recomputed
    s["num_recomputed_tokens"][0] -= not_recomputed
    q["most_computed_tokens"][r] = max(q["most_computed_tokens"][r], num_computed)


@compiled_part
def preempt(eng, r, drop_stale_output):
    """Take a request's blocks away and queue it again; it will recompute what it does not hit.

    Output of steps in flight is marked stale (0.33): it is still delivered unless dropped, but
    no longer moves the counters that preemption resets.
    """
    q = eng.kv.requests
    num_computed, num_blocks = q["num_computed_tokens"][r], num_blocks_held(eng.kv, r)
    _count_losses(eng, r, num_computed, num_blocks)
    free_request(eng.kv, r)
    free_all_encoder_inputs(eng, r)
    forget_schedule(eng, r)
    q["status"][r] = PREEMPTED
    q["num_computed_tokens"][r] = 0
    q["num_spec_tokens"][r] = 0
    if eng.scalars["stale_output_accounting"][0]:
        still_dropped = q["drop_stale_output"][r] != 0 and q["num_stale_output_tokens"][r] > 0
        q["drop_stale_output"][r] = drop_stale_output or still_dropped
        q["num_stale_output_tokens"][r] = q["num_in_flight_tokens"][r]
        q["num_output_placeholders"][r] = 0
    q["num_preemptions"][r] += 1
    eng.scalars["num_preemptions"][0] += 1
    log(eng.kv.pool, LOG_PREEMPTED, ZERO, q["uid"][r], num_blocks, num_computed, NO_HASH, NO_HASH)
    prepend_waiting(eng, r)


@compiled_part
def _preempt_victim(eng, index):
    """Preempt the running request that has to go; (its slot, where the scan now stands)."""
    s = eng.scalars
    if s["policy"][0] == PRIORITY:
        victim_index = lowest_priority_running(eng)
        victim = eng.seats["running"][victim_index]
        remove_running_at(eng, victim_index)
        was_scheduled = take_from_batch(eng, victim)
        # 0.16 steps back only for a victim of this step's batch, and so may pass one request over.
        if victim_index < index and (was_scheduled or s["self_preemption_continues"][0]):
            index -= 1
    else:
        victim = eng.seats["running"][s["num_running"][0] - 1]
        s["num_running"][0] -= 1
    preempt(eng, victim, False)
    s["preempted_in_step"][0] += 1
    return victim, index


# ---------------------------------------------------------------- running requests


@compiled_inline
def _is_sure_to_finish(eng, r):
    """Asynchronous: steps in flight reach max_tokens even if every draft is rejected."""
    q = eng.kv.requests
    placeholders = q["num_output_placeholders"][r]
    last = q["num_prompt_tokens"][r] + q["max_tokens"][r]
    return placeholders > 0 and q["num_computed_tokens"][r] + 2 - placeholders >= last


@compiled_inline
def _tokens_for_running(eng, r):
    """Tokens a running request would take: its unseen ones and drafts, within the limits."""
    s, q = eng.scalars, eng.kv.requests
    num_computed = q["num_computed_tokens"][r]
    known = q["num_tokens"][r] + q["num_spec_tokens"][r] + q["num_output_placeholders"][r]
    num_new = known - num_computed
    if 0 < s["prefill_threshold"][0] < num_new:
        num_new = s["prefill_threshold"][0]
    num_new = min(num_new, s["token_budget"][0])
    return min(num_new, s["max_model_len"][0] - num_computed - 1)


@compiled_inline
def _scheduled_drafts(eng, r, num_new):
    """Drafts of a running request that fit its tokens of this step; they are used up."""
    q = eng.kv.requests
    if q["num_spec_tokens"][r] == 0:
        return ZERO
    beyond = num_new + q["num_computed_tokens"][r] - q["num_tokens"][r] - q["num_output_placeholders"][r]
    num_spec = max(ZERO, min(q["num_spec_tokens"][r], beyond))
    q["num_spec_tokens"][r] = 0
    return num_spec


@compiled_part
def _allocate_or_preempt(eng, r, num_new, index):
    """Slots for a running request, preempting others, then itself; (success, scan index)."""
    lookahead = eng.scalars["num_lookahead_tokens"][0]
    while not allocate_slots(eng.kv, r, num_new, ZERO, lookahead, ZERO):
        victim, index = _preempt_victim(eng, index)
        if victim == r:
            return False, index
    return True, index


@compiled_once
def _schedule_running(eng):
    s, q = eng.scalars, eng.kv.requests
    index = ZERO
    while index < s["num_running"][0] and s["token_budget"][0] > 0:
        r = eng.seats["running"][index]
        if _is_sure_to_finish(eng, r):
            index += 1
            continue
        num_new = _tokens_for_running(eng, r)
        num_embeds = ZERO
        if q["num_features"][r] > 0:
            num_new, num_embeds = try_schedule_encoder_inputs(eng, r, q["num_computed_tokens"][r], num_new)
        if num_new == 0:
            index += 1
            continue
        if not slots_are_held(eng.kv, r, num_new, s["num_lookahead_tokens"][0]):
            fits, index = _allocate_or_preempt(eng, r, num_new, index)
            if not fits:
                if s["policy"][0] == PRIORITY and s["self_preemption_continues"][0]:
                    continue  # the ones behind it matter more and may fit now
                break
        if q["is_prefill_chunk"][r]:
            s["prefill_scheduled"][0] = 1
        add_to_batch(eng, r, num_new, _scheduled_drafts(eng, r, num_new), CONTINUED)
        schedule_encoder(eng, r, num_embeds)
        index += 1
    s["num_scheduled_running"][0] = eng.batches["num_reqs"][s["new_batch"][0]]


# ---------------------------------------------------------------- LoRA limit


@compiled_part
def _add_lora(eng, num_loras, lora):
    """Note an adapter as in use (0: none); the number of different ones."""
    if lora == 0:
        return num_loras
    for i in range(num_loras):
        if eng.seats["lora"][i] == lora:
            return num_loras
    eng.seats["lora"][num_loras] = lora
    return num_loras + 1


@compiled_part
def _loras_in_use(eng):
    n = ZERO
    if eng.scalars["loras_of_all_running"][0]:
        for i in range(eng.scalars["num_running"][0]):
            n = _add_lora(eng, n, eng.kv.requests["lora"][eng.seats["running"][i]])
        return n
    b = eng.scalars["new_batch"][0]
    for i in range(eng.batches["num_reqs"][b]):
        n = _add_lora(eng, n, eng.kv.requests["lora"][eng.scheduled[b]["request"][i]])
    return n


@compiled_part
def _exceeds_max_loras(eng, r, num_loras):
    lora = eng.kv.requests["lora"][r]
    if eng.scalars["max_loras"][0] == 0 or lora == 0 or num_loras < eng.scalars["max_loras"][0]:
        return False
    return _add_lora(eng, num_loras, lora) > num_loras


# ---------------------------------------------------------------- waiting requests


@compiled_part
def _tokens_for_waiting(eng, r, hit):
    """(tokens, drafts) of an admission; tokens -1 ends the scan.

    With speculation on, a request with one token left is padded with placeholder drafts, so that
    the whole batch keeps one shape, unless a prefill runs in this step.
    """
    s, q = eng.scalars, eng.kv.requests
    num_new = q["num_tokens"][r] - hit
    num_spec = s["num_spec_tokens"][0]
    padded = ZERO
    if (
        s["pads_drafts_at_admission"][0]
        and num_spec > 0
        and num_new == 1
        and s["prefill_scheduled"][0] == 0
        and (s["num_scheduled_running"][0] > 0 or hit > 0)
        and hit + 1 + num_spec + 1 <= s["max_model_len"][0]
    ):
        if 1 + num_spec > s["token_budget"][0]:
            return NONE, padded
        num_new = 1 + num_spec
        padded = num_spec
    if 0 < s["prefill_threshold"][0] < num_new:
        num_new = s["prefill_threshold"][0]
    if s["enable_chunked_prefill"][0] == 0 and num_new > s["token_budget"][0]:
        return NONE, padded
    return min(num_new, s["token_budget"][0]), padded


@compiled_part
def _admit(eng, r, hit, num_new, num_spec, num_embeds, now):
    q = eng.kv.requests
    if eng.scalars["stats_at_admission"][0] and lookup_enabled(eng.kv, r):
        record_stats(eng.kv, r, hit)
    remove_waiting(eng, r)
    append_running(eng, r)
    origin = NEW if q["status"][r] == WAITING else RESUMED
    q["status"][r] = RUNNING
    q["num_computed_tokens"][r] = hit
    if q["num_cached_tokens"][r] < 0:
        q["num_cached_tokens"][r] = hit
        q["first_scheduled_time"][r] = now
    if origin == RESUMED:
        recomputed = max(q["most_computed_tokens"][r] - hit, 0)
        q["num_recomputed_tokens"][r] += recomputed
        eng.scalars["num_recomputed_tokens"][0] += recomputed
    add_to_batch(eng, r, num_new, num_spec, origin)
    schedule_encoder(eng, r, num_embeds)


@compiled_part
def _schedule_waiting(eng, now):
    """Admit from the head of the queue until something does not fit.

    Requests that cannot run now for reasons of their own (LoRA limit, encoder input, output in
    flight) are passed over and keep their place. Returns why the scan ended, and the first
    request that it did not reach.
    """
    s, q = eng.scalars, eng.kv.requests
    num_loras = _loras_in_use(eng) if s["max_loras"][0] else ZERO
    lookahead = s["num_lookahead_tokens"][0] if s["lookahead_slots_at_admission"][0] else ZERO
    following = s["waiting_head"][0]
    while following != NONE and s["token_budget"][0] > 0 and s["num_running"][0] < s["max_num_seqs"][0]:
        r = following
        following = q["next_waiting"][r]
        if q["num_stale_output_tokens"][r] > 0 and q["drop_stale_output"][r] == 0:
            q["waiting_reason"][r] = OUTPUT_IN_FLIGHT
            continue
        if _exceeds_max_loras(eng, r, num_loras):
            q["waiting_reason"][r] = LORA_LIMIT
            continue
        hit = get_computed_blocks(eng.kv, r)
        num_new, num_spec = _tokens_for_waiting(eng, r, hit)
        if num_new < 0:
            q["waiting_reason"][r] = TOKEN_BUDGET
            return QUEUE_HEAD, following
        num_embeds = ZERO
        if q["num_features"][r] > 0:
            num_new, num_embeds = try_schedule_encoder_inputs(eng, r, hit, num_new)
            if num_new == 0:
                q["waiting_reason"][r] = ENCODER_BUDGET
                if s["blocked_encoder_input_is_skipped"][0]:
                    continue
                return QUEUE_HEAD, following
        watermark = eng.kv.pool.scalars["watermark_blocks"][0] if s["num_running"][0] > 0 else ZERO
        fits = s["full_sequence_must_fit"][0] == 0 or full_sequence_fits(eng.kv, r, hit, watermark)
        if not fits or not allocate_slots(eng.kv, r, num_new, hit, lookahead, watermark):
            forget_schedule(eng, r)
            free_all_encoder_inputs(eng, r)
            q["waiting_reason"][r] = NO_ROOM
            return QUEUE_HEAD, following
        _admit(eng, r, hit, num_new, num_spec, num_embeds, now)
        if s["max_loras"][0]:
            num_loras = _add_lora(eng, num_loras, q["lora"][r])
    if s["token_budget"][0] <= 0:
        return TOKEN_BUDGET, following
    return SEQUENCE_LIMIT, following


@compiled_part
def _note_waiting(eng, reason, unreached):
    """One more step for everyone in the queue: up to `unreached` for its own reason, from there for `reason`.

    A long queue is not walked: what all share is counted once (`queues` takes the difference when a
    request leaves), and set right for those before `unreached`.
    """
    s, q = eng.scalars, eng.kv.requests
    s["unreached"][0], s["unreached_reason"][0] = unreached, reason
    s["waiting_steps"][0, reason] += 1
    s["waiting_now"][0, :] = 0
    s["waiting_now"][0, reason] = s["num_waiting"][0]
    r = s["waiting_head"][0]
    while r != unreached:
        own = q["waiting_reason"][r]
        q["waiting_steps"][r, own] += 1
        q["waiting_steps"][r, reason] -= 1
        s["waiting_now"][0, own] += 1
        s["waiting_now"][0, reason] -= 1
        r = q["next_waiting"][r]
    for k in range(NUM_REASONS):
        s["waiting_request_steps"][0, k] += s["waiting_now"][0, k]


# ---------------------------------------------------------------- the step


@compiled_inline
def _update_after_schedule(eng):
    """Count the scheduled tokens as computed before the output is known."""
    s, q = eng.scalars, eng.kv.requests
    b = s["new_batch"][0]
    row = eng.scheduled[b]
    for i in range(eng.batches["num_reqs"][b]):
        r = row["request"][i]
        num_new = row["num_scheduled_tokens"][i]
        q["num_computed_tokens"][r] += num_new
        q["num_in_flight_tokens"][r] += num_new
        unknown = q["num_tokens"][r] + q["num_output_placeholders"][r]
        q["is_prefill_chunk"][r] = q["num_computed_tokens"][r] < unknown
        row["samples"][i] = q["is_prefill_chunk"][r] == 0
        if q["num_features"][r] > 0 and s["encoder_released_after_output"][0] == 0:
            free_passed_encoder_inputs(eng, r)
        if s["async_scheduling"][0] and q["is_prefill_chunk"][r] == 0:
            q["num_output_placeholders"][r] += 1 + row["num_spec_tokens"][i]
            q["num_spec_tokens"][r] = s["num_spec_tokens"][0]
    s["finished_to_flush"][0] = 0


@compiled_once
def schedule(eng, now):
    """Decide the next batch and append it to the batches in flight; its number of tokens."""
    s = eng.scalars
    s["current_step"][0] += 1
    eng.kv.pool.scalars["step"][0] = s["num_steps"][0] + 1  # a batch without tokens counts with the next
    eng.kv.pool.scalars["now"][0] = now
    b = new_batch_index(eng)
    s["new_batch"][0] = b
    eng.batches["num_reqs"][b] = 0
    eng.batches["num_tokens"][b] = 0
    eng.batches["num_encoder_tokens"][b] = 0
    s["token_budget"][0] = s["max_num_batched_tokens"][0]
    s["encoder_budget"][0] = s["encoder_compute_budget"][0]
    s["preempted_in_step"][0] = 0
    s["prefill_scheduled"][0] = 0
    lone = s["num_running"][0] + s["num_waiting"][0] <= 1 and s["lone_request_ignores_threshold"][0] != 0
    s["prefill_threshold"][0] = 0 if lone else s["long_prefill_token_threshold"][0]
    _schedule_running(eng)
    reason, unreached = PREEMPTION, s["waiting_head"][0]
    if s["preempted_in_step"][0] == 0:
        reason, unreached = _schedule_waiting(eng, now)
    if eng.batches["num_tokens"][b] > 0:
        _note_waiting(eng, reason, unreached)
        s["num_steps"][0] += 1
    eng.batches["step"][b] = s["num_steps"][0]
    _update_after_schedule(eng)
    s["num_batches"][0] += 1
    return eng.batches["num_tokens"][b]


@compiled_inline
def has_requests(eng):
    """Unfinished requests, or finished ones that the next step still has to report."""
    s = eng.scalars
    return s["num_running"][0] + s["num_waiting"][0] + s["finished_to_flush"][0] > 0


@compiled
def preempt_running_requests(eng):
    """Preempt all running requests, last to first, so that they return in their order."""
    s, q = eng.scalars, eng.kv.requests
    while s["num_running"][0] > 0:
        s["num_running"][0] -= 1
        r = eng.seats["running"][s["num_running"][0]]
        preempt(eng, r, True)
        if s["stale_output_accounting"][0] == 0:
            q["num_output_placeholders"][r] = 0
            q["discard_latest_output"][r] = 1
