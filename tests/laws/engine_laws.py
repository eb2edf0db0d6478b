"""What must hold of an engine between any two calls, whatever was asked of it before."""

import math
from collections import Counter

import numpy as np

from kvsim.cache.integrity import check_integrity
from kvsim.cache.state import (
    FINISHED_ABORTED,
    FINISHED_ERROR,
    FINISHED_LENGTH_CAPPED,
    FINISHED_STOPPED,
    NONE,
    PREEMPTED,
    RUNNING,
    WAITING,
)
from kvsim.engine.state import CONTINUED


def waiting_slots(core):
    """The waiting queue, head first; its links must agree in both directions."""
    q, s = core.requests, core.state.scalars[0]
    out, before, slot = [], int(NONE), int(s["waiting_head"])
    while slot != NONE:
        assert q["prev_waiting"][slot] == before
        assert len(out) <= len(q), "the waiting queue is a ring"
        out.append(slot)
        before, slot = slot, int(q["next_waiting"][slot])
    assert s["waiting_tail"] == before
    return out


def running_slots(core):
    return core.state.seats["running"][: int(core.state.scalars["num_running"][0])].tolist()


def batches_in_flight(core):
    """Rows of the batches in flight, oldest first."""
    s, state = core.state.scalars[0], core.state
    ring = [(int(s["first_batch"]) + i) % len(state.batches) for i in range(int(s["num_batches"]))]
    return [state.scheduled[b, : int(state.batches["num_reqs"][b])] for b in ring]


def check_queues(core):
    """Every live request is in exactly one queue, and its status says in which."""
    q, s = core.requests, core.state.scalars[0]
    waiting, running = waiting_slots(core), running_slots(core)
    live = [slot for slot in range(len(q)) if WAITING <= q["status"][slot] <= RUNNING]
    assert sorted(waiting + running) == live
    assert len(waiting) == s["num_waiting"]
    assert all(q["status"][slot] in (WAITING, PREEMPTED) for slot in waiting)
    assert all(q["status"][slot] == RUNNING for slot in running)
    assert len(running) <= core.config.max_num_seqs
    seated = [slot for slot in live if q["row"][slot] != NONE]
    assert set(seated) <= set(running), "a request that does not run holds blocks"


def check_order(core):
    """Under `priority` the queue is sorted; under `fcfs` requests not yet started are in order."""
    q = core.requests
    keys = [(q["priority"][slot], q["arrival_time"][slot], q["uid"][slot]) for slot in waiting_slots(core)]
    if core.config.scheduling_policy == "priority":
        assert keys == sorted(keys)
    else:
        new = [q["uid"][slot] for slot in waiting_slots(core) if q["status"][slot] == WAITING]
        assert new == sorted(new)


def check_in_flight(core):
    """Tokens counted as in flight are those of the batches in flight."""
    q = core.requests
    in_flight = Counter()
    batches = batches_in_flight(core)
    assert len(batches) <= core.config.queue_depth
    for batch in batches:
        for entry in batch:
            in_flight[int(entry["uid"])] += int(entry["num_scheduled_tokens"])
    for slot in waiting_slots(core) + running_slots(core):
        assert q["num_in_flight_tokens"][slot] == in_flight[int(q["uid"][slot])]
        assert 0 <= q["num_stale_output_tokens"][slot] <= q["num_in_flight_tokens"][slot]
        assert q["num_output_placeholders"][slot] >= 0


def check_tokens(core):
    """What is computed is known, drafted or about to be sampled; nothing passes a limit."""
    q, limit = core.requests, core.config.max_model_len
    for slot in waiting_slots(core) + running_slots(core):
        known = (
            q["num_tokens"][slot] + q["num_output_placeholders"][slot] + core.config.num_speculative_tokens
        )
        assert 0 <= q["num_computed_tokens"][slot] <= known
        assert q["num_tokens"][slot] < limit
        assert q["num_tokens"][slot] - q["num_prompt_tokens"][slot] < q["max_tokens"][slot]


def check_encoder_cache(core):
    """Slots are conserved; an entry is referenced by as many requests as hold it."""
    state, s, q = core.state, core.state.scalars[0], core.requests
    holders = Counter()
    for slot in waiting_slots(core) + running_slots(core):
        first, n = int(q["feature_offset"][slot]), int(q["num_features"][slot])
        features = state.features[first : first + n]
        holders.update(set(features["identifier"][features["referenced"] != 0].tolist()))
    entries, e = [], int(s["first_entry"])
    while e != NONE:
        entries.append(state.encoder_cache[e])
        e = int(state.encoder_cache["next_entry"][e])
    size = core.config.encoder_cache_size or core.config.max_num_batched_tokens
    assert s["num_free_slots"] + sum(int(e["num_embeds"]) for e in entries) == size
    unused = sum(int(e["num_embeds"]) for e in entries if e["ref_cnt"] == 0)
    assert s["num_freeable_slots"] == s["num_free_slots"] + unused
    assert {int(e["identifier"]): int(e["ref_cnt"]) for e in entries if e["ref_cnt"]} == dict(holders)


