"""The `sweep:` block of a scenario file: what `kvsim sweep` varies. Other commands leave it alone."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from kvsim.scenario.engine import Section

MAX_POINTS = 10_000


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class SweepSection(Section):
    """The words are those of the options of `kvsim sweep`.

    set: dotted key of a scenario -> list of values, or a range as text ("0.5:0.95:0.05").
    points: list of mappings from dotted keys to values, each one a point (times every combination of `set`).
    sample: "random:40" or "latin:40" instead of every combination; `seed` of these draws.
    find: "max:workload.rate" or "min:...", with `subject_to` ("ttft_p99<=2s") and a relative `tolerance`.
    max_points: more than so many are refused.
    """

    set: dict[str, Any] = Field(default_factory=dict)
    points: list[dict[str, Any]] = Field(default_factory=list)
    sample: str | None = None
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    find: str | None = None
    subject_to: Annotated[list[str], BeforeValidator(_listed)] = Field(default_factory=list)
    tolerance: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    max_points: Annotated[int, Field(ge=1, le=10_000_000)] = MAX_POINTS
