"""Speculative decoding: how many drafts are accepted, and that the output does not change."""

import pytest
from engine_runs import drain, engine, request, rows_by_id

METHODS = pytest.mark.parametrize("method", ["ngram", "eagle"])


def run(rate, drafts, method="ngram", is_async=False, outputs=3000, **flags):
    core = engine(
        num_gpu_blocks=5000,
        max_model_len=8192,
        block_size=16,
        spec_method=method,
        num_speculative_tokens=drafts,
        acceptance_rate=rate,
        async_scheduling=is_async,
        **flags,
    )
    for i in range(4):
        core.add_request(request(f"r{i}", 20, outputs))
    drain(core, limit=100_000)
    assert {int(row["num_tokens"]) for row in rows_by_id(core).values()} == {20 + outputs}
    return core.stats()


@METHODS
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(("rate", "drafts"), [(0.0, 3), (0.3, 1), (0.7, 3), (0.9, 5), (1.0, 2)])
def test_share_of_accepted_drafts(method, is_async, rate, drafts):
    """A draft counts only if the one before it was accepted: rate + rate^2 + ... of `drafts` per step."""
    stats = run(rate, drafts, method, is_async)
    expected = sum(rate**i for i in range(1, drafts + 1)) / drafts
    accepted = stats["spec_decode_num_accepted_tokens"] / stats["spec_decode_num_draft_tokens"]
    assert accepted == pytest.approx(expected, abs=0.02)
    assert stats["generation_tokens"] == 4 * 3000


def test_accepted_drafts_save_steps():
    steps = {rate: run(rate, 3, outputs=1000)["num_steps"] for rate in (0.0, 0.5, 1.0)}
    assert steps[0.0] == 1000
    assert steps[1.0] == pytest.approx(250, abs=3)
    assert steps[1.0] < steps[0.5] < steps[0.0]


def test_the_same_run_twice():
    assert run(0.6, 4, outputs=500) == run(0.6, 4, outputs=500)


def test_a_request_stops_inside_accepted_drafts():
    core = engine(spec_method="ngram", num_speculative_tokens=7, acceptance_rate=1.0, async_scheduling=False)
    core.add_request(request("r", 20, 5, max_tokens=50))
    drain(core)
    row = rows_by_id(core)["r"]
    assert row["num_tokens"] == 25
    assert core.stats()["generation_tokens"] == 5


def test_requests_draw_independently():
    """With one stream for all, every batch would accept alike and steps would come in lockstep."""
    core = engine(
        num_gpu_blocks=2000,
        max_model_len=1024,
        spec_method="ngram",
        num_speculative_tokens=4,
        acceptance_rate=0.5,
        async_scheduling=False,
    )
    for i in range(8):
        core.add_request(request(f"r{i}", 20, 200))
    for _ in range(20):
        core.step(0.0)
    tokens = {int(n) for n in core.live_requests()[1]["num_tokens"]}
    assert len(tokens) > 3


def test_draft_heads_need_slots_of_their_own():
    """The last draft slots of a draft head may lie in one block more than n-gram drafts need."""
    held = {}
    for method in ("ngram", "eagle"):
        core = engine(spec_method=method, num_speculative_tokens=3, async_scheduling=False)
        core.add_request(request("r", 15, 9))
        core.step(0.0)
        held[method] = int(core.kv.rows["num_blocks"][core.requests["row"][core.slot_of("r")], 0])
    assert held == {"ngram": 4, "eagle": 5}
