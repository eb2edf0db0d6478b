"""The hit rate that vLLM logs: over the latest requests, not over the whole life.

Followed: `CachingMetrics` of vLLM 0.33.0, `v1/metrics/stats.py`.
"""

from collections import deque


class CachingMetrics:
    """Share of looked-up tokens that hit, over the latest `max_recent_requests` requests.

    Updates age as a whole: one scheduler step may bring several requests, and the latest update
    always stays.
    """

    def __init__(self, max_recent_requests: int = 1000) -> None:
        self.max_recent_requests = max_recent_requests
        self.reset()

    def reset(self) -> None:
        """Forget everything, as after `reset_prefix_cache`."""
        self._updates: deque[tuple[int, int, int]] = deque()
        self._requests = self._queries = self._hits = 0

    def observe(self, requests: int, queries: int, hits: int) -> None:
        """One update: requests looked up, their tokens, and the tokens that hit."""
        if requests == 0:
            return
        self._add(requests, queries, hits)
        self._updates.append((requests, queries, hits))
        while len(self._updates) > 1 and self._requests > self.max_recent_requests:
            self._add(*(-count for count in self._updates.popleft()))

    def _add(self, requests: int, queries: int, hits: int) -> None:
        self._requests += requests
        self._queries += queries
        self._hits += hits

    @property
    def hit_rate(self) -> float:
        """0..1; 0 before anything was looked up."""
        return self._hits / self._queries if self._queries else 0.0
