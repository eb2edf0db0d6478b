"""How routers learn of engines: what a step brings is published at its end, and seen when its time has come.

vLLM publishes a step's KV events and metrics when it processes the step's output
(0.33.0 `v1/core/sched/scheduler.py`, `update_from_output`). Compiled code takes a step at once, so its
notes lie in its log until the clock has reached its end.
"""

import math

import numpy as np

from kvsim.addresses import rows_at
from kvsim.cache.kv_cache_manager import usage
from kvsim.cache.state import (
    FINISHED_LENGTH_CAPPED,
    FINISHED_STOPPED,
    LOG_CLEARED,
    LOG_FINISHED,
    LOG_FIRST_TOKEN,
    LOG_REMOVED,
    LOG_STORED,
    NONE,
)
from kvsim.cluster.booking import end, first_token
from kvsim.cluster.hash_table import expect
from kvsim.cluster.index_events import apply_event
from kvsim.cluster.state import router_at
from kvsim.compiled import compiled_inline, compiled_part
from kvsim.engine.handle import counters_at, log_at, requests_at
from kvsim.engine.state import PLACE_DTYPE
from kvsim.prefetch import AHEAD
from kvsim.tokens import mix64

# An engine of the cluster
MEMBER_DTYPE = np.dtype(
    [
        ("engine", "i8"),  # addresses: of its words, its place, and the words of its window
        ("place", "i8"),
        ("window", "i8"),
        ("window_number", "i8"),
        ("target", "i8"),
        ("rank_router", "i8"),  # address of the router inside of its replica, or 0
        ("rank", "i8"),  # its number there
        ("latency", "f8"),  # s from the router to it
        ("seconds_per_token", "f8"),  # of a prompt on that way
        ("index_group", "i8"),  # whose KV events the router's index follows
        # its latest step: what is to be told of it, and its metrics when it ended
        ("num_read", "i8"),  # rows of its log
        ("num_messages", "i8"),
        ("message_lost", "i8"),  # 1: it is; 2: it has KV events; 3: both; NONE: not drawn yet
        ("published_time", "f8"),
        ("num_waiting", "i8"),
        ("num_running", "i8"),
        ("usage", "f8"),
        # and when the one before ended
        ("earlier_waiting", "i8"),
        ("earlier_running", "i8"),
        ("earlier_usage", "f8"),
        # KV events on their way: a queue in `notes`
        ("first_note", "i8"),
        ("last_note", "i8"),
    ]
)

# A KV event on its way
NOTE_DTYPE = np.dtype([("time", "f8"), ("kind", "i8"), ("hash", "u8"), ("next", "i8")])

# Whether all was told
DONE = np.int64(0)
FULL_ROUTER = np.int64(5)  # no: the router of `full_router` needs larger arrays
FULL_NOTES = np.int64(6)  # no: `notes` or `ends` are full
_FULL_SCALE = float(1 << 64)


def latest_tick(interval, time):
    """The last multiple of `interval` that is not after `time`: when metrics were scraped, seconds."""
    number = math.floor(time / interval)
    if number * interval > time:  # the quotient was rounded up
        number -= 1
    elif (number + 1) * interval <= time:
        number += 1
    return number * interval


latest_tick_inline = compiled_inline(latest_tick)


@compiled_part
def publish(c, m, now):
    """An engine's step has ended at `now`."""
    members = c.members
    scalars, _ = counters_at(members["engine"][m])
    _, pool_scalars = log_at(members["engine"][m])
    members["earlier_waiting"][m] = members["num_waiting"][m]
    members["earlier_running"][m] = members["num_running"][m]
    members["earlier_usage"][m] = members["usage"][m]
    # who came during the step does not wait in the scheduler yet
    members["num_waiting"][m] = rows_at(members["place"][m], PLACE_DTYPE, 1)["num_waiting"][0]
    members["num_running"][m] = scalars["num_running"][0]
    members["usage"][m] = usage(pool_scalars)
    members["published_time"][m] = now
    if c.scalars["reads_log"][0]:
        c.unread[m] = now


@compiled_part
def _is_lost(c, m):
    """Whether the step's message of KV events never arrives."""
    s = c.scalars
    if s["event_loss"][0] == 0.0:
        return False
    number = np.uint64(c.members["num_messages"][m])
    drawn = mix64(s["loss_stream"][0] + mix64(np.uint64(m) + mix64(number)))
    return float(drawn) / _FULL_SCALE < s["event_loss"][0]


@compiled_inline
def _apply(c, m, kind, block_hash):
    """What a KV event says; False if an index has no room for it."""
    s, members = c.scalars, c.members
    router = s["router"][0]
    full = apply_event(
        router, members["target"][m], members["rank_router"][m], members["rank"][m], kind, block_hash
    )
    s["full_router"][0] = full
    return full == 0


@compiled_part
def _send_late(c, m, kind, block_hash, time):
    """Put a KV event on its way; False without room."""
    s, notes, members = c.scalars, c.notes, c.members
    n = s["first_spare_note"][0]
    if n != NONE:
        s["first_spare_note"][0] = notes["next"][n]
    else:
        n = s["end_of_notes"][0]
        if n == len(notes):
            return False
        s["end_of_notes"][0] += 1
    notes["time"][n], notes["kind"][n], notes["hash"][n], notes["next"][n] = time, kind, block_hash, NONE
    if members["first_note"][m] == NONE:
        members["first_note"][m], c.late[m] = n, time
    else:
        notes["next"][members["last_note"][m]] = n
    members["last_note"][m] = n
    return True


