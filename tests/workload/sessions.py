"""Sessions played in the simplest way: each request alone, its next one when it has ended."""

from collections.abc import Iterator

from kvsim.engine.config import EngineConfig
from kvsim.engine.core import EngineCore
from kvsim.workload import Request


def turns(first: Request, service_time: float = 1.0, said: int | None = None) -> Iterator[Request]:
    """A session's requests, each answered in `service_time` with `said` tokens (None: all of them)."""
    request: Request | None = first
    while request is not None:
        yield request
        after, end = request.follow_up, request.arrival_time + service_time
        answer = request.num_output_tokens if said is None else min(said, request.num_output_tokens)
        request = None if after is None else after.next_request(end + after.think_time, answer)


def cached_tokens(requests: Iterator[Request], block_size: int = 16) -> list[int]:
    """Prompt tokens that each request finds in the cache of an engine that serves one after another."""
    config = EngineConfig(
        block_size=block_size,
        num_gpu_blocks=2000,
        max_model_len=16384,
        max_num_batched_tokens=16384,
        max_num_seqs=4,
        vllm_version="0.33",
    )
    core, found = EngineCore(config, None), []
    for request in requests:
        core.add_request(request)
        while core.has_requests():
            core.step(request.arrival_time)
        found.append(int(core.take_finished()[1]["num_cached_tokens"][0]))
    return found
