"""What a workload yields and an engine takes: one request, its content as segments.

Names follow vLLM 0.33 (`Request`, `LoRARequest`, multimodal features). Nothing here holds
token ids; `kvsim.tokens.expand` makes them when someone needs to hash them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from kvsim.tokens import Segments, num_tokens


@dataclass(frozen=True, slots=True)
class ImageFeature:
    """One picture in a prompt: placeholder tokens `offset` .. `offset + length - 1`.

    `identifier` takes the place of vLLM's hash of the pixels: equal name, equal picture.
    """

    identifier: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class LoRA:
    """A LoRA adapter; `int_id` counts from 1, as in vLLM."""

    name: str
    int_id: int
    path: str


class FollowUp(Protocol):
    """The rest of a session: what its client does once a request has finished.

    It holds no clock and changes nothing, so asking twice gives the same request. A request that was
    refused or aborted ends its session: nobody asks.
    """

    @property
    def think_time(self) -> float:
        """Seconds from the end of this request to the moment when the next one is sent."""

    @property
    def num_requests(self) -> int:
        """How many requests the session still has."""

    def next_request(self, arrival_time: float, num_output_tokens: int) -> "Request":
        """The next request of the session, sent at `arrival_time`; its own follow-up leads on.

        num_output_tokens: how many tokens the server gave, which may be fewer than the model would have
        said (the context's end, the client's limit).
        """


def turn_id(session: str, number: int) -> str:
    """The name of a session's request, counted from 1."""
    return f"{session}-turn-{number}"


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One request.

    `prompt` and `output` are segments, shape (k, 3), uint64. `output` is what the model
    will say and ends where it will stop; schedulers and routers must not look at its
    length. `arrival_time` is in seconds, `max_tokens` the client's limit on new tokens.
    `session` names the conversation; `follow_up` is what comes after this request, None for nothing.
    """

    request_id: str
    arrival_time: float
    prompt: Segments
    output: Segments
    max_tokens: int
    features: tuple[ImageFeature, ...] = ()
    cache_salt: str | None = None
    lora: LoRA | None = None
    priority: int = 0
    session: str | None = None
    follow_up: FollowUp | None = None

    @property
    def num_prompt_tokens(self) -> int:
        return num_tokens(self.prompt)

    @property
    def num_output_tokens(self) -> int:
        """The true output length."""
        return num_tokens(self.output)


@dataclass(frozen=True, eq=False)
class RequestBlock:
    """Many requests as columns, in order of arrival; `block[i]` is one as a `Request`, `block[a:b]` a part.

    Nobody changes the arrays: a part shares them with the whole.

    Request i has segments[bounds[i]:prompt_ends[i]] as prompt and segments[prompt_ends[i]:bounds[i + 1]]
    as output. Lists that hold nothing for any request are None.
    """

    request_ids: list[str]
    arrival_times: NDArray[np.float64]
    segments: Segments
    bounds: NDArray[np.int64]
    prompt_ends: NDArray[np.int64]
    max_tokens: NDArray[np.int64]
    priorities: NDArray[np.int64]
    features: list[tuple[ImageFeature, ...]] | None = None
    cache_salts: list[str | None] | None = None
    loras: list[LoRA | None] | None = None
    sessions: list[str | None] | None = None
    follow_ups: list[FollowUp | None] | None = None

    @classmethod
    def of(cls, requests: Sequence[Request]) -> "RequestBlock":
        """Single requests as a block."""
        parts = [part for request in requests for part in (request.prompt, request.output)]
        ends = np.cumsum([0, *map(len, parts)])
        columns = {
            column: [getattr(request, name) for request in requests]
            for column, name in _OPTIONAL.items()
            if any(getattr(request, name) for request in requests)
        }
        return cls(
            [request.request_id for request in requests],
            np.array([request.arrival_time for request in requests]),
            np.concatenate(parts) if parts else np.zeros((0, 3), np.uint64),
            ends[::2],
            ends[1::2],
            np.array([request.max_tokens for request in requests], np.int64),
            np.array([request.priority for request in requests], np.int64),
            **columns,
        )

    @classmethod
    def joined(cls, blocks: Sequence["RequestBlock"]) -> "RequestBlock":
        """At least one block, one behind the other; the caller sees to the order of times."""
        firsts = np.cumsum([0, *(len(block.segments) for block in blocks)])
        columns = {
            column: [item for block in blocks for item in _filled(block, column, empty)]
            for column, empty in _EMPTY.items()
            if any(getattr(block, column) is not None for block in blocks)
        }
        starts = [block.bounds[:-1] + first for block, first in zip(blocks, firsts, strict=False)]
        return cls(
            [name for block in blocks for name in block.request_ids],
            np.concatenate([block.arrival_times for block in blocks]),
            np.concatenate([block.segments for block in blocks]),
            np.concatenate([*starts, firsts[-1:]]),
            np.concatenate([block.prompt_ends + first for block, first in zip(blocks, firsts, strict=False)]),
            np.concatenate([block.max_tokens for block in blocks]),
            np.concatenate([block.priorities for block in blocks]),
            **columns,
        )

    def __len__(self) -> int:
        return len(self.request_ids)

    def __iter__(self) -> Iterator[Request]:
        return map(self._request, range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Request: ...
    @overload
    def __getitem__(self, index: slice) -> "RequestBlock": ...
    def __getitem__(self, index: int | slice) -> "Request | RequestBlock":
        if not isinstance(index, slice):
            return self._request(range(len(self))[index])
        first, end, step = index.indices(len(self))
        if step != 1:
            return self.take(np.arange(first, end, step))
        if first == 0 and end == len(self):
            return self
        return self._part(slice(first, max(first, end)))

    def _part(self, part: slice) -> "RequestBlock":
        """Neighbours, without a copy of the arrays."""
        start, end = int(self.bounds[part.start]), int(self.bounds[part.stop])
        columns = {
            name: None if column is None else column[part]
            for name in _OPTIONAL
            for column in (getattr(self, name),)
        }
        return RequestBlock(
            self.request_ids[part],
            self.arrival_times[part],
            self.segments[start:end],
            self.bounds[part.start : part.stop + 1] - start,
            self.prompt_ends[part] - start,
            self.max_tokens[part],
            self.priorities[part],
            **columns,
        )

    def take(self, picked: NDArray[np.int64]) -> "RequestBlock":
        """The requests at these places."""
        starts, ends = self.bounds[picked], self.bounds[picked + 1]
        lengths = ends - starts
        bounds = np.concatenate([[0], np.cumsum(lengths)])
        rows = np.repeat(starts - bounds[:-1], lengths) + np.arange(bounds[-1])
        places = picked.tolist()
        columns = {
            name: None if column is None else [column[i] for i in places]
            for name in _OPTIONAL
            for column in (getattr(self, name),)
        }
        return RequestBlock(
            [self.request_ids[i] for i in places],
            self.arrival_times[picked],
            self.segments[rows],
            bounds,
            bounds[:-1] + self.prompt_ends[picked] - starts,
            self.max_tokens[picked],
            self.priorities[picked],
            **columns,
        )

    def _request(self, i: int) -> Request:
        first, middle, end = int(self.bounds[i]), int(self.prompt_ends[i]), int(self.bounds[i + 1])
        return Request(
            self.request_ids[i],
            float(self.arrival_times[i]),
            self.segments[first:middle],
            self.segments[middle:end],
            int(self.max_tokens[i]),
            self.features[i] if self.features else (),
            self.cache_salts[i] if self.cache_salts else None,
            self.loras[i] if self.loras else None,
            int(self.priorities[i]),
            self.sessions[i] if self.sessions else None,
            self.follow_ups[i] if self.follow_ups else None,
        )

    @cached_property
    def num_prompt_tokens(self) -> NDArray[np.int64]:
        before = self._tokens_before
        return before[self.prompt_ends] - before[self.bounds[:-1]]

    @cached_property
    def num_output_tokens(self) -> NDArray[np.int64]:
        """The true output lengths."""
        before = self._tokens_before
        return before[self.bounds[1:]] - before[self.prompt_ends]

    def largest_images(self) -> NDArray[np.int64]:
        """Tokens of each request's largest picture, 0 without one."""
        if self.features is None:
            return np.zeros(len(self), np.int64)
        largest = [max((image.length for image in images), default=0) for images in self.features]
        return np.array(largest, np.int64)

    def lora_ids(self) -> list[int]:
        """Numbers of the adapters, 0 for none."""
        return [lora.int_id if lora else 0 for lora in self.loras or [None] * len(self)]

    @cached_property
    def _tokens_before(self) -> NDArray[np.int64]:
        """Tokens in front of each segment, and of all: shape (segments + 1,)."""
        before = np.zeros(len(self.segments) + 1, np.int64)
        np.cumsum(self.segments[:, 2], out=before[1:])
        return before


