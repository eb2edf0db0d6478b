"""The clock, the instance and the source; laws of a whole run."""

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import simpy

import kvsim
from kvsim.cluster.policies.plain import LeastRequest, RoundRobin
from kvsim.engine.config import EngineConfig
from kvsim.engine.core import EngineCore
from kvsim.results import MemorySink, RequestLog, RunResult
from kvsim.sim.clock import wait_until
from kvsim.sim.deployment import Deployment
from kvsim.sim.recorder import with_notes
from kvsim.sim.run import Simulation
from kvsim.tokens import segments
from kvsim.workload.request import Request, RequestBlock

BASE = """\
name: law
model: Qwen/Qwen3-VL-2B-Instruct
gpu: rtx-4090
engine: {num_gpu_blocks_override: %d, max_model_len: 2048, max_num_seqs: 32}
workload:
  type: shared_prefix
  rate: 30
  num_requests: 200
  num_prefixes: 5
  prefix_len: 100
  suffix_len: {distribution: uniform, min: 10, max: 200}
  output_len: {distribution: uniform, min: 1, max: 200}
"""


def run(tmp_path: Path, *overrides: str, blocks: int = 400, text: str = BASE) -> RunResult:
    path = tmp_path / "law.yaml"
    path.write_text(text % blocks if "%d" in text else text)
    return kvsim.load_scenario(path, overrides).run()


