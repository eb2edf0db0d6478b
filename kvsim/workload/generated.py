"""What all generated workloads share: arrivals, output lengths, tenants, adapters, priorities."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvsim.tokens import Segments, stream_key
from kvsim.workload.arrivals import PROCESSES, ArrivalTimes
from kvsim.workload.checks import FieldError, number, one_of, whole
from kvsim.workload.lengths import Length, LengthSpec, length
from kvsim.workload.popularity import Popularity
from kvsim.workload.request import ImageFeature, LoRA, Request
from kvsim.workload.streams import blocks, generator, token_streams

MAX_REQUESTS = 10**12
MAX_CHOICES = 10_000_000  # groups, pictures, tenants, adapters: one number each is kept
MAX_RATE = 1e9

Prompt = tuple[Segments, tuple[ImageFeature, ...]]


class PromptSource(ABC):
    """Makes the prompts of one run; keeps the random streams that it draws from."""

    @abstractmethod
    def draw(self, first: int, count: int) -> Iterator[Prompt]:
        """Prompts of the requests number first .. first + count - 1; asked for in order."""


@dataclass(frozen=True, kw_only=True)
class GeneratedWorkload(ABC):
    """Traffic made from a seed.

    rate: requests per second, above 0 to 1e9; inf sends all at time 0.
    num_requests: how many; None for as many as the horizon takes.
    arrival, burstiness: see `kvsim.workload.arrivals`.
    output_len: tokens that the model will say (a length, see `kvsim.workload.lengths`).
    max_tokens: the client's limit; None for exactly the output's length.
    num_tenants: requests carry one of so many cache salts, taken evenly; 0 for none.
    num_loras: requests use one of so many LoRA adapters, taken evenly; 0 for none.
    priority: lower goes first under the priority policy (a length; may be negative).
    """

    rate: float
    num_requests: int | None = None
    arrival: str = "poisson"
    burstiness: float = 1.0
    output_len: LengthSpec = 128
    max_tokens: int | None = None
    num_tenants: int = 0
    num_loras: int = 0
    priority: LengthSpec = 0

    def __post_init__(self) -> None:
        number("rate", self.rate, 0.0, MAX_RATE, infinite=True)
        if self.num_requests is not None:
            whole("num_requests", self.num_requests, 1, MAX_REQUESTS)
        elif np.isinf(self.rate):
            raise FieldError("num_requests", "missing; rate inf sends all requests at once, so say how many")
        one_of("arrival", self.arrival, PROCESSES)
        number("burstiness", self.burstiness, 0.0, 1e6)
        self._output_length()
        if self.max_tokens is not None:
            whole("max_tokens", self.max_tokens, 1)
        whole("num_tenants", self.num_tenants, 0, MAX_CHOICES)
        whole("num_loras", self.num_loras, 0, MAX_CHOICES)
        self._priority()

    def _output_length(self) -> Length:
        return length("output_len", self.output_len, low=1)

    def _priority(self) -> Length:
        return length("priority", self.priority, low=-(2**31), high=2**31 - 1)

    @abstractmethod
    def prompt_source(self, seed: int) -> PromptSource:
        """The prompts of a run."""

    def requests(self, seed: int) -> Iterator[Request]:
        """Requests in order of arrival, named req-0, req-1, ...; equal seed, equal requests."""
        arrivals = ArrivalTimes(generator(seed, "arrivals"), self.rate, self.arrival, self.burstiness)
        prompts, outputs, tags = self.prompt_source(seed), _Outputs(self, seed), _Tags(self, seed)
        for first, count in blocks(self.num_requests):
            times, drawn = arrivals.draw(count).tolist(), tags.draw(count)
            parts = zip(times, prompts.draw(first, count), outputs.draw(first, count), drawn, strict=True)
            for i, (time, (prompt, features), (output, limit), tag) in enumerate(parts, first):
                yield Request(f"req-{i}", time, prompt, output, limit, features, *tag)


class _Outputs:
    """True outputs, each on a token stream of its own, and the limits asked for."""

    def __init__(self, spec: GeneratedWorkload, seed: int) -> None:
        self._length, self._rng = spec._output_length(), generator(seed, "output_len")
        self._family, self._max_tokens = stream_key(seed, "output"), spec.max_tokens

    def draw(self, first: int, count: int) -> Iterator[tuple[Segments, int]]:
        lengths = self._length.draw(self._rng, count)
        limits = lengths if self._max_tokens is None else np.full(count, self._max_tokens)
        contents = np.zeros((count, 1, 3), np.uint64)
        contents[:, 0, 0] = token_streams(self._family, first, count)
        contents[:, 0, 2] = np.minimum(lengths, limits)
        return zip(contents, limits.tolist(), strict=True)


class _Tags:
    """Cache salt, LoRA adapter and priority."""

    def __init__(self, spec: GeneratedWorkload, seed: int) -> None:
        self._tenants = Popularity(generator(seed, "tenant"), spec.num_tenants) if spec.num_tenants else None
        self._loras = Popularity(generator(seed, "lora"), spec.num_loras) if spec.num_loras else None
        self._priority, self._rng = spec._priority(), generator(seed, "priority")

    def draw(self, count: int) -> Iterator[tuple[str | None, LoRA | None, int]]:
        priorities = self._priority.draw(self._rng, count).tolist()
        return zip(self._salts(count), self._adapters(count), priorities, strict=True)

    def _salts(self, count: int) -> list[str | None]:
        if self._tenants is None:
            return [None] * count
        return [f"tenant-{i}" for i in self._tenants.draw(count).tolist()]

    def _adapters(self, count: int) -> list[LoRA | None]:
        if self._loras is None:
            return [None] * count
        return [LoRA(f"lora-{i}", i, f"loras/{i}") for i in (self._loras.draw(count) + 1).tolist()]
