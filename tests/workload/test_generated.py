"""Arrivals, shared prefixes and tags."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.tokens import expand
from kvsim.workload.checks import FieldError
from kvsim.workload.popularity import Popularity
from kvsim.workload.shared_prefix import SharedPrefixWorkload

BASE = SharedPrefixWorkload(rate=20.0, num_requests=3000, num_prefixes=5, prefix_len=64, suffix_len=32)


def times(**changes):
    return np.array([request.arrival_time for request in replace(BASE, **changes).requests(0)])


def test_poisson_arrivals():
    gaps = np.diff(times(), prepend=0.0)
    assert (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("burstiness", [0.25, 4.0])
def test_burstiness_is_the_shape_of_the_gaps(burstiness):
    gaps = np.diff(times(burstiness=burstiness), prepend=0.0)
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.1)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.1)


def test_constant_arrivals_start_at_zero():
    assert np.array_equal(times(arrival="constant"), np.arange(3000) / 20.0)


def test_infinite_rate_is_all_at_once():
    assert not times(rate=math.inf).any()


def test_prompts_share_their_groups_prefix_and_nothing_else():
    requests = list(replace(BASE, num_requests=60).requests(0))
    by_group: dict[bytes, list[np.ndarray]] = {}
    for request in requests:
        tokens = expand(request.prompt)
        assert len(tokens) == request.num_prompt_tokens == 96
        by_group.setdefault(tokens[:64].tobytes(), []).append(tokens[64:])
    assert len(by_group) == 5
    suffixes = [suffix.tobytes() for group in by_group.values() for suffix in group]
    assert len(set(suffixes)) == 60


def test_empty_parts_are_left_out():
    only_prefix = next(replace(BASE, suffix_len=0).requests(0))
    assert only_prefix.prompt.shape == (1, 3)
    assert only_prefix.num_prompt_tokens == 64


def test_max_tokens_is_the_output_length_or_the_clients_limit():
    for limit, expected in [(None, (128, 128)), (50, (50, 50)), (500, (500, 128))]:
        requests = replace(BASE, max_tokens=limit).requests(0)
        assert {(request.max_tokens, request.num_output_tokens) for request in requests} == {expected}


def test_tags():
    requests = list(replace(BASE, num_tenants=2, num_loras=3, priority=4).requests(0))
    assert {request.cache_salt for request in requests} == {"tenant-0", "tenant-1"}
    assert {(r.lora.name, r.lora.int_id) for r in requests} == {("lora-1", 1), ("lora-2", 2), ("lora-3", 3)}
    assert {request.priority for request in requests} == {4}
    assert {(r.cache_salt, r.lora, r.priority) for r in BASE.requests(0)} == {(None, None, 0)}


def test_zipf_popularity():
    picks = Counter(Popularity(np.random.default_rng(0), 10, "zipf", 1.0).draw(100_000).tolist())
    harmonic = sum(1 / k for k in range(1, 11))
    for index in range(10):
        assert picks[index] / 100_000 == pytest.approx(1 / (index + 1) / harmonic, rel=0.1)


@given(st.integers(1, 50), st.lists(st.integers(0, 70), max_size=6))
def test_cycle_goes_on_where_it_stopped(size, counts):
    cycle = Popularity(np.random.default_rng(0), size, "cycle")
    drawn = np.concatenate([np.zeros(0, np.int64), *(cycle.draw(count) for count in counts)])
    assert drawn.tolist() == [i % size for i in range(sum(counts))]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"rate": 0}, "rate"),
        ({"rate": -1.0}, "rate"),
        ({"rate": math.nan}, "rate"),
        ({"rate": 1e30}, "rate"),
        ({"rate": True}, "rate"),
        ({"rate": math.inf, "num_requests": None}, "num_requests"),
        ({"num_requests": 0}, "num_requests"),
        ({"num_requests": 1.0}, "num_requests"),
        ({"arrival": "gamma"}, "arrival"),
        ({"burstiness": 0}, "burstiness"),
        ({"output_len": 0}, "output_len"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"num_tenants": -1}, "num_tenants"),
        ({"num_loras": 1e30}, "num_loras"),
        ({"priority": "high"}, "priority"),
        ({"num_prefixes": 0}, "num_prefixes"),
        ({"popularity": "pareto"}, "popularity"),
        ({"zipf_alpha": math.nan}, "zipf_alpha"),
        ({"prefix_len": -5}, "prefix_len"),
        ({"prefix_len": 0, "suffix_len": 0}, "suffix_len"),
    ],
)
def test_bad_values_name_their_field(changes, field):
    with pytest.raises(FieldError) as caught:
        replace(BASE, **changes)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)
