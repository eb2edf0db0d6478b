"""Which of N things a request picks: prefix groups, pictures, tenants."""

import numpy as np
from numpy.typing import NDArray

POPULARITIES = ("uniform", "zipf", "cycle")


class Popularity:
    """Draws indices 0 .. size - 1.

    "uniform" takes all alike, "zipf" takes index i with weight 1 / (i + 1) ** alpha, and
    "cycle" goes through them in turn without drawing.
    """

    def __init__(
        self, rng: np.random.Generator, size: int, kind: str = "uniform", alpha: float = 1.0
    ) -> None:
        self._rng, self._size, self._kind = rng, size, kind
        self._next = 0
        self._edges = np.zeros(0)
        if kind == "zipf":
            edges = np.cumsum(np.arange(1, size + 1, dtype=np.float64) ** -alpha)
            self._edges = edges / edges[-1]

    def draw(self, count: int) -> NDArray[np.int64]:
        """The next `count` picks, shape (count,)."""
        if self._kind == "cycle":
            picks = (self._next + np.arange(count, dtype=np.int64)) % self._size
            self._next = (self._next + count) % self._size
            return picks
        if self._kind == "zipf":
            return np.searchsorted(self._edges, self._rng.random(count), side="right")
        return self._rng.integers(0, self._size, count)
