"""A run replayed request by request."""

import gzip
import json

import numpy as np
import pandas as pd
import pytest

from kvsim.errors import KvsimError
from kvsim.plots import save
from kvsim.plots.replayed import draw_replay
from kvsim.scenario import Scenario
from kvsim.validate.replay import prompts_of, read_run, replay, waiting_rises

ENGINE = {"num_gpu_blocks_override": 60, "max_model_len": 512, "max_num_seqs": 32}
SCENARIO = {"name": "small", "model": "Qwen3-0.6B", "gpu": "L4", "vllm_version": "0.16"}
WORKLOAD = {
    "type": "shared_prefix",
    "rate": 400.0,
    "num_requests": 60,
    "num_prefixes": 1,
    "prefix_len": 0,
    "suffix_len": {"distribution": "uniform", "min": 20, "max": 200},
    "output_len": {"distribution": "uniform", "min": 5, "max": 150},
}


def scenario(**engine):
    return Scenario(**SCENARIO, engine=ENGINE | engine, workload=WORKLOAD)


@pytest.fixture(scope="module")
def served():
    """Rows of a simulated run that preempts, as if measured."""
    frame = scenario().run().requests
    assert frame.num_preemptions.sum() > 5
    return pd.DataFrame(
        {
            "request_id": frame.request_id,
            "input_toks": frame.num_prompt_tokens,
            "output_toks": frame.num_output_tokens,
            "arrival_s": frame.arrival_time,
            "queued_s": frame.queued_time,
            "scheduled_s": frame.first_scheduled_time,
            "first_token_s": frame.first_token_time,
            "last_token_s": frame.finish_time,
        }
    )


@pytest.fixture
def requests_file(served, tmp_path):
    path = tmp_path / "made_requests.csv"
    served.to_csv(path, index=False)
    return path


def counters(path, result):
    result.series.iloc[:: max(len(result.series) // 20, 1)].to_csv(path, index=False)


def test_our_own_run_is_replayed_exactly(requests_file) -> None:
    result = replay(read_run(requests_file), scenario())
    assert result.table().error.abs().max() < 1e-6
    assert result.num_preemptions > 5
    assert result.errors()["mape"] < 1e-6


def test_another_engine_shows(requests_file) -> None:
    slower = replay(read_run(requests_file), scenario(max_num_seqs=4))
    table = slower.table().set_index(["latency", "of"])
    assert table.error["ttft", "mean"] > 20
    assert slower.num_preemptions == 0


def test_the_gate_is_on_when_asked_for_whatever_the_release(requests_file) -> None:
    run = read_run(requests_file)
    chunks = {"max_num_batched_tokens": 64}  # without the gate the first one decides
    without, gated = (replay(run, scenario(scheduler_reserve_full_isl=on, **chunks)) for on in (None, True))
    assert gated.num_preemptions < without.num_preemptions
    assert scenario().engine.scheduler_reserve_full_isl is False
    assert Scenario(
        **SCENARIO | {"vllm_version": "0.33"}, workload=WORKLOAD
    ).engine.scheduler_reserve_full_isl


def test_counters_are_read_and_drawn(requests_file, tmp_path) -> None:
    bare = replay(read_run(requests_file), scenario())
    assert bare.measured.series is None
    counters(tmp_path / "made_timeseries.csv", bare)
    result = replay(read_run(requests_file), scenario())
    series = result.measured.series
    assert series is not None
    at = result.series.set_index("t").loc[series.t]
    assert np.array_equal(at.kv_cache_pct, series.kv_cache_pct)
    assert np.array_equal(at.running, series.running)
    figure = draw_replay(result, "made")
    assert [ax.get_ylabel().split(",")[0].split("\n")[0] for ax in figure.axes] == [
        "KV cache",
        "running",
        "waiting",
        "preemptions",
    ]
    save(figure, tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 10_000


def test_rises_of_the_waiting_counter() -> None:
    times, waiting = pd.Series([1.0, 2, 3, 4, 5, 6]), pd.Series([0, 5, 4, 6, 6, 7])
    assert waiting_rises(times, waiting, after=2.5).tolist() == [0, 0, 0, 2, 2, 3]


def trace_file(path, served, lengths=None):
    lines = [
        {"timestamp": 10 * i, "input_length": n, "output_length": 5, "hash_ids": list(range(-(-n // 16)))}
        for i, n in enumerate(lengths if lengths is not None else served.input_toks.tolist())
    ]
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return path


def test_a_trace_gives_the_prompts(requests_file, served, tmp_path) -> None:
    trace = prompts_of(trace_file(tmp_path / "t.jsonl.gz", served))
    shared = replay(read_run(requests_file), scenario(), trace)
    assert shared.requests.num_cached_tokens.sum() > 0  # every prompt begins like the others


@pytest.mark.parametrize(
    ("lengths", "said"),
    [([64, 65], "2 rows, but .* has 60 requests"), ([64] * 60, "line 1: 64 prompt tokens, but req-0 of")],
)
def test_a_trace_of_another_run_is_refused(requests_file, served, tmp_path, lengths, said) -> None:
    trace = prompts_of(trace_file(tmp_path / "t.jsonl.gz", served, lengths))
    with pytest.raises(KvsimError, match=said):
        replay(read_run(requests_file), scenario(), trace)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("queued_s", -1.0, "row 3: queued_s is -1.0, not a number from 0"),
        ("output_toks", "x", "row 3: output_toks is x, not a number from 0"),
        ("output_toks", 0, "row 3: output_toks must be 1 or more"),
        ("first_token_s", 0.0, "row 3: first_token_s lies before queued_s"),
    ],
)
def test_bad_rows_say_what_is_wrong(served, tmp_path, column, value, said) -> None:
    frame = served.astype(object)
    frame.loc[2, column] = value
    frame.to_csv(tmp_path / "x_requests.csv", index=False)
    with pytest.raises(KvsimError, match=said):
        read_run(tmp_path / "x_requests.csv")
