"""When requests arrive: an open loop at a given rate."""

import math

import numpy as np
from numpy.typing import NDArray

PROCESSES = ("poisson", "constant")


class ArrivalTimes:
    """Arrival times in seconds, drawn block by block.

    `rate` is in requests per second; infinity means all at time 0. "poisson" draws the gaps
    from a gamma distribution of shape `burstiness` and mean 1/rate, which for 1 is Poisson
    traffic (`--request-rate` and `--burstiness` of vLLM's benchmark); "constant" sends
    request i at i/rate.
    """

    def __init__(self, rng: np.random.Generator, rate: float, process: str, burstiness: float) -> None:
        self._rng, self._rate, self._process, self._burstiness = rng, rate, process, burstiness
        self._num_drawn = 0
        self._now = 0.0

    def draw(self, count: int) -> NDArray[np.float64]:
        """The next `count` times, never decreasing."""
        first, self._num_drawn = self._num_drawn, self._num_drawn + count
        if math.isinf(self._rate):
            return np.zeros(count)
        if self._process == "constant":
            return np.arange(first, first + count) / self._rate
        times = self._now + np.cumsum(self._gaps(count))
        self._now = float(times[-1])
        return times

    def _gaps(self, count: int) -> NDArray[np.float64]:
        if self._burstiness == 1.0:
            return self._rng.standard_exponential(count) / self._rate
        return self._rng.standard_gamma(self._burstiness, count) / (self._rate * self._burstiness)
