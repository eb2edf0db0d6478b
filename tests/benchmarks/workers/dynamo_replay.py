"""Dynamo's offline replay of made requests on one mocked worker.

python dynamo_replay.py '{"requests": N, "rate": R, "prompt": IN, "output": OUT, "blocks": B, ...}'
"""

import json
import sys
import time

import dynamo._core as dynamo


def main() -> None:
    given = json.loads(sys.argv[1])
    engine = dynamo._normalize_mocker_config({})
    engine["engine"].update(
        block_size=given["block_size"],
        num_gpu_blocks=given["blocks"],
        max_num_seqs=given["seqs"],
        max_num_batched_tokens=given["budget"],
    )
    begin = time.process_time()
    report = dynamo.run_mocker_synthetic_trace_replay(
        given["prompt"],
        given["output"],
        given["requests"],
        extra_engine_args=engine,
        num_workers=1,
        request_rate=float(given["rate"]),
        router_mode="round_robin",
        shared_prefix_ratio=0.0,
        num_prefix_groups=0,
        arrival_seed=1,
    )
    cpu = time.process_time() - begin
    summary = dict(report.summary)
    said = {
        "cpu": cpu,
        "finished": summary["completed_requests"],
        "simulated": summary["duration_ms"] / 1e3,
        "e2e": summary["mean_e2e_latency_ms"] / 1e3,
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
