"""`kvsim capacity --sweep FLAG=VALUES`: one plan for every combination of some flags' values.

The values are read by `kvsim.sweep.axes`.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu.capacity import CapacityPlan, plan_capacity
from kvsim.gpu.capacity_flags import FLAGS
from kvsim.gpu.flag_values import VALUES
from kvsim.gpu.known_flags import ALIASES, short_flags

_NO_FLAGS = (
    "model",
    "gpu",
    "gpu_memory_gib",
    "used_by_others_gib",
    "available_kv_cache_bytes",
    "vllm_version",
    "engine",
)
_NAMES = ("model", "gpu", "vllm_version", "engine")


def as_flags(axes: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """The axes by the names of `kvsim.plan_capacity`, with text read as the command line reads it (8k).

    Raises KvsimError for a name that is none, with the nearest, and for a flag under two names.
    """
    found: dict[str, list[Any]] = {}
    for typed, values in axes.items():
        name = _full_name(typed)
        if name in found:
            raise KvsimError(f"--sweep: {typed} is {name} again; give all its values at once")
        found[name] = [_value(name, value) for value in values]
    return found


def quoted(text: str) -> str:
    """FLAG=A,B with every value in quotes where values are names: 0.20 is a release, not 0.2."""
    flag, equals, values = text.partition("=")
    if flag.strip().lstrip("-").replace("-", "_") not in _NAMES or any(sign in values for sign in "\"'[{"):
        return text
    names = ",".join(f"'{value.strip()}'" for value in values.split(","))
    return f"{flag}{equals}{names}" if values.strip() else text


def _full_name(typed: str) -> str:
    dashed = typed.replace("_", "-")
    name = short_flags().get(f"-{dashed}") or ALIASES.get(dashed, dashed)
    name = name.replace("-", "_")
    known = (*FLAGS, *_NO_FLAGS)
    if name in known:
        return name
    close = get_close_matches(name, known, n=1)
    nearest = f"; nearest: {close[0]}" if close else "; see docs/capacity.md for those that do"
    raise KvsimError(f"--sweep: {typed[:40]} bears on nothing that is planned{nearest}")


def _value(name: str, value: Any) -> Any:
    read = VALUES.get(name.replace("_", "-"))
    return read(value, f"--sweep {name}") if read is not None and isinstance(value, str) else value


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
