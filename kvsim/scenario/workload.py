"""The scenario's `workload` section: a type, and the fields of that description in kvsim.workload."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from kvsim.scenario.spelling import unknown_key
from kvsim.workload.checks import FieldError, one_of, shown
from kvsim.workload.image import ImageWorkload
from kvsim.workload.shared_prefix import SharedPrefixWorkload
from kvsim.workload.trace import TraceWorkload

WorkloadSpec = SharedPrefixWorkload | ImageWorkload | TraceWorkload

TYPES: dict[str, type[WorkloadSpec]] = {
    "shared_prefix": SharedPrefixWorkload,
    "image": ImageWorkload,
    "trace": TraceWorkload,
}


def type_name(spec: WorkloadSpec) -> str:
    return next(name for name, kind in TYPES.items() if type(spec) is kind)


def workload_section(value: Any) -> WorkloadSpec:
    """Read the section; raises FieldError naming the key."""
    if isinstance(value, WorkloadSpec):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"{shown(value)} is not a mapping of keys to values")
    if "type" not in value:
        raise FieldError("type", f"missing; one of {', '.join(TYPES)}")
    kind = TYPES[one_of("type", value["type"], tuple(TYPES))]
    fields = {field.name: field for field in dataclasses.fields(kind)}
    given = {key: _infinity(item) for key, item in value.items() if key != "type"}
    for key in given:
        if key not in fields:
            raise FieldError(key, _not_a_key(key, value["type"], ["type", *fields]))
    if given.get("max_concurrency") is not None and kind is not TraceWorkload:
        given.setdefault("rate", math.inf)  # a closed loop
    for name, field in fields.items():
        if field.default is dataclasses.MISSING and name not in given:
            raise FieldError(name, f"missing; {_MISSING[name]}")
    return kind(**given)


def _not_a_key(key: str, kind: str, known: list[str]) -> str:
    """A key of another type of workload is not misspelt."""
    others = [name for name, cls in TYPES.items() if key in {field.name for field in dataclasses.fields(cls)}]
    if others:
        return f"not a key of type {kind} but of {' and '.join(others)}; leave it out"
    return unknown_key(key, known)


_MISSING = {
    "rate": "give requests per second, or inf for all at once, or max_concurrency",
    "path": "name the trace here or give --trace PATH",
}


def _infinity(value: Any) -> Any:
    """`rate: inf` as vLLM's benchmark spells it; YAML's own spelling is .inf."""
    return math.inf if value == "inf" else value
