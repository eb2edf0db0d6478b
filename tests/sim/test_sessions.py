"""Sessions end to end: the next turn comes after the simulated answer and finds what was kept of it."""

import json

import numpy as np
import pytest

from kvsim.scenario import Scenario, load_scenario

BASE = {
    "name": "sessions",
    "model": "Qwen3-0.6B",
    "gpu": "L4",
    "engine": {"num_gpu_blocks_override": 4000, "max_model_len": 4096},
}
TWO_TURNS = {
    "type": "chat",
    "rate": 1,
    "num_sessions": 1,
    "num_turns": 2,
    "system_prompt_len": 60,
    "question_len": 40,
    "output_len": 60,
}
CHATS = {
    "type": "chat",
    "rate": 4,
    "num_sessions": 40,
    "num_turns": {"distribution": "uniform", "min": 1, "max": 6},
    "question_len": {"distribution": "uniform", "min": 10, "max": 300},
    "output_len": {"distribution": "uniform", "min": 1, "max": 120},
    "think_time": 2.5,
}


def run(workload, horizon=None, **engine):
    return result_of(workload, horizon, **engine).requests


def result_of(workload, horizon=None, **engine):
    values = BASE | {"engine": BASE["engine"] | engine}
    return Scenario(**values, horizon=horizon, workload=workload).run()


def by_session(frame):
    """Rows of each session, in order of their turns."""
    names = frame.request_id.str.extract(r"^(.*)-turn-(\d+)$")
    frame = frame.assign(name=names[0], turn=names[1].astype(int))
    return [rows.sort_values("turn") for _, rows in frame.groupby("name")]


@pytest.mark.parametrize(
    ("changes", "cached"),
    [
        ({}, [0, 144]),
        ({"output_len": 61}, [0, 160]),
        ({"output_len": 44}, [0, 128]),
        ({"reasoning_len": 200}, [0, 96]),
        ({"reasoning_len": 200, "keep_reasoning": True}, [0, 352]),
        ({"keep_answers": False}, [0, 96]),
    ],
)
def test_what_the_second_turn_finds(changes, cached):
    """APC-06 (kept answer) and APC-07 (dropped reasoning) of the public cases: prompts of 100 tokens."""
    assert run(TWO_TURNS | changes).num_cached_tokens.tolist() == cached


def test_a_turn_is_sent_when_the_answer_before_has_been_thought_about():
    frame = run(CHATS)
    assert (frame.status == "finished").all()
    assert frame.arrival_time.is_monotonic_increasing
    sessions = by_session(frame)
    assert len(sessions) == 40
    for rows in sessions:
        assert rows.turn.tolist() == list(range(1, len(rows) + 1))
        assert np.allclose(rows.arrival_time[1:], rows.finish_time[:-1] + 2.5, rtol=0, atol=1e-9)
        said = rows.num_prompt_tokens.to_numpy() + rows.num_output_tokens.to_numpy()
        full = (said[:-1] - 1) // 16 * 16  # the last token said is not in the cache
        assert rows.num_cached_tokens.tolist()[1:] == full.tolist()


def test_a_refused_turn_ends_its_session():
    result = result_of(CHATS | {"num_turns": 6, "question_len": 400, "output_len": 100}, max_model_len=2048)
    for rows in by_session(result.requests):
        assert rows.turn.tolist() == [1, 2, 3, 4]
        assert rows.status.tolist() == ["finished"] * 3 + ["refused"]
    assert result.metrics["num_requests_not_sent"] == 40 * 2
    assert "; 80 more not sent, as their sessions ended with a refused one" in str(result)
    assert result_of(CHATS).metrics["num_requests_not_sent"] == 0
    assert "num_requests_not_sent" not in result_of(CHATS | {"num_turns": 1}).metrics


def test_turns_after_a_refused_one_are_counted_with_limited_clients_and_in_mixes():
    chats = CHATS | {"num_turns": 6, "question_len": 400, "output_len": 100}
    mix = {"type": "mix", "rate": 4, "num_arrivals": 40, "parts": {"chats": {"weight": 1, **_part(chats)}}}
    for workload in (chats | {"max_concurrency": 3}, mix):
        result = result_of(workload, max_model_len=2048)
        assert len(result.requests) + result.metrics["num_requests_not_sent"] == 40 * 6


