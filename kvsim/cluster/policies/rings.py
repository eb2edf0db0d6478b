"""Hash rings, and the policies that send a session to the target on which its key falls.

Sources: vllm-project/production-stack `src/vllm_router/routers/routing_logic.py` (SessionRouter) over
uhashring 2.5; sgl-project/sglang `sgl-model-gateway/src/policies/consistent_hashing.rs` with the ring of
`src/core/worker_registry.rs` (2026; sglang-router 0.3.2 has no ring for workers behind HTTP and takes the
key's hash modulo their number).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import Annotated, Any, ClassVar

from annotated_types import Gt, Unit
from blake3 import blake3

from kvsim.cluster.policies.request_stats import REQUEST_STATS_WINDOW, RequestStats
from kvsim.cluster.policy import Chooser, Policy, RoutedRequest, View


class HashRing:
    """Ring of names by md5, as uhashring 2.5 makes it by default: 160 points each, `NAME-i` hashed whole."""

    POINTS = 160

    def __init__(self, names: Sequence[str]) -> None:
        # A later name takes a point that two share, as an entry of uhashring's dict does.
        points = {
            _md5(f"{name}-{i}"): number for number, name in enumerate(names) for i in range(self.POINTS)
        }
        self._positions = sorted(points)
        self._numbers = [points[position] for position in self._positions]

    def number_of(self, key: str) -> int:
        """Number of the name that holds a key: that of the first point beyond the key's."""
        return self._numbers[bisect_right(self._positions, _md5(key)) % len(self._positions)]


def _md5(text: str) -> int:
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest(), "big")


class SglangRing:
    """Ring of names by BLAKE3: 150 points each, the first point at or beyond a key's holds it.

    A point is that of the name, `#` and its number as eight bytes, little endian.
    """

    POINTS = 150

    def __init__(self, names: Sequence[str]) -> None:
        points = [
            (_blake3(f"{name}#".encode() + i.to_bytes(8, "little")), number)
            for number, name in enumerate(names)
            for i in range(self.POINTS)
        ]
        points.sort()
        self._positions = [position for position, _ in points]
        self._numbers = [number for _, number in points]

    def number_of(self, key: str) -> int:
        """Number of the name that holds a key."""
        return self._numbers[bisect_left(self._positions, _blake3(key.encode())) % len(self._positions)]


def _blake3(text: bytes) -> int:
    return int.from_bytes(blake3(text).digest(8), "little")


class RingChooser(Chooser):
    """Chooses by a ring of the targets' names, which follows them when they change."""

    make_ring: ClassVar[Any]

    def __init__(self) -> None:
        self._names: Sequence[str] = ()

    def on_ring(self, key: str, view: View) -> int:
        if view.names is not self._names:
            self._names, self._ring = view.names, self.make_ring(view.names)
        return int(self._ring.number_of(key))


@dataclass(frozen=True, kw_only=True)
class Session(Policy):
    """production-stack's `session`: a session stays where its id falls on a hash ring.

    Requests without a session go to the target with the lowest rate of requests; one that was never used
    comes first. request_stats_window: over which the rate is taken, seconds.
    """

    names: ClassVar[tuple[str, ...]] = ("session",)
    blind: ClassVar[bool] = True

    request_stats_window: Annotated[float, Gt(0), Unit("seconds")] = REQUEST_STATS_WINDOW

    def start(self, router: Any) -> Chooser:
        return SessionChooser(RequestStats(router.num_targets, self.request_stats_window))


class SessionChooser(RingChooser):
    make_ring = HashRing

    def __init__(self, request_stats: RequestStats) -> None:
        super().__init__()
        self._request_stats = request_stats

    def choose(self, request: RoutedRequest, view: View) -> int:
        target = self.where(request, view)
        self._request_stats.note(target, view.now)
        return target

    def where(self, request: RoutedRequest, view: View) -> int:
        """The choice, which is not noted."""
        if request.session is None:
            return self._request_stats.lowest_qps(view.now)
        return self.on_ring(request.session, view)


@dataclass(frozen=True, kw_only=True)
class ConsistentHashing(Policy):
    """sglang's `consistent_hashing`: a session stays where its id falls on a hash ring.

    Requests without a session go anywhere.
    """

    names: ClassVar[tuple[str, ...]] = ("consistent_hashing", "consistent_hash")
    blind: ClassVar[bool] = True

    def start(self, router: Any) -> Chooser:
        return ConsistentHashingChooser()


class ConsistentHashingChooser(RingChooser):
    make_ring = SglangRing

    def choose(self, request: RoutedRequest, view: View) -> int:
        if not request.session:
            return int(view.draw(len(view.names)))
        return self.on_ring(request.session, view)
