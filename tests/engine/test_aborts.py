"""Aborts and resets: at once, wherever the request is, and nothing is left behind."""

import pytest
from engine_runs import drain, engine, request, rows_by_id

from kvsim.cache.block_map import num_cached_keys
from kvsim.cache.integrity import check_integrity
from kvsim.cache.state import FINISHED_ABORTED, PREEMPTED, RUNNING, WAITING

ALL = pytest.mark.parametrize(
    ("is_async", "version"), [(False, "0.33"), (True, "0.33"), (False, "0.16"), (True, "0.16")]
)


def status(core, name):
    return int(core.requests["status"][core.slot_of(name)])


def all_blocks_are_free(core):
    check_integrity(core)
    return core.kv.pool.scalars["num_free_blocks"][0] == core.config.num_gpu_blocks - 1


def check_aborted(core, name, now):
    row = rows_by_id(core)[name]
    assert (row["status"], row["finish_time"]) == (FINISHED_ABORTED, now)
    assert core.slot_of(name) is None
    return row


@ALL
def test_a_waiting_request(is_async, version):
    core = engine(async_scheduling=is_async, vllm_version=version)
    core.add_request(request("r"), 1.0)
    assert status(core, "r") == WAITING
    core.abort_request("r", 2.5)
    row = check_aborted(core, "r", 2.5)
    assert row["num_cached_tokens"] == -1  # never admitted
    assert core.stats()["num_requests_waiting"] == 0
    drain(core, 2.5)


@ALL
def test_the_middle_one_of_the_queue(is_async, version):
    core = engine(max_num_seqs=1, async_scheduling=is_async, vllm_version=version)
    for name in "abcd":
        core.add_request(request(name))
    core.abort_request("c", 0.0)
    drain(core)
    names, rows = core.take_finished()
    assert names == ["c", "a", "b", "d"]
    assert rows["num_tokens"].tolist() == [16, 20, 20, 20]


@ALL
@pytest.mark.parametrize("num_steps", [1, 2, 3, 4])
def test_a_running_request(is_async, version, num_steps):
    core = engine(async_scheduling=is_async, vllm_version=version)
    core.add_request(request("r", 20, 50))
    core.add_request(request("other", 20, 9))
    now = 0.0
    for _ in range(num_steps):
        now = core.step(now)
    assert status(core, "r") == RUNNING
    core.abort_request("r", now)
    check_integrity(core)
    check_aborted(core, "r", now)
    drain(core, now)
    assert rows_by_id(core)["other"]["num_tokens"] == 29
    assert all_blocks_are_free(core)


@ALL
def test_a_preempted_request(is_async, version):
    core = engine(num_gpu_blocks=12, async_scheduling=is_async, vllm_version=version)
    for name in "ab":
        core.add_request(request(name, 16, 20))
    now = 0.0
    while status(core, "b") != PREEMPTED:
        now = core.step(now)
    core.abort_request("b", now)
    row = check_aborted(core, "b", now)
    assert row["num_preemptions"] == 1
    drain(core, now)
    assert rows_by_id(core)["a"]["num_tokens"] == 36
    assert all_blocks_are_free(core)


def test_with_images_the_encoder_lets_go():
    core = engine(encoder_cache_size=20, max_num_batched_tokens=16)
    core.add_request(request("r", 24, 9, image=(4, 16)))
    core.step(0.0)
    core.abort_request("r", 0.0)
    drain(core)
    s = core.state.scalars[0]
    assert s["num_freeable_slots"] == 20
    assert (core.state.encoder_cache["ref_cnt"] == 0).all()


def test_unknown_and_ended_requests_are_ignored():
    core = engine()
    core.abort_request("nobody", 0.0)
    core.add_request(request("r"))
    drain(core)
    core.abort_request("r", 9.0)
    core.abort_request("r", 9.0)
    row = rows_by_id(core)["r"]
    assert row["status"] != FINISHED_ABORTED
    assert row["finish_time"] < 9.0


def test_twice():
    core = engine()
    core.add_request(request("r"))
    core.abort_request("r", 1.0)
    core.abort_request("r", 2.0)
    assert len(core.take_finished()[0]) == 1
    assert core.take_finished()[0] == []


def test_an_aborted_requests_full_blocks_can_be_hit():
    core = engine(async_scheduling=False)
    core.add_request(request("a", 16, 9, stream=5))
    core.step(0.0)
    core.abort_request("a", 0.0)
    core.add_request(request("b", 18, 2, stream=5))
    drain(core)
    assert rows_by_id(core)["b"]["num_cached_tokens"] == 16


class TestReset:
    def test_refused_while_in_use(self):
        core = engine()
        core.add_request(request("r", 16, 9))
        core.step(0.0)
        assert not core.reset_prefix_cache()
        drain(core)
        assert core.reset_prefix_cache()
        assert num_cached_keys(core.kv.pool) == 0

    def test_forced_preempts_all_and_they_run_again(self):
        core = engine(async_scheduling=False)
        for name in "abc":
            core.add_request(request(name, 16, 9))
        now = core.step(core.step(0.0))
        assert core.reset_prefix_cache(reset_running_requests=True)
        assert all_blocks_are_free(core)
        assert [status(core, name) for name in "abc"] == [PREEMPTED] * 3
        drain(core, now)
        names, rows = core.take_finished()
        assert names == ["a", "b", "c"]
        assert rows["num_tokens"].tolist() == [25] * 3
        assert rows["num_preemptions"].tolist() == [1] * 3
