"""Runs cases in the form of public-report case files (`cases.yaml` beside this file).

A case has an id, a `kind`, an input and `expect`, or `variants` that override keys of the case
(`engine` and `policy` key by key), each on a cold engine or router. Kinds run: engine, capacity, memory,
trace, cluster, routing, routing_index, dp.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from case_deployment import observe_cluster
from case_engine import run_requests
from case_expect import differences
from case_forms import Case, CaseRequest, observe_engine, variants
from case_routing import Part, dp_parts, routing_index_parts, routing_parts
from ruamel.yaml import YAML

from kvsim.errors import KvsimError
from kvsim.gpu.cases import observe_capacity, observe_memory
from kvsim.results import CachingMetrics
from kvsim.tokens import expand
from kvsim.workload.trace import rows_to_requests
from kvsim.workload.trace_rows import check_rows


def load_cases(path: Path) -> list[Case]:
    """The cases of a file, with its `reference` version; AssertionError if it has none."""
    data = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    assert isinstance(data, dict), f"{path}: not a file of cases"
    assert data.get("cases"), f"{path}: no cases"
    assert data.get("format", 1) == 1, f"{path}: format {data.get('format')!r} is not 1"
    version = str(data.get("reference", "vllm-0.33.0")).removeprefix("vllm-")
    return [{"vllm_version": version, **case} for case in data["cases"]]


def _engine(case: Case) -> Case:
    return observe_engine(case, run_requests, CachingMetrics())


def _capacity(case: Case) -> Case:
    return observe_capacity(case, case["vllm_version"])


def _memory(case: Case) -> Case:
    return observe_memory(case, case["vllm_version"])


def _trace(case: Case) -> Case:
    """Whether a trace's rows are accepted and, if so, what its requests hit one after the other."""
    try:
        rows = check_rows(case["rows"], case.get("trace_block_size"))
    except KvsimError as problem:
        return {"valid": False, "reason": str(problem)}
    requests = [
        CaseRequest(
            request.request_id,
            expand(request.prompt).tolist() + expand(request.output).tolist(),
            request.num_prompt_tokens,
        )
        for request in rows_to_requests(rows)
    ]
    return {"valid": True, "reason": None, **run_requests(case, requests)}


WHOLE: dict[str, Callable[[Case], Case]] = {
    "engine": _engine,
    "capacity": _capacity,
    "memory": _memory,
    "trace": _trace,
    "cluster": observe_cluster,
}
# Kinds whose variants expect something of several requests or lookups
PARTS: dict[str, Callable[[Case], Iterable[Part]]] = {
    "routing": routing_parts,
    "routing_index": routing_index_parts,
    "dp": dp_parts,
}
KINDS = [*WHOLE, *PARTS]


def problems(case: Case) -> list[str]:
    """One line per expectation of a case that does not hold; empty if it passes."""
    out = []
    for number, variant in enumerate(variants(case), 1):
        where = f"variant {variant.get('name', number)}: " if "variants" in case else ""
        out += [where + line for line in _problems_of(case["kind"], variant)]
    return out


def _problems_of(kind: str, variant: Case) -> list[str]:
    try:
        parts = list(PARTS[kind](variant) if kind in PARTS else _whole(kind, variant))
    except (AssertionError, KvsimError, KeyError, TypeError, ValueError) as error:
        return [f"cannot be run: {type(error).__name__}: {error}"]
    if not any(expect for _, expect, _ in parts):
        return ["nothing is expected"]
    tolerance = variant.get("tolerance")
    return [
        where + line for where, expect, observed in parts for line in differences(expect, observed, tolerance)
    ]


def _whole(kind: str, variant: Case) -> list[Part]:
    """A variant that has one `expect` for all that is observed."""
    return [("", variant["expect"], WHOLE[kind](variant))] if variant.get("expect") else []
