"""The most telling points first, whatever the budget."""

from collections.abc import Hashable, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T", bound=Hashable)


def most_telling_first(
    candidates: Sequence[T], sizes: Sequence[Sequence[float]], core: Sequence[T] = ()
) -> list[T]:
    """The core as far as it is among the candidates, then always the point farthest from all before.

    sizes: of each candidate, numbers >= 0; distance is Euclidean in log2(1 + size). Without a core, the
    smallest and the largest point come first. Ties go to the earlier candidate.
    """
    if not candidates:
        return []
    where = np.log2(1.0 + np.asarray(sizes, float))
    place = {candidate: i for i, candidate in enumerate(candidates)}
    chosen = [place[point] for point in dict.fromkeys(core) if point in place]
    if not chosen:
        total = where.sum(axis=1)
        chosen = list(dict.fromkeys((int(total.argmin()), int(total.argmax()))))
    distance = np.full(len(where), np.inf)
    for i in chosen:
        distance = np.minimum(distance, _distance(where, i))
    distance[chosen] = -1.0
    while len(chosen) < len(candidates):
        i = int(distance.argmax())
        chosen.append(i)
        distance = np.minimum(distance, _distance(where, i))
        distance[chosen] = -1.0
    return [candidates[i] for i in chosen]


def _distance(where: np.ndarray, i: int) -> np.ndarray:
    return np.asarray(np.sqrt(((where - where[i]) ** 2).sum(axis=1)))


def interleaved(groups: Sequence[tuple[float, Sequence[T]]]) -> list[T]:
    """Points of (weight, points) groups in one row: a group of twice the weight goes twice as fast."""
    timed = [
        ((i + 0.5) / weight, g, point)
        for g, (weight, points) in enumerate(groups)
        for i, point in enumerate(points)
    ]
    timed.sort(key=lambda each: each[:2])
    return [point for _, _, point in timed]