def check_engine(core):
    """All laws that hold between any two calls."""
    check_integrity(core)
    check_queues(core)
    check_order(core)
    check_in_flight(core)
    check_tokens(core)
    check_encoder_cache(core)
    stats = core.stats()
    assert stats["prefix_cache_hits"] <= stats["prefix_cache_queries"]
    assert 0.0 <= stats["kv_cache_usage_perc"] <= stats["kv_cache_usage_perc_peak"] + 1.0


def check_batch(core, b, num_tokens_before):
    """The batch at ring position `b`, scheduled when requests had `num_tokens_before` (by uid)."""
    config, batch = core.config, core.state.batches[b]
    rows = core.state.scheduled[b, : int(batch["num_reqs"])]
    assert batch["num_tokens"] == rows["num_scheduled_tokens"].sum() <= config.max_num_batched_tokens
    assert batch["num_encoder_tokens"] <= config.encoder_budget
    assert len(set(rows["uid"].tolist())) == len(rows) <= config.max_num_seqs
    for row in rows:
        assert row["num_scheduled_tokens"] >= 1
        assert 0 <= row["num_spec_tokens"] < row["num_scheduled_tokens"]
        if row["origin"] != CONTINUED:  # what is computed is what was hit: never the last token
            assert row["num_computed_tokens"] <= num_tokens_before[int(row["uid"])] - 1


def check_batch_times(core, b, earliest):
    """A batch begins when it is scheduled and the GPU is done with the ones before it, and takes time."""
    batch, s = core.state.batches[b], core.state.scalars[0]
    assert batch["start_time"] == earliest
    assert batch["end_time"] == s["busy_until"]
    assert (batch["end_time"] > batch["start_time"]) == (batch["num_reqs"] > 0)


_DECIDED = (
    "num_running",
    "num_waiting",
    "waiting_head",
    "num_batches",
    "finished_to_flush",
    "num_preemptions",
)


def check_same_decisions(ours, theirs):
    """Two engines stand alike in everything but the clock."""
    for a, b in zip(ours.kv.pool, theirs.kv.pool, strict=True):
        for name in a.dtype.names or ():
            assert name in ("now", "time") or (a[name] == b[name]).all(), name
        assert a.dtype.names or (a == b).all()
    assert ours.kv.block_tables.tobytes() == theirs.kv.block_tables.tobytes()
    for name in ours.requests.dtype.names:
        if not name.endswith("_time"):
            assert (ours.requests[name] == theirs.requests[name]).all(), name
    for name in _DECIDED:
        assert ours.state.scalars[name] == theirs.state.scalars[name], name
    assert running_slots(ours) == running_slots(theirs)
    assert [b.tolist() for b in batches_in_flight(ours)] == [b.tolist() for b in batches_in_flight(theirs)]


def check_end(core, row, now):
    """The record of a request that ended by `now`."""
    num_outputs = row["num_tokens"] - row["num_prompt_tokens"]
    if row["status"] == FINISHED_STOPPED:
        assert num_outputs == row["stop_at"]
    elif row["status"] == FINISHED_LENGTH_CAPPED:
        assert num_outputs == row["max_tokens"] or row["num_tokens"] == core.config.max_model_len
    else:
        assert row["status"] in (FINISHED_ABORTED, FINISHED_ERROR)
    assert row["row"] == NONE
    if row["status"] in (FINISHED_STOPPED, FINISHED_LENGTH_CAPPED):
        assert 0 <= row["num_cached_tokens"] < row["num_prompt_tokens"]
        assert not math.isnan(row["first_token_time"])
    times = ("arrival_time", "first_scheduled_time", "first_token_time", "last_token_time", "finish_time")
    known = [float(row[name]) for name in times if not math.isnan(row[name])]
    assert known == sorted(known)
    assert row["finish_time"] <= now


def state_bytes(core):
    """Every array of the engine; equal for engines that were asked the same."""
    state = core.state
    arrays = [*state.kv.pool, *state.kv[1:], *state[1:]]
    return [np.ascontiguousarray(array).tobytes() for array in arrays]
