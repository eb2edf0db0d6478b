"""What a workload yields and an engine takes: one request, its content as segments.

Names follow vLLM 0.33 (`Request`, `LoRARequest`, multimodal features). Nothing here holds
token ids; `kvsim.tokens.expand` makes them when someone needs to hash them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

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


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One request.

    `prompt` and `output` are segments, shape (k, 3), uint64. `output` is what the model
    will say and ends where it will stop; schedulers and routers must not look at its
    length. `arrival_time` is in seconds, `max_tokens` the client's limit on new tokens.
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

    @property
    def num_prompt_tokens(self) -> int:
        return num_tokens(self.prompt)

    @property
    def num_output_tokens(self) -> int:
        """The true output length."""
        return num_tokens(self.output)


class Workload(Protocol):
    """A frozen description of traffic."""

    @property
    def num_requests(self) -> int | None:
        """How many requests it will yield, if that is known beforehand."""

    def requests(self, seed: int) -> Iterator[Request]:
        """Requests in order of arrival, made as they are asked for; equal seed, equal requests."""
