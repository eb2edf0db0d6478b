"""Parts of a block of requests are those requests."""

import numpy as np
import pytest

from kvsim.workload import ImageWorkload, SharedPrefixWorkload
from kvsim.workload.request import Request, RequestBlock

IMAGES = ImageWorkload(rate=5, num_requests=12, num_tenants=3, num_loras=2, image_tokens=20)
TEXTS = SharedPrefixWorkload(
    rate=5, num_requests=12, suffix_len={"distribution": "uniform", "min": 1, "max": 9}
)


def plain(request: Request) -> tuple:
    rest = (request.features, request.cache_salt, request.lora, request.priority, request.session)
    sizes = request.num_prompt_tokens, request.num_output_tokens, request.max_tokens
    return (
        request.request_id,
        request.arrival_time,
        request.prompt.tolist(),
        request.output.tolist(),
        sizes,
        rest,
    )


@pytest.mark.parametrize("workload", [IMAGES, TEXTS])
@pytest.mark.parametrize(
    "part", [slice(None), slice(0, 12), slice(3, 7), slice(-2, None), slice(7, 3), slice(None, None, 3)]
)
def test_a_part_of_a_block_has_the_requests_of_the_slice(workload, part: slice) -> None:
    block = next(iter(workload.blocks(1)))
    requests = list(block)[part]
    picked = block[part]
    assert isinstance(picked, RequestBlock)
    assert [plain(request) for request in picked] == [plain(request) for request in requests]
    assert picked.num_prompt_tokens.tolist() == [request.num_prompt_tokens for request in requests]
    assert picked.num_output_tokens.tolist() == [request.num_output_tokens for request in requests]
    assert len(picked.segments) == sum(len(request.prompt) + len(request.output) for request in requests)


def test_the_whole_block_is_the_block_itself() -> None:
    block = next(iter(TEXTS.blocks(1)))
    assert block[:] is block
    assert block[0 : len(block)] is block
    assert np.shares_memory(block[2:5].segments, block.segments)
