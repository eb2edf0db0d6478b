"""`kvsim capacity --sweep FLAG=VALUES`: one plan for every combination of some flags' values.

The values are read by `kvsim.sweep.axes`.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu.capacity import CapacityPlan, plan_capacity


def swept(
    model: str,
    facts: Mapping[str, Any],
    axes: Mapping[str, Sequence[Any]],
    answer: Callable[..., CapacityPlan] = plan_capacity,
) -> list[tuple[tuple[Any, ...], CapacityPlan | str]]:
    """(values, plan) per combination, by `answer`; a sentence in place of a plan that is not allowed."""
    rows: list[tuple[tuple[Any, ...], CapacityPlan | str]] = []
    problems = 0
    for values in itertools.product(*axes.values()):
        settings: dict[str, Any] = {**facts, "model": model} | dict(zip(axes, values, strict=True))
        try:
            rows.append((values, answer(**settings)))
        except KvsimError as error:
            problems += 1
            rows.append((values, str(error)))
    if rows and problems == len(rows):  # nothing but errors: the question itself is wrong
        raise KvsimError(str(rows[0][1]))
    return rows
