"""Several workloads at once: chat beside documents beside pictures, on the same servers.

The mix has the clock: its arrivals come at one rate, and each is drawn to belong to one part, with a chance
in proportion to the part's weight. So weights hold at any rate, also where all are sent at once or as
`max_concurrency` lets them, and Poisson traffic gives Poisson traffic in each part. A part says what its
requests are; it draws that from streams of its own, so that another part's settings do not change it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from kvsim.tokens import stream_key
from kvsim.workload.arrivals import ArrivalTimes
from kvsim.workload.chat import ChatWorkload
from kvsim.workload.checks import FieldError, number, shown
from kvsim.workload.generated import check_pace
from kvsim.workload.image import ImageWorkload
from kvsim.workload.request import FollowUp, ImageFeature, Request, RequestBlock, requests_of
from kvsim.workload.shared_prefix import SharedPrefixWorkload
from kvsim.workload.streams import blocks, generator

PACE = ("rate", "num_requests", "num_sessions", "max_concurrency", "arrival", "burstiness")
MAX_PARTS = 1000

PartWorkload = SharedPrefixWorkload | ImageWorkload | ChatWorkload


@dataclass(frozen=True)
class MixPart:
    """One part; the workload's own pace and number of requests do not count."""

    weight: float
    workload: PartWorkload


@dataclass(frozen=True, kw_only=True)
class MixWorkload:
    """Workloads mixed by weight.

    parts: name -> part. Names go in front of request ids, sessions and pictures: chat/session-0-turn-1.
    rate: arrivals per second, above 0 to 1e9; an arrival is a request, or the first one of a session.
    num_arrivals: how many; None for as many as the horizon takes.
    max_concurrency: sessions under way at most, a request that nothing follows being a session of one.
    arrival, burstiness: see `kvsim.workload.arrivals`, for all parts together.
    """

    parts: Mapping[str, MixPart]
    rate: float
    num_arrivals: int | None = None
    max_concurrency: int | None = None
    arrival: str = "poisson"
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        check_pace(self, "num_arrivals", "requests")
        if not isinstance(self.parts, Mapping) or not self.parts:
            raise FieldError("parts", f"{shown(self.parts)} is not a mapping of names to workloads")
        if len(self.parts) > MAX_PARTS:
            raise FieldError("parts", f"{len(self.parts)} are too many; give at most {MAX_PARTS}")
        for name, part in self.parts.items():
            if not isinstance(name, str) or not name or "/" in name:
                raise FieldError("parts", f"{shown(name)} is not a name; give text without /")
            if not isinstance(part, MixPart) or not isinstance(part.workload, PartWorkload):
                raise FieldError(f"parts.{name}", f"{shown(part)} is not a MixPart of such a workload")
            number(f"parts.{name}.weight", part.weight, 0.0, 1e9)

    @property
    def num_requests(self) -> int | None:
        """The arrivals, if none of them goes on as a session."""
        return None if self.has_follow_ups else self.num_arrivals

    @property
    def has_follow_ups(self) -> bool:
        return any(part.workload.has_follow_ups for part in self.parts.values())

    @property
    def has_sessions(self) -> bool:
        return any(part.workload.has_sessions for part in self.parts.values())

    @property
    def num_loras(self) -> int:
        """Adapters in all: parts share them."""
        return max(part.workload.num_loras for part in self.parts.values())

    def requests(self, seed: int) -> Iterator[Request]:
        """The requests of `blocks`, one by one."""
        return requests_of(self.blocks(seed))

    def blocks(self, seed: int) -> Iterator[RequestBlock]:
        """Requests, and first requests of sessions, in order of arrival; equal seed, equal requests."""
        arrivals = ArrivalTimes(generator(seed, "arrivals"), self.rate, self.arrival, self.burstiness)
        rng = generator(seed, "part")
        edges = np.cumsum([float(part.weight) for part in self.parts.values()])
        edges /= edges[-1]
        parts = [_Part(name, part.workload, seed) for name, part in self.parts.items()]
        for _, count in blocks(self.num_arrivals):
            picked = np.searchsorted(edges, rng.random(count), side="right")
            counts = np.bincount(picked, minlength=len(parts))
            drawn = [part.take(share) for part, share in zip(parts, counts.tolist(), strict=True) if share]
            places = np.empty(count, np.int64)
            places[np.argsort(picked, kind="stable")] = np.arange(count)
            yield replace(RequestBlock.joined(drawn).take(places), arrival_times=arrivals.draw(count))


class _Part:
    """Requests of one part, as they are asked for."""

    def __init__(self, name: str, workload: PartWorkload, seed: int) -> None:
        known = {field.name for field in fields(workload)}
        endless: dict[str, Any] = {"rate": 1.0, "num_requests": None, "num_sessions": None}
        workload = replace(workload, **{key: value for key, value in endless.items() if key in known})
        self._prefix = f"{name}/"
        self._blocks = workload.blocks(stream_key(seed, "part", name))
        self._left = next(self._blocks)

    def take(self, count: int) -> RequestBlock:
        """The next `count` requests."""
        taken = []
        while count > len(self._left):
            taken.append(self._left)
            count -= len(self._left)
            self._left = next(self._blocks)
        taken.append(self._left[:count])
        self._left = self._left[count:]
        return _named(RequestBlock.joined(taken), self._prefix)


def _named(block: RequestBlock, prefix: str) -> RequestBlock:
    return replace(
        block,
        request_ids=[prefix + name for name in block.request_ids],
        features=block.features and [_pictures(images, prefix) for images in block.features],
        sessions=block.sessions and [session and prefix + session for session in block.sessions],
        follow_ups=block.follow_ups and [after and _Named(after, prefix) for after in block.follow_ups],
    )


def _pictures(images: tuple[ImageFeature, ...], prefix: str) -> tuple[ImageFeature, ...]:
    return tuple(replace(image, identifier=prefix + image.identifier) for image in images)


@dataclass(frozen=True, slots=True, eq=False)
class _Named:
    """A follow-up of a part."""

    follow_up: FollowUp
    prefix: str

    @property
    def think_time(self) -> float:
        return self.follow_up.think_time

    @property
    def num_requests(self) -> int:
        return self.follow_up.num_requests

    def next_request(self, arrival_time: float, num_output_tokens: int) -> Request:
        request = self.follow_up.next_request(arrival_time, num_output_tokens)
        return replace(
            request,
            request_id=self.prefix + request.request_id,
            features=_pictures(request.features, self.prefix),
            session=request.session and self.prefix + request.session,
            follow_up=request.follow_up and _Named(request.follow_up, self.prefix),
        )
