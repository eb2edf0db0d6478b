"""A limited number of clients, each with one session at a time: a closed loop of conversations.

`max_concurrency` of a workload with follow-ups counts sessions: a client begins its next one when one of its
own has ended, thinks between the turns of a session, and so has one request under way at most. A request
without a follow-up is a session of one. This is the concurrency of AIPerf's conversations and the number of
users of kv-cache-tester, and the interactive closed system of queueing theory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvsim.engine.config import EngineConfig
from kvsim.sim.refusal import refusal
from kvsim.workload.request import Request


@dataclass(frozen=True, slots=True)
class _Over:
    """The follow-up of a session's last request, so that its end is told at once; nothing is sent."""

    think_time: float = 0.0
    num_requests: int = 0

    def next_request(self, arrival_time: float, num_output_tokens: int) -> Request:
        raise AssertionError("a session that is over goes on")


OVER = _Over()


class Clients:
    """Lets sessions begin: so many at first, then one for each that is over.

    requests: their first requests, in order of arrival. configs: of all engines; a request that none of them
    takes ends its session at once.
    """

    def __init__(self, requests: Iterator[Request], count: int, configs: Sequence[EngineConfig]) -> None:
        self._requests, self._count, self._configs = requests, count, configs
        self._known_refused: set[str] = set()

    def begin(self) -> list[Request]:
        """The first sessions of all clients."""
        begun: list[Request] = []
        for _ in range(self._count):
            begun += self._next(0.0)
        return sorted(begun, key=lambda request: request.arrival_time)

    def go_on(self, request: Request) -> list[Request]:
        """A session's next request, and, if nobody takes that, the first one of its client's next session."""
        going: list[Request] = []
        following: Request | None = request
        while following is not None:
            going.append(following if following.follow_up else replace(following, follow_up=OVER))
            if not self._is_refused(following):
                break
            self._known_refused.add(following.request_id)
            following = self._first(following.arrival_time)
        return going

    def over(self, time: float) -> list[Request]:
        """A session has ended: the first request of its client's next one."""
        return self._next(time)

    def refused(self, request_id: str, time: float) -> list[Request]:
        """The engine that got a request refuses it; the same, unless that was known beforehand."""
        if request_id in self._known_refused:
            self._known_refused.discard(request_id)
            return []
        return self._next(time)

    def _next(self, time: float) -> list[Request]:
        request = self._first(time)
        return [] if request is None else self.go_on(request)

    def _first(self, time: float) -> Request | None:
        """The first request of the next session, which begins at `time` or later."""
        request = next(self._requests, None)
        return request and replace(request, arrival_time=max(request.arrival_time, time))

    def _is_refused(self, request: Request) -> bool:
        return all(refusal(config, request) is not None for config in self._configs)
