"""Conversations: what the next prompt holds, and what of it is found in the cache."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sessions import cached_tokens, turns

from kvsim.tokens import expand
from kvsim.workload import ChatWorkload
from kvsim.workload.checks import FieldError
from kvsim.workload.request import RequestBlock

UNIFORM = {"distribution": "uniform", "min": 1, "max": 6}
BASE = ChatWorkload(
    rate=2.0, num_sessions=30, num_turns=UNIFORM, system_prompt_len=60, question_len=40, output_len=60
)


def session(**changes):
    spec = replace(BASE, num_sessions=1, num_turns=2, **changes)
    return list(turns(next(spec.requests(0))))


def test_the_next_prompt_is_the_one_before_the_answer_and_a_new_question():
    for first in BASE.requests(3):
        requests = list(turns(first))
        for before, after in pairwise(requests):
            so_far = np.concatenate([expand(before.prompt), expand(before.output)])
            prompt = expand(after.prompt)
            assert np.array_equal(prompt[: len(so_far)], so_far)
            assert len(prompt) == len(so_far) + 40


lengths = st.integers(0, 50)


@settings(max_examples=40, deadline=None)
@given(lengths, st.integers(1, 50), st.integers(1, 120), st.booleans(), st.booleans())
def test_what_stays_of_an_answer(reasoning, answer, said, keep_answers, keep_reasoning):
    first = next(
        replace(
            BASE,
            reasoning_len=reasoning,
            output_len=answer,
            keep_answers=keep_answers,
            keep_reasoning=keep_reasoning and keep_answers,
            num_turns=2,
        ).requests(0)
    )
    assert first.num_output_tokens == first.max_tokens == reasoning + answer
    _, second = turns(first, said=said)
    output = expand(first.output)[:said]
    first_kept = said if not keep_answers else 0 if keep_reasoning else reasoning
    kept = output[first_kept:]
    expected = np.concatenate([expand(first.prompt), kept])
    assert np.array_equal(expand(second.prompt)[: len(expected)], expected)
    assert second.num_prompt_tokens == len(expected) + 40


@pytest.mark.parametrize(("output", "hits"), [(60, 144), (61, 160), (44, 128)])
def test_a_kept_answer_is_found_but_for_its_last_token(output, hits):
    """The last token said never went through the model: 160 tokens are 9 full blocks and 15 tokens."""
    assert cached_tokens(iter(session(output_len=output))) == [0, hits]


def test_dropped_reasoning_parts_the_next_prompt_from_the_cache():
    assert cached_tokens(iter(session(reasoning_len=200))) == [0, 96]
    assert cached_tokens(iter(session(reasoning_len=200, keep_reasoning=True))) == [0, 352]


def test_answers_that_are_not_kept():
    assert cached_tokens(iter(session(keep_answers=False))) == [0, 96]


def test_a_session_keeps_its_tags_and_has_its_own_tokens():
    spec = replace(BASE, num_tenants=3, num_loras=2, priority={"distribution": "uniform", "min": 0, "max": 9})
    sessions = [list(turns(first)) for first in spec.requests(1)]
    for number, requests in enumerate(sessions):
        assert {request.session for request in requests} == {f"session-{number}"}
        assert len({(request.cache_salt, request.lora, request.priority) for request in requests}) == 1
        names = [f"session-{number}-turn-{turn}" for turn in range(1, len(requests) + 1)]
        assert [request.request_id for request in requests] == names
        assert requests[-1].follow_up is None
    assert {requests[0].cache_salt for requests in sessions} == {"tenant-0", "tenant-1", "tenant-2"}
    assert {len(requests) for requests in sessions} == {1, 2, 3, 4, 5, 6}
    streams = [stream for requests in sessions for stream in requests[-1].prompt[1:, 0].tolist()]
    assert len(set(streams)) == len(streams)


def test_system_prompts_are_shared_by_groups():
    spec = replace(BASE, num_system_prompts=3, system_prompt_len=UNIFORM, context_len=7)
    firsts = list(spec.requests(0))
    assert len({tuple(first.prompt[0].tolist()) for first in firsts}) == 3
    assert len({first.prompt[1, 0] for first in firsts}) == 30
    assert {first.prompt[1, 2] for first in firsts} == {7}


def test_the_next_turn_is_sent_when_the_answer_has_been_thought_about():
    spec = replace(BASE, think_time={"distribution": "uniform", "min": 2.0, "max": 4.0}, num_turns=5)
    pauses = []
    for first in spec.requests(0):
        requests = list(turns(first, service_time=10.0))
        pauses += [after.arrival_time - before.arrival_time - 10 for before, after in pairwise(requests)]
    assert 2.0 <= min(pauses) < 2.2 < 3.8 < max(pauses) <= 4.0
    assert len(set(pauses)) == len(pauses)


def plain(requests):
    return [
        (r.request_id, r.arrival_time, r.prompt.tolist(), r.output.tolist(), r.max_tokens, r.cache_salt)
        for r in requests
    ]


def test_sessions_do_not_depend_on_the_order_in_which_they_go_on():
    one = [plain(turns(first)) for first in BASE.requests(5)]
    late = [plain(turns(first)) for first in reversed(list(BASE.requests(5)))]
    assert one == late[::-1]
    assert one != [plain(turns(first)) for first in BASE.requests(6)]


def test_asking_twice_gives_the_same_request():
    after = next(replace(BASE, num_turns=3).requests(0)).follow_up
    assert plain([after.next_request(9.0, 60)]) == plain([after.next_request(9.0, 60)])


def test_parts_of_blocks_carry_follow_ups():
    block = next(BASE.blocks(0))
    assert block.follow_ups is not None
    assert block[3:9].follow_ups == block.follow_ups[3:9]
    assert block.take(np.array([8, 2])).follow_ups == [block.follow_ups[8], block.follow_ups[2]]
    assert RequestBlock.of(list(block)).follow_ups == block.follow_ups
    assert RequestBlock.joined([block[:4], block[4:]]).follow_ups == block.follow_ups


def test_how_many_requests_there_will_be():
    assert BASE.num_requests is None
    assert replace(BASE, num_turns=4).num_requests == 120
    assert replace(BASE, num_turns=4, num_sessions=None).num_requests is None
    assert BASE.has_follow_ups
    assert not replace(BASE, num_turns=1).has_follow_ups


def test_the_clients_limit_cuts_the_answer_that_stays():
    first, second = session(max_tokens=50, reasoning_len=20)
    assert (first.max_tokens, first.num_output_tokens) == (50, 50)
    assert second.num_prompt_tokens == 100 + 30 + 40


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_sessions": 0}, "num_sessions: 0 is out of range; give at least 1"),
        ({"num_turns": 0}, "num_turns: 0 is out of range; give at least 1"),
        ({"question_len": 0}, "question_len: 0 is out of range"),
        (
            {"rate": math.inf, "num_sessions": None},
            "num_sessions: missing; rate inf sends all sessions at once",
        ),
        ({"think_time": -1}, "think_time: -1 is out of range; give a number of seconds from 0"),
        ({"think_time": "long"}, "think_time: 'long' is not a number"),
        (
            {"think_time": {"distribution": "normal", "mean": 3}},
            "think_time.distribution: 'normal' is not known",
        ),
        ({"keep_answers": "yes"}, "keep_answers: 'yes' is neither true nor false"),
        ({"keep_answers": False, "keep_reasoning": True}, "keep_reasoning: true keeps nothing"),
    ],
)
def test_bad_values(changes, says):
    with pytest.raises(FieldError, match=says):
        replace(BASE, **changes)
