"""One iteration of the engine's busy loop, compiled: schedule, price, and process what is done.

Followed: vLLM 0.33.0 `v1/engine/core.py` (`step`, `step_with_batch_queue`).
"""

import math

import numpy as np

from kvsim.addresses import rows_at
from kvsim.cache.kv_cache_manager import usage
from kvsim.cache.request_table import enter_request, release_request
from kvsim.cache.state import NONE
from kvsim.compiled import compiled, compiled_entry, compiled_inline, compiled_once, compiled_part
from kvsim.engine.handle import cost_at, engine_at, window_at
from kvsim.engine.output import update_from_output
from kvsim.engine.queues import add_waiting
from kvsim.engine.scheduler import has_requests, schedule
from kvsim.engine.state import NEW, PLACE_DTYPE, RESUMED
from kvsim.gpu.cost import step_time

IDLE = math.inf  # nothing can happen before an event from outside


@compiled_inline
def price_batch(eng, cost, b):
    """Seconds that a batch keeps the GPU busy; an empty one takes none."""
    n = eng.batches["num_reqs"][b]
    if n == 0:
        return 0.0
    entry = eng.scheduled[b]
    encoder = np.int64(eng.batches["num_encoder_tokens"][b])
    return step_time(cost, entry["num_scheduled_tokens"], entry["num_computed_tokens"], n, encoder)


@compiled_inline
def _account(eng, b, seconds):
    s = eng.scalars
    in_use = usage(eng.kv.pool.scalars)
    s["scheduled_tokens"][0] += eng.batches["num_tokens"][b]
    s["encoder_tokens"][0] += eng.batches["num_encoder_tokens"][b]
    s["busy_time"][0] += seconds
    s["usage_time"][0] += seconds * in_use
    s["running_time"][0] += seconds * s["num_running"][0]
    s["waiting_time"][0] += seconds * s["num_waiting"][0]
    s["peak_usage"][0] = max(s["peak_usage"][0], in_use)
    s["peak_running"][0] = max(s["peak_running"][0], s["num_running"][0])
    s["peak_waiting"][0] = max(s["peak_waiting"][0], s["num_waiting"][0])


@compiled_part
def _num_prefill_tokens(eng, b):
    """Tokens of requests in their prompt, or computing again what a preemption took."""
    entry, q, total = eng.scheduled[b], eng.kv.requests, np.int64(0)
    for i in range(eng.batches["num_reqs"][b]):
        new = entry["num_scheduled_tokens"][i]
        in_prompt = entry["num_computed_tokens"][i] < q["num_prompt_tokens"][entry["request"][i]]
        if in_prompt or new > 1 + entry["num_spec_tokens"][i]:
            total += new
    return total


@compiled_inline
def _record(eng, b):
    """Add a row (STEP_DTYPE) for batch `b`; there is room, see `advance`."""
    s, kv, row, n = eng.scalars, eng.kv.pool.scalars, eng.steps, eng.scalars["num_step_rows"][0]
    entry, waiting = eng.scheduled[b], s["waiting_now"][0]
    row["step"][n] = s["num_steps"][0]
    row["start_time"][n] = eng.batches["start_time"][b]
    row["end_time"][n] = eng.batches["end_time"][b]
    row["num_reqs"][n] = eng.batches["num_reqs"][b]
    row["num_new_reqs"][n] = row["num_resumed_reqs"][n] = row["num_spec_tokens"][n] = 0
    for i in range(eng.batches["num_reqs"][b]):
        row["num_new_reqs"][n] += entry["origin"][i] == NEW
        row["num_resumed_reqs"][n] += entry["origin"][i] == RESUMED
        row["num_spec_tokens"][n] += entry["num_spec_tokens"][i]
    row["num_tokens"][n] = eng.batches["num_tokens"][b]
    row["num_prefill_tokens"][n] = _num_prefill_tokens(eng, b)
    row["num_encoder_tokens"][n] = eng.batches["num_encoder_tokens"][b]
    row["num_running"][n] = s["num_running"][0]
    row["num_waiting"][n] = s["num_waiting"][0]
    row["num_blocks_used"][n] = kv["num_gpu_blocks"][0] - 1 - kv["num_free_blocks"][0]
    row["waiting_no_room"][n] = waiting[0]
    row["waiting_preemption"][n] = waiting[1]
    row["waiting_queue_head"][n] = waiting[2]
    row["waiting_sequence_limit"][n] = waiting[3]
    row["waiting_token_budget"][n] = waiting[4]
    row["waiting_encoder_budget"][n] = waiting[5]
    row["waiting_lora_limit"][n] = waiting[6]
    row["waiting_output_in_flight"][n] = waiting[7]
    row["num_preempted"][n] = 0
    row["prefix_cache_queries"][n] = row["prefix_cache_hits"][n] = 0
    row["blocks_cached"][n] = row["blocks_evicted"][n] = 0
    _count_in_row(eng, n)
    eng.batches["row"][b] = n
    s["num_step_rows"][0] = n + 1


