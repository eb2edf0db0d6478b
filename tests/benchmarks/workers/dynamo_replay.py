"""Dynamo's offline replay of requests on mocked workers.

python dynamo_replay.py '{"workers": W, "mode": "round_robin" or "kv_router", "requests": N, ...}'

Requests are made ("rate", "prompt", "output", "shared": share of the prompt that is one of "groups"), or
the rows of a Mooncake-format trace that is not packed ("trace", "trace_block_size": tokens an id). Without
"blocks", "block_size", "seqs", "budget" the engine is as Dynamo makes it by itself.
"""

import json
import sys
import time

import dynamo._core as dynamo

ENGINE = {
    "block_size": "block_size",
    "blocks": "num_gpu_blocks",
    "seqs": "max_num_seqs",
    "budget": "max_num_batched_tokens",
}


def replay(given):
    """The replay's report and its CPU seconds."""
    engine = dynamo._normalize_mocker_config({})
    engine["engine"].update({name: given[key] for key, name in ENGINE.items() if key in given})
    every = {
        "extra_engine_args": engine,
        "num_workers": given["workers"],
        "router_mode": given["mode"],
    }
    if "trace" in given:
        function, arguments = dynamo.run_mocker_trace_replay, ([given["trace"]],)
        every |= {"trace_block_size": given["trace_block_size"]}
    else:
        function = dynamo.run_mocker_synthetic_trace_replay
        arguments = given["prompt"], given["output"], given["requests"]
        every |= {"request_rate": float(given["rate"]), "arrival_seed": 1}
        every |= {"shared_prefix_ratio": given["shared"], "num_prefix_groups": given["groups"]}
    begin = time.process_time()
    report = function(*arguments, **every)
    return report, time.process_time() - begin


def main() -> None:
    given = json.loads(sys.argv[1])
    report, cpu = replay(given)
    summary = dict(report.summary)
    said = {
        "cpu": cpu,
        "finished": summary["completed_requests"],
        "simulated": summary["duration_ms"] / 1e3,
        "e2e": summary["mean_e2e_latency_ms"] / 1e3,
        "hit_rate": summary["prefix_cache_reused_ratio"],
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
