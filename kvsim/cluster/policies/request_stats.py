"""How many requests each target was lately sent, the load that production-stack's routers fall back on.

Source: vllm-project/production-stack `src/vllm_router/stats/request_stats.py` and `_qps_routing` of
`src/vllm_router/routers/routing_logic.py`.
"""

from collections import deque

REQUEST_STATS_WINDOW = 60.0  # s, flag --request-stats-window


class RequestStats:
    """Times at which each target was sent something within a sliding window (s)."""

    def __init__(self, window: float = REQUEST_STATS_WINDOW) -> None:
        self.window = window
        self._sent: dict[int, deque[float]] = {}

    def note(self, target: int, now: float) -> None:
        """A request goes to a target."""
        sent = self._sent.get(target)
        if sent is None:
            sent = self._sent[target] = deque()
        sent.append(now)
        while sent[0] < now - self.window:
            sent.popleft()

    def qps(self, target: int, now: float) -> float:
        """Requests per second that a target was sent in the window before `now`."""
        sent = self._sent[target]
        while sent and sent[0] < now - self.window:
            sent.popleft()
        return len(sent) / self.window

    def lowest_qps(self, num_targets: int, now: float) -> int:
        """The first target that was never sent anything, else the first of those with the lowest rate."""
        for target in range(num_targets):
            if target not in self._sent:
                return target
        rates = [self.qps(target, now) for target in range(num_targets)]
        return rates.index(min(rates))
