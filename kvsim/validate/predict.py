"""Simulated rows: the figures that their sources report."""

from dataclasses import dataclass

import pandas as pd

from kvsim.errors import KvsimError
from kvsim.validate.scenarios import RowScenario


@dataclass(frozen=True)
class Prediction:
    """A row with what kvsim says of it. predicted: keys as in `ServingRow.measured`; empty with an `error`."""

    made: RowScenario
    predicted: dict[str, float]
    error: str = ""

    @property
    def errors(self) -> dict[str, float]:
        """Relative errors, signed, percent."""
        measured = self.made.row.measured
        return {
            name: 100.0 * (self.predicted[name] / value - 1.0)
            for name, value in measured.items()
            if name in self.predicted
        }


def predict(made: RowScenario) -> Prediction:
    """Simulate one row; a row that cannot run has its `error`."""
    try:
        result = made.scenario.run()
    except KvsimError as error:
        return Prediction(made, {}, str(error))
    metrics = result.metrics
    figures = means(result.requests.iloc[made.first_wave :])
    if not figures:
        return Prediction(made, {}, "no request was finished")
    if "tpot_mean_ms" not in made.row.values and "tpot_derived_ms" in made.row.values:
        tokens = figures.pop("output")
        figures["tpot"] = (figures["e2e"] - figures["ttft"]) / (tokens - 1.0)  # as the source derives it
    figures.pop("output", None)
    figures["tokens"] = metrics["generation_tokens_per_second"]
    figures["requests"] = metrics["requests_per_second"]
    return Prediction(made, figures)


def means(requests: pd.DataFrame) -> dict[str, float]:
    """Means over finished requests: ttft, tpot, e2e in ms, output in tokens; empty if none finished."""
    done = requests[requests.status == "finished"]
    if not len(done):
        return {}
    figures = {name: 1e3 * float(done[name].mean()) for name in ("ttft", "tpot", "e2e")}
    return figures | {"output": float(done.num_output_tokens.mean())}
