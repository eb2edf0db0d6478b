"""A cluster in compiled code: engines run up to each arrival, the router chooses, the request sets out.

Everything in order of time, and everything that could disturb an engine known beforehand: so an engine runs
ahead until the next request can reach it. With requests that depend on the end of others (follow-ups, a
client with limited concurrency), engines take their steps in the common order of time instead.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsim.addresses import array_at, call_choice, call_stretch, rows_at, words_at
from kvsim.cache.state import NONE
from kvsim.cluster.booking import overlaps, room_to_send, send
from kvsim.cluster.notes import (
    DONE,
    FULL_ROUTER,
    MEMBER_DTYPE,
    NOTE_DTYPE,
    deliver,
    deliver_late,
    latest_tick_inline,
    publish,
    scrape,
)
from kvsim.cluster.state import NO_ROOM, router_at
from kvsim.compiled import compiled, compiled_inline, compiled_once, compiled_part
from kvsim.engine.handle import counters_at, log_at, window_at
from kvsim.engine.state import PLACE_DTYPE
from kvsim.engine.step import NO_ROOM as NO_ROOM_IN_ENGINE
from kvsim.engine.step import WAITING_FOR_REQUESTS, must_be_read

# Why `serve` came back, besides DONE (nothing is left to do before the horizon), FULL_ROUTER and FULL_NOTES
MORE = np.int64(1)  # it must know what arrives next
CHOOSE = np.int64(2)  # a policy in Python decides for the request at `position`
FOLLOW_UPS = np.int64(3)  # the next turns of `ends` are due
FULL_ENGINE = np.int64(4)  # engine `member` needs room for the next request of its inbox
COLLECT = np.int64(7)  # engine `member` has records to be read
PAUSE = np.int64(8)  # `steps_left` are used up

_EVER = np.finfo(np.float64).max  # after all that happens, but before inf, which is never

CLUSTER_DTYPE = np.dtype(
    [
        ("router", "i8"),  # addresses: of its words, and of its choice (0: a policy in Python)
        ("choice", "i8"),
        ("advance", "i8"),  # of `kvsim.engine.step.advance`
        ("deals", "i8"),  # the window is dealt out before engines run
        ("in_order", "i8"),  # what ends decides what arrives
        ("position", "i8"),  # in `order`, of the next request
        ("num_ordered", "i8"),
        ("known_until", "f8"),  # no further request arrives before, seconds
        ("horizon", "f8"),
        ("next_uid", "i8"),
        ("latest_time", "f8"),  # when the latest request set out
        ("max_concurrency", "i8"),  # 0: no limit
        ("in_flight", "i8"),
        ("freed_time", "f8"),  # when the latest of them ended
        ("decided", "i8"),  # target that was chosen for the next request already, or NONE
        ("asked_time", "f8"),  # when it is to choose, s
        ("member", "i8"),
        ("full_router", "i8"),
        ("scrape_interval", "f8"),  # s; 0: at each choice; inf: never
        ("scraped_time", "f8"),
        ("rank_interval", "f8"),  # the same for the routers inside of replicas
        ("rank_scraped_time", "f8"),
        ("wants_ends", "i8"),
        ("has_follow_ups", "i8"),
        ("num_ends", "i8"),
        ("follow_up_due", "f8"),  # or when a request was refused that other engines take
        ("first_spare_note", "i8"),
        ("end_of_notes", "i8"),
        ("event_delay", "f8"),
        ("event_loss", "f8"),
        ("loss_stream", "u8"),
        ("steps_left", "i8"),  # until it comes back to say how far it is
        ("most_ended", "i8"),  # requests of an engine that wait to be collected
        ("reads_log", "i8"),  # whether anybody needs ends, first tokens or KV events
        ("logs_are_recorded", "i8"),  # somebody else reads the engines' logs and empties them
    ]
)

# A request of the window
ARRIVAL_DTYPE = np.dtype(
    [
        ("time", "f8"),  # when it would set out, seconds
        ("is_refused", "i8"),  # no engine takes it
        ("is_follow_up", "i8"),  # goes after the others of its instant
        ("uid", "i8"),  # given when it sets out
        ("sent_time", "f8"),
        ("member", "i8"),  # the engine that got it, or NONE if that refused it:
        ("refused_by", "i8"),  # the window of its kind, or NONE
    ]
)

# Where the requests for a target go
ROUTE_DTYPE = np.dtype([("first_member", "i8"), ("num_members", "i8"), ("router", "i8"), ("choice", "i8")])

# A request that has ended
END_DTYPE = np.dtype(
    [
        ("uid", "i8"),
        ("time", "f8"),
        ("target", "i8"),
        ("num_output_tokens", "i8"),
        ("think_time", "f8"),  # s until its session's next request sets out; inf: none follows
    ]
)


class ClusterState(NamedTuple):
    """scalars (1,); members: engines; routes: by target; arrivals: requests of the window; order: their
    numbers by time; refusals (windows, n): whether engines with that window refuse it; ends; notes: KV
    events under way.

    Of each engine, in seconds, inf where there is none, apart from its row so that a look at all is short:
    due: when it begins its next iteration; unread: when what routers have not read was published;
    late: when its first KV event under way arrives."""

    scalars: NDArray[np.void]
    members: NDArray[np.void]
    routes: NDArray[np.void]
    arrivals: NDArray[np.void]
    order: NDArray[np.int64]
    refusals: NDArray[np.uint8]
    ends: NDArray[np.void]
    notes: NDArray[np.void]
    due: NDArray[np.float64]
    unread: NDArray[np.float64]
    late: NDArray[np.float64]


@compiled_once
def cluster_at(address):
    words = words_at(address)
    return ClusterState(
        array_at(words, 0, CLUSTER_DTYPE, 1),
        array_at(words, 1, MEMBER_DTYPE, 1),
        array_at(words, 2, ROUTE_DTYPE, 1),
        array_at(words, 3, ARRIVAL_DTYPE, 1),
        array_at(words, 4, np.int64, 1),
        array_at(words, 5, np.uint8, 2),
        array_at(words, 6, END_DTYPE, 1),
        array_at(words, 7, NOTE_DTYPE, 1),
        array_at(words, 8, np.float64, 1),
        array_at(words, 9, np.float64, 1),
        array_at(words, 10, np.float64, 1),
    )


# ---------------------------------------------------------------- arrivals


@compiled_part
def next_time(c):
    """When the next request sets out, as far as that is known (seconds); inf: nobody does for now."""
    s = c.scalars
    if s["position"][0] == s["num_ordered"][0]:
        return math.inf
    i = c.order[s["position"][0]]
    time = max(c.arrivals["time"][i], s["latest_time"][0])
    if s["max_concurrency"][0] == 0 or c.arrivals["is_refused"][i]:
        return time
    if s["in_flight"][0] >= s["max_concurrency"][0]:
        return math.inf
    return max(time, s["freed_time"][0])


@compiled_inline
def _all_know(c, time):
    """Whether no request that is not in the window could set out before `time` and the window's next."""
    s = c.scalars
    if s["position"][0] < s["num_ordered"][0]:
        i, full = c.order[s["position"][0]], False
        if s["max_concurrency"][0] > 0:
            full = s["in_flight"][0] >= s["max_concurrency"][0]
        if c.arrivals["is_follow_up"][i] and c.arrivals["time"][i] == s["known_until"][0]:
            return time < s["known_until"][0]  # others that arrive at that instant go first
        if full or c.arrivals["time"][i] <= s["known_until"][0]:
            return True  # requests set out in the order of their own times
    return time <= s["known_until"][0]