def test_every_metric_is_documented(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
    described = {"name", "scenario_hash", "vllm_version", "model", "gpu", "seed"}
    for metric in run(tmp_path, "workload.num_requests=5").metrics.keys() - described:
        assert f"`{metric}`" in page, metric


def check_laws(result: RunResult) -> None:
    """Laws of every run: requests conserved, time stamps causal, counters equal to the rows."""
    frame, metrics = result.requests, result.metrics
    counts = metrics["requests"]
    assert counts["total"] == len(frame) == sum(counts[s] for s in frame.status.unique())
    assert frame.arrival_time.is_monotonic_increasing
    done = frame[frame.status == "finished"]
    stamps = done[["arrival_time", "first_scheduled_time", "first_token_time", "finish_time"]].to_numpy()
    assert (np.diff(stamps, axis=1) >= 0).all()
    assert (done.num_output_tokens >= 1).all()
    assert (frame.num_cached_tokens <= np.maximum(frame.num_prompt_tokens - 1, 0)).all()
    assert metrics["vllm:generation_tokens"] == frame.num_output_tokens.sum()
    assert metrics["vllm:num_preemptions"] == frame.num_preemptions.sum()
    assert (
        0 <= metrics["vllm:kv_cache_usage_perc"]["mean"] <= metrics["vllm:kv_cache_usage_perc"]["peak"] <= 1
    )
    assert frame.finish_time.max() <= metrics["simulated_seconds"]


@pytest.mark.parametrize("mode", ["engine.async_scheduling=true", "engine.async_scheduling=false"])
def test_a_run_obeys_the_laws(tmp_path: Path, mode: str) -> None:
    result = run(tmp_path, mode)
    check_laws(result)
    assert result.metrics["requests"]["finished"] == 200
    frame = result.requests
    assert result.metrics["vllm:prefix_cache_queries"] == frame.num_prompt_tokens.sum()
    assert result.metrics["vllm:prefix_cache_hits"] == frame.num_cached_tokens.sum() > 0


def test_a_small_pool_preempts_and_still_ends_every_request(tmp_path: Path) -> None:
    result = run(tmp_path, blocks=140)
    check_laws(result)
    assert result.metrics["requests"]["finished"] == 200
    assert result.metrics["vllm:num_preemptions"] > 0
    assert result.metrics["blocks_evicted"] > 0


@pytest.mark.parametrize("version", ["0.33", "0.16"])
def test_at_the_horizon_the_rest_is_unfinished(tmp_path: Path, version: str) -> None:
    whole = run(tmp_path, f"vllm_version={version}").requests
    cut = run(tmp_path, f"vllm_version={version}", "horizon=3")
    check_laws(cut)
    frame = cut.requests
    assert cut.metrics["simulated_seconds"] == 3
    assert 0 < cut.metrics["requests"]["unfinished"] < len(frame) < 200
    assert len(frame) == (whole.arrival_time < 3).sum()
    ended = frame[frame.status == "finished"]
    same = whole.loc[ended.index]
    assert ended.finish_time.equals(same.finish_time)  # the future does not change the past
    assert (whole[: len(frame)].finish_time <= 3).sum() == len(ended)
    open_ones = frame[frame.status == "unfinished"]
    assert open_ones.finish_time.isna().all()
    assert not (open_ones.first_token_time > 3).any()


def test_what_can_never_fit_is_refused_and_counted(tmp_path: Path) -> None:
    result = run(tmp_path, "workload.suffix_len={distribution: uniform, min: 1500, max: 3000}", blocks=200)
    check_laws(result)
    counts = result.metrics["requests"]
    assert counts["refused"] > 0
    assert counts["finished"] > 0
    assert counts["refused"] + counts["finished"] == 200
    refused = result.requests[result.requests.status == "refused"]
    assert refused.reason.str.contains("max_model_len").all()
    assert refused.first_scheduled_time.isna().all()
    assert list(result.metrics["refusals"].values()) == [len(refused)]


def test_pictures_hit_by_identity(tmp_path: Path) -> None:
    text = BASE.split("workload:")[0] + (
        "workload: {type: image, rate: 5, num_requests: 40, num_images: 2, image_size: [1152, 864],"
        " num_instructions: 1, output_len: 5}\n"
    )
    result = run(tmp_path, blocks=400, text=text)
    check_laws(result)
    frame = result.requests
    assert (frame.num_prompt_tokens == 997).all()
    assert set(frame.num_cached_tokens) == {0, 992}
    assert result.metrics["encoder_tokens"] == 2 * 972


def test_waiting_ends_exactly_at_the_time_or_not_before_it() -> None:
    rng = np.random.default_rng(0)
    env = simpy.Environment()

    def walk():
        time = 0.0
        for _ in range(2000):
            time += float(rng.exponential(10.0 ** rng.integers(-6, 4)))
            yield from wait_until(env, time)
            assert time <= env.now <= np.nextafter(time, np.inf)

    env.process(walk())
    env.run()


class InThreeBlocks:
    """Nine requests, three at each of three instants, cut where the instants are not."""

    num_requests, max_concurrency, has_follow_ups = 9, None, False

    def blocks(self, seed: int):
        requests = [
            Request(f"r{i}", float(i // 3), segments((1, 0, 4)), segments((2, 0, 1)), 1) for i in range(9)
        ]
        yield from (RequestBlock.of(requests[cut]) for cut in (slice(2), slice(2, 7), slice(7, 9)))


@pytest.mark.parametrize("policy", [RoundRobin(), LeastRequest()])
def test_requests_of_one_instant_arrive_in_their_order(policy) -> None:
    config = with_notes(EngineConfig(num_gpu_blocks=100, max_model_len=64), steps=False, events=False)
    cores, rows = [EngineCore(config) for _ in range(3)], MemorySink()
    Simulation(Deployment.of(cores, policy), InThreeBlocks(), 0, RequestLog(rows)).run()
    table = rows.read()
    assert table["request_id"].to_pylist() == [f"r{i}" for i in range(9)]
    assert table["arrival_time"].to_pylist() == [0.0] * 3 + [1.0] * 3 + [2.0] * 3
    for first in (0, 3, 6):  # each instance gets one, either way
        assert sorted(table["instance"].to_pylist()[first : first + 3]) == [0, 1, 2]


def test_a_run_leaves_nothing_to_the_garbage_collector(tmp_path: Path, monkeypatch) -> None:
    """Its arrays are large, and a sweep makes many runs in one process."""
    made = []
    monkeypatch.setattr(Simulation, "_last_instant", lambda self: made.append(weakref.ref(self)) or 1.0)
    gc.disable()
    try:
        for _ in range(2):  # where code is compiled first, the compiler keeps frames
            run(tmp_path, "cluster.replicas=2", "cluster.router=dynamo_kv", "workload.num_requests=5")
        assert made[1]() is None
    finally:
        gc.enable()
