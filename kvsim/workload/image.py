"""Requests with pictures drawn from a catalogue.

    image_position: before_instruction    text_before | picture ... picture | instruction | text_after
    image_position: after_instruction     text_before | instruction | picture ... picture | text_after

`text_before` and `text_after` are the chat template's and the same in every request. Between
two pictures stand `tokens_between` tokens (Qwen's vision end and vision start markers); the
markers around the whole row of pictures count to the texts beside it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.tokens import PLACEHOLDER_STREAM, Segments, segments, stream_key
from kvsim.workload.checks import FieldError, number, one_of, shown, whole
from kvsim.workload.generated import MAX_CHOICES, GeneratedWorkload, Prompts, PromptSource
from kvsim.workload.image_tokens import MAX_SIDE, PROCESSORS, image_tokens
from kvsim.workload.lengths import Length, LengthSpec, length
from kvsim.workload.popularity import POPULARITIES, Popularity
from kvsim.workload.request import ImageFeature
from kvsim.workload.streams import generator, token_streams

POSITIONS = ("before_instruction", "after_instruction")
MAX_IMAGES_PER_REQUEST = 10_000

Segment = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class ImageWorkload(GeneratedWorkload):
    """Image traffic; the further fields are those of `GeneratedWorkload`.

    num_images: pictures in the catalogue; 0 makes every picture a new one.
    popularity, zipf_alpha: how pictures are picked, see `kvsim.workload.popularity`.
    images_per_request: a length.
    image_size: [width, height] in pixels, or a list of such pairs, one drawn for each picture.
    image_tokens: instead of a size, a picture's tokens (a length, drawn for each picture).
    min_pixels, max_pixels: replace the processor's limits (areas).
    processor: a family of `kvsim.workload.image_tokens`, needed with image_size.
    image_position: before_instruction or after_instruction, see the module.
    text_before, text_after, tokens_between: template tokens, see the module.
    instruction_len: tokens of an instruction (a length).
    num_instructions: different instructions, taken evenly; 0 gives every request its own.
    """

    num_images: int = 10
    popularity: str = "uniform"
    zipf_alpha: float = 1.0
    images_per_request: LengthSpec = 1
    image_size: Any = None
    image_tokens: LengthSpec | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    processor: str | None = None
    image_position: str = "before_instruction"
    text_before: int = 4
    tokens_between: int = 2
    instruction_len: LengthSpec = 21
    num_instructions: int = 0
    text_after: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("num_images", self.num_images, 0, MAX_CHOICES)
        one_of("popularity", self.popularity, POPULARITIES)
        number("zipf_alpha", self.zipf_alpha, 0.0, 100.0)
        one_of("image_position", self.image_position, POSITIONS)
        for field in ("text_before", "tokens_between", "text_after"):
            whole(field, getattr(self, field), 0)
        whole("num_instructions", self.num_instructions, 0, MAX_CHOICES)
        instruction, images = self.instruction_length(), self.image_counts()
        if self.text_before + self.text_after + instruction.low + images.low == 0:
            raise FieldError("instruction_len", "a prompt could be empty; let it be at least 1")
        self._check_sizes()

    def _check_sizes(self) -> None:
        if (self.image_size is None) == (self.image_tokens is None):
            raise FieldError("image_size", "give image_size (pixels) or image_tokens, one of the two")
        for field in ("min_pixels", "max_pixels"):
            if getattr(self, field) is not None:
                whole(field, getattr(self, field), 1, 10**12)
        if self.min_pixels is not None and self.max_pixels is not None and self.min_pixels > self.max_pixels:
            raise FieldError("min_pixels", f"{self.min_pixels} is above max_pixels, {self.max_pixels}")
        if self.processor is not None:
            one_of("processor", self.processor, tuple(PROCESSORS))
        if self.image_tokens is not None:
            length("image_tokens", self.image_tokens, low=1)
        self.sizes()
        self.token_table()

    def instruction_length(self) -> Length:
        return length("instruction_len", self.instruction_len)

    def image_counts(self) -> Length:
        return length("images_per_request", self.images_per_request, high=MAX_IMAGES_PER_REQUEST)

    def sizes(self) -> list[tuple[int, int]]:
        """The sizes that pictures may have, (width, height) in pixels; empty if tokens are given."""
        if self.image_size is None:
            return []
        given = self.image_size
        if isinstance(given, list | tuple) and len(given) == 2 and not isinstance(given[0], list | tuple):
            given = [given]
        if not isinstance(given, list | tuple) or not given or any(not _is_pair(size) for size in given):
            problem = f"{shown(self.image_size)} is not [width, height] or a list of such pairs"
            raise FieldError("image_size", problem)
        return [(width, height) for width, height in given]

    def token_table(self) -> list[int]:
        """Tokens of a picture of each of `sizes`; empty while the processor is not known."""
        if self.processor is None:
            return []
        limits = self.min_pixels, self.max_pixels
        return [image_tokens(self.processor, width, height, *limits) for width, height in self.sizes()]

    def picture_tokens(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Tokens of `count` pictures, shape (count,)."""
        if self.image_tokens is not None:
            return length("image_tokens", self.image_tokens, low=1).draw(rng, count)
        table = self.token_table()
        if not table:
            raise FieldError("processor", f"missing; sizes in pixels need one of {', '.join(PROCESSORS)}")
        return np.array(table, np.int64)[rng.integers(0, len(table), count)]

    def prompt_source(self, seed: int) -> PromptSource:
        return _Prompts(self, seed)


