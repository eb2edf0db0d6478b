"""Made-up requests for routers."""

from collections.abc import Sequence

import numpy as np

from kvsim.cluster.policy import Policy
from kvsim.cluster.router import Router, TargetFacts
from kvsim.tokens import Segments, segments, stream_key
from kvsim.workload.request import LoRA, Request


def prompt_of(*pieces: tuple[str, int]) -> Segments:
    """A prompt of pieces (name of a stream, tokens)."""
    return segments(*((stream_key("piece", name), 0, length) for name, length in pieces))


def request(
    *pieces: tuple[str, int],
    request_id: str = "r",
    salt: str | None = None,
    lora: LoRA | None = None,
    session: str | None = None,
) -> Request:
    """A request that arrives at 0 and asks for 16 tokens."""
    prompt, output = prompt_of(*pieces), segments((stream_key("output", request_id), 0, 16))
    return Request(request_id, 0.0, prompt, output, 16, cache_salt=salt, lora=lora, session=session)


def router_over(policy: Policy, num_targets: int, seed: int = 0, **facts: int) -> Router:
    """A router over targets named t0, t1, ... of 1,000 blocks of 16 tokens."""
    facts = {"num_gpu_blocks": 1000, **facts}
    return Router(policy, [TargetFacts(f"t{t}", **facts) for t in range(num_targets)], seed)


def block_keys(router: Router, request: Request) -> list[int]:
    """First words of the hashes of a request's full blocks, as KV events carry them."""
    router.choose(request, 0.0)
    return [int(key) for key in np.array(router.state.hashes[:, 0])]


def store(router: Router, target: int, keys: Sequence[int]) -> None:
    for key in keys:
        router.stored(target, key)