@compiled_part
def _room_at(address, uid, i):
    return room_to_send(router_at(address), uid, i)


@compiled_part
def _book_at(address, uid, i, target, time):
    send(router_at(address), uid, i, target, time)


@compiled_part
def hand_over(c, i, target, time):
    """Request `i` of the window sets out to `target` at `time`; False if the router inside needs room."""
    s, route = c.scalars, c.routes[target]
    m = route["first_member"]
    rank = np.int64(0)
    if route["router"] != 0:
        if not _room_at(route["router"], s["next_uid"][0], i):
            s["full_router"][0] = route["router"]
            s["decided"][0] = target  # its policy is not to choose once more
            return False
        rank = call_choice(route["choice"], route["router"], i, time)
        m += rank
    member = c.members[m]
    uid = s["next_uid"][0]
    s["next_uid"][0] += 1
    s["latest_time"][0] = time
    s["position"][0] += 1
    s["decided"][0] = NONE
    c.arrivals["uid"][i], c.arrivals["sent_time"][i] = uid, time
    c.arrivals["member"][i] = NONE
    c.arrivals["refused_by"][i] = NONE
    if c.refusals[member["window_number"], i]:
        c.arrivals["refused_by"][i] = member["window_number"]
        if s["has_follow_ups"][0] and not c.arrivals["is_refused"][i]:
            s["follow_up_due"][0] = min(s["follow_up_due"][0], time)
        return True
    c.arrivals["member"][i] = m
    new, _, _ = window_at(member["window"])
    at = rows_at(member["place"], PLACE_DTYPE, 1)
    new["uid"][i], new["arrival_time"][i] = uid, time
    on_the_way = member["latency"] + member["seconds_per_token"] * new["num_prompt_tokens"][i]
    queued = max(time + on_the_way + new["queued_time"][i], at["last_queued"][0])
    new["queued_time"][i] = at["last_queued"][0] = queued
    new["next_waiting"][i] = NONE
    if at["next_row"][0] == NONE:
        at["next_row"][0] = i
    else:
        new["next_waiting"][at["last_row"][0]] = i
    at["last_row"][0] = i
    if math.isinf(c.due[m]):
        at["now"][0] = c.due[m] = max(at["now"][0], queued)
    s["in_flight"][0] += 1
    if not s["deals"][0]:
        if route["router"] != 0:
            _book_at(route["router"], uid, i, rank, time)
        _book_at(s["router"][0], uid, i, target, time)
    return True