@compiled_part
def _count_in_row(eng, n):
    """Add to row `n` what has happened to blocks and requests since this was last asked."""
    s, kv, row = eng.scalars, eng.kv.pool.scalars, eng.steps
    row["num_preempted"][n] += s["num_preemptions"][0] - s["preemptions_before"][0]
    row["prefix_cache_queries"][n] += kv["queries"][0] - s["queries_before"][0]
    row["prefix_cache_hits"][n] += kv["hits"][0] - s["hits_before"][0]
    row["blocks_cached"][n] += kv["num_cached"][0] - s["cached_before"][0]
    row["blocks_evicted"][n] += kv["num_evicted"][0] - s["evicted_before"][0]
    s["preemptions_before"][0] = s["num_preemptions"][0]
    s["queries_before"][0], s["hits_before"][0] = kv["queries"][0], kv["hits"][0]
    s["cached_before"][0], s["evicted_before"][0] = kv["num_cached"][0], kv["num_evicted"][0]


@compiled_part
def _tokens_in_flight(eng):
    total = 0
    for i in range(eng.scalars["num_batches"][0]):
        b = (eng.scalars["first_batch"][0] + i) % len(eng.batches)
        total += eng.batches["num_tokens"][b]
    return total


@compiled_once
def launch(eng, cost, now):
    """Schedule a batch at `now` and price it; (its tokens, whether the loop schedules again at once).

    The batch runs when the GPU is done with the ones before it. With asynchronous scheduling the
    loop goes on while fewer than two batches are in flight.
    """
    s = eng.scalars
    if not has_requests(eng):
        return np.int64(0), False
    scheduled = schedule(eng, now)
    b = (s["first_batch"][0] + s["num_batches"][0] - 1) % len(eng.batches)
    seconds = price_batch(eng, cost, b)
    start = max(now, s["busy_until"][0])
    eng.batches["start_time"][b] = start
    eng.batches["end_time"][b] = start + seconds
    s["busy_until"][0] = start + seconds
    eng.batches["row"][b] = NONE
    if scheduled > 0:
        _account(eng, b, seconds)
        if s["num_step_rows"][0] < len(eng.steps):
            _record(eng, b)
    early = scheduled > 0 or (s["empty_batches_wait"][0] != 0 and has_requests(eng))
    return scheduled, early and s["num_batches"][0] < s["queue_depth"][0]


@compiled_once
def collect(eng, now, scheduled):
    """Wait for the oldest batch and process its output; when that was, or IDLE.

    scheduled: tokens of the batch launched in the same iteration.
    """
    s = eng.scalars
    if s["num_batches"][0] == 0:
        return IDLE
    row = eng.batches["row"][s["first_batch"][0]]
    stuck = scheduled == 0 and _tokens_in_flight(eng) == 0 and s["finished_to_flush"][0] == 0
    end = max(now, eng.batches["end_time"][s["first_batch"][0]])
    update_from_output(eng, end)
    if row != NONE:
        _count_in_row(eng, row)
    if stuck and s["finished_to_flush"][0] == 0:
        return IDLE
    return end


