"""Runs the cases of kind cluster: a scenario with replicas behind a router, from end to end."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from case_forms import DEFAULTS, Case, is_together
from case_router import request_of, spelled

from kvsim.cluster.policies import policy_class
from kvsim.scenario import Scenario
from kvsim.sim.run import run_scenario
from kvsim.workload.request import Request, RequestBlock, blocks_of

KEYS = {"engine", "replicas", "requests", "send", "policy", "weights", "expect"}
META = {"id", "title", "area", "kind", "how", "source", "why", "name", "vllm_version", "tolerance"}
# What the numbers do not depend on; time passes as on this GPU
SERVED = {"model": "Qwen3-0.6B", "gpu": "L4"}


@dataclass(frozen=True)
class Listed:
    """Requests as a workload: all at once, or each when the one before it has ended."""

    listed: tuple[Request, ...]
    max_concurrency: int | None
    has_follow_ups: bool = False
    has_sessions: bool = False

    @property
    def num_requests(self) -> int:
        return len(self.listed)

    def requests(self, seed: int) -> Iterator[Request]:
        return iter(self.listed)

    def blocks(self, seed: int) -> Iterator[RequestBlock]:
        return blocks_of(self.listed)


class WithWorkload:
    """A scenario with another workload than a file could describe."""

    def __init__(self, scenario: Scenario, workload: Listed) -> None:
        self._scenario, self._workload = scenario, workload

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scenario, name)

    def build_workload(self) -> Listed:
        return self._workload


def observe_cluster(case: Case) -> Case:
    """Every figure that a case of this kind may expect."""
    unknown = case.keys() - KEYS - META
    assert not unknown, f"the runner does not know {sorted(unknown)}"
    requests, together = _requests(case)
    replicas = case["replicas"]  # their number, or their names
    num_replicas = len(replicas) if isinstance(replicas, list) else replicas
    scenario = Scenario(
        **SERVED,
        vllm_version=case["vllm_version"],
        name="case",
        engine=_engine(case.get("engine", {})),
        cluster={"replicas": num_replicas, "router": _router(case)},
        workload={"type": "shared_prefix", "num_requests": len(requests), "rate": 1.0},
    )
    workload = Listed(tuple(requests), None if together else 1)
    result = run_scenario(WithWorkload(scenario, workload))
    rows, metrics = result.requests, result.metrics
    per_replica = rows.instance.value_counts().reindex(range(num_replicas), fill_value=0)
    return {
        "prefix_cache_queries": metrics["vllm:prefix_cache_queries"],
        "prefix_cache_hits": metrics["vllm:prefix_cache_hits"],
        "cached_tokens": dict(zip(rows.request_id, rows.num_cached_tokens.tolist(), strict=True)),
        "num_preemptions": dict(zip(rows.request_id, rows.num_preemptions.tolist(), strict=True)),
        "replicas_used": int((per_replica > 0).sum()),
        "requests_per_replica": per_replica.tolist(),
    }


def _router(case: Case) -> Case:
    """A policy by its name, or a mapping with its name and parameters in whichever spelling."""
    policy = case["policy"] if isinstance(case["policy"], dict) else {"name": case["policy"]}
    known = {field.name for field in fields(policy_class(policy["name"]))}
    router = {spelled(key, known): value for key, value in policy.items() if key != "name"}
    weights = {"weights": case["weights"]} if "weights" in case else {}
    return {"policy": policy["name"], **router, **weights}


def _engine(flags: Case) -> Case:
    """Flags as a scenario has them; num_gpu_blocks is there an override of what the GPU would give."""
    flags = {**DEFAULTS, "async_scheduling": False, **flags}
    return {
        {"num_gpu_blocks": "num_gpu_blocks_override"}.get(key, key): value for key, value in flags.items()
    }


def _requests(case: Case) -> tuple[list[Request], bool]:
    """The requests of a case, and whether they are sent together."""
    form = case["requests"]
    if isinstance(form, list):
        entries = [entry if isinstance(entry, dict) else {"prompt": entry} for entry in form]
        return [request_of(entry, str(i)) for i, entry in enumerate(entries)], is_together(case)
    shared = {key: value for key, value in form.items() if key not in ("count", "send", "prompt")}
    numbered = {key: value for key, value in shared.items() if isinstance(value, str)}
    numbered["prompt"] = form["prompt"]
    entries = [
        {**shared, "id": str(i), **{key: value.replace("{i}", str(i)) for key, value in numbered.items()}}
        for i in range(form["count"])
    ]
    return [request_of(entry) for entry in entries], is_together({**case, **form})