@compiled_part
def choose(c, i, time):
    """The target for request `i`, and DONE; or why there is none yet: CHOOSE or FULL_ROUTER."""
    s = c.scalars
    if s["decided"][0] != NONE:
        return s["decided"][0], DONE
    if len(c.routes) == 1:
        return np.int64(0), DONE
    if s["choice"][0] != 0:
        target = call_choice(s["choice"][0], s["router"][0], i, time)
        if target != NO_ROOM:
            return target, DONE
        s["full_router"][0] = s["router"][0]
        return target, FULL_ROUTER
    router = router_at(s["router"][0])
    if router.scalars["reads_events"][0]:
        overlaps(router, i)
    s["asked_time"][0] = time
    return NONE, CHOOSE


# ---------------------------------------------------------------- engines


@compiled_part
def run_member(c, m, until, most_steps):
    """Let an engine take steps: DONE, or why `serve` has to come back."""
    members = c.members
    scalars, steps = counters_at(members["engine"][m])
    log, pool_scalars = log_at(members["engine"][m])
    # What is noted down of a step whose output is not there yet must stay until it is published.
    is_read = c.scalars["reads_log"][0] == 0 or members["num_read"][m] == pool_scalars["log_len"][0]
    if is_read and must_be_read(scalars, steps, pool_scalars, log, c.scalars["most_ended"][0]):
        c.scalars["member"][0] = m
        return COLLECT
    if c.scalars["steps_left"][0] <= 0:
        return PAUSE
    at = rows_at(members["place"][m], PLACE_DTYPE, 1)
    before = at["num_collected"][0]
    why = call_stretch(
        c.scalars["advance"][0],
        members["engine"][m],
        members["place"][m],
        members["window"][m],
        until,
        most_steps,
    )
    c.scalars["steps_left"][0] -= 1 + at["num_collected"][0] - before
    if at["num_collected"][0] != before:
        publish(c, m, at["now"][0])
    c.due[m] = math.inf if why == WAITING_FOR_REQUESTS else at["now"][0]
    if why == NO_ROOM_IN_ENGINE:
        c.scalars["member"][0] = m
        return FULL_ENGINE
    return DONE


@compiled_part
def run_each(c, until):
    """Every engine for itself up to `until`: DONE, or why `serve` has to come back."""
    most_steps = np.int64(1 << 14) if c.scalars["deals"][0] else np.int64(1)
    for m in range(len(c.due)):
        while c.due[m] < until:
            why = deliver(c, m) if not math.isinf(c.unread[m]) else DONE
            if why == DONE:
                why = run_member(c, m, until, most_steps)
            if why != DONE:
                return why
    return DONE


# `run_in_order` found that the next request sets out earlier than was thought
CHANGED = np.int64(-3)


@compiled_inline
def first_of(times):
    """Where the least stands first."""
    first = np.int64(0)
    for m in range(1, len(times)):
        if times[m] < times[first]:
            first = np.int64(m)
    return first


@compiled_part
def run_in_order(c, until):
    """All engines up to `until`, the one that is furthest behind first: DONE, CHANGED or as `run_each`."""
    s = c.scalars
    while True:
        told, m = first_of(c.unread), first_of(c.due)
        if c.unread[told] <= c.due[m] and c.unread[told] < until:  # ends come before steps
            in_flight, due = s["in_flight"][0], s["follow_up_due"][0]
            why = deliver(c, told)
            if why != DONE:
                return why
            if s["in_flight"][0] != in_flight or s["follow_up_due"][0] != due:
                return CHANGED
        elif c.due[m] < until:
            why = run_member(c, m, until, np.int64(1))
            if why != DONE:
                return why
        else:
            return DONE


