"""One iteration of the engine's busy loop, compiled: schedule, price, and process what is done.

Followed: vLLM 0.33.0 `v1/engine/core.py` (`step`, `step_with_batch_queue`).
"""

import math

import numpy as np

from kvsim.cache.kv_cache_manager import usage
from kvsim.compiled import compiled, compiled_part
from kvsim.engine.output import update_from_output
from kvsim.engine.scheduler import has_requests, schedule
from kvsim.gpu.cost import step_time

IDLE = math.inf  # nothing can happen before an event from outside


@compiled_part
def price_batch(eng, cost, b):
    """Seconds that a batch keeps the GPU busy; an empty one takes none."""
    n = eng.batches["num_reqs"][b]
    if n == 0:
        return 0.0
    entry = eng.scheduled[b]
    encoder = np.int64(eng.batches["num_encoder_tokens"][b])
    return step_time(cost, entry["num_scheduled_tokens"], entry["num_computed_tokens"], n, encoder)


@compiled_part
def _account(eng, b, seconds):
    s = eng.scalars
    in_use = usage(eng.kv)
    s["num_steps"][0] += 1
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
def _tokens_in_flight(eng):
    total = 0
    for i in range(eng.scalars["num_batches"][0]):
        b = (eng.scalars["first_batch"][0] + i) % len(eng.batches)
        total += eng.batches["num_tokens"][b]
    return total


@compiled_part
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
    if scheduled > 0:
        _account(eng, b, seconds)
    early = scheduled > 0 or (s["empty_batches_wait"][0] != 0 and has_requests(eng))
    return scheduled, early and s["num_batches"][0] < s["queue_depth"][0]


@compiled_part
def collect(eng, now, scheduled):
    """Wait for the oldest batch and process its output; when that was, or IDLE.

    scheduled: tokens of the batch launched in the same iteration.
    """
    s = eng.scalars
    if s["num_batches"][0] == 0:
        return IDLE
    stuck = scheduled == 0 and _tokens_in_flight(eng) == 0 and s["finished_to_flush"][0] == 0
    end = max(now, eng.batches["end_time"][s["first_batch"][0]])
    update_from_output(eng, end)
    if stuck and s["finished_to_flush"][0] == 0:
        return IDLE
    return end


@compiled
def step(eng, cost, now):
    """One iteration begun at `now`; when the next may begin, or IDLE."""
    scheduled, goes_on = launch(eng, cost, now)
    return now if goes_on else collect(eng, now, scheduled)
