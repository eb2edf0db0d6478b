"""What holds of every cluster, whatever its replicas, its policy and its traffic."""

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from clusters import POLICIES, InBlocks, Run, clusters, many_texts, workloads
from hypothesis import given
from hypothesis import strategies as st
from search import search

pytestmark = pytest.mark.usefixtures("small_tables")
COUNTERS = ("in_flight", "in_flight_tokens", "prefill_tokens", "active_blocks")
READERS = [policy for policy in POLICIES if policy.reads_events]


def check_requests(frame, horizon, max_concurrency):
    """Every request once, with one status, and times in order that the status allows."""
    assert frame.request_id.is_unique
    assert frame.arrival_time.is_monotonic_increasing
    assert set(frame.status) <= {"finished", "refused", "unfinished"}
    finished, refused = frame.status == "finished", frame.status == "refused"
    assert (frame.instance[refused] == -1).all()
    assert (frame.instance[finished] >= 0).all()
    times = frame[["arrival_time", "queued_time", "first_scheduled_time", "first_token_time", "finish_time"]]
    steps = np.diff(times.to_numpy(), axis=1)
    assert not (steps < 0).any()  # where both are known
    assert (frame.finish_time.notna() == finished).all()
    if horizon is None:
        assert not (frame.status == "unfinished").any()
    else:
        assert (frame.arrival_time < horizon).all()
        assert not (frame.finish_time > horizon).any()
    if max_concurrency is not None:
        ends = frame.finish_time[~refused].fillna(np.inf)
        events = np.concatenate([frame.arrival_time[~refused], ends])
        changes = np.repeat([1, -1], len(ends))
        under_way = np.cumsum(changes[np.lexsort([changes, events])])
        assert under_way.max(initial=0) <= max_concurrency


def check_sessions(frame):
    """Turns come one after the other, each after the end of the one before; a refusal ends a session."""
    if "session" not in frame:
        return
    for _, turns in frame[frame.session.notna()].groupby("session", sort=False):
        numbers = turns.request_id.str.rsplit("-", n=1).str[1].astype(int).tolist()
        assert numbers == list(range(1, len(turns) + 1))
        assert (turns.status.iloc[:-1] == "finished").all()
        assert (turns.arrival_time.to_numpy()[1:] >= turns.finish_time.to_numpy()[:-1]).all()


def check_counts(run, frame):
    """What engines count adds up to what stands in the rows."""
    assert run.stats["generation_tokens"] == frame.num_output_tokens.sum()
    assert run.stats["num_preemptions"] == frame.num_preemptions.sum()
    assert (frame.num_cached_tokens <= np.maximum(frame.num_prompt_tokens - 1, 0)).all()
    numbers = [core.stats()["generation_tokens"] for core in run.deployment.cores]
    rows = frame.groupby("instance").num_output_tokens.sum()
    assert numbers == [rows.get(number, 0) for number in range(len(numbers))]


def check_books(run, frame):
    """A router that has heard of every end believes in no load, and has sent each request once."""
    served = frame[frame.status != "refused"]
    targets = [name for name, seat in enumerate(run.deployment.seats) for _ in seat.cores]
    sent = Counter(targets[number] for number in served.instance)
    for router in (run.router, *run.balancers):
        for name in COUNTERS:
            assert not router.state.targets[name].any(), name
        assert not router.state.by_client.any()
        assert not router.state.bookings["uid"].any()
        assert not router.state.active.any()
        assert not router.state.shared.any()
    if not run.deals:
        assert run.router.state.targets["num_routed"].tolist() == [
            sent[t] for t in range(len(run.deployment.seats))
        ]


@search(250)
@given(
    st.sampled_from(POLICIES).flatmap(clusters),
    workloads,
    st.sampled_from([None, None, 0.25, 0.3, 2.0]),
    st.sampled_from([3, 64]),
)
def test_nothing_is_lost_or_counted_twice(cluster, workload, horizon, size):
    run = Run(cluster, InBlocks(workload, size), horizon)
    frame = run.requests.to_pandas()
    check_requests(frame, horizon, workload.max_concurrency)
    check_sessions(frame)
    if horizon is None:
        check_counts(run, frame)
        check_books(run, frame)


def indexed(router):
    """Block keys that the index has for each target."""
    rows = router.state.holders[router.state.holders[:, 0] != 0]
    bits = [
        ((rows[:, 1 + t // 64] >> np.uint64(t % 64)) & np.uint64(1)) != 0 for t in range(router.num_targets)
    ]
    return [set(rows[held, 0].tolist()) for held in bits]


def in_cache(core):
    """Keys of the blocks that an engine can find again, in the group that the index follows."""
    entries = core.kv.pool.entries
    group = entries["group_id"] == core.config.index_group
    return set(entries["hash_lo"][(entries["hash_num_tokens"] > 0) & group].tolist())


def held_twice(run):
    """By engine, keys that two blocks of it have had at once: the end of either is announced for both."""
    counts, twice = defaultdict(Counter), defaultdict(set)
    events = run.events.select(["instance", "kind", "group_id", "block_hash"]).to_pylist()
    for event in events:
        core = run.deployment.cores[event["instance"]]
        if event["group_id"] != core.config.index_group or event["block_hash"] is None:
            continue
        key, count = (
            int.from_bytes(bytes.fromhex(event["block_hash"])[:8], "little"),
            counts[event["instance"]],
        )
        count[key] += 1 if event["kind"] == "stored" else -1
        if count[key] > 1:
            twice[event["instance"]].add(key)
    return twice


@search(200)
@given(st.sampled_from(READERS).flatmap(clusters), st.one_of(many_texts, workloads))
def test_the_index_is_what_the_caches_hold(cluster, workload):
    """In the end, when all events have been told and none is lost."""
    run = Run(replace(cluster, event_loss=0.0), InBlocks(workload, 64), step_rows=64)
    if run.router.num_targets == 1:
        return
    twice, number = held_twice(run), 0
    for known, seat in zip(indexed(run.router), run.deployment.seats, strict=True):
        held = [in_cache(core) for core in seat.cores]
        copies = set().union(*(twice[number + rank] for rank in range(len(held))))
        number += len(held)
        assert known <= set().union(*held)
        assert set().union(*held) - known <= copies
