"""A limited number of clients: each has one session at a time, and begins the next one when that is over."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.engine.config import EngineConfig
from kvsim.engine.core import EngineCore
from kvsim.gpu import catalog
from kvsim.gpu.cost import StepCost
from kvsim.results import MemorySink, RequestLog
from kvsim.scenario import Scenario
from kvsim.sim.deployment import Deployment
from kvsim.sim.run import Simulation
from kvsim.workload import ChatWorkload, MixPart, MixWorkload, SharedPrefixWorkload

BASE = {
    "name": "clients",
    "model": "Qwen3-0.6B",
    "gpu": "L4",
    "engine": {"num_gpu_blocks_override": 4000, "max_model_len": 4096},
}
CHATS = {
    "type": "chat",
    "num_sessions": 40,
    "num_turns": {"distribution": "uniform", "min": 1, "max": 6},
    "question_len": {"distribution": "uniform", "min": 10, "max": 300},
    "output_len": {"distribution": "uniform", "min": 1, "max": 120},
    "think_time": 0.7,
}


def sessions(workload, horizon=None, **more):
    """First arrival and last end of each session, in order of arrival; and all rows."""
    frame = Scenario(**BASE | more, horizon=horizon, workload=workload).run().requests
    named = frame.assign(session=frame.request_id.str.replace(r"-turn-\d+$", "", regex=True))
    found = named.groupby("session", sort=False).agg(
        begin=("arrival_time", "min"), end=("finish_time", "max"), turns=("session", "size")
    )
    return found, frame


def most_at_once(found):
    times = np.concatenate([found.begin, found.end])
    changes = np.repeat([1, -1], len(found))
    return int(np.cumsum(changes[np.lexsort([changes, times])]).max())


@pytest.mark.parametrize("limit", [1, 6])
def test_so_many_sessions_are_under_way(limit):
    found, frame = sessions(CHATS | {"max_concurrency": limit})
    assert (frame.status == "finished").all()
    assert len(found) == 40
    assert most_at_once(found) == limit
    assert (found.begin[:limit] == 0).all()
    assert set(found.begin[limit:]) <= set(found.end)


def test_with_a_rate_no_session_begins_early():
    found, _ = sessions(CHATS | {"rate": 1.0, "max_concurrency": 3})
    free, _ = sessions(CHATS | {"rate": 1.0})
    assert most_at_once(found) == 3 < most_at_once(free)
    assert (found.begin >= free.begin[found.index]).all()
    assert 0 < (found.begin == free.begin[found.index]).sum() < 40


def test_sessions_go_on_until_the_horizon():
    endless = CHATS | {"num_sessions": None, "num_turns": 4, "max_concurrency": 4}
    found, frame = sessions(endless, horizon=20.0)
    assert (frame.arrival_time < 20).all()
    assert (found.turns == 4).sum() >= len(found) - 4 > 10


def test_a_refused_turn_frees_its_client():
    growing = CHATS | {"num_turns": 6, "question_len": 400, "output_len": 100, "max_concurrency": 2}
    found, frame = sessions(growing, engine={"num_gpu_blocks_override": 4000, "max_model_len": 1600})
    assert len(found) == 40
    assert (frame.status == "refused").sum() == 40
    assert most_at_once(found) <= 2


def test_single_requests_are_sessions_of_one():
    parts = {"chat": {"type": "chat", "num_turns": 3, "think_time": 0.2}, "text": {"type": "shared_prefix"}}
    mix = {"type": "mix", "num_arrivals": 60, "max_concurrency": 5, "parts": parts}
    found, frame = sessions(mix)
    assert len(found) == 60
    assert most_at_once(found) == 5
    assert (frame.status == "finished").all()


@pytest.mark.parametrize("limit", [{}, {"rate": "inf", "max_concurrency": 3}])
def test_the_steps_of_sessions_are_those_of_the_run(limit):
    """`kvsim steps` lets the same turns in at the same instants."""
    short = {"num_sessions": 12, "question_len": 400, "output_len": 30}
    engine = {"num_gpu_blocks_override": 4000, "max_model_len": 2048}
    workload = CHATS | {"rate": 4} | short | limit
    scenario = Scenario(**BASE | {"engine": engine}, workload=workload, record={"steps": True})
    result = scenario.run()
    assert (result.requests.status == "refused").any()
    seen = [(step.start_time, step.total_num_scheduled_tokens) for step in scenario.steps()]
    assert seen == list(zip(result.steps.start_time, result.steps.num_tokens, strict=True))


COST = StepCost(catalog.model("Qwen/Qwen3-VL-2B-Instruct"), catalog.gpu("l4"))
UP_TO_40 = {"distribution": "uniform", "min": 1, "max": 40}
chats = st.builds(
    ChatWorkload,
    rate=st.sampled_from([1.0, 20.0, float("inf")]),
    num_sessions=st.integers(1, 15),
    max_concurrency=st.sampled_from([None, 1, 3]),
    num_turns=st.just({"distribution": "uniform", "min": 1, "max": 5}),
    system_prompt_len=st.integers(0, 40),
    question_len=st.just(UP_TO_40),
    reasoning_len=st.sampled_from([0, UP_TO_40]),
    output_len=st.just(UP_TO_40),
    think_time=st.sampled_from([0.0, 0.05, {"distribution": "exponential", "mean": 0.3}]),
    num_tenants=st.sampled_from([0, 2]),
)
mixes = st.builds(
    MixWorkload,
    parts=st.builds(
        lambda chat, text: {"chat": MixPart(1, chat), "text": MixPart(1, text)},
        chats,
        st.just(SharedPrefixWorkload(rate=1, prefix_len=30, suffix_len=UP_TO_40, output_len=UP_TO_40)),
    ),
    rate=st.sampled_from([5.0, float("inf")]),
    num_arrivals=st.integers(1, 15),
    max_concurrency=st.sampled_from([None, 2]),
)


def rows(workload, horizon, num_instances, step_by_step):
    config = EngineConfig(
        num_gpu_blocks=40, max_model_len=256, block_size=16, max_num_seqs=4, max_num_batched_tokens=64
    )
    sink = MemorySink()
    cores = [EngineCore(config, COST) for _ in range(num_instances)]
    simulation = Simulation(
        Deployment.of(cores), workload, 0, RequestLog(sink), horizon=horizon, step_by_step=step_by_step
    )
    simulation.run()
    return sink.read(), simulation.simulated_seconds


@settings(max_examples=40)
@given(st.one_of(chats, mixes), st.sampled_from([None, 2.0]), st.integers(1, 3))
def test_step_by_step_or_in_stretches_sessions_are_the_same(workload, horizon, num_instances):
    in_stretches, end = rows(workload, horizon, num_instances, step_by_step=False)
    step_by_step, end_ = rows(workload, horizon, num_instances, step_by_step=True)
    assert in_stretches.equals(step_by_step)
    assert end == end_