# Columns that may be missing, and the field of a request that each stands for.
_OPTIONAL = {
    "features": "features",
    "cache_salts": "cache_salt",
    "loras": "lora",
    "sessions": "session",
    "follow_ups": "follow_up",
}
_EMPTY: dict[str, Any] = {column: () if column == "features" else None for column in _OPTIONAL}


def _filled(block: RequestBlock, column: str, empty: Any) -> list[Any]:
    items: list[Any] | None = getattr(block, column)
    return [empty] * len(block) if items is None else items


def requests_of(blocks: Iterable[RequestBlock]) -> Iterator[Request]:
    """The requests of blocks, one by one."""
    return chain.from_iterable(blocks)


def blocks_of(requests: Iterable[Request], size: int = 256) -> Iterator[RequestBlock]:
    """Requests in blocks of `size`, made as they are asked for."""
    requests = iter(requests)
    while part := list(islice(requests, size)):
        yield RequestBlock.of(part)


class Workload(Protocol):
    """A frozen description of traffic."""

    @property
    def num_requests(self) -> int | None:
        """How many requests it will yield, if that is known beforehand."""

    @property
    def max_concurrency(self) -> int | None:
        """Requests under way at most; arrival times are then the earliest ones. None for no limit.

        With follow-ups it counts sessions, from their first request to the end of their last one.
        """

    @property
    def has_follow_ups(self) -> bool:
        """Whether some requests go out only when others have ended: sessions."""

    @property
    def has_sessions(self) -> bool:
        """Whether requests name the session that they belong to, whatever makes them go out."""

    def blocks(self, seed: int) -> Iterator[RequestBlock]:
        """Requests in order of arrival, made as they are asked for; equal seed, equal requests."""

    def requests(self, seed: int) -> Iterator[Request]:
        """The same one by one."""
