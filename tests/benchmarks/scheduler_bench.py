"""kvsim's scheduler beside vLLM's own on one load: the same steps, hits and tokens; CPU seconds of each.

    python tests/benchmarks/scheduler_bench.py                          # kvsim alone, or both if vllm is here
    python tests/benchmarks/scheduler_bench.py --vllm-python PYTHON     # vLLM in an environment of its own

The load: requests with one of a few shared prefixes and a tail of their own, all waiting at the start; every
sampled token is a dummy. Timed is the loop of schedule and update; building and hashing the requests is
timed apart. Each side runs in a process of its own, in turns. Figures move with the machine:
only the ratios of one call count. What is missing is named and left out. vLLM needs no GPU
(../conformance/README.md says how to install it).
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CONFORMANCE = HERE.parent / "conformance"
ROOT = HERE.parents[1]
SAME = ("steps", "scheduled_tokens", "sampled_tokens", "hit_tokens", "preemptions")
MIX, MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm-python", default=sys.executable, help="interpreter that can import vllm")
    parser.add_argument("--rounds", type=int, default=1, help="turns of each side")
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--prefixes", type=int, default=50)
    parser.add_argument("--prefix-len", type=int, default=1024)
    parser.add_argument("--tail-len", type=int, default=256)
    parser.add_argument("--out-len", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=20_000)
    parser.add_argument("--seqs", type=int, default=256)
    parser.add_argument("--budget", type=int, default=8192)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--asynchronous", action="store_true", help="asynchronous scheduling on both sides")
    parser.add_argument("--side", choices=("kvsim", "vllm"), help=argparse.SUPPRESS)
    return parser


def prefix_of(args: argparse.Namespace, i: int) -> int:
    """Which shared prefix request `i` begins with; the same on both sides."""
    return ((i * MIX & MASK) >> 32) % args.prefixes


# ---------------------------------------------------------------- kvsim


def kvsim_side(args: argparse.Namespace) -> dict[str, Any]:
    sys.path.insert(0, str(ROOT))
    small = argparse.Namespace(**{**vars(args), "requests": 8})
    kvsim_run(small)  # load or compile the code
    return kvsim_run(args)


def kvsim_run(args: argparse.Namespace) -> dict[str, Any]:
    from kvsim.engine.config import EngineConfig
    from kvsim.engine.core import IDLE, EngineCore
    from kvsim.tokens import segments
    from kvsim.workload.request import Request

    config = EngineConfig(
        num_gpu_blocks=args.blocks,
        max_model_len=8192,
        block_size=args.block_size,
        max_num_seqs=args.seqs,
        max_num_batched_tokens=args.budget,
        async_scheduling=args.asynchronous,
    )
    core = EngineCore(config)
    begin = time.process_time()
    for i in range(args.requests):
        prefix = 1 + prefix_of(args, i), 0, args.prefix_len
        tail = 10**6 + i, 0, args.tail_len
        output = segments((2 * 10**6 + i, 0, args.out_len))
        core.add_request(Request(f"r{i}", 0.0, segments(prefix, tail), output, args.out_len))
    built = time.process_time()
    while core.step(0.0) != IDLE:
        pass
    done = time.process_time()
    stats = core.stats()
    assert len(core.take_finished()[0]) == args.requests
    return {
        "build_s": built - begin,
        "loop_s": done - built,
        "steps": stats["num_steps"],
        "scheduled_tokens": stats["scheduled_tokens"],
        "sampled_tokens": stats["generation_tokens"],
        "hit_tokens": stats["prefix_cache_hits"] + stats["preempted_hits"],
        "preemptions": stats["num_preemptions"],
    }


# ---------------------------------------------------------------- vLLM


def vllm_side(args: argparse.Namespace) -> dict[str, Any]:
    sys.path.insert(0, str(CONFORMANCE))
    import record
    import scenario
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    config = dict(scenario.CONFIG_DEFAULTS)
    config.update(
        block_size=args.block_size,
        num_gpu_blocks=args.blocks,
        max_num_seqs=args.seqs,
        max_num_batched_tokens=args.budget,
        max_model_len=8192,
        async_scheduling=args.asynchronous,
    )
    scheduler, hasher, vllm_config, *_ = record.build(config, False)
    prefixes = [scenario.rand_tokens(1000 + i, args.prefix_len) for i in range(args.prefixes)]
    prompts = [
        prefixes[prefix_of(args, i)] + scenario.rand_tokens(10**6 + i, args.tail_len)
        for i in range(args.requests)
    ]
    sampling = SamplingParams(max_tokens=args.out_len, ignore_eos=True)
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
    return {"build_s": built - begin, "loop_s": time.process_time() - built, **counts}


def vllm_loop(scheduler: Any, depth: int) -> dict[str, int]:
    from vllm.v1.outputs import ModelRunnerOutput

    counts = dict.fromkeys(SAME, 0)
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


# ---------------------------------------------------------------- side by side


def run_side(python: str, side: str, arguments: list[str]) -> dict[str, Any] | None:
    """One side's figures from a process of its own; None, with a line that says so, if it cannot run."""
    command = [python, __file__, "--side", side, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    print(f"{side}: left out, {python} says: {last}")
    return None


def line(side: str, figures: dict[str, Any], requests: int) -> str:
    loop, steps, hits = figures["loop_s"], figures["steps"], figures["hit_tokens"]
    parts = (
        f"{side:6} loop {loop:8.3f} CPU s",
        f"{loop / steps * 1e6:8.1f} us/step",
        f"{requests / loop:8,.0f} requests/s",
        f"building and hashing {figures['build_s']:7.3f} CPU s",
        f"{steps} steps, {hits} hit tokens",
    )
    return ", ".join(parts)


def compare(args: argparse.Namespace) -> int:
    pythons = {"kvsim": sys.executable, "vllm": args.vllm_python}
    best: dict[str, dict[str, Any]] = {}
    for _ in range(args.rounds):
        for side, python in pythons.items():
            figures = run_side(python, side, sys.argv[1:])
            if figures is None:
                continue
            print(line(side, figures, args.requests), flush=True)
            if side not in best or figures["loop_s"] < best[side]["loop_s"]:
                best[side] = figures
    if len(best) < len(pythons):
        return 0 if "kvsim" in best else 1
    ours, theirs = best["kvsim"], best["vllm"]
    print(f"vLLM / kvsim, CPU seconds of the loop: {theirs['loop_s'] / ours['loop_s']:.0f}")
    print(f"vLLM / kvsim, building and hashing:    {theirs['build_s'] / ours['build_s']:.1f}")
    different = [f"{name} {ours[name]} and {theirs[name]}" for name in SAME if ours[name] != theirs[name]]
    print("decided differently: " + ", ".join(different) if different else "both decided the same")
    return 1 if different else 0


if __name__ == "__main__":
    arguments = options().parse_args()
    if arguments.side:
        print(json.dumps({"kvsim": kvsim_side, "vllm": vllm_side}[arguments.side](arguments)))
    else:
        sys.exit(compare(arguments))