@compiled_inline
def _run(c, until):
    return run_in_order(c, until) if c.scalars["in_order"][0] else run_each(c, until)


# ---------------------------------------------------------------- the loop


@compiled_part
def deal(c):
    """The window's requests set out one after the other, whatever the engines do."""
    s = c.scalars
    while s["position"][0] < s["num_ordered"][0]:
        i = c.order[s["position"][0]]
        time = max(c.arrivals["time"][i], s["latest_time"][0])
        target, why = choose(c, i, time)
        if why != DONE:
            return why
        hand_over(c, i, target, time)
    return DONE


@compiled_part
def look(c, time):
    """The routers learn what they can know at `time`, to which the engines have come: DONE, or why not."""
    if c.scalars["reads_log"][0]:
        for m in range(len(c.unread)):
            if c.unread[m] <= time:
                why = deliver(c, m)
                if why != DONE:
                    return why
        return deliver_late(c, time)
    return DONE


@compiled_inline
def _next_scrape(interval, scraped, time):
    """The latest scrape at or before `time` that has not been made, or inf."""
    if math.isinf(interval) or math.isinf(time):
        return math.inf
    at = time if interval == 0.0 else latest_tick_inline(interval, time)
    return at if at > scraped else math.inf


@compiled_inline
def _due_scrape(interval, scraped):
    """When the next scrape is due, if any are at fixed times."""
    if interval == 0.0 or math.isinf(interval):
        return math.inf
    if math.isinf(scraped):
        return 0.0
    number = math.floor(scraped / interval) + 1.0
    return number * interval if number * interval > scraped else (number + 1.0) * interval


@compiled_inline
def _is_busy(c):
    for m in range(len(c.due)):  # noqa: SIM110 compiled code has no generators
        if not math.isinf(c.due[m]) or not math.isinf(c.unread[m]):
            return True
    return False


@compiled
def serve(address):
    """Go on, as far as everything that matters is known; why it came back.

    address: of the cluster's words. What arrays need to grow or to be read is done by the caller, then it
    calls again. The horizon, or what `known_until` says, ends it.
    """
    c = cluster_at(address)
    s = c.scalars
    while True:
        if s["deals"][0]:
            why = deal(c)
            if why == DONE:
                why = run_each(c, min(s["known_until"][0], s["horizon"][0]))
            if why != DONE:
                return why
            return MORE if s["known_until"][0] < s["horizon"][0] else DONE
        time = next_time(c)
        stop = min(time, s["horizon"][0], s["follow_up_due"][0])
        if not _all_know(c, stop):
            return MORE
        scrape_at = rank_scrape_at = math.inf
        if time == stop:
            scrape_at = _next_scrape(s["scrape_interval"][0], s["scraped_time"][0], stop)
            rank_scrape_at = _next_scrape(s["rank_interval"][0], s["rank_scraped_time"][0], stop)
        if s["in_order"][0] and _is_busy(c):
            # The next arrival is not known yet: no engine may go past a scrape that it will need.
            scrape_at = min(scrape_at, _due_scrape(s["scrape_interval"][0], s["scraped_time"][0]))
            rank_due = _due_scrape(s["rank_interval"][0], s["rank_scraped_time"][0])
            rank_scrape_at = min(rank_scrape_at, rank_due)
        first_scrape = min(scrape_at, rank_scrape_at)
        scrapes = not math.isinf(first_scrape) and first_scrape <= stop
        if scrapes:
            stop = first_scrape
        why = _run(c, stop)
        if why == CHANGED:
            continue
        if why != DONE:
            return why
        if scrapes:
            scrape(c, stop, scrape_at > rank_scrape_at)
            continue
        if stop >= s["horizon"][0]:
            return DONE
        why = look(c, stop)  # all that ends at one instant is told together
        if why != DONE:
            return why
        if time > stop:
            return FOLLOW_UPS
        if s["follow_up_due"][0] < time or next_time(c) != time:
            continue  # what it learned matters for what comes next
        i = c.order[s["position"][0]]
        if not _room_at(s["router"][0], s["next_uid"][0], i):
            s["full_router"][0] = s["router"][0]
            return FULL_ROUTER
        target, why = choose(c, i, time)
        if why != DONE:
            return why
        if not hand_over(c, i, target, time):
            return FULL_ROUTER


@compiled
def catch_up(address, time):
    """At the end of a run, the routers learn what has been published by `time`: DONE, or what is full."""
    return look(cluster_at(address), min(time, _EVER))
