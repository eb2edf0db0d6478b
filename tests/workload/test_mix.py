"""Workloads mixed by weight."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from sessions import turns

from kvsim.workload import ChatWorkload, ImageWorkload, MixPart, MixWorkload, SharedPrefixWorkload
from kvsim.workload.checks import FieldError
from kvsim.workload.request import RequestBlock

CHAT = ChatWorkload(rate=1, num_turns=3, num_loras=2)
DOCUMENTS = SharedPrefixWorkload(rate=1, num_tenants=4, num_loras=5)
PICTURES = ImageWorkload(rate=1, image_tokens=50)
PARTS = {"chat": MixPart(3, CHAT), "documents": MixPart(1.5, DOCUMENTS), "pictures": MixPart(0.5, PICTURES)}
MIX = MixWorkload(parts=PARTS, rate=10, num_arrivals=4000)


def plain(request):
    return request.prompt.tolist(), request.output.tolist(), request.cache_salt, request.lora


def of_part(requests, name):
    return [request for request in requests if request.request_id.startswith(name + "/")]


def test_arrivals_come_at_one_rate_and_belong_to_parts_by_weight():
    requests = list(MIX.requests(0))
    times = np.array([request.arrival_time for request in requests])
    assert (np.diff(times) >= 0).all()
    assert times[-1] / len(times) == pytest.approx(0.1, rel=0.05)
    shares = Counter(request.request_id.split("/")[0] for request in requests)
    assert shares == {"chat": 2425, "documents": 1169, "pictures": 406}


def test_a_part_sends_what_it_would_send_alone():
    """Only the seed is its own, so another part changes nothing but who comes when."""
    others = MixWorkload(parts=PARTS | {"pictures": MixPart(9, CHAT)}, rate=3, num_arrivals=3000)
    for name in ("chat", "documents"):
        here, there = of_part(MIX.requests(0), name), of_part(others.requests(0), name)
        both = min(len(here), len(there))
        assert both > 100
        assert [plain(one) for one in here[:both]] == [plain(one) for one in there[:both]]
        names = [f"{name}/session-{i}-turn-1" if name == "chat" else f"{name}/req-{i}" for i in range(both)]
        assert [request.request_id for request in here[:both]] == names


def test_sessions_go_on_under_the_name_of_their_part():
    first = of_part(MIX.requests(0), "chat")[0]
    requests = list(turns(first))
    assert [request.request_id for request in requests] == [f"chat/session-0-turn-{n}" for n in (1, 2, 3)]
    assert {request.session for request in requests} == {"chat/session-0"}
    assert len({request.lora for request in requests}) == 1


def test_pictures_of_parts_are_different_ones():
    twice = MixWorkload(parts={"a": MixPart(1, PICTURES), "b": MixPart(1, PICTURES)}, rate=1, num_arrivals=50)
    names = {image.identifier.split("/")[0] for request in twice.requests(0) for image in request.features}
    assert names == {"a", "b"}


@pytest.mark.parametrize("rate", [math.inf, 5.0])
def test_a_closed_loop_has_the_weights_too(rate):
    mix = replace(MIX, rate=rate, num_arrivals=None, max_concurrency=8)
    block = next(mix.blocks(0))
    assert 500 < sum(name.startswith("chat/") for name in block.request_ids) < 700
    assert mix.num_requests is None


def test_what_the_mix_says_of_itself():
    assert (MIX.num_requests, MIX.has_follow_ups, MIX.num_loras) == (None, True, 5)
    texts = MixWorkload(parts={"a": MixPart(1, DOCUMENTS)}, rate=1, num_arrivals=7)
    assert (texts.num_requests, texts.has_follow_ups) == (7, False)
    assert len(list(texts.requests(0))) == 7


def test_blocks_are_their_requests():
    for block in MIX.blocks(2):
        again = RequestBlock.of(list(block))
        assert again.request_ids == block.request_ids
        assert np.array_equal(again.segments, block.segments)
        assert np.array_equal(again.bounds, block.bounds)
        assert np.array_equal(again.prompt_ends, block.prompt_ends)
        for column in ("features", "cache_salts", "loras", "sessions", "follow_ups"):
            assert getattr(again, column) == getattr(block, column)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"parts": {}}, r"parts: \{\} is not a mapping of names to workloads"),
        ({"parts": {"a/b": MixPart(1, CHAT)}}, "parts: 'a/b' is not a name"),
        ({"parts": {"a": MixPart(0, CHAT)}}, "parts.a.weight: 0 is out of range"),
        ({"parts": {"a": CHAT}}, "parts.a: .* is not a MixPart"),
        ({"rate": math.inf, "num_arrivals": None}, "num_arrivals: missing; rate inf sends all"),
    ],
)
def test_bad_values(changes, says):
    with pytest.raises(FieldError, match=says):
        replace(MIX, **changes)
