"""Traces that record sessions: agents, and rows with session_id and delay."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sessions import cached_tokens, turns

from kvsim.errors import KvsimError
from kvsim.tokens import expand
from kvsim.workload import TraceWorkload
from kvsim.workload.agent_sessions import check_agent_session
from kvsim.workload.recorded import Pace, first_request

SLICE = Path(__file__).parents[3] / "shared" / "traces" / "claude_code_agent_traces_slice.jsonl.gz"


def call(t, num_input, ids, out=5, kind="n", **more):
    return {"t": t, "type": kind, "in": num_input, "out": out, "hash_ids": ids, **more}


def agent(*requests, name="a", block_size=64, **more):
    return {
        "id": name,
        "block_size": block_size,
        "hash_id_scope": "local",
        "requests": list(requests),
        **more,
    }


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return TraceWorkload(path=str(path))


def played(workload, service_time=1.0):
    return [list(turns(first, service_time)) for first in workload.requests(0)]


def times(requests):
    return [round(request.arrival_time, 6) for request in requests]


TWO = (call(0.0, 130, [1, 2]), call(10.0, 200, [1, 2, 3], think_time=4.0))


def test_a_session_is_replayed_in_order_after_the_simulated_answers(tmp_path):
    (requests,) = played(
        write(tmp_path / "t", agent(*TWO, call(30, 64, [9], think_time=0.5))), service_time=2
    )
    assert times(requests) == [0.0, 6.0, 8.5]
    assert [request.request_id for request in requests] == ["a-turn-1", "a-turn-2", "a-turn-3"]
    assert [request.num_prompt_tokens for request in requests] == [130, 200, 64]
    assert {request.session for request in requests} == {"a"}
    first, second, third = [expand(request.prompt) for request in requests]
    assert (first[:128] == second[:128]).all()
    assert (first[128:] != second[128:130]).any()
    assert (third != first[:64]).any()


def test_prompts_share_whole_ids_only(tmp_path):
    """Tokens behind the ids are a request's own, also where the next request's id covers them."""
    (requests,) = played(write(tmp_path / "t", agent(*TWO)))
    assert cached_tokens(iter(requests)) == [0, 128]


@pytest.mark.parametrize(
    ("first", "second", "pause"),
    [
        ({"api_time": 3.0}, {"think_time": 4.0}, 4.0),
        ({"api_time": 3.0}, {}, 7.0),
        ({"api_time": 30.0}, {}, 0.0),
        ({}, {}, 10.0),
        ({}, {"think_time": None}, 10.0),
    ],
)
def test_a_missing_pause_is_derived(tmp_path, first, second, pause):
    session = agent(call(0, 64, [1], **first), call(10, 64, [2], **second))
    (requests,) = played(write(tmp_path / "t", session))
    assert times(requests) == [0.0, 1.0 + pause]


@pytest.mark.parametrize(
    "inner_times", [(0.0, 5.0), (20.0, 25.0)], ids=["from the sub-agent's own", "absolute"]
)
def test_sub_agents_run_in_their_place(tmp_path, inner_times):
    """Recorded: asked at 0-4 s, the sub-agent at 20-22 s and 25-28 s, the parent again at 30 s."""
    inner = [call(inner_times[0], 64, [7], api_time=2.0), call(inner_times[1], 64, [8], api_time=3.0)]
    marker = {"t": 20.0, "type": "subagent", "agent_id": "x", "requests": inner}
    session = agent(call(0, 64, [1], api_time=4.0), marker, call(30, 64, [1], think_time=26.0))
    (requests,) = played(write(tmp_path / "t", session))
    assert times(requests) == [0.0, 17.0, 21.0, 24.0]
    assert [request.request_id for request in requests] == [f"a-turn-{n}" for n in (1, 2, 3, 4)]


def test_ids_are_a_sessions_own_unless_the_file_says_otherwise(tmp_path):
    one, other = agent(TWO[0], name="a"), agent(TWO[0], name="b")
    local = played(write(tmp_path / "t", one, other))
    assert local[0][0].prompt[0, 0] != local[1][0].prompt[0, 0]
    common = played(write(tmp_path / "t", *(row | {"hash_id_scope": "global"} for row in (one, other))))
    shared, own = zip(*(requests[0].prompt[[0, 2]].tolist() for requests in common), strict=True)
    assert shared[0] == shared[1]
    assert own[0] != own[1]


def test_ids_may_be_missing_or_cover_the_last_block_begun(tmp_path):
    session = agent(call(0, 100, [1, 2]), call(1, 100, []), {"t": 2, "type": "s", "in": 3, "out": 0})
    (requests,) = played(write(tmp_path / "t", session))
    assert [request.num_prompt_tokens for request in requests] == [100, 100, 3]
    assert [request.prompt[:, 2].tolist() for request in requests] == [[64, 36], [100], [3]]
    assert requests[2].max_tokens == 1


ids = st.lists(st.integers(0, 3), max_size=5)


@settings(max_examples=60)
@given(st.lists(st.tuples(ids, st.integers(0, 7)), min_size=1, max_size=6))
def test_each_prompt_is_that_of_its_ids(recorded):
    rows = [call(0, 8 * len(ids) + tail, ids) for ids, tail in recorded if ids or tail]
    if not rows:
        return
    requests = list(turns(first_request(check_agent_session(agent(*rows, block_size=8)), 0.0, Pace())))
    blocks: dict[int, list[int]] = {}
    for row, request in zip(rows, requests, strict=True):
        tokens = expand(request.prompt)
        assert len(tokens) == row["in"]
        for place, each in enumerate(row["hash_ids"]):
            block = tokens[8 * place : 8 * place + 8].tolist()
            assert blocks.setdefault(each, block) == block
    assert len({tuple(block) for block in blocks.values()}) == len(blocks)


def test_paces(tmp_path):
    spec = write(tmp_path / "t", agent(call(2.0, 64, [1]), call(9, 64, [1], think_time=8.0)))
    assert times(played(spec)[0]) == [2.0, 11.0]
    assert times(played(replace(spec, start=1.0))[0]) == [1.0, 10.0]
    assert times(played(replace(spec, time_scale=0.5))[0]) == [1.0, 6.0]
    assert times(played(replace(spec, max_think_time=3.0))[0]) == [2.0, 6.0]
    assert times(played(replace(spec, rate=math.inf))[0]) == [0.0, 9.0]


def test_sessions_begin_at_a_rate(tmp_path):
    spec = replace(write(tmp_path / "t", *(agent(*TWO, name=f"s{i}") for i in range(2000))), rate=4.0)
    starts = [request.arrival_time for request in spec.requests(0)]
    assert starts == sorted(starts)
    assert starts[-1] == pytest.approx(500, rel=0.06)
    assert starts != [request.arrival_time for request in spec.requests(1)]


def test_how_many(tmp_path):
    spec = write(tmp_path / "t", *(agent(*TWO, name=f"s{i}") for i in range(5)))
    assert [len(requests) for requests in played(replace(spec, num_sessions=3))] == [2, 2, 2]
    assert [len(requests) for requests in played(replace(spec, num_requests=5))] == [2, 2, 1]
    assert spec.has_follow_ups
    assert spec.located(spec.path, 5).num_requests is None


GOOD = agent(*TWO)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (GOOD | {"id": None}, "field id: null is not the name of a session"),
        (GOOD | {"block_size": 0}, "field block_size: 0 is out of range; give at least 1"),
        (GOOD | {"hash_id_scope": "mine"}, "field hash_id_scope: 'mine' is not known; one of local, global"),
        (GOOD | {"requests": []}, "field requests: empty; a session has at least one request"),
        (GOOD | {"requests": 3}, "field requests: 3 is not a list of requests"),
        (agent(TWO[0], 7), r"field requests\[1\]: 7 is not an object with t, type, in, \.\.\."),
        (
            agent(call(0, 64, [1], kind="x")),
            r"field requests\[0\]\.type: 'x' is not known; one of n, s, subagent",
        ),
        (agent(call("x", 64, [1])), r"field requests\[0\]\.t: 'x' is not a number of seconds"),
        (agent(call(0, 0, [])), r"field requests\[0\]\.in: 0 is out of range; give at least 1"),
        (agent(call(0, 64, [1], out=-1)), r"field requests\[0\]\.out: -1 is out of range"),
        (agent(call(0, 64, [1, 2])), r"hash_ids: 64 tokens have 1 full blocks of 64, the request has 2 ids"),
        (agent(call(0, 64, [-1])), r"hash_ids: -1 is not a whole number from 0"),
        (agent(call(0, 64, [True])), r"hash_ids: true is not a whole number from 0"),
        (agent(call(0, 64, [1], think_time="x")), r"think_time: 'x' is not a number of seconds"),
        (
            agent({"t": 0, "type": "subagent"}),
            r"field requests\[0\]\.requests: missing; requests\[0\] has 't, type'",
        ),
        (
            agent({"type": "n", "in": 5, "out": 1}),
            r"field requests\[0\]\.t: missing; requests\[0\] has 'type, in, out'",
        ),
        ({"id": "x", "requests": TWO}, "field block_size: missing; the row has 'id, requests'"),
        (
            agent(call(0, 64, [1], think_time=-3)),
            r"think_time: -3 is out of range; give a number of seconds from 0",
        ),
        ({"timestamp": 0}, "field requests: missing; each line of this trace is a session with requests"),
        (agent(*TWO, name="first"), "field id: 'first' is that of line 1 as well"),
    ],
)
def test_bad_sessions_are_named_by_line_and_field(tmp_path, row, says):
    spec = write(tmp_path / "t.jsonl", agent(*TWO, name="first"), row)
    with pytest.raises(KvsimError, match=rf"^{tmp_path}/t.jsonl line 2: (field .*)?{says}"):
        list(spec.requests(0))


def test_sessions_are_sorted(tmp_path):
    spec = write(tmp_path / "t", agent(call(5, 64, [1]), name="a"), agent(call(3, 64, [1]), name="b"))
    with pytest.raises(
        KvsimError, match=r"line 2: field requests\[0\].t: 3 s lies before the session above, 5 s"
    ):
        list(spec.requests(0))
    with pytest.raises(KvsimError, match="no session at or after start, 9 s"):
        list(replace(write(tmp_path / "t", agent(*TWO)), start=9.0).requests(0))


def turn(ids, num_input=None, **more):
    return {"input_length": num_input or 512 * len(ids), "output_length": 3, "hash_ids": ids, **more}


def test_rows_of_a_session_follow_each_other_by_their_delays(tmp_path):
    spec = write(
        tmp_path / "t",
        turn([1, 2], session_id="x", timestamp=500),
        turn([5], session_id="y", timestamp=200),
        turn([1, 2, 3], session_id="x", delay=1500),
        turn([9], timestamp=700),
        turn([1, 2, 3, 4], session_id="x"),
    )
    y, x, alone = played(spec)
    assert times(x) == [0.5, 3.0, 4.0]
    assert times(y) == [0.2]
    assert times(alone) == [0.7]
    assert [request.request_id for request in x] == ["x-turn-1", "x-turn-2", "x-turn-3"]
    assert cached_tokens(iter(x)) == [0, 1024, 1536]
    assert x[0].prompt[0, 0] == spec_of_open_loop(tmp_path).prompt[0, 0]


def spec_of_open_loop(tmp_path):
    return next(write(tmp_path / "open", turn([1], timestamp=0)).requests(0))


def test_rows_with_times_of_their_own_stay_an_open_loop(tmp_path):
    rows = [turn([1], session_id="x", timestamp=0), turn([1, 2], session_id="x", timestamp=900)]
    spec = write(tmp_path / "t", *rows)
    assert not spec.has_follow_ups
    assert [(r.request_id, r.arrival_time, r.session) for r in spec.requests(0)] == [
        ("req-0", 0.0, "x"),
        ("req-1", 0.9, "x"),
    ]
    with pytest.raises(KvsimError, match="records no sessions that go on; leave max_think_time out"):
        list(replace(spec, max_think_time=1.0).requests(0))


def test_rows_without_ids_go_on_from_the_answer(tmp_path):
    rows = [{"session_id": 3, "input_length": 100, "output_length": 60, "delay": 0}] * 3
    (requests,) = played(write(tmp_path / "t", *rows))
    assert [request.num_prompt_tokens for request in requests] == [100, 260, 420]
    assert cached_tokens(iter(requests)) == [0, 144, 304]
    first, second = requests[:2]
    so_far = np.concatenate([expand(first.prompt), expand(first.output)])
    assert np.array_equal(expand(second.prompt)[:160], so_far)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (turn([2], session_id="x", timestamp=5), "field timestamp: a later row of its session needs delay"),
        (
            turn([2], session_id="x", delay=-5),
            "field delay: -5 is out of range; give a number of milliseconds",
        ),
        (turn([2], session_id="x", delay="x"), "field delay: 'x' is not a number of milliseconds"),
        (
            turn([2], timestamp=5, delay=7),
            "field delay: counts from the answer before in a session; the row has no",
        ),
        (
            turn([2], num_input=20, session_id="x", delay=1) | {"hash_ids": [1, 2]},
            "field hash_ids: 20 tokens",
        ),
        ([1], "field row: "),
    ],
)
def test_bad_rows_of_sessions(tmp_path, row, says):
    spec = write(tmp_path / "t", turn([1], session_id="x"), row)
    with pytest.raises(KvsimError, match=f"line 2: {says}"):
        list(spec.requests(0))


@pytest.mark.skipif(not SLICE.exists(), reason="the public agent traces are not here")
def test_the_public_slice():
    sessions = played(replace(TraceWorkload(path=str(SLICE)), rate=1.0))
    requests = [request for session in sessions for request in session]
    assert (len(sessions), len(requests)) == (86, 2202)
    mean = sum(request.num_prompt_tokens for request in requests) / len(requests)
    assert mean == pytest.approx(103_184, abs=1)
