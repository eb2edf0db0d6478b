"""Steps looked at one by one are the steps of the run."""

from collections import Counter
from pathlib import Path

import pytest

import kvsim
from kvsim.errors import KvsimError
from kvsim.scenario import Scenario
from kvsim.sim.step_view import StepView
from kvsim.sim.steps import scenario_steps

BASE = """\
name: steps
model: %s
gpu: rtx-4090
engine: {num_gpu_blocks_override: 60, max_model_len: 512, max_num_seqs: 16}
workload:
  type: shared_prefix
  rate: 60
  num_requests: 40
  num_prefixes: 3
  prefix_len: 40
  suffix_len: {distribution: uniform, min: 10, max: 200}
  output_len: {distribution: uniform, min: 1, max: 60}
"""
CASES = {
    "asynchronous": [],
    "synchronous": ["engine.async_scheduling=false"],
    "0.16": ["vllm_version=0.16"],
    "0.16 synchronous": ["vllm_version=0.16", "engine.async_scheduling=false"],
    "to the horizon": ["horizon=0.5"],
    "to the horizon, synchronous": ["horizon=0.5", "engine.async_scheduling=false"],
    "all at once": ["workload.rate=inf"],
    "priorities": [
        "engine.scheduling_policy=priority",
        "workload.priority={distribution: uniform, min: 0, max: 3}",
    ],
    "adapters": ["engine.max_loras=2", "workload.num_loras=5"],
    "drafts": [
        "engine.speculative_config={method: eagle, num_speculative_tokens: 3, acceptance: 0.7}",
        "engine.num_gpu_blocks_override=90",
    ],
    "vLLM's hashes": ["engine.prefix_caching_hash_algo=sha256"],
    "no cache": ["engine.enable_prefix_caching=false"],
    "some refused": ["engine.max_model_len=200"],
    "pictures": [
        "workload={type: image, rate: 60, num_requests: 40, num_images: 5, image_tokens: 90, output_len: 20}"
    ],
}


def scenario(tmp_path: Path, *overrides: str, model: str = "Qwen/Qwen3-VL-2B-Instruct") -> Scenario:
    path = tmp_path / "steps.yaml"
    path.write_text(BASE % model)
    return kvsim.load_scenario(path, overrides)


def check_against_the_run(given: Scenario, views: list[StepView]) -> None:
    """Counts, blocks and the instant of every end."""
    result = given.run()
    metrics = result.metrics
    assert [view.step for view in views] == list(range(1, metrics["num_steps"] + 1))
    assert sum(view.total_num_scheduled_tokens for view in views) == metrics["scheduled_tokens"]
    assert sum(len(view.preempted_req_ids) for view in views) == metrics["vllm:num_preemptions"]
    assert sum(len(view.blocks_cached) for view in views) == metrics["blocks_cached"]
    assert sum(len(view.blocks_evicted) for view in views) == metrics["blocks_evicted"]
    ends = {request.request_id: view.end_time for view in views for request in view.ended}
    frame = result.requests.set_index("request_id")
    done = frame[frame.status == "finished"].finish_time
    limit = given.horizon or float("inf")
    assert {name: end for name, end in ends.items() if end <= limit} == pytest.approx(dict(done), abs=1e-12)
    starts = frame.first_scheduled_time.dropna()
    first: dict[str, StepView] = {}
    for view in views:
        for request in view.requests:
            first.setdefault(request.request_id, view)
    assert set(first) == set(starts.index)
    assert all(view.start_time >= starts[name] - 1e-12 for name, view in first.items())


@pytest.mark.parametrize("case", CASES)
def test_they_are_the_steps_of_the_run(tmp_path: Path, case: str) -> None:
    given = scenario(tmp_path, *CASES[case])
    views = list(given.steps())
    assert len(views) > 10
    check_against_the_run(given, views)
    for view in views:
        seen = view.groups[0].attention_metadata
        assert seen.num_reqs == len(view.requests)
        scheduled = [request.num_scheduled_tokens for request in view.requests]
        assert seen.num_actual_tokens == sum(scheduled) == view.total_num_scheduled_tokens
        lens = [request.num_computed_tokens + n for request, n in zip(view.requests, scheduled, strict=True)]
        assert seen.seq_lens == lens
        assert len(set(seen.slot_mapping[: sum(scheduled)])) == sum(scheduled)


