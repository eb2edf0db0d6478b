"""The waiting queue (linked through the request slots) and the running list.

Followed: vLLM 0.33.0 `v1/core/sched/request_queue.py`. Under `fcfs` the queue is a deque, under
`priority` it is kept in the order (priority, arrival time, order of addition).
"""

from kvsim.cache.state import NONE, NUM_REASONS
from kvsim.compiled import compiled_part
from kvsim.engine.state import PRIORITY


@compiled_part
def _insert_waiting(eng, r, before):
    """Link request r into the queue in front of `before` (NONE: at the end)."""
    s, q = eng.scalars, eng.kv.requests
    after = s["waiting_tail"][0] if before == NONE else q["prev_waiting"][before]
    q["prev_waiting"][r] = after
    q["next_waiting"][r] = before
    if after == NONE:
        s["waiting_head"][0] = r
    else:
        q["next_waiting"][after] = r
    if before == NONE:
        s["waiting_tail"][0] = r
    else:
        q["prev_waiting"][before] = r
    s["num_waiting"][0] += 1
    for k in range(NUM_REASONS):  # until it leaves: minus the steps counted for all before it came
        q["waiting_steps"][r, k] -= s["waiting_steps"][0, k]


@compiled_part
def remove_waiting(eng, r):
    s, q = eng.scalars, eng.kv.requests
    before, after = q["prev_waiting"][r], q["next_waiting"][r]
    if before == NONE:
        s["waiting_head"][0] = after
    else:
        q["next_waiting"][before] = after
    if after == NONE:
        s["waiting_tail"][0] = before
    else:
        q["prev_waiting"][after] = before
    s["num_waiting"][0] -= 1
    for k in range(NUM_REASONS):
        q["waiting_steps"][r, k] += s["waiting_steps"][0, k]


@compiled_part
def _goes_before(eng, a, b):
    q = eng.kv.requests
    if q["priority"][a] != q["priority"][b]:
        return q["priority"][a] < q["priority"][b]
    if q["arrival_time"][a] != q["arrival_time"][b]:
        return q["arrival_time"][a] < q["arrival_time"][b]
    return q["uid"][a] < q["uid"][b]


@compiled_part
def _insert_by_priority(eng, r):
    before = NONE
    behind = eng.scalars["waiting_tail"][0]
    while behind != NONE and _goes_before(eng, r, behind):
        before = behind
        behind = eng.kv.requests["prev_waiting"][behind]
    _insert_waiting(eng, r, before)


@compiled_part
def add_waiting(eng, r):
    if eng.scalars["policy"][0] == PRIORITY:
        _insert_by_priority(eng, r)
    else:
        _insert_waiting(eng, r, NONE)


@compiled_part
def prepend_waiting(eng, r):
    """Back to the front of the queue; under `priority` there is no front, only the order."""
    if eng.scalars["policy"][0] == PRIORITY:
        _insert_by_priority(eng, r)
    else:
        _insert_waiting(eng, r, eng.scalars["waiting_head"][0])


@compiled_part
def append_running(eng, r):
    n = eng.scalars["num_running"][0]
    eng.seats["running"][n] = r
    eng.scalars["num_running"][0] = n + 1


@compiled_part
def remove_running_at(eng, index):
    n = eng.scalars["num_running"][0] - 1
    for i in range(index, n):
        eng.seats["running"][i] = eng.seats["running"][i + 1]
    eng.scalars["num_running"][0] = n


@compiled_part
def index_in_running(eng, r):
    for i in range(eng.scalars["num_running"][0]):
        if eng.seats["running"][i] == r:
            return i
    return NONE


@compiled_part
def lowest_priority_running(eng):
    """Index of the running request with the largest (priority, arrival time).

    vLLM's clock never ties, a trace in milliseconds does: then the one added last goes, since two
    equal requests could preempt each other for ever.
    """
    worst = 0
    for i in range(1, eng.scalars["num_running"][0]):
        if _goes_before(eng, eng.seats["running"][worst], eng.seats["running"][i]):
            worst = i
    return worst
