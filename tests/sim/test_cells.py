"""Cells: parts of a cluster that share no router, computed anywhere and in any order."""

import numpy as np
import pytest

from kvsim.scenario import load_scenario
from kvsim.sim.run import run_scenario, run_to_folder
from kvsim.sweep.cells import cells_on

TEXT = """\
name: cells
model: Qwen3-0.6B
gpu: L4
engine: {num_gpu_blocks_override: 400, max_model_len: 2048, max_num_seqs: 16}
record: {steps: true, events: true}
workload:
  type: mix
  rate: 20
  num_arrivals: 160
  parts:
    chat:
      type: chat
      num_turns: {distribution: uniform, min: 1, max: 4}
      question_len: {distribution: uniform, min: 10, max: 300}
      output_len: {distribution: uniform, min: 1, max: 60}
      think_time: 0.5
    text: {type: shared_prefix, weight: 2, output_len: {distribution: uniform, min: 1, max: 60}}
cluster:
  routers:
    day: {policy: dynamo_kv, share: 3, kv_event_delay: 0.02}
    night: {policy: power_of_two}
    late: {policy: session, share: 2}
  groups:
    a: {router: day, replicas: 3}
    b: {router: night, replicas: 2}
    c: {router: late, replicas: 2, model: qwen3-4b}
"""


@pytest.fixture
def load(tmp_path):
    def loaded(*overrides):
        (tmp_path / "cells.yaml").write_text(TEXT)
        return load_scenario(tmp_path / "cells.yaml", overrides)

    return loaded


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_cells_in_processes_give_the_same_bytes(load, tmp_path):
    scenario = load()
    _, here = run_to_folder(scenario, tmp_path / "here")
    with cells_on(scenario, workers=2) as map_cells:
        _, there = run_to_folder(scenario, tmp_path / "there", map_cells=map_cells)
    assert contents(here) == contents(there)
    assert {"requests.parquet", "steps.parquet", "events.parquet", "summary.json"} <= contents(here).keys()


def test_the_order_in_which_cells_are_computed_does_not_matter(load):
    def last_first(compute, numbers):
        return [*map(compute, reversed(numbers))][::-1]

    scenario = load()
    forwards, backwards = run_scenario(scenario), run_scenario(scenario, map_cells=last_first)
    assert forwards.requests.equals(backwards.requests)
    assert forwards.metrics == backwards.metrics


def test_what_happens_in_one_cell_changes_nothing_in_another(load):
    """Not its policy, not its replicas, not their pools."""
    changed = load(
        "cluster.routers.night.policy=round_robin",
        "cluster.groups.b.replicas=1",
        "cluster.groups.b.engine.num_gpu_blocks_override=100",
    )
    before, after = load().run().requests, changed.run().requests
    for name, first, first_after in (("day", 0, 0), ("late", 5, 4)):
        count = {"day": 3, "late": 2}[name]
        own = before[before.instance.between(first, first + count - 1)]
        same = after[after.instance.between(first_after, first_after + count - 1)]
        assert len(own) > 20
        for column in own.columns.drop("instance"):
            assert own[column].tolist() == same[column].tolist() or np.allclose(
                own[column], same[column], rtol=0, atol=0, equal_nan=True
            ), (name, column)


def test_requests_are_dealt_by_share_and_sessions_stay(load):
    frame = load("workload.num_arrivals=3000", "record.steps=false", "record.events=false").run().requests
    cell = np.searchsorted([0, 3, 5, 7], frame.instance, side="right")
    assert (frame.status == "finished").all()
    assert frame.groupby(frame.session.dropna()).instance.count().max() > 1
    assert (frame.assign(cell=cell).groupby("session").cell.nunique() == 1).all()
    begins = frame.session.isna() | frame.request_id.str.endswith("-turn-1")
    shares = np.bincount(cell[begins], minlength=4)[1:] / begins.sum()
    expected = np.array([3, 1, 2]) / 6
    assert np.abs(shares - expected).max() < 4 * (0.25 / 3000) ** 0.5  # four standard errors at most
