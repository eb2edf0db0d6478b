"""The `sweep:` block of a scenario file: what `kvsim sweep` varies. Other commands leave it alone."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from kvsim.scenario.engine import Section, key

MAX_POINTS = 10_000
_TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class SweepSection(Section):
    """What `kvsim sweep` varies, in the words of its options. Other commands leave it alone."""

    set: dict[str, Any] = key(
        {},
        "dotted keys, each with a list of values or a range as text; every combination is a point",
        examples=[{"engine.gpu_memory_utilization": "0.5:0.9:0.1", "engine.block_size": [16, 32, 64]}],
    )
    points: list[dict[str, Any]] = key(
        [],
        "dotted keys with a value, each mapping a point (times every combination of set)",
        examples=[[{"engine.max_num_seqs": 64, "engine.max_num_batched_tokens": 2048}]],
    )
    sample: str | None = key(
        None, "so many points at random instead of every combination", examples=["random:40", "latin:40"]
    )
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = key(0, "of what sample draws")
    find: str | None = key(
        None, "search for the greatest or least value of a key", examples=["max:workload.rate"]
    )
    subject_to: Annotated[list[str], BeforeValidator(_listed), WithJsonSchema(_TEXTS)] = key(
        [], "limits that find keeps, one or a list", examples=["ttft_p99<=2s"]
    )
    tolerance: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = key(
        None, "share of the value at which find stops"
    )
    max_points: Annotated[int, Field(ge=1, le=10_000_000)] = key(MAX_POINTS, "more are refused", "points")