@compiled_part
def _ended(c, m, slot, status, time):
    """A request has ended: its client has a place again, and may send what follows."""
    s, q = c.scalars, requests_at(c.members["engine"][m])
    s["in_flight"][0] -= 1
    s["freed_time"][0] = time
    if s["wants_ends"][0]:
        n = s["num_ends"][0]
        c.ends["uid"][n], c.ends["time"][n] = q["uid"][slot], time
        c.ends["target"][n] = c.members["target"][m]
        c.ends["num_output_tokens"][n] = q["num_tokens"][slot] - q["num_prompt_tokens"][slot]
        in_full = status in (FINISHED_STOPPED, FINISHED_LENGTH_CAPPED)
        think_time = q["think_time"][slot] if in_full else math.inf
        c.ends["think_time"][n] = think_time
        s["num_ends"][0] = n + 1
        s["follow_up_due"][0] = min(s["follow_up_due"][0], time + think_time)


@compiled_part
def _first_token_at(address, uid):
    first_token(router_at(address), uid)


@compiled_part
def _end_at(address, uid):
    end(router_at(address), uid)


@compiled_part
def deliver(c, m):
    """The routers read what an engine's latest step has published; DONE, or which arrays are full."""
    s, member = c.scalars, c.members[m]
    log, scalars = log_at(member["engine"])
    router, time = router_at(s["router"][0]), member["published_time"]
    reads_events = router.scalars["reads_events"][0] != 0
    if member["message_lost"] < 0:
        c.members["message_lost"][m] = np.int64(_is_lost(c, m)) if reads_events else np.int64(0)
    lost, late = c.members["message_lost"][m] & 1 == 1, s["event_delay"][0] + member["latency"]
    n, total = member["num_read"], scalars["log_len"][0]
    while n < total:
        if reads_events and n + AHEAD < total:
            expect(router.holders, log["hash_lo"][n + AHEAD])
        kind, uid = log["kind"][n], log["request"][n]
        c.members["num_read"][m] = n
        if kind == LOG_FIRST_TOKEN:
            _first_token_at(s["router"][0], uid)
            if member["rank_router"] != 0:
                _first_token_at(member["rank_router"], uid)
        elif kind == LOG_FINISHED:
            if s["wants_ends"][0] and s["num_ends"][0] == len(c.ends):
                return FULL_NOTES
            _end_at(s["router"][0], uid)
            if member["rank_router"] != 0:
                _end_at(member["rank_router"], uid)
            _ended(c, m, log["first"][n], log["last"][n], time)
        elif reads_events and kind in (LOG_STORED, LOG_REMOVED, LOG_CLEARED):
            c.members["message_lost"][m] |= 2
            is_other = kind != LOG_CLEARED and log["group_id"][n] != member["index_group"]
            if lost or is_other:
                pass
            elif late > 0.0:
                if not _send_late(c, m, kind, log["hash_lo"][n], time + late):
                    return FULL_NOTES
            elif not _apply(c, m, kind, log["hash_lo"][n]):
                return FULL_ROUTER
        n += 1
    c.members["num_read"][m] = n
    if not s["logs_are_recorded"][0]:
        scalars["log_len"][0] = 0
        c.members["num_read"][m] = 0
    if c.members["message_lost"][m] & 2:  # vLLM publishes no empty message
        router.scalars["num_messages"][0] += 1
        router.scalars["num_lost_messages"][0] += lost
    c.members["num_messages"][m] += 1
    c.members["message_lost"][m] = NONE
    c.unread[m] = math.inf
    return DONE


@compiled_part
def deliver_late(c, time):
    """KV events that have arrived by `time`; DONE, or that the router is full."""
    s, members, notes = c.scalars, c.members, c.notes
    for m in range(len(c.late)):
        while c.late[m] <= time:
            n = members["first_note"][m]
            if not _apply(c, m, notes["kind"][n], notes["hash"][n]):
                return FULL_ROUTER
            following = notes["next"][n]
            notes["next"][n] = s["first_spare_note"][0]
            s["first_spare_note"][0] = n
            members["first_note"][m] = following
            c.late[m] = notes["time"][following] if following != NONE else math.inf
    return DONE


@compiled_part
def scrape(c, time, inside):
    """Snapshots of all engines' metrics at `time`; inside: for the routers inside of replicas."""
    s, members = c.scalars, c.members
    if inside:
        s["rank_scraped_time"][0] = time
    else:
        s["scraped_time"][0] = time
        targets = router_at(s["router"][0]).targets
        for t in range(len(targets)):
            targets["num_waiting"][t] = targets["num_running"][t] = 0
            targets["kv_cache_usage"][t] = 0.0
    for m in range(len(members)):
        if members["published_time"][m] <= time:
            waiting, running = members["num_waiting"][m], members["num_running"][m]
            in_use = members["usage"][m]
        else:
            waiting, running = members["earlier_waiting"][m], members["earlier_running"][m]
            in_use = members["earlier_usage"][m]
        if inside:
            if members["rank_router"][m] != 0:
                rank = router_at(members["rank_router"][m]).targets
                _note_metrics(rank, members["rank"][m], time, waiting, running, in_use)
        else:
            t = members["target"][m]
            targets = router_at(s["router"][0]).targets
            parts = c.routes["num_members"][t]
            targets["snapshot_time"][t] = time
            targets["num_waiting"][t] += waiting
            targets["num_running"][t] += running
            targets["kv_cache_usage"][t] += in_use / parts


@compiled_inline
def _note_metrics(targets, t, time, waiting, running, in_use):
    targets["snapshot_time"][t] = time
    targets["num_waiting"][t], targets["num_running"][t] = waiting, running
    targets["kv_cache_usage"][t] = in_use