@compiled_once
def step(eng, cost, now):
    """One iteration begun at `now`; when the next may begin, or IDLE."""
    scheduled, goes_on = launch(eng, cost, now)
    return now if goes_on else collect(eng, now, scheduled)


# ---------------------------------------------------------------- stretches

# Why `advance` came back
REACHED, WAITING_FOR_REQUESTS, NO_ROOM, PAUSED = map(np.int64, range(4))

MOST_ENDED = 4096  # ended requests that keep their slots until they are collected


@compiled_part
def add_request(eng, new, i, hashes, features):
    """Queue row `i` of `new`, see `enter_request`; its slot, or NONE if there is no room for it.

    features: FEATURE_DTYPE, images and acceptance patterns; `feature_offset` counts in it.
    """
    s, end, first = eng.scalars, eng.scalars["end_of_features"][0], new["feature_offset"][i]
    count = new["num_features"][i] + new["accept_len"][i]
    if end + count > len(eng.features):
        return NONE
    slot = enter_request(eng.kv, new, i, hashes)
    if slot == NONE:
        return slot
    for k in range(count):
        eng.features[end + k] = features[first + k]
    s["end_of_features"][0] = end + count
    eng.kv.requests["feature_offset"][slot] = end
    s["prompt_tokens"][0] += new["num_prompt_tokens"][i]
    add_waiting(eng, slot)
    return slot


@compiled_inline
def must_be_read(scalars, steps, pool_scalars, log, most_ended):
    """Whether what an engine has to tell should be taken before it goes on; there is room for one step."""
    return (
        scalars["num_finished"][0] >= most_ended
        or (len(steps) > 0 and scalars["num_step_rows"][0] >= len(steps) - 1)
        or 2 * pool_scalars["log_len"][0] > len(log)
    )


@compiled_entry
def advance(engine, place, window, until, most_steps):
    """Iterate up to `until`, letting in the requests of the inbox when the engine sees them.

    The three are addresses: of the engine's words, its place (PLACE_DTYPE) and the words of the window
    (`kvsim.engine.handle`) in which the rows of the inbox are. Returns why it came back: REACHED `until`, or
    idle and WAITING_FOR_REQUESTS, or PAUSED after `most_steps` iterations or for its records to be read, or
    NO_ROOM for the next request. An arrival comes before an iteration that begins at the same instant;
    nothing enters at `until` or later.
    """
    eng, cost = engine_at(engine), cost_at(engine)
    at = rows_at(place, PLACE_DTYPE, 1)
    new, hashes, features = window_at(window)
    steps = np.int64(0)
    while True:
        now, i = at["now"][0], at["next_row"][0]
        while i != NONE and new["queued_time"][i] <= now and new["queued_time"][i] < until:
            following_row = new["next_waiting"][i]
            if add_request(eng, new, i, hashes, features) == NONE:
                return NO_ROOM
            at["next_row"][0] = i = following_row
        if now >= until:
            return REACHED
        pool = eng.kv.pool
        full = must_be_read(eng.scalars, eng.steps, pool.scalars, pool.log, MOST_ENDED)
        if steps == most_steps or (steps > 0 and full):
            return PAUSED
        following = IDLE
        if has_requests(eng) or eng.scalars["num_batches"][0] > 0:
            following = step(eng, cost, now)
            at["num_waiting"][0] = eng.scalars["num_waiting"][0]
            steps += 1
        if following == IDLE:
            if i == NONE:
                return WAITING_FOR_REQUESTS
            following = max(now, new["queued_time"][i])
        elif following > now:
            at["num_collected"][0] += 1
        at["now"][0] = following


@compiled
def take_finished(eng, rows, slots):
    """Records of the ended requests, oldest first, as many as `rows` takes; their slots are free again."""
    s, q = eng.scalars, eng.kv.requests
    for n in range(len(rows)):
        r = s["first_finished"][0]
        s["first_finished"][0] = q["next_waiting"][r]
        rows[n] = q[r]
        slots[n] = r
        release_request(eng.kv, r)
    s["num_finished"][0] -= len(rows)
