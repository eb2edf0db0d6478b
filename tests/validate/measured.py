"""Made tables of measured runs."""

import pandas as pd

HEAD = {
    "source": "made/up run 1",
    "engine": "vllm",
    "engine_version": "0.17.0",
    "gpu": "H100-SXM-80GB",
    "tp": 1,
    "dtype": "bf16",
    "mean_input_len": 96,
    "mean_output_len": 12,
    "notes": "failures 0",
}
CLOSED = HEAD | {
    "id": "closed",
    "model": "Qwen/Qwen3-0.6B",
    "load_mode": "closed loop, random data",
    "concurrency": 3.0,
    "ttft_mean_ms": 20.0,
    "tpot_mean_ms": 2.0,
}
OPEN = HEAD | {
    "id": "open",
    "model": "Qwen3-8B",
    "dtype": "FP8",
    "load_mode": "open loop, constant-rate",
    "request_rate_rps": 40.0,
    "num_requests": 50,
    "num_gpu_blocks": 900,
    "max_num_batched_tokens": 2048,
    "prefix_caching": True,
    "shared_prefix": "2 system prompts x 3 users, system 20 + question 70 tok, multi-turn=True",
    "ttft_mean_ms": 21.0,
    "tpot_derived_ms": 6.0,
    "e2e_mean_ms": 90.0,
    "req_s": 39.0,
}
FP4 = CLOSED | {"id": "four", "model": "meta-llama/Llama-3.1-8B", "dtype": "fp4", "gpu": "b200_sxm"}
MOE = CLOSED | {"id": "moe", "model": "openai/gpt-oss-20b", "dtype": "fp4", "gpu": "h200_sxm"}
FAILED = OPEN | {"id": "failed", "notes": "600 s; failures 7; overload"}
ROWS = [CLOSED, OPEN, FP4, MOE, FAILED]


def write(path, rows=ROWS):
    pd.DataFrame(rows).to_csv(path, index=False)
    return path
