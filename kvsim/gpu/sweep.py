"""`kvsim capacity --sweep FLAG=VALUES`: one plan for every combination of some flags' values."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu.capacity import CapacityPlan, plan_capacity

_MOST_ROWS = 2000


def read_axes(texts: Sequence[str]) -> dict[str, list[Any]]:
    """FLAG=FROM:TO:STEP or FLAG=A,B,C each; numbers become numbers, "model" and dtypes stay text.

    Raises KvsimError naming what is wrong.
    """
    axes: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        if not (name and equals and values):
            raise KvsimError(f"--sweep: {text[:60]!r} is not FLAG=FROM:TO:STEP or FLAG=A,B,C")
        axes[name] = (
            _range(values, text) if values.count(":") == 2 else [_value(v) for v in values.split(",")]
        )
    count = 1
    for values_of in axes.values():
        count *= len(values_of)
    if count > _MOST_ROWS:
        raise KvsimError(f"--sweep: {count:,} combinations are more than {_MOST_ROWS:,}; give fewer values")
    return axes


def _range(values: str, text: str) -> list[Any]:
    try:
        first, last, step = (Decimal(part) for part in values.split(":"))
        good = all(part.is_finite() for part in (first, last, step)) and step > 0 and last >= first
        if not good or (last - first) / step > _MOST_ROWS:
            raise InvalidOperation
    except InvalidOperation:
        raise KvsimError(f"--sweep: {text[:60]!r} is not FLAG=FROM:TO:STEP with a step above 0") from None
    count = int((last - first) / step) + 1
    return [_value(str(first + i * step)) for i in range(count)]


def _value(text: str) -> Any:
    text = text.strip()
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


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
