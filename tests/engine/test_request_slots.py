"""Memory of live requests: rows, hashes and features move and are used again, nothing is mixed up."""

import random

import numpy as np
import pytest
from engine_runs import drain, engine, request, rows_by_id
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.hashing import BlockContent
from kvsim.cache.integrity import check_integrity
from kvsim.cache.request_table import moved_together
from kvsim.cache.state import FINISHED_ABORTED, FINISHED_LENGTH_CAPPED
from kvsim.errors import KvsimError


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30), st.integers(0, 100))
def test_ranges_moved_together_keep_what_they_held(ranges, num_more):
    """Ranges with gaps between them, each filled with its own number, at the front of an array with room."""
    gaps, lengths = np.array(ranges, np.int64).reshape(-1, 2).T
    starts = np.cumsum(gaps + lengths) - lengths
    array = np.zeros(8 + int((gaps + lengths).sum()), np.int64)
    for number, (start, length) in enumerate(zip(starts, lengths, strict=True), 1):
        array[start : start + length] = number
    moved, new_starts = moved_together(array, starts, lengths, num_more)
    for number, (start, length) in enumerate(zip(new_starts, lengths, strict=True), 1):
        assert (moved[start : start + length] == number).all()
    assert (np.diff(new_starts) >= 0).all()
    assert len(moved) - lengths.sum() >= max(num_more, len(moved) // 2)


def hashes_of(core, name):
    slot = core.slot_of(name)
    first, n = core.requests["hash_offset"][slot], core.requests["num_hash_blocks"][slot]
    return core.kv.block_hashes[first : first + n]


def test_thousands_of_waiting_requests_keep_their_own_hashes():
    core, random_ = engine(), random.Random(5)
    expected = {}
    for i in range(4000):
        r = request(f"r{i}", random_.randrange(1, 40), random_.randrange(1, 9), stream=1 + i % 7)
        content = BlockContent(r.num_prompt_tokens)
        expected[r.request_id] = core.hasher(np.concatenate([r.prompt, r.output]), content)
        core.add_request(r)
        if i % 3 == 2:
            name = random_.choice(list(expected))
            core.abort_request(name, 0.0)
            del expected[name]
            core.take_finished()
    assert len(core.requests) < 2 * 4000
    for name, hashes in expected.items():
        assert np.array_equal(hashes_of(core, name), hashes)
    check_integrity(core)


def test_memory_follows_the_live_requests_not_the_trace():
    core = engine()
    for i in range(3000):
        core.add_request(request(f"r{i}", 20, 1, stream=1))
        drain(core)
        core.take_finished()
    assert len(core.requests) == 64
    assert len(core.kv.block_hashes) == 1024
    assert len(core.state.features) == 64
    assert core.live_requests()[0] == []


def test_images_move_with_their_requests():
    core = engine(encoder_cache_size=100, max_num_batched_tokens=64)
    for i in range(300):
        core.add_request(request(f"r{i}", 24, 2, image=(4 + i % 9, 8)))
        core.add_request(request(f"text{i}", 5, 2))
    for i in range(0, 300, 2):
        core.abort_request(f"r{i}", 0.0)
    core.take_finished()
    for i in range(200):
        core.add_request(request(f"more{i}", 24, 2, image=(i % 9, 8)))
    for name, offset in [
        *((f"r{i}", 4 + i % 9) for i in range(1, 300, 2)),
        *((f"more{i}", i % 9) for i in range(200)),
    ]:
        slot = core.slot_of(name)
        feature = core.state.features[core.requests["feature_offset"][slot]]
        assert (feature["offset"], feature["length"]) == (offset, 8)
    drain(core, limit=100_000)
    ended = rows_by_id(core)
    assert len(ended) == 150 + 300 + 200
    assert {int(row["status"]) for row in ended.values()} == {FINISHED_LENGTH_CAPPED}


@pytest.mark.parametrize("version", ["0.33", "0.16"])
@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_a_slot_used_again_while_its_last_owners_batch_is_in_flight(version, num_steps):
    core = engine(vllm_version=version)
    core.add_request(request("first", 20, 8))
    now = 0.0
    for _ in range(num_steps):
        now = core.step(now)
    slot = core.slot_of("first")
    assert core.state.scalars["num_batches"][0] >= 1
    core.abort_request("first", now)
    assert rows_by_id(core)["first"]["status"] == FINISHED_ABORTED
    core.add_request(request("second", 30, 5), now)
    assert core.slot_of("second") == slot
    drain(core, now)
    row = rows_by_id(core)["second"]
    assert (row["num_tokens"], row["num_preemptions"], row["num_in_flight_tokens"]) == (35, 0, 0)
    assert row["first_scheduled_time"] >= now
    check_integrity(core)
    assert core.kv.pool.scalars["num_free_blocks"][0] == 199


def test_an_id_in_use():
    core = engine()
    core.add_request(request("a"))
    with pytest.raises(KvsimError, match="request id 'a' is in use"):
        core.add_request(request("a"))
    drain(core)
    with pytest.raises(KvsimError, match="request id 'a' is in use"):  # its record waits to be collected
        core.add_request(request("a"))
    core.take_finished()
    core.add_request(request("a"))
    assert core.live_requests()[0] == ["a"]
