"""A scheduler's own loop on requests that all wait at the start: kvsim's or vLLM's.

    python all_waiting.py '{"side": "kvsim" or "vllm", "requests": N, "prefixes": P, ...}'

Requests have one of a few shared prefixes and a tail of their own; every sampled token is a dummy. Timed
is the loop of schedule and update; building, hashing and queueing the requests is timed apart. vLLM
needs no GPU (../../conformance/README.md says how to install it).
"""

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

CONFORMANCE = Path(__file__).resolve().parents[2] / "conformance"
COUNTS = ("steps", "scheduled_tokens", "sampled_tokens", "hit_tokens", "preemptions")
MIX, MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


def prefix_of(load: Any, i: int) -> int:
    """Which shared prefix request `i` begins with; the same on both sides."""
    return ((i * MIX & MASK) >> 32) % load.prefixes


# ---------------------------------------------------------------- kvsim


def kvsim_side(load: Any) -> dict[str, Any]:
    few = SimpleNamespace(**{**vars(load), "requests": 8})
    kvsim_run(few)  # load or compile the code
    return kvsim_run(load)


def kvsim_run(load: Any) -> dict[str, Any]:
    import math

    import numpy as np

    from kvsim.engine.config import EngineConfig
    from kvsim.engine.core import WAITING_FOR_REQUESTS, EngineCore
    from kvsim.tokens import segments
    from kvsim.workload.request import Request, RequestBlock

    config = EngineConfig(
        num_gpu_blocks=load.blocks,
        max_model_len=8192,
        block_size=load.block_size,
        max_num_seqs=load.seqs,
        max_num_batched_tokens=load.budget,
        async_scheduling=load.asynchronous,
    )
    core = EngineCore(config)
    begin = time.process_time()
    requests = []
    for i in range(load.requests):
        prefix = 1 + prefix_of(load, i), 0, load.prefix_len
        tail = 10**6 + i, 0, load.tail_len
        output = segments((2 * 10**6 + i, 0, load.output_len))
        requests.append(Request(f"r{i}", 0.0, segments(prefix, tail), output, load.output_len))
    arrivals = core.prepare(RequestBlock.of(requests))
    arrivals.rows["uid"] = np.arange(1, load.requests + 1)
    core.expect(arrivals)
    core.advance(math.inf, most_steps=0)  # lets them in
    built = time.process_time()
    why, ended = None, 0
    while why != WAITING_FOR_REQUESTS:
        why = core.advance(math.inf)
        ended += len(core.take_finished_rows())
    done = time.process_time()
    assert ended == load.requests
    stats = core.stats()
    return {
        "build": built - begin,
        "loop": done - built,
        "steps": stats["num_steps"],
        "scheduled_tokens": stats["scheduled_tokens"],
        "sampled_tokens": stats["generation_tokens"],
        "hit_tokens": stats["prefix_cache_hits"] + stats["preempted_hits"],
        "preemptions": stats["num_preemptions"],
    }


# ---------------------------------------------------------------- vLLM


def vllm_side(load: Any) -> dict[str, Any]:
    sys.path.insert(0, str(CONFORMANCE))
    import record
    import scenario
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    config = dict(scenario.CONFIG_DEFAULTS)
    config.update(
        block_size=load.block_size,
        num_gpu_blocks=load.blocks,
        max_num_seqs=load.seqs,
        max_num_batched_tokens=load.budget,
        max_model_len=8192,
        async_scheduling=load.asynchronous,
    )
    scheduler, hasher, vllm_config, *_ = record.build(config, False)
    prefixes = [scenario.rand_tokens(1000 + i, load.prefix_len) for i in range(load.prefixes)]
    prompts = [
        prefixes[prefix_of(load, i)] + scenario.rand_tokens(10**6 + i, load.tail_len)
        for i in range(load.requests)
    ]
    sampling = SamplingParams(max_tokens=load.output_len, ignore_eos=True)
    begin = time.process_time()
    requests = [
        Request(
            request_id=f"r{i}",
            prompt_token_ids=prompt,
            sampling_params=sampling,
            pooling_params=None,
            arrival_time=float(i),
            block_hasher=hasher,
        )
        for i, prompt in enumerate(prompts)
    ]
    for request in requests:
        scheduler.add_request(request)
    built = time.process_time()
    counts = vllm_loop(scheduler, vllm_config.max_concurrent_batches)
    return {"build": built - begin, "loop": time.process_time() - built, **counts}


def vllm_loop(scheduler: Any, depth: int) -> dict[str, int]:
    from vllm.v1.outputs import ModelRunnerOutput

    counts = dict.fromkeys(COUNTS, 0)
    in_flight: list[Any] = []
    while scheduler.has_requests() or in_flight:
        if scheduler.has_requests():
            batch = scheduler.schedule()
            counts["steps"] += batch.total_num_scheduled_tokens > 0
            counts["scheduled_tokens"] += batch.total_num_scheduled_tokens
            ids = list(batch.num_scheduled_tokens)
            # A step that ends inside the prompt samples nothing; decided when it is scheduled.
            samples = [not scheduler.requests[i].is_prefill_chunk for i in ids]
            in_flight.append((batch, ids, samples))
            if len(in_flight) < depth and batch.total_num_scheduled_tokens:
                continue
        batch, ids, samples = in_flight.pop(0)
        counts["sampled_tokens"] += sum(samples)
        output = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={name: i for i, name in enumerate(ids)},
            sampled_token_ids=[[7] if flag else [] for flag in samples],
        )
        for reply in scheduler.update_from_output(batch, output).values():
            stats = reply.scheduler_stats
            if stats is not None and stats.prefix_cache_stats is not None:
                found = stats.prefix_cache_stats
                counts["hit_tokens"] += found.hits + found.preempted_hits
                counts["preemptions"] += found.preempted_requests
    return counts


if __name__ == "__main__":
    given = SimpleNamespace(**json.loads(sys.argv[1]))
    print(json.dumps({"kvsim": kvsim_side, "vllm": vllm_side}[given.side](given)))
