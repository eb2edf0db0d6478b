"""What a finished step changes: tokens appended, drafts rejected, requests ended.

Followed: vLLM 0.33.0 `v1/core/sched/scheduler.py` (`update_from_output`, `finish_requests`,
`update_draft_token_ids`), `v1/core/sched/utils.py` (`check_stop`); 0.16.0 where the scalars say so.
The model does not run: a request's output is known beforehand, and how many drafts are accepted
follows from its pattern or from the engine's acceptance rate. The scheduler never reads either.
"""

import numpy as np

from kvsim.cache.event_log import log
from kvsim.cache.kv_cache_manager import cache_blocks, free_request
from kvsim.cache.state import (
    FINISHED_ABORTED,
    FINISHED_ERROR,
    FINISHED_LENGTH_CAPPED,
    FINISHED_STOPPED,
    FREE_SLOT,
    LOG_FINISHED,
    LOG_FIRST_TOKEN,
    NO_HASH,
    NONE,
    RUNNING,
    ZERO,
)
from kvsim.compiled import compiled, compiled_inline, compiled_once, compiled_part
from kvsim.engine.encoder_cache import forget_schedule, free_all_encoder_inputs, free_passed_encoder_inputs
from kvsim.engine.queues import index_in_running, remove_running_at, remove_waiting
from kvsim.tokens import mix64

_FULL_SCALE = float(1 << 64)


@compiled_part
def num_accepted_drafts(eng, r, index, num_drafts):
    """Accepted drafts of the step that samples output `index`; at most `num_drafts`."""
    q = eng.kv.requests
    pattern = q["accept_len"][r]
    if pattern > 0:
        first = q["feature_offset"][r] + q["num_features"][r]
        return min(num_drafts, eng.features["accepted"][first + index % pattern])
    n = 0
    key = eng.scalars["acceptance_stream"][0] + mix64(np.uint64(q["uid"][r]))
    while n < num_drafts:
        drawn = mix64(key + mix64(np.uint64(index * 64 + n)))
        if float(drawn) / _FULL_SCALE >= eng.scalars["acceptance_rate"][0]:
            break
        n += 1
    return n


# ---------------------------------------------------------------- ends


@compiled_part
def _end_request(eng, r, status, now):
    """Free what a finished request holds; its slot stays until its record is collected."""
    s, q = eng.scalars, eng.kv.requests
    q["status"][r] = status
    q["finish_time"][r] = now
    forget_schedule(eng, r)
    free_all_encoder_inputs(eng, r)
    free_request(eng.kv, r)
    log(eng.kv.pool, LOG_FINISHED, ZERO, q["uid"][r], r, status, NO_HASH, NO_HASH)
    q["next_waiting"][r] = NONE
    if s["first_finished"][0] == NONE:
        s["first_finished"][0] = r
    else:
        q["next_waiting"][s["last_finished"][0]] = r
    s["last_finished"][0] = r
    s["finished_to_flush"][0] += 1
    s["num_finished"][0] += 1


@compiled_part
def finish_request(eng, r, status, now):
    """End a request from outside the step (abort, error)."""
    if eng.kv.requests["status"][r] == RUNNING:
        remove_running_at(eng, index_in_running(eng, r))
    else:
        remove_waiting(eng, r)
    _end_request(eng, r, status, now)


@compiled
def abort_request(eng, r, now):
    eng.kv.pool.scalars["now"][0] = now
    finish_request(eng, r, FINISHED_ABORTED, now)


@compiled_part
def _fail_mismatched(eng, now):
    for r in range(len(eng.kv.requests)):
        if eng.kv.requests["encoder_mismatch"][r]:
            eng.kv.requests["encoder_mismatch"][r] = 0
            if FREE_SLOT < eng.kv.requests["status"][r] <= RUNNING:
                finish_request(eng, r, FINISHED_ERROR, now)
    eng.scalars["num_mismatched"][0] = 0


# ---------------------------------------------------------------- tokens


@compiled_inline
def _append_tokens(eng, r, num_sampled, now):
    """Append sampled tokens up to a stop; (tokens kept, final status or 0)."""
    q = eng.kv.requests
    max_model_len = eng.scalars["max_model_len"][0]
    for i in range(num_sampled):
        q["num_tokens"][r] += 1
        num_outputs = q["num_tokens"][r] - q["num_prompt_tokens"][r]
        if num_outputs == 1:
            q["first_token_time"][r] = now
            log(eng.kv.pool, LOG_FIRST_TOKEN, ZERO, q["uid"][r], r, ZERO, NO_HASH, NO_HASH)
        q["last_token_time"][r] = now
        if num_outputs == q["stop_at"][r]:
            return i + 1, FINISHED_STOPPED
        if q["num_tokens"][r] >= max_model_len or num_outputs >= q["max_tokens"][r]:
            return i + 1, FINISHED_LENGTH_CAPPED
    return num_sampled, 0


@compiled_part
def _take_back_rejected(eng, r, num_rejected):
    q = eng.kv.requests
    if q["num_computed_tokens"][r] > 0:
        q["num_computed_tokens"][r] -= num_rejected
    if q["num_output_placeholders"][r] > 0:
        q["num_output_placeholders"][r] -= num_rejected


@compiled_inline
def _cache_if_full(kv, r, num_tokens):
    if num_tokens >= kv.requests["next_full_block"][r]:
        cache_blocks(kv, r, num_tokens)


