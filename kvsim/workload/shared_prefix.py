"""Requests in groups: every member starts with its group's prefix and ends with text of its own.

Names and defaults follow vLLM's `prefix_repetition` benchmark dataset.
"""

from dataclasses import dataclass

import numpy as np

from kvsim.tokens import stream_key
from kvsim.workload.checks import FieldError, number, one_of, whole
from kvsim.workload.generated import MAX_CHOICES, GeneratedWorkload, Prompts, PromptSource
from kvsim.workload.lengths import Length, LengthSpec, length
from kvsim.workload.popularity import POPULARITIES, Popularity
from kvsim.workload.streams import generator, token_streams


@dataclass(frozen=True, kw_only=True)
class SharedPrefixWorkload(GeneratedWorkload):
    """Shared-prefix traffic; the further fields are those of `GeneratedWorkload`.

    num_prefixes: number of groups.
    prefix_len: tokens of a prefix, drawn once for each group (a length).
    suffix_len: tokens of a request's own text, drawn for each request (a length).
    popularity, zipf_alpha: how a request picks its group, see `kvsim.workload.popularity`.
    """

    num_prefixes: int = 10
    prefix_len: LengthSpec = 256
    suffix_len: LengthSpec = 256
    popularity: str = "uniform"
    zipf_alpha: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("num_prefixes", self.num_prefixes, 1, MAX_CHOICES)
        one_of("popularity", self.popularity, POPULARITIES)
        number("zipf_alpha", self.zipf_alpha, 0.0, 100.0)
        if self.lengths("prefix_len").low + self.lengths("suffix_len").low == 0:
            raise FieldError("suffix_len", "prompts could be empty; let it or prefix_len be at least 1")

    def lengths(self, field: str) -> Length:
        return length(field, getattr(self, field))

    def prompt_source(self, seed: int) -> PromptSource:
        return _Prompts(self, seed)


class _Prompts(PromptSource):
    def __init__(self, spec: SharedPrefixWorkload, seed: int) -> None:
        groups = spec.num_prefixes
        self._prefix_streams = token_streams(stream_key(seed, "prefix"), 0, groups)
        self._prefix_lengths = spec.lengths("prefix_len").draw(generator(seed, "prefix_len"), groups)
        self._groups = Popularity(generator(seed, "group"), groups, spec.popularity, spec.zipf_alpha)
        self._suffixes = stream_key(seed, "suffix")
        self._suffix_length, self._suffix_rng = spec.lengths("suffix_len"), generator(seed, "suffix_len")

    def draw(self, first: int, count: int) -> Prompts:
        picked = self._groups.draw(count)
        contents = np.zeros((count, 2, 3), np.uint64)
        contents[:, 0, 0] = self._prefix_streams[picked]
        contents[:, 0, 2] = self._prefix_lengths[picked]
        contents[:, 1, 0] = token_streams(self._suffixes, first, count)
        contents[:, 1, 2] = self._suffix_length.draw(self._suffix_rng, count)
        is_there = contents[:, :, 2] > 0
        bounds = np.concatenate([[0], np.cumsum(is_there.sum(axis=1))])
        return Prompts(contents[is_there], bounds)
