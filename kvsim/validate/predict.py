"""Simulated rows: the figures that their sources report."""

from dataclasses import dataclass

import pandas as pd

from kvsim.errors import KvsimError
from kvsim.validate.scenarios import RowScenario


@dataclass(frozen=True)
class Prediction:
    """A row with what kvsim says of it; predicted: ms, and tokens and requests a second; or an `error`.

    A closed loop begins with a wave: all its first requests at once, whose prompts queue. tpot is of the
    requests after it. ttft is of all requests, since a client that reports a mean reports it of all;
    ttft_later of those after the wave.
    """

    made: RowScenario
    predicted: dict[str, float]
    error: str = ""

    @property
    def measured(self) -> dict[str, float]:
        """What the row gives, under the same names."""
        measured = self.made.row.measured
        if "ttft" in measured:
            measured["ttft_later"] = measured["ttft"]
        return measured

    @property
    def errors(self) -> dict[str, float]:
        """Relative errors, signed, percent."""
        return {
            name: 100.0 * (self.predicted[name] / value - 1.0)
            for name, value in self.measured.items()
            if name in self.predicted
        }


def predict(made: RowScenario) -> Prediction:
    """Simulate one row; a row that cannot run has its `error`."""
    try:
        result = made.scenario.run()
    except KvsimError as error:
        return Prediction(made, {}, str(error))
    requests = result.requests
    later = _finished(requests.iloc[made.first_wave :])
    if not len(later):
        return Prediction(made, {}, "no request was finished")
    derived = "tpot_mean_ms" not in made.row.values
    figures = {
        "ttft": _mean_ms(_finished(requests).ttft),
        "ttft_later": _mean_ms(later.ttft),
        "tpot": _derived_tpot(later) if derived else _mean_ms(later.tpot),
        "e2e": _mean_ms(later.e2e),
        "tokens": result.metrics["generation_tokens_per_second"],
        "requests": result.metrics["requests_per_second"],
    }
    return Prediction(made, figures)


def _finished(requests: pd.DataFrame) -> pd.DataFrame:
    return requests[requests.status == "finished"]


def _mean_ms(seconds: pd.Series) -> float:
    return 1e3 * float(seconds.mean())


def _derived_tpot(requests: pd.DataFrame) -> float:
    """As sources derive it that give no TPOT of their own."""
    return _mean_ms(requests.e2e - requests.ttft) / (float(requests.num_output_tokens.mean()) - 1.0)
