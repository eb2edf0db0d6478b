"""The scenario's `record` and `slo` sections: what is kept of a run, and what counts as good."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from kvsim.scenario.engine import Section, key

Limit = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class RecordSection(Section):
    """Tables beside that of the requests. What is recorded changes nothing else, so `record` is no part of
    the scenario's hash.
    """

    steps: bool = key(False, "a row for every engine step; as `--record steps`")
    events: bool = key(False, "a row for every event of a block or a request; as `--record events`")


class SloSection(Section):
    """Limits that a good request keeps, at least one. Goodput is the finished requests per second that keep
    all of them, as in vLLM's benchmark; `kvsim run --goodput ttft:2000` states a limit in milliseconds.
    """

    ttft: Limit | None = key(None, "most time to the first token", "seconds", examples=[2.0])
    tpot: Limit | None = key(
        None, "most time for an output token after the first", "seconds", examples=[0.05]
    )
    e2e: Limit | None = key(None, "most time from arrival to the last token", "seconds", examples=[30.0])

    @model_validator(mode="after")
    def _check_any(self) -> "SloSection":
        if not self.limits:
            raise ValueError("states no limit; give ttft, tpot or e2e, in seconds, or leave slo out")
        return self

    @property
    def limits(self) -> dict[str, float]:
        values: dict[str, Any] = self.model_dump(exclude_none=True)
        return values
