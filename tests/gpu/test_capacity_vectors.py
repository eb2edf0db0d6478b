"""kvsim plans what vLLM's own planner planned (recorded from 0.33.0 and 0.16.0).

`capacity_vectors*.json` are chosen shapes, `random_capacity_vectors.json` holds 160 drawn at random
(kinds, heads, windows, stages, layouts, overrides, memory), refusals among them.
"""

import json
from pathlib import Path

import pytest

from kvsim.gpu.kv_cache_spec import KVCacheSpec
from kvsim.gpu.memory import KVCacheOptions, KVCacheTooSmallError, plan_kv_cache
from kvsim.rules import rules_for

DATA = Path(__file__).parent / "data"
FILES = {"0.33": "capacity_vectors.json", "0.16": "capacity_vectors-0.16.json"}


def load(version):
    return json.loads((DATA / FILES[version]).read_text())["vectors"]


def load_random(version):
    return json.loads((DATA / "random_capacity_vectors.json").read_text())[version]


def workers(case):
    """Layer specs of each stage, named like the recorder's."""
    stages = []
    for s, stage in enumerate(case["stages"]):
        reps = [rep for rep in stage for _ in range(rep["count"])]
        stages.append({f"s{s}.layer{i}": spec(rep, case["block_size"]) for i, rep in enumerate(reps)})
    return stages


def spec(rep, block_size):
    return KVCacheSpec(
        rep["kind"],
        block_size,
        rep["heads"],
        rep["dim"],
        rep["nbytes"],
        window=rep.get("window") or rep.get("chunk"),
    )


def plan(case, version):
    options = KVCacheOptions(
        block_size=case["block_size"],
        max_model_len=case["max_model_len"],
        max_num_batched_tokens=case["max_num_batched_tokens"],
        async_scheduling=case.get("async_scheduling", True),
        tensor_parallel_size=case.get("tp", 1),
        decode_context_parallel_size=case.get("dcp", 1),
        disable_hybrid_kv_cache_manager=case.get("disable_hybrid", False),
        kv_cache_layout=case.get("layout", "LBNHC"),
        num_gpu_blocks_override=case.get("override"),
    )
    return plan_kv_cache(workers(case), case["available_bytes"], options, rules_for(version))


def observed(plan, recorded):
    """The plan in the recorder's form, restricted to the fields that this version recorded."""
    result = {
        "groups": [
            {
                "layers": len(group.layers),
                "spec": group.spec.class_name,
                "block_size": group.spec.block_size,
                "page_size_bytes": group.spec.page_size_bytes,
                "max_bytes_per_request": group.spec.max_memory_usage_bytes(plan.limits),
            }
            for group in plan.stage_groups[0]
        ],
        "bytes_per_block": list(plan.bytes_per_block),
        "max_in_flight_tokens": plan.limits.max_in_flight_tokens,
        "num_gpu_blocks": plan.num_gpu_blocks,
        "kv_cache_size_tokens": plan.kv_cache_size_tokens,
        "max_concurrency": plan.max_concurrency,
        "scheduler_block_size": plan.scheduler_block_size,
        "hash_block_size": plan.hash_block_size,
        "printed_concurrency": [f"{plan.max_concurrency:.2f}x"] * len(plan.stage_groups),
    }
    return {key: result[key] for key in recorded}


@pytest.mark.parametrize("version", FILES)
def test_there_are_21_vectors(version):
    assert len(load(version)) == 21


@pytest.mark.parametrize(
    ("version", "vector"),
    [pytest.param(v, vec, id=f"{v}-{vec['name']}") for v in FILES for vec in load(v) + load_random(v)],
)
def test_plan_equals_vllms(version, vector):
    case, recorded = vector["case"], vector["result"]
    if "error" in recorded:
        with pytest.raises(KVCacheTooSmallError) as refusal:
            plan(case, version)
        assert f"ValueError: {refusal.value.vllm_message}" == recorded["error"]
    else:
        assert observed(plan(case, version), recorded) == recorded
