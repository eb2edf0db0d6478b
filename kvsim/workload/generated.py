"""What all generated workloads share: arrivals, output lengths, tenants, adapters, priorities."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kvsim.tokens import Segments, stream_key
from kvsim.workload.arrivals import PROCESSES, ArrivalTimes
from kvsim.workload.checks import FieldError, number, one_of, whole
from kvsim.workload.lengths import Length, LengthSpec, length
from kvsim.workload.popularity import Popularity
from kvsim.workload.request import ImageFeature, LoRA, Request, RequestBlock, requests_of
from kvsim.workload.streams import blocks, generator, token_streams

MAX_REQUESTS = 10**12
MAX_CHOICES = 10_000_000  # groups, pictures, tenants, adapters: one number each is kept
MAX_RATE = 1e9
MAX_CONCURRENCY = 10_000_000


class Prompts(NamedTuple):
    """Prompts of some requests: i has segments[bounds[i]:bounds[i + 1]]; features None: no pictures."""

    segments: Segments
    bounds: NDArray[np.int64]
    features: list[tuple[ImageFeature, ...]] | None = None


class PromptSource(ABC):
    """Makes the prompts of one run; keeps the random streams that it draws from."""

    @abstractmethod
    def draw(self, first: int, count: int) -> Prompts:
        """Prompts of the requests number first .. first + count - 1; asked for in order."""


@dataclass(frozen=True, kw_only=True)
class GeneratedWorkload(ABC):
    """Traffic made from a seed.

    rate: requests per second, above 0 to 1e9; inf sends all at time 0.
    num_requests: how many; None for as many as the horizon takes.
    max_concurrency: requests under way at most, the others wait at the client and go out in order as one
        ends (vLLM's benchmark, `--max-concurrency`); with rate inf a closed loop. None for no limit.
    arrival, burstiness: see `kvsim.workload.arrivals`.
    output_len: tokens that the model will say (a length, see `kvsim.workload.lengths`).
    max_tokens: the client's limit; None for exactly the output's length.
    num_tenants: requests carry one of so many cache salts, taken evenly; 0 for none.
    num_loras: requests use one of so many LoRA adapters, taken evenly; 0 for none.
    priority: lower goes first under the priority policy (a length; may be negative).
    """

    rate: float
    num_requests: int | None = None
    max_concurrency: int | None = None
    arrival: str = "poisson"
    burstiness: float = 1.0
    output_len: LengthSpec = 128
    max_tokens: int | None = None
    num_tenants: int = 0
    num_loras: int = 0
    priority: LengthSpec = 0

    def __post_init__(self) -> None:
        check_pace(self, "num_requests", "requests")
        check_tags(self)
        self._output_length()

    def _output_length(self) -> Length:
        return length("output_len", self.output_len, low=1)

    @property
    def has_follow_ups(self) -> bool:
        return False

    @property
    def has_sessions(self) -> bool:
        return False

    @abstractmethod
    def prompt_source(self, seed: int) -> PromptSource:
        """The prompts of a run."""

    def requests(self, seed: int) -> Iterator[Request]:
        """The requests of `blocks`, one by one."""
        return requests_of(self.blocks(seed))

    def blocks(self, seed: int) -> Iterator[RequestBlock]:
        """Requests in order of arrival, named req-0, req-1, ...; equal seed, equal requests."""
        arrivals = ArrivalTimes(generator(seed, "arrivals"), self.rate, self.arrival, self.burstiness)
        prompts, outputs, tags = self.prompt_source(seed), _Outputs(self, seed), Tags(self, seed)
        for first, count in blocks(self.num_requests):
            prompt, (output, limits) = prompts.draw(first, count), outputs.draw(first, count)
            content, bounds = with_outputs(prompt.segments, prompt.bounds, output)
            yield RequestBlock(
                [f"req-{i}" for i in range(first, first + count)],
                arrivals.draw(count),
                content,
                bounds,
                bounds[1:] - 1,
                limits,
                tags.priorities(count),
                prompt.features,
                tags.salts(count),
                tags.adapters(count),
            )


def with_outputs(
    prompts: Segments, bounds: NDArray[np.int64], outputs: Segments
) -> tuple[Segments, NDArray[np.int64]]:
    """Each prompt's segments, then the one of its output; bounds of the whole."""
    count = len(outputs)
    before = np.repeat(np.arange(count), np.diff(bounds))
    bounds = bounds + np.arange(count + 1)
    content = np.empty((int(bounds[-1]), 3), np.uint64)
    content[bounds[1:] - 1] = outputs
    content[np.arange(len(prompts)) + before] = prompts
    return content, bounds


class _Outputs:
    """True outputs, each on a token stream of its own, and the limits asked for."""

    def __init__(self, spec: GeneratedWorkload, seed: int) -> None:
        self._length, self._rng = spec._output_length(), generator(seed, "output_len")
        self._family, self._max_tokens = stream_key(seed, "output"), spec.max_tokens

    def draw(self, first: int, count: int) -> tuple[Segments, NDArray[np.int64]]:
        lengths = self._length.draw(self._rng, count)
        limits = lengths if self._max_tokens is None else np.full(count, self._max_tokens)
        contents = np.zeros((count, 3), np.uint64)
        contents[:, 0] = token_streams(self._family, first, count)
        contents[:, 2] = np.minimum(lengths, limits)
        return contents, limits


class Pace(Protocol):
    """When requests, or sessions, arrive."""

    @property
    def rate(self) -> float: ...
    @property
    def max_concurrency(self) -> int | None: ...
    @property
    def arrival(self) -> str: ...
    @property
    def burstiness(self) -> float: ...


def check_pace(spec: Pace, count_field: str, things: str) -> None:
    """Raises FieldError; `count_field` says how many `things` there are, None for no limit."""
    number("rate", spec.rate, 0.0, MAX_RATE, infinite=True)
    count = getattr(spec, count_field)
    if count is not None:
        whole(count_field, count, 1, MAX_REQUESTS)
    elif np.isinf(spec.rate) and spec.max_concurrency is None:
        raise FieldError(count_field, f"missing; rate inf sends all {things} at once, so say how many")
    if spec.max_concurrency is not None:
        whole("max_concurrency", spec.max_concurrency, 1, MAX_CONCURRENCY)
    one_of("arrival", spec.arrival, PROCESSES)
    number("burstiness", spec.burstiness, 0.0, 1e6)


class Tagged(Protocol):
    """What requests, or sessions, carry beside their tokens."""

    @property
    def max_tokens(self) -> int | None: ...
    @property
    def num_tenants(self) -> int: ...
    @property
    def num_loras(self) -> int: ...
    @property
    def priority(self) -> LengthSpec: ...


def check_tags(spec: Tagged) -> None:
    """Raises FieldError."""
    if spec.max_tokens is not None:
        whole("max_tokens", spec.max_tokens, 1)
    whole("num_tenants", spec.num_tenants, 0, MAX_CHOICES)
    whole("num_loras", spec.num_loras, 0, MAX_CHOICES)
    _priority(spec)


def _priority(spec: Tagged) -> Length:
    return length("priority", spec.priority, low=-(2**31), high=2**31 - 1)


class Tags:
    """Cache salt, LoRA adapter and priority."""

    def __init__(self, spec: Tagged, seed: int) -> None:
        self._tenants = Popularity(generator(seed, "tenant"), spec.num_tenants) if spec.num_tenants else None
        self._loras = Popularity(generator(seed, "lora"), spec.num_loras) if spec.num_loras else None
        self._priority, self._rng = _priority(spec), generator(seed, "priority")

    def priorities(self, count: int) -> NDArray[np.int64]:
        return self._priority.draw(self._rng, count)

    def salts(self, count: int) -> list[str | None] | None:
        if self._tenants is None:
            return None
        return [f"tenant-{i}" for i in self._tenants.draw(count).tolist()]

    def adapters(self, count: int) -> list[LoRA | None] | None:
        if self._loras is None:
            return None
        return [LoRA(f"lora-{i}", i, f"loras/{i}") for i in (self._loras.draw(count) + 1).tolist()]
