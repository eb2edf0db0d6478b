"""`kvsim capacity --sweep FLAG=VALUES`: one plan for every combination of some flags' values.

The values are read by `kvsim.sweep.axes`.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu.capacity import CapacityPlan, plan_capacity


def swept(
    model: str, facts: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]
) -> list[tuple[tuple[Any, ...], CapacityPlan | str]]:
    """(values, plan) per combination; the plan is a sentence where that combination is not allowed."""
    rows: list[tuple[tuple[Any, ...], CapacityPlan | str]] = []
    problems = 0
    for values in itertools.product(*axes.values()):
        settings: dict[str, Any] = {**facts, "model": model} | dict(zip(axes, values, strict=True))
        try:
            rows.append((values, plan_capacity(**settings)))
        except KvsimError as error:
            problems += 1
            rows.append((values, str(error)))
    if rows and problems == len(rows):  # nothing but errors: the question itself is wrong
        raise KvsimError(str(rows[0][1]))
    return rows
