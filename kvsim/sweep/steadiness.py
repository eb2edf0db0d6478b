"""Whether the figures that a search rests on follow the searched value, as it takes them to."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from kvsim.sweep.constraints import Constraint
from kvsim.sweep.search import Find, Number

_NOISE = 0.1  # share of the limit, or of the figures where they are larger, that may be chance
_NEAR = 1.25  # a figure this many times on the right side of the limit endangers no answer


def unsteady(
    find: Find, limits: Sequence[Constraint], rows: Mapping[Number, Mapping[str, Any]]
) -> Iterator[str]:
    """A sentence for each limit whose figure, once near it, gets better where it should get worse.

    rows: the figures at each value that was tried. Then the limit may hold again beyond the answer, which a
    search cannot see.
    """
    order = sorted(rows, reverse=find.goal == "min")  # from easy to hard
    for limit in limits:
        known = [(value, rows[value].get(limit.column)) for value in order]
        figures = [(value, float(figure)) for value, figure in known if figure is not None]
        for (easy, before), (hard, after) in pairwise(figures):
            gain = (before - after) if limit.is_upper else (after - before)
            near = before > limit.limit / _NEAR if limit.is_upper else before < limit.limit * _NEAR
            if near and gain > _NOISE * max(abs(limit.limit), abs(before), abs(after)):
                yield (
                    f"{limit.name} does not follow {find.key}: {limit.shown(before)} at {easy:g}, "
                    f"{limit.shown(after)} at {hard:g}, so {limit.text} may hold beyond the answer or fail "
                    f"before it; look with --set {find.key}=A,B,C"
                )
                break
