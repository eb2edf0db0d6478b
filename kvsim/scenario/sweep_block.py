"""The `sweep:` block of a scenario file: what `kvsim sweep` varies. Other commands leave it alone."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from kvsim.scenario.engine import Section, key
from kvsim.workload.checks import shown

MAX_POINTS = 10_000


_SET = {
    "type": "object",
    "additionalProperties": {
        "anyOf": [
            {"type": "array", "minItems": 1},
            {"type": "string", "pattern": r"\S"},
            {"type": ["number", "boolean", "object", "null"]},
        ]
    },
}
_TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


_SAMPLE = r"^(random|latin):0*[1-9][0-9]*$"
_FIND = r"^\s*(max|min):[^=:]+(=[^:]+:[^:]+)?\s*$"


def _matching(pattern: str, right: str) -> AfterValidator:
    """Text of a form, checked by kvsim as editors check it."""

    def check(value: str) -> str:
        if not re.search(pattern, value):
            raise ValueError(f"{shown(value)} is of another form; write {right}")
        return value

    return AfterValidator(check)


def _with_values(value: dict[str, Any]) -> dict[str, Any]:
    for name, values in value.items():
        if values == [] or (isinstance(values, str) and not values.strip()):
            raise ValueError(f"{name}: no values; give a list or a range as text")
    return value


_Sample = Annotated[
    str,
    _matching(_SAMPLE, "random:N or latin:N, such as latin:40"),
    WithJsonSchema({"type": "string", "pattern": _SAMPLE}),
]
_Find = Annotated[
    str,
    _matching(_FIND, "max:KEY or min:KEY, such as max:workload.rate"),
    WithJsonSchema({"type": "string", "pattern": _FIND}),
]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class SweepSection(Section):
    """What `kvsim sweep` varies, in the words of its options. Other commands leave it alone."""

    set: Annotated[dict[str, Any], AfterValidator(_with_values), WithJsonSchema(_SET)] = key(
        {},
        "dotted keys, each with a list of values or a range as text; every combination is a point",
        examples=[{"engine.gpu_memory_utilization": "0.5:0.9:0.1", "engine.block_size": [16, 32, 64]}],
    )
    points: list[dict[str, Any]] = key(
        [],
        "dotted keys with a value, each mapping a point (times every combination of set)",
        examples=[[{"engine.max_num_seqs": 64, "engine.max_num_batched_tokens": 2048}]],
    )
    sample: _Sample | None = key(
        None, "so many points at random instead of every combination", examples=["random:40", "latin:40"]
    )
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = key(0, "of what sample draws")
    find: _Find | None = key(
        None, "search for the greatest or least value of a key", examples=["max:workload.rate"]
    )
    subject_to: Annotated[list[str], BeforeValidator(_listed), WithJsonSchema(_TEXTS)] = key(
        [], "limits that find keeps, one or a list", examples=["ttft_p99<=2s"]
    )
    tolerance: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = key(
        None, "share of the value at which find stops"
    )
    max_points: Annotated[int, Field(ge=1, le=10_000_000)] = key(MAX_POINTS, "more are refused", "points")
