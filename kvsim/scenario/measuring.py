"""The scenario's `record` and `slo` sections: what is kept of a run, and what counts as good."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from kvsim.scenario.engine import Section

Limit = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class RecordSection(Section):
    """Tables beside that of the requests. They change no other result, so they are no part of the hash."""

    steps: bool = False
    events: bool = False


class SloSection(Section):
    """Limits that a good request keeps, in seconds; see `vllm bench serve --goodput`."""

    ttft: Limit | None = None
    tpot: Limit | None = None
    e2e: Limit | None = None

    @model_validator(mode="after")
    def _check_any(self) -> "SloSection":
        if not self.limits:
            raise ValueError("states no limit; give ttft, tpot or e2e, in seconds, or leave slo out")
        return self

    @property
    def limits(self) -> dict[str, float]:
        values: dict[str, Any] = self.model_dump(exclude_none=True)
        return values