@compiled_inline
def _update_with_output(eng, r, num_sampled, is_stale, now):
    """Append, settle placeholders, cache what became final; the final status or 0 (0.33)."""
    s, q = eng.scalars, eng.kv.requests
    was_running = q["status"][r] == RUNNING
    had_placeholders = q["num_output_placeholders"][r] > 0
    kept, status = _append_tokens(eng, r, num_sampled, now)
    s["generation_tokens"][0] += kept
    if is_stale:
        return status
    if status:
        q["num_computed_tokens"][r] -= num_sampled - kept
    if had_placeholders:
        q["num_output_placeholders"][r] -= num_sampled
    if was_running and (had_placeholders or s["num_spec_tokens"][0] > 0):
        _cache_if_full(eng.kv, r, q["num_computed_tokens"][r] - q["num_in_flight_tokens"][r])
    return status


@compiled_part
def _update_with_output_016(eng, r, num_sampled, now):
    s, q = eng.scalars, eng.kv.requests
    if s["async_scheduling"][0] and q["discard_latest_output"][r]:
        q["discard_latest_output"][r] = 0
        return 0
    was_running = q["status"][r] == RUNNING
    kept, status = _append_tokens(eng, r, num_sampled, now)
    s["generation_tokens"][0] += kept
    if s["async_scheduling"][0]:
        q["num_output_placeholders"][r] -= kept
        if was_running:
            _cache_if_full(eng.kv, r, q["num_computed_tokens"][r] - q["num_output_placeholders"][r])
    return status


@compiled_inline
def _drain_stale(q, r, num_scheduled):
    """Settle the tokens in flight; whether this output predates a preemption."""
    q["num_in_flight_tokens"][r] -= num_scheduled
    if q["num_stale_output_tokens"][r] == 0:
        return False
    q["num_stale_output_tokens"][r] -= num_scheduled
    return True


@compiled_inline
def _process_request(eng, r, entry, i, now):
    """One request of a finished step; its final status, or 0."""
    s, q = eng.scalars, eng.kv.requests
    accounting = s["stale_output_accounting"][0] != 0
    is_stale = _drain_stale(q, r, entry["num_scheduled_tokens"][i])
    if accounting and is_stale and q["drop_stale_output"][r]:
        return 0
    num_spec = entry["num_spec_tokens"][i]
    num_sampled = np.int64(0)
    if entry["samples"][i]:
        num_outputs = q["num_tokens"][r] - q["num_prompt_tokens"][r]
        num_sampled = np.int64(1)
        if num_spec > 0:
            num_sampled += num_accepted_drafts(eng, r, num_outputs, num_spec)
            s["num_draft_tokens"][0] += num_spec
            s["num_accepted_tokens"][0] += num_sampled - 1
            if not is_stale:
                _take_back_rejected(eng, r, num_spec - (num_sampled - 1))
    if q["num_features"][r] > 0 and s["encoder_released_after_output"][0]:
        free_passed_encoder_inputs(eng, r)
    if num_sampled == 0:
        return 0
    if accounting:
        return _update_with_output(eng, r, num_sampled, is_stale, now)
    return _update_with_output_016(eng, r, num_sampled, now)


@compiled_inline
def _drop_finished_from_running(eng):
    s, kept = eng.scalars, 0
    for i in range(s["num_running"][0]):
        r = eng.seats["running"][i]
        if eng.kv.requests["status"][r] == RUNNING:
            eng.seats["running"][kept] = r
            kept += 1
    s["num_running"][0] = kept


@compiled_inline
def _lives(eng, entry, i):
    """Whether a batch's request is still there (not aborted, its slot not given to another)."""
    q, r = eng.kv.requests, entry["request"][i]
    return q["uid"][r] == entry["uid"][i] and FREE_SLOT < q["status"][r] <= RUNNING


@compiled_part
def _propose_drafts(eng, entry, num_reqs):
    """Every scheduled request that is past its prompt gets drafts for its next step."""
    q = eng.kv.requests
    for i in range(num_reqs):
        r = entry["request"][i]
        if _lives(eng, entry, i):
            drafts = 0 if q["is_prefill_chunk"][r] else eng.scalars["num_spec_tokens"][0]
            q["num_spec_tokens"][r] = drafts


@compiled_once
def update_from_output(eng, now):
    """Process the oldest batch in flight, which ended at `now`."""
    s, q = eng.scalars, eng.kv.requests
    b = s["first_batch"][0]
    eng.kv.pool.scalars["now"][0] = now
    eng.kv.pool.scalars["step"][0] = eng.batches["step"][b]
    entry, num_reqs = eng.scheduled[b], eng.batches["num_reqs"][b]
    any_finished = False
    for i in range(num_reqs):
        if not _lives(eng, entry, i):
            continue
        r = entry["request"][i]
        was_running = q["status"][r] == RUNNING
        status = _process_request(eng, r, entry, i, now)
        if status == 0:
            continue
        if not was_running:
            remove_waiting(eng, r)
        _end_request(eng, r, status, now)
        any_finished = True
    if any_finished:
        _drop_finished_from_running(eng)
    if s["num_mismatched"][0] > 0:
        _fail_mismatched(eng, now)
    if s["num_spec_tokens"][0] > 0 and eng.batches["num_tokens"][b] > 0:
        _propose_drafts(eng, entry, num_reqs)
    s["first_batch"][0] = (b + 1) % len(eng.batches)
    s["num_batches"][0] -= 1