def test_groups_of_a_hybrid_model(tmp_path: Path) -> None:
    given = scenario(
        tmp_path,
        "engine.num_gpu_blocks_override=600",
        "engine.max_model_len=1024",
        "workload.suffix_len=600",
        "workload.num_requests=6",
        "workload.output_len=5",
        model="google/gemma-3-1b-it",
    )
    views = list(given.steps())
    check_against_the_run(given, views)
    assert {len(view.groups) for view in views} == {7}
    assert any(0 in table for view in views for table in view.groups[0].attention_metadata.block_table)


@pytest.mark.parametrize("mode", ["true", "false"])
def test_the_block_map_obeys_the_laws_of_the_pool(tmp_path: Path, mode: str) -> None:
    given = scenario(tmp_path, f"engine.async_scheduling={mode}")
    ahead = set()
    for view in given.steps(blocks=True):
        pool = view.block_map
        assert pool is not None
        ahead.add(pool.latest_step - view.step)
        owned = [block for block in pool.blocks if block.owners]
        assert all(block.ref_cnt == len(block.owners) for block in pool.blocks)
        assert all(block.owners or block.hashes for block in pool.blocks)
        assert all(1 <= block.num_tokens <= 16 for block in pool.blocks)
        assert all(block.num_tokens == 16 for block in pool.blocks if block.hashes)
        everyone = [pool.null_block, *(block.block_id for block in owned), *pool.free_queue]
        assert sorted(everyone) == list(range(pool.num_gpu_blocks))
    assert ahead == ({0, 1} if mode == "true" else {0})


def test_what_is_cached_and_not_evicted_is_in_the_block_map(tmp_path: Path) -> None:
    held: Counter[tuple[int, str]] = Counter()
    for view in scenario(tmp_path, "engine.async_scheduling=false").steps(blocks=True):
        held.update((block.block_id, block.hash) for block in view.blocks_cached)
        held.subtract((block.block_id, block.hash) for block in view.blocks_evicted)
        assert set(held.values()) <= {0, 1}
        assert view.block_map is not None
        mapped = {(block.block_id, digest) for block in view.block_map.blocks for digest in block.hashes}
        assert {key for key, count in held.items() if count} == mapped


def test_a_later_start_shows_the_same_steps(tmp_path: Path) -> None:
    given = scenario(tmp_path)
    whole = list(given.steps(blocks=True))
    assert list(given.steps(30, 5, blocks=True)) == whole[29:34]
    assert list(given.steps(len(whole), 10**30)) == [*given.steps(len(whole))]


def test_nothing_is_simulated_beyond_the_last_step_asked_for(tmp_path: Path) -> None:
    given = scenario(tmp_path, "workload.num_requests=1000000000", "engine.async_scheduling=false")
    begun: list[int] = []
    views = scenario_steps(given, 3, count=2, on_step=lambda done, now: begun.append(done))
    assert [view.step for view in views] == [3, 4]
    assert begun == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("overrides", "first", "count", "words"),
    [
        ([], 0, None, "first must be at least 1, not 0"),
        ([], 1, 0, "count must be at least 1, not 0"),
        ([], 10**9, None, "step 1,000,000,000 is beyond the last one: the run has "),
        (["horizon=0.0001", "workload.rate=1"], 1, None, "step 1 is beyond the last one: the run has 0"),
        (["workload.prefix_len=600"], 1, None, "all 40 requests were refused: "),
    ],
)
def test_bad_wishes_are_told(
    tmp_path: Path, overrides: list[str], first: int, count: int | None, words: str
) -> None:
    with pytest.raises(KvsimError, match=words):
        list(scenario(tmp_path, *overrides).steps(first, count))
