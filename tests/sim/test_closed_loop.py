"""Limited concurrency: a request goes out when another ends, in the order of the workload."""

import numpy as np
import pytest

from kvsim.scenario import Scenario, load_scenario

BASE = {
    "name": "closed",
    "model": "Qwen3-0.6B",
    "gpu": "L4",
    "engine": {"num_gpu_blocks_override": 4000, "max_model_len": 4096},
}
LENGTHS = {
    "type": "shared_prefix",
    "num_prefixes": 3,
    "prefix_len": 64,
    "suffix_len": {"distribution": "uniform", "min": 10, "max": 900},
    "output_len": {"distribution": "uniform", "min": 1, "max": 90},
}


def scenario(horizon=None, **workload):
    return Scenario(**BASE, horizon=horizon, workload=LENGTHS | workload)


def most_under_way(frame):
    times = np.concatenate([frame.arrival_time, frame.finish_time])
    changes = np.concatenate([np.ones(len(frame)), -np.ones(len(frame))])
    order = np.lexsort([changes, times])  # an end comes before the arrival that it allows
    return int(np.cumsum(changes[order]).max())


@pytest.mark.parametrize("limit", [1, 4, 32])
def test_a_closed_loop_keeps_its_concurrency(limit) -> None:
    frame = scenario(num_requests=300, max_concurrency=limit).run().requests
    assert (frame.status == "finished").all()
    assert most_under_way(frame) == limit
    assert frame.arrival_time.is_monotonic_increasing
    assert (frame.arrival_time[:limit] == 0.0).all()
    assert set(frame.arrival_time[limit:]) <= set(frame.finish_time)


def test_with_a_rate_nothing_goes_out_early() -> None:
    open_loop = scenario(num_requests=200, rate=8.0).run().requests
    limited = scenario(num_requests=200, rate=8.0, max_concurrency=3).run().requests
    assert most_under_way(open_loop) > 3
    assert most_under_way(limited) == 3
    assert (limited.arrival_time >= open_loop.arrival_time).all()
    early = limited.arrival_time == open_loop.arrival_time
    assert 0 < early.sum() < 200
    assert set(limited.arrival_time[~early]) <= set(limited.finish_time)


def test_a_limit_beyond_all_requests_changes_nothing() -> None:
    without = scenario(num_requests=100, rate=8.0).run()
    within = scenario(num_requests=100, rate=8.0, max_concurrency=100).run()
    assert within.requests.equals(without.requests)


def test_what_waits_at_its_client_at_the_horizon_never_was() -> None:
    result = scenario(horizon=5.0, max_concurrency=4).run()
    frame = result.requests
    assert (frame.status == "unfinished").sum() == 4
    assert frame.arrival_time.max() < 5.0
    assert result.metrics["simulated_seconds"] == 5.0


def test_steps_show_the_same_batches() -> None:
    limited = scenario(num_requests=40, rate=20.0, max_concurrency=3)
    views, result = list(limited.steps()), limited.run()
    assert len(views) == result.metrics["num_steps"]
    first, last = {}, {}
    for view in views:
        for request in view.requests:
            first.setdefault(request.request_id, view.start_time)
            last[request.request_id] = view.end_time
    frame = result.requests.set_index("request_id")
    assert all(frame.first_scheduled_time[name] <= time for name, time in first.items())
    assert frame.finish_time.to_dict() == last


def test_without_a_rate_the_limit_must_be_given(tmp_path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "model: Qwen3-0.6B\ngpu: L4\nworkload: {type: shared_prefix, num_requests: 3, max_concurrency: 2}\n"
    )
    assert load_scenario(path).workload.rate == float("inf")
    with pytest.raises(Exception, match="max_concurrency: 0 is out of range; give at least 1"):
        load_scenario(path, ["workload.max_concurrency=0"])


def test_a_scenario_without_a_limit_keeps_its_hash() -> None:
    plain = scenario(num_requests=3, rate=1.0)
    assert plain.scenario_hash != scenario(num_requests=3, rate=1.0, max_concurrency=1).scenario_hash
    assert plain.scenario_hash == "b6bb43e1315748d7e173c947ef9e097a9688df3bcaf2fe2879a14ab45a52697e"


@pytest.mark.parametrize(("num_gpu_blocks", "cached"), [(51, 144), (46, 80), (42, 16), (41, 0)])
def test_sessions_asked_in_turn_lose_their_cache_at_once_in_a_smaller_pool(num_gpu_blocks, cached) -> None:
    """EVC-02 of the public cases: five prompts of 10 blocks in turn, three rounds, one at a time."""
    engine = {"num_gpu_blocks_override": num_gpu_blocks, "max_model_len": 512}
    turns = {"type": "shared_prefix", "num_prefixes": 5, "popularity": "cycle", "prefix_len": 160}
    values = BASE | {"engine": engine, "workload": turns | {"suffix_len": 0, "output_len": 1}}
    values["workload"] |= {"num_requests": 15, "max_concurrency": 1}
    frame = Scenario(**values).run().requests
    assert frame.num_cached_tokens.tolist() == [0] * 5 + [cached] * 10
