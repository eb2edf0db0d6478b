"""How many requests each target was lately sent, the load that production-stack's routers fall back on.

Source: vllm-project/production-stack `src/vllm_router/stats/request_stats.py` and `_qps_routing` of
`src/vllm_router/routers/routing_logic.py`. Rates of one window compare as numbers of requests do.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.compiled import compiled, compiled_part

REQUEST_STATS_WINDOW = 60.0  # s, flag --request-stats-window

# Of each target's times, a ring: where it begins, how many it holds, how many there ever were
RING_DTYPE = np.dtype([("first", "i8"), ("count", "i8"), ("total", "i8")])


@compiled_part
def has_room_for_time(times, rings, before):
    """Whether each ring (a row of `times`, s) takes one more; times before `before` are dropped."""
    for t in range(times.shape[0]):
        while rings["count"][t] > 0 and times[t, rings["first"][t]] < before:
            rings["first"][t] = (rings["first"][t] + 1) % times.shape[1]
            rings["count"][t] -= 1
        if rings["count"][t] == times.shape[1]:
            return False
    return True


@compiled_part
def note_time(times, rings, target, now):
    """A request goes to a target; there is room."""
    times[target, (rings["first"][target] + rings["count"][target]) % times.shape[1]] = now
    rings["count"][target] += 1
    rings["total"][target] += 1


@compiled_part
def lowest_qps(rings):
    """The first target that was never sent anything, else the first of those with the lowest rate."""
    best = np.int64(0)
    for t in range(rings.shape[0]):
        if rings["total"][t] == 0:
            return np.int64(t)
        if rings["count"][t] < rings["count"][best]:
            best = np.int64(t)
    return best


def new_times(num_targets: int) -> list[NDArray[Any]]:
    """Empty rings: times (n, some) and RING_DTYPE (n,)."""
    return [np.zeros((num_targets, 64)), np.zeros(num_targets, RING_DTYPE)]


def larger_times(times: NDArray[np.float64], rings: NDArray[np.void]) -> list[NDArray[Any]]:
    """The same rings with twice the room."""
    size = times.shape[1]
    new, moved = np.zeros((len(times), 2 * size)), rings.copy()
    for t, first in enumerate(rings["first"].tolist()):
        new[t, :size] = np.roll(times[t], -first)
    moved["first"] = 0
    return [new, moved]


@compiled
def _has_room(times, rings, before):
    return has_room_for_time(times, rings, before)


@compiled
def _note(times, rings, target, now):
    note_time(times, rings, target, now)


@compiled
def _lowest(rings):
    return lowest_qps(rings)


class RequestStats:
    """The same for policies in Python; window: seconds."""

    def __init__(self, num_targets: int, window: float = REQUEST_STATS_WINDOW) -> None:
        self.window = window
        self._arrays = new_times(num_targets)

    def note(self, target: int, now: float) -> None:
        """A request goes to a target at `now` (s)."""
        self._drop(now)
        _note(*self._arrays, target, now)

    def lowest_qps(self, now: float) -> int:
        """The first target that was never sent anything, else the first of those with the lowest rate."""
        self._drop(now)
        return int(_lowest(self._arrays[1]))

    def _drop(self, now: float) -> None:
        while not _has_room(*self._arrays, now - self.window):
            self._arrays = larger_times(*self._arrays)
