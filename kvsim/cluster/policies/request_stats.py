"""How many requests each target was lately sent, the load that production-stack's routers fall back on.

Source: vllm-project/production-stack `src/vllm_router/stats/request_stats.py` and `_qps_routing` of
`src/vllm_router/routers/routing_logic.py`.
"""

from collections import deque

import numpy as np

from kvsim.cluster.policy import View

REQUEST_STATS_WINDOW = 60.0  # s, flag --request-stats-window


class RequestStats:
    """Times of what each target was sent within a sliding window (s), read off the router's own counters."""

    def __init__(self, window: float = REQUEST_STATS_WINDOW) -> None:
        self.window = window
        self._sent: list[deque[float]] = []
        self._num_routed = np.zeros(0, np.int64)

    def observe(self, view: View) -> None:
        """Note what was sent since the last choice; to be called at each one."""
        num_routed = view.targets["num_routed"]
        if len(num_routed) != len(self._sent):
            self._sent = [deque() for _ in num_routed]
            self._num_routed = np.zeros(len(num_routed), np.int64)
        elif (num_routed == self._num_routed).all():
            return
        for target in np.flatnonzero(num_routed != self._num_routed).tolist():
            new = int(num_routed[target] - self._num_routed[target])
            self._sent[target].extend([float(view.targets["last_routed_time"][target])] * new)
        self._num_routed = num_routed.copy()

    def qps(self, target: int, now: float) -> float:
        """Requests per second that the target was sent in the window before `now`."""
        sent = self._sent[target]
        while sent and sent[0] < now - self.window:
            sent.popleft()
        return len(sent) / self.window

    def lowest_qps(self, now: float) -> int:
        """The first target that was never sent anything, else the first of those with the lowest rate."""
        for target, num_routed in enumerate(self._num_routed.tolist()):
            if num_routed == 0:
                return target
        rates = [self.qps(target, now) for target in range(len(self._sent))]
        return rates.index(min(rates))
