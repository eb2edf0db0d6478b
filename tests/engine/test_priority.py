"""Priority scheduling where vLLM's own order would not settle who goes."""

import pytest
from engine_runs import drain, engine, request, rows_by_id


@pytest.mark.parametrize("version", ["0.33", "0.16"])
def test_equal_requests_do_not_preempt_each_other_for_ever(version):
    core = engine(
        num_gpu_blocks=18,
        scheduling_policy="priority",
        scheduler_reserve_full_isl=False,
        vllm_version=version,
    )
    for i in range(12):
        core.add_request(request(f"r{i}", prompt=20, output=30))
    drain(core, limit=3_000)
    rows = rows_by_id(core)
    assert len(rows) == 12
    assert sum(row["num_preemptions"] for row in rows.values()) > 0
