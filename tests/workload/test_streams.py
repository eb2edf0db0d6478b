"""Named streams: what is drawn in one part must not depend on another, nor on the process."""

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.tokens import mix64
from kvsim.workload.image import ImageWorkload
from kvsim.workload.request import Request
from kvsim.workload.shared_prefix import SharedPrefixWorkload
from kvsim.workload.streams import BLOCK, token_streams

UNIFORM = {"distribution": "uniform", "min": 10, "max": 200}
SHARED = SharedPrefixWorkload(
    rate=7.5,
    num_requests=2500,
    num_prefixes=20,
    prefix_len=UNIFORM,
    suffix_len={"distribution": "lognormal", "average": 80},
    output_len={"distribution": "poisson", "alpha": 30},
    popularity="zipf",
    num_tenants=3,
    num_loras=2,
    priority={"distribution": "choice", "values": [-1, 0, 5]},
)
IMAGES = ImageWorkload(
    rate=3.0,
    num_requests=2500,
    num_images=0,
    images_per_request={"distribution": "uniform", "min": 0, "max": 3},
    image_size=[[640, 480], [1152, 864]],
    processor="qwen3-vl",
    num_instructions=4,
    instruction_len=UNIFORM,
)


def digest(requests) -> str:
    """Of every field of every request."""
    whole = hashlib.sha256()
    for request in requests:
        plain = (request.request_id, request.arrival_time.hex(), request.max_tokens, request.features)
        tags = (request.cache_salt, request.lora, request.priority, request.session)
        whole.update(repr((plain, tags)).encode())
        whole.update(request.prompt.tobytes() + request.output.tobytes())
    return whole.hexdigest()


def same(one: Request, other: Request) -> bool:
    return digest([one]) == digest([other])


@pytest.mark.parametrize("workload", [SHARED, IMAGES])
def test_seed_decides(workload):
    assert digest(workload.requests(1)) == digest(workload.requests(1))
    assert digest(workload.requests(1)) != digest(workload.requests(2))


@pytest.mark.parametrize("workload", [SHARED, IMAGES])
@pytest.mark.parametrize("count", [1, BLOCK, BLOCK + 1, 2000])
def test_fewer_requests_are_the_first_ones(workload, count):
    fewer = replace(workload, num_requests=count)
    assert digest(fewer.requests(0)) == digest(islice(workload.requests(0), count))


def test_endless_workload_is_lazy():
    endless = replace(SHARED, num_requests=None)
    assert digest(islice(endless.requests(0), 2500)) == digest(SHARED.requests(0))


def test_a_change_in_one_part_leaves_the_others():
    """Other output lengths and tenants: arrivals, groups and prompts stay."""
    other = replace(SHARED, output_len={"distribution": "uniform", "min": 1, "max": 99}, num_tenants=50)
    for one, two in zip(SHARED.requests(0), other.requests(0), strict=True):
        assert one.arrival_time == two.arrival_time
        assert np.array_equal(one.prompt, two.prompt)
        assert (one.priority, one.lora) == (two.priority, two.lora)
    assert digest(SHARED.requests(0)) != digest(other.requests(0))


_ELSEWHERE = """
import sys
sys.path.insert(0, {folder!r})
from test_streams import SHARED, IMAGES, digest
print(digest(SHARED.requests(5)), digest(IMAGES.requests(5)))
"""


def test_another_process_makes_the_same_requests():
    script = _ELSEWHERE.format(folder=os.path.dirname(__file__))
    printed = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "4242")
    ]
    assert printed[0].split() == [digest(SHARED.requests(5)), digest(IMAGES.requests(5))]
    assert printed[0] == printed[1]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40))
def test_token_streams_are_distinct_and_never_the_placeholder(base, first):
    keys = token_streams(base, first, 100)
    assert len(set(keys.tolist())) == 100
    assert keys.all()


def test_token_streams_are_the_same_however_they_are_cut():
    whole = token_streams(99, 0, 50)
    assert np.array_equal(whole, np.concatenate([token_streams(99, 0, 20), token_streams(99, 20, 30)]))
    assert int(whole[0]) == int(mix64(np.uint64(99)))