def _part(workload):
    return {key: value for key, value in workload.items() if key not in ("rate", "num_sessions")}


def test_turns_after_the_horizon_never_were():
    whole, cut = run(CHATS), run(CHATS, horizon=12.0)
    assert 0 < len(cut) < len(whole)
    assert (cut.arrival_time < 12.0).all()
    assert cut.request_id.tolist() == whole.request_id[: len(cut)].tolist()


@pytest.mark.parametrize("limit", [1, 5])
def test_limited_concurrency_holds_for_turns_too(limit):
    frame = run(CHATS | {"rate": "inf", "max_concurrency": limit, "think_time": 0.05})
    times = np.concatenate([frame.arrival_time, frame.finish_time])
    changes = np.repeat([1, -1], len(frame))
    assert np.cumsum(changes[np.lexsort([changes, times])]).max() == limit
    assert (frame.status == "finished").all()
    assert {len(rows) for rows in by_session(frame)} == {len(rows) for rows in by_session(run(CHATS))}


def test_a_mix_of_sessions_and_single_requests():
    parts = {"chat": {"type": "chat", "weight": 2, "num_turns": 3}, "text": {"type": "shared_prefix"}}
    frame = run({"type": "mix", "rate": 5, "num_arrivals": 60, "parts": parts})
    counts = frame.request_id.str.split("/").str[0].value_counts()
    assert counts["chat"] % 3 == 0
    assert counts["chat"] // 3 + counts["text"] == 60


def test_an_agent_trace(tmp_path):
    calls = [
        {"t": 0, "type": "n", "in": 130, "out": 20, "hash_ids": [1, 2], "api_time": 2},
        {"t": 9, "type": "n", "in": 200, "out": 20, "hash_ids": [1, 2, 3], "think_time": 4},
        {"t": 20, "type": "s", "in": 260, "out": 20, "hash_ids": [1, 2, 3, 4], "think_time": 1},
    ]
    sessions = [{"id": name, "block_size": 64, "requests": calls} for name in "ab"]
    (tmp_path / "agents.jsonl").write_text("".join(json.dumps(each) + "\n" for each in sessions))
    (tmp_path / "case.yaml").write_text(
        "model: Qwen3-0.6B\ngpu: L4\nengine: {num_gpu_blocks_override: 4000, max_model_len: 4096}\n"
        "workload: {type: trace, path: agents.jsonl}\n"
    )
    for rows in by_session(load_scenario(tmp_path / "case.yaml").run().requests):
        assert rows.num_cached_tokens.tolist() == [0, 128, 192]
        assert np.allclose(rows.arrival_time.diff()[1:] - rows.e2e[:-1].to_numpy(), [4.0, 1.0])


def test_requests_name_their_session():
    frame = run(CHATS)
    assert list(frame.columns[:2]) == ["request_id", "session"]
    assert (frame.session == frame.request_id.str.replace(r"-turn-\d+$", "", regex=True)).all()


def test_rows_of_a_trace_name_their_session_where_they_have_one(tmp_path):
    rows = [
        {"chat_id": 7, "parent_chat_id": -1, "timestamp": 0.0, "hash_ids": [1]},
        {"chat_id": 8, "parent_chat_id": 7, "timestamp": 1.0, "hash_ids": [1]},
    ]
    rest = {"input_length": 16, "output_length": 2, "turn": 1, "type": "text"}
    for name, drop in (("chats", ()), ("plain", ("chat_id", "parent_chat_id"))):
        kept = [{k: v for k, v in (row | rest).items() if k not in drop} for row in rows]
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in kept))
    chats, plain = (run({"type": "trace", "path": str(tmp_path / f"{n}.jsonl")}) for n in ("chats", "plain"))
    assert chats.session.tolist() == ["7", "7"]
    assert "session" not in plain.columns
