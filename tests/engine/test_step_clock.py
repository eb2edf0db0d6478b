"""The clock of `step`: when batches begin and end, what a request's time stamps say, when it is idle."""

import math
from itertools import pairwise

import pytest
from engine_runs import COST, drain, engine, request, rows_by_id

from kvsim.engine.core import IDLE, EngineCore
from kvsim.gpu.cost import StepShape

BOTH = pytest.mark.parametrize("is_async", [False, True])


def batches(core, now=0.0):
    """(scheduled at, begins, ends, requests) of every batch until the engine is idle."""
    out, s = [], core.state.scalars
    while True:
        b = int(s["first_batch"][0] + s["num_batches"][0]) % core.config.queue_depth
        before = int(s["current_step"][0])
        then = core.step(now)
        if s["current_step"][0] > before and core.state.batches["num_reqs"][b]:
            row = core.state.batches[b]
            out.append((now, float(row["start_time"]), float(row["end_time"]), int(row["num_reqs"])))
        if then == IDLE:
            return out
        now = then


def seconds(new, context):
    return COST.seconds(StepShape([new], [context], 0))


@BOTH
def test_the_gpu_has_no_gaps_while_there_is_work(is_async):
    core = engine(async_scheduling=is_async)
    for i in range(5):
        core.add_request(request(f"r{i}", 40 + i, 10 + 3 * i))
    runs = batches(core)
    for (_, _, end, _), (_, start, later, _) in pairwise(runs):
        assert start == end
        assert later > start
    assert core.stats()["busy_time"] == pytest.approx(runs[-1][2])


def test_synchronous_batches_are_scheduled_one_after_the_other():
    core = engine(async_scheduling=False)
    core.add_request(request("r", 40, 10))
    assert all(scheduled == start for scheduled, start, _, _ in batches(core))


def test_asynchronous_batches_are_scheduled_while_the_one_before_runs():
    core = engine()
    core.add_request(request("r", 40, 10))
    runs = batches(core)
    assert [run[0] for run in runs[:2]] == [0.0, 0.0]
    for (_, earlier_start, earlier_end, _), (scheduled, start, _, _) in pairwise(runs):
        assert earlier_start <= scheduled < earlier_end == start


@BOTH
def test_times_of_one_request(is_async):
    """Prompt of 40 in one step, then one token a step on a growing context."""
    core = engine(async_scheduling=is_async)
    core.add_request(request("r", 40, 5, arrival=3.0), 3.0)
    drain(core, 3.0)
    row = rows_by_id(core)["r"]
    steps = [seconds(40, 0), *(seconds(1, 40 + i) for i in range(4))]
    assert row["arrival_time"] == row["first_scheduled_time"] == 3.0
    assert row["first_token_time"] == pytest.approx(3.0 + steps[0])
    assert row["last_token_time"] == row["finish_time"] == pytest.approx(3.0 + sum(steps))
    assert core.stats()["num_steps"] == 5


def test_asynchronous_scheduling_runs_one_step_in_vain_for_a_stop_token():
    """It learns of the stop when the next step is under way already; of max_tokens it knows before."""
    steps = {}
    for is_async in (False, True):
        for max_tokens in (6, 100):
            core = engine(async_scheduling=is_async)
            core.add_request(request("r", 20, 6, max_tokens=max_tokens))
            drain(core)
            assert rows_by_id(core)["r"]["num_tokens"] == 26
            steps[is_async, max_tokens] = core.stats()["num_steps"]
    assert steps == {(False, 6): 6, (False, 100): 6, (True, 6): 6, (True, 100): 7}


def test_a_prompt_longer_than_the_budget_takes_several_steps():
    core = engine(max_num_batched_tokens=16, async_scheduling=False)
    core.add_request(request("r", 40, 1))
    runs = batches(core)
    assert len(runs) == 3
    row = rows_by_id(core)["r"]
    assert row["first_token_time"] == pytest.approx(seconds(16, 0) + seconds(16, 16) + seconds(8, 32))


@BOTH
def test_a_late_arrival_waits_for_the_gpu_not_for_the_queue(is_async):
    core = engine(async_scheduling=is_async)
    core.add_request(request("long", 400, 3))
    now = core.step(0.0)
    core.add_request(request("late", 8, 3), now)
    drain(core, now)
    ended = rows_by_id(core)
    assert ended["late"]["first_scheduled_time"] == now
    assert ended["late"]["first_token_time"] > ended["long"]["first_token_time"]


def test_end_times_never_go_back():
    core = engine(num_gpu_blocks=40, scheduling_policy="priority")
    for i in range(30):
        core.add_request(request(f"r{i}", 10 + i, 5 + i % 7, priority=i % 3, arrival=i * 1e-3), i * 1e-3)
    drain(core, 0.03)
    names, rows = core.take_finished()
    assert len(names) == 30
    assert rows["finish_time"].tolist() == sorted(rows["finish_time"])
    assert core.stats()["num_preemptions"] > 0


class TestIdle:
    def test_without_requests(self):
        core = engine()
        assert core.step(7.0) == IDLE == math.inf
        assert not core.has_requests()

    @BOTH
    def test_after_the_last_one(self, is_async):
        core = engine(async_scheduling=is_async)
        core.add_request(request("r"))
        now = drain(core)
        assert core.step(now) == IDLE
        assert core.step(now + 5) == IDLE
        assert not core.has_unscheduled_work()

    @BOTH
    @pytest.mark.parametrize("version", ["0.33", "0.16"])
    def test_a_request_that_never_fits_does_not_spin(self, is_async, version):
        core = engine(num_gpu_blocks=5, async_scheduling=is_async, vllm_version=version)
        core.add_request(request("large", 40, 4))
        now = drain(core, limit=10)
        assert core.live_requests()[0] == ["large"]
        core.abort_request("large", now)
        core.add_request(request("small", 8, 4), now)
        drain(core, now)
        assert rows_by_id(core)["small"]["num_tokens"] == 12

    def test_work_after_a_pause_begins_when_it_comes(self):
        core = engine()
        core.add_request(request("a"))
        end = drain(core)
        core.add_request(request("b"), end + 100)
        drain(core, end + 100)
        ended = rows_by_id(core)
        assert ended["b"]["first_scheduled_time"] == end + 100
        assert ended["b"]["first_token_time"] == pytest.approx(end + 100 + ended["a"]["first_token_time"])


def test_without_a_cost_steps_take_no_time():
    core = EngineCore(engine().config)
    core.add_request(request("r", 40, 5))
    assert drain(core) == 0.0
    assert rows_by_id(core)["r"]["finish_time"] == 0.0
