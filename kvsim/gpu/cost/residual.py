"""Residual tables: what measurements say beyond a closed form, on log2 axes, clamped."""

import base64
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST = 1.0  # a residual changes a time by at most a factor e
STEP = 0.01  # a stored value counts hundredths of ln(measured / modelled)


@dataclass(frozen=True)
class ResidualTable:
    """ln(measured / closed form), linear between nodes in log2 of each axis, constant beyond its edges.

    axes: name -> rising nodes. values: float64, one dimension per axis, within -MOST .. MOST; 0 where
    nothing was measured nearby, so that the closed form stands alone.
    """

    axes: dict[str, tuple[float, ...]]
    values: NDArray[np.float64]
    _log_nodes: tuple[NDArray[np.float64], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_log_nodes", tuple(np.log2(nodes) for nodes in self.axes.values()))

    def corners(self, **where: Any) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Flat indices and weights, both (points, 2 ** axes), of the nodes around each point."""
        points = np.broadcast_arrays(*(np.atleast_1d(np.asarray(where[name], float)) for name in self.axes))
        index = np.zeros((len(points[0]), 1), np.int64)
        weight = np.ones((len(points[0]), 1))
        for values, nodes in zip(points, self._log_nodes, strict=True):
            at = np.clip(np.log2(np.maximum(values, 1e-9)), nodes[0], nodes[-1])
            low = np.clip(np.searchsorted(nodes, at, side="right") - 1, 0, max(len(nodes) - 2, 0))
            high = np.minimum(low + 1, len(nodes) - 1)
            share = (at - nodes[low]) / np.maximum(nodes[high] - nodes[low], 1e-9)
            index = np.concatenate(
                [index * len(nodes) + low[:, None], index * len(nodes) + high[:, None]], axis=1
            )
            weight = np.concatenate([weight * (1 - share)[:, None], weight * share[:, None]], axis=1)
        return index, weight

    def at(self, **where: Any) -> NDArray[np.float64]:
        """Residuals (points,) at values of every axis by name, broadcast against each other."""
        index, weight = self.corners(**where)
        return np.sum(self.values.ravel()[index] * weight, axis=1)

    def to_json(self) -> dict[str, Any]:
        """Axes, and the values in hundredths as signed bytes in C order, zlib, base64."""
        hundredths = np.round(np.clip(self.values, -MOST, MOST) / STEP).astype(np.int8)
        text = base64.b64encode(zlib.compress(hundredths.tobytes(), 9)).decode()
        return {"axes": {name: list(nodes) for name, nodes in self.axes.items()}, "ln_hundredths": text}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "ResidualTable":
        """Raises ValueError, KeyError or zlib.error if the values do not fill the axes."""
        axes = {name: tuple(map(float, nodes)) for name, nodes in record["axes"].items()}
        raw = np.frombuffer(
            zlib.decompress(base64.b64decode(record["ln_hundredths"], validate=True)), np.int8
        )
        values = raw.astype(float).reshape([len(nodes) for nodes in axes.values()]) * STEP
        return cls(axes, values)
