"""The scenario's `workload` section: a type, and the fields of that description in kvsim.workload."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from kvsim.scenario.spelling import unknown_key
from kvsim.workload.chat import ChatWorkload
from kvsim.workload.checks import FieldError, one_of, shown
from kvsim.workload.image import ImageWorkload
from kvsim.workload.mix import PACE, MixPart, MixWorkload
from kvsim.workload.shared_prefix import SharedPrefixWorkload
from kvsim.workload.trace import TraceWorkload

WorkloadSpec = SharedPrefixWorkload | ImageWorkload | ChatWorkload | MixWorkload | TraceWorkload

TYPES: dict[str, type[WorkloadSpec]] = {
    "shared_prefix": SharedPrefixWorkload,
    "image": ImageWorkload,
    "chat": ChatWorkload,
    "mix": MixWorkload,
    "trace": TraceWorkload,
}
PARTS = ("shared_prefix", "image", "chat")  # types that a mix takes
COUNTS = {"chat": "num_sessions", "mix": "num_arrivals"}  # the key that says how many, else num_requests


def type_name(spec: WorkloadSpec) -> str:
    return next(name for name, kind in TYPES.items() if type(spec) is kind)


def count_key(spec: WorkloadSpec) -> str:
    """The key that says how many requests, sessions or arrivals there are."""
    return COUNTS.get(type_name(spec), "num_requests")


def shortened(spec: WorkloadSpec, count: int) -> WorkloadSpec:
    """The same traffic, only `count` requests, sessions or arrivals of it."""
    change: dict[str, Any] = {count_key(spec): count}
    return dataclasses.replace(spec, **change)


def workload_section(value: Any) -> WorkloadSpec:
    """Read the section; raises FieldError naming the key."""
    if isinstance(value, WorkloadSpec):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"{shown(value)} is not a mapping of keys to values")
    name = _type_of(value, tuple(TYPES))
    kind = TYPES[name]
    known = [field.name for field in dataclasses.fields(kind)]
    given = {key: _infinity(item) for key, item in value.items() if key != "type"}
    for key in given:
        if key not in known:
            raise FieldError(key, _not_a_key(key, name, ["type", *known]))
    if given.get("max_concurrency") is not None and kind is not TraceWorkload:
        given.setdefault("rate", math.inf)  # a closed loop
    for field in dataclasses.fields(kind):
        if field.default is dataclasses.MISSING and field.name not in given:
            raise FieldError(
                field.name, f"missing; {_MISSING[field.name].format(_THINGS.get(name, 'requests'))}"
            )
    if kind is MixWorkload:
        given["parts"] = _parts(given["parts"])
    return kind(**given)


def _type_of(value: Mapping[str, Any], known: tuple[str, ...]) -> str:
    if "type" not in value:
        raise FieldError("type", f"missing; one of {', '.join(known)}")
    return one_of("type", value["type"], known)


def _parts(value: Any) -> Any:
    """The parts of a mix; what is no mapping at all is left to its own checks."""
    if not isinstance(value, Mapping):
        return value
    return {name: part if isinstance(part, MixPart) else _part(name, part) for name, part in value.items()}


def _part(name: Any, value: Any) -> MixPart:
    """One part; raises FieldError with the whole path of the key."""
    if not isinstance(value, Mapping):
        raise FieldError(f"parts.{name}", f"{shown(value)} is not a mapping of keys to values")
    try:
        kind = _type_of(value, PARTS)
        for key in value:
            if key in PACE:
                raise FieldError(key, "the mix says this for all its parts; leave it out")
        rest = {key: item for key, item in value.items() if key not in ("type", "weight")}
        known = [field.name for field in dataclasses.fields(TYPES[kind]) if field.name not in PACE]
        for key in rest:
            if key not in known:
                raise FieldError(key, _not_a_key(key, kind, ["type", "weight", *known]))
        spec = TYPES[kind](**{"rate": 1.0, **rest})
        assert not isinstance(spec, MixWorkload | TraceWorkload)
        return MixPart(value.get("weight", 1.0), spec)
    except FieldError as error:
        raise FieldError(f"parts.{name}.{error.field}", error.problem) from None


def plain_section(spec: WorkloadSpec) -> dict[str, Any]:
    """A description as the mapping that a file has, defaults filled in."""
    section = {"type": type_name(spec)} | {field.name: getattr(spec, field.name) for field in _shown(spec)}
    if isinstance(spec, MixWorkload):
        section["parts"] = {name: _plain_part(part) for name, part in spec.parts.items()}
    return section


def _plain_part(part: MixPart) -> dict[str, Any]:
    section = plain_section(part.workload)
    kept = {key: value for key, value in section.items() if key not in PACE}
    return {"type": kept.pop("type"), "weight": part.weight, **kept}


def _shown(spec: WorkloadSpec) -> Iterator[dataclasses.Field[Any]]:
    """All fields but later keys that are not given: without them a scenario is what it was."""
    later = ("num_sessions", "max_think_time") if isinstance(spec, TraceWorkload) else ()
    for field in dataclasses.fields(spec):
        if field.name not in later or getattr(spec, field.name) is not None:
            yield field


def image_parts(spec: WorkloadSpec) -> dict[str, ImageWorkload]:
    """The workloads with pictures: path of their keys ("" for the section itself) -> description."""
    if isinstance(spec, MixWorkload):
        images = {f"parts.{name}.": part.workload for name, part in spec.parts.items()}
        return {path: workload for path, workload in images.items() if isinstance(workload, ImageWorkload)}
    return {"": spec} if isinstance(spec, ImageWorkload) else {}


def with_processor(spec: WorkloadSpec, family: str | None) -> WorkloadSpec:
    """Pictures sized in pixels become tokens as `family` does it, where no processor is named."""
    if isinstance(spec, ImageWorkload) and spec.image_size is not None and spec.processor is None:
        return dataclasses.replace(spec, processor=family)
    if not isinstance(spec, MixWorkload):
        return spec
    parts = {name: MixPart(part.weight, _part_with(part, family)) for name, part in spec.parts.items()}
    return dataclasses.replace(spec, parts=parts)


def _part_with(part: MixPart, family: str | None) -> Any:
    spec = part.workload
    return with_processor(spec, family) if isinstance(spec, ImageWorkload) else spec


def _not_a_key(key: str, kind: str, known: list[str]) -> str:
    """A key of another type of workload is not misspelt."""
    others = [name for name, cls in TYPES.items() if key in {field.name for field in dataclasses.fields(cls)}]
    if others:
        count = COUNTS.get(kind)
        own = f"write {count}" if count and key in {"num_requests", *COUNTS.values()} else "leave it out"
        return f"not a key of type {kind} but of {_listed(others)}; {own}"
    return unknown_key(key, known)


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


_MISSING = {
    "rate": "give {} per second, or inf for all at once, or max_concurrency",
    "path": "name the trace here or give --trace PATH",
    "parts": "name the workloads to mix, each with its type and weight",
}
_THINGS = {"chat": "sessions", "mix": "arrivals"}  # what a rate counts, else requests


def _infinity(value: Any) -> Any:
    """`rate: inf` as vLLM's benchmark spells it; YAML's own spelling is .inf."""
    return math.inf if value == "inf" else value