def _is_pair(size: Any) -> bool:
    if not isinstance(size, list | tuple) or len(size) != 2:
        return False
    return all(type(side) is int and 0 < side <= MAX_SIDE for side in size)


class _Pictures:
    """Picks pictures: (identity, tokens) of each."""

    def __init__(self, spec: ImageWorkload, seed: int) -> None:
        self._spec, self._rng = spec, generator(seed, "image_size")
        self._num_new = 0
        if spec.num_images:
            self._tokens = spec.picture_tokens(self._rng, spec.num_images)
            rng = generator(seed, "image")
            self._picks = Popularity(rng, spec.num_images, spec.popularity, spec.zipf_alpha)

    def draw(self, count: int) -> Iterator[tuple[int, int]]:
        if self._spec.num_images:
            picked = self._picks.draw(count)
            return zip(picked.tolist(), self._tokens[picked].tolist(), strict=True)
        first, self._num_new = self._num_new, self._num_new + count
        tokens = self._spec.picture_tokens(self._rng, count)
        return zip(range(first, first + count), tokens.tolist(), strict=True)


class _Instructions:
    """Picks instructions: (stream, 0, tokens) of each."""

    def __init__(self, spec: ImageWorkload, seed: int) -> None:
        self._length, self._rng = spec.instruction_length(), generator(seed, "instruction_len")
        self._family, self._num = stream_key(seed, "instruction"), spec.num_instructions
        if self._num:
            self._streams = token_streams(self._family, 0, self._num)
            self._lengths = self._length.draw(self._rng, self._num)
            self._picks = Popularity(generator(seed, "instruction"), self._num)

    def draw(self, first: int, count: int) -> Iterator[Segment]:
        if self._num:
            picked = self._picks.draw(count)
            streams, lengths = self._streams[picked], self._lengths[picked]
        else:
            streams = token_streams(self._family, first, count)
            lengths = self._length.draw(self._rng, count)
        return zip(streams.tolist(), repeat(0), lengths.tolist(), strict=False)


class _Prompts(PromptSource):
    def __init__(self, spec: ImageWorkload, seed: int) -> None:
        self._pictures, self._instructions = _Pictures(spec, seed), _Instructions(spec, seed)
        self._counts, self._rng = spec.image_counts(), generator(seed, "images_per_request")
        self._images_first = spec.image_position == "before_instruction"
        self._before = (stream_key(seed, "text_before"), 0, spec.text_before)
        self._between = (stream_key(seed, "tokens_between"), 0, spec.tokens_between)
        self._after = (stream_key(seed, "text_after"), 0, spec.text_after)

    def draw(self, first: int, count: int) -> Prompts:
        counts = self._counts.draw(self._rng, count)
        pictures = self._pictures.draw(int(counts.sum()))
        instructions = self._instructions.draw(first, count)
        contents, features = [], []
        for num_images, instruction in zip(counts.tolist(), instructions, strict=True):
            content, images = self._prompt([next(pictures) for _ in range(num_images)], instruction)
            contents.append(content)
            features.append(images)
        return Prompts(np.concatenate(contents), np.cumsum([0, *map(len, contents)]), features)

    def _prompt(
        self, pictures: list[tuple[int, int]], instruction: Segment
    ) -> tuple[Segments, tuple[ImageFeature, ...]]:
        parts = [self._before] if self._images_first else [self._before, instruction]
        offset, features = sum(part[2] for part in parts), []
        for i, (identity, tokens) in enumerate(pictures):
            if i:
                parts.append(self._between)
                offset += self._between[2]
            parts.append((PLACEHOLDER_STREAM, 0, tokens))
            features.append(ImageFeature(f"image-{identity}", offset, tokens))
            offset += tokens
        if self._images_first:
            parts.append(instruction)
        return segments(*parts, self._after), tuple(features)
