"""Compares what a case expects with what was observed; an expectation of unknown name is a difference."""

import re
from typing import Any

KV_EVENT_TYPES = {"stored": "BlockStored", "removed": "BlockRemoved", "cleared": "AllBlocksCleared"}


def differences(expect: dict[str, Any], observed: dict[str, Any], tolerance: Any = None) -> list[str]:
    """One line per expectation that does not hold."""
    expect = dict(expect)
    tolerance = expect.pop("tolerance", tolerance)
    out = []
    for name, wanted in expect.items():
        allowed = tolerance.get(name) if isinstance(tolerance, dict) else tolerance
        out += [f"{name}: {line}" for line in _field(name, wanted, observed, allowed)]
    return out


def _field(name: str, wanted: Any, observed: dict[str, Any], tolerance: Any) -> list[str]:
    if match := re.fullmatch(r"after_step_(\d+)", name):
        return _queues(wanted, _after(observed.get("queues"), int(match[1])))
    if match := re.fullmatch(r"kv_cache_usage_after_step_(\d+)", name):
        return _compare(wanted, _after(observed.get("usage"), int(match[1])), tolerance)
    if name in ("queues", "usage") or name not in observed:
        return ["the runner does not know this expectation"]
    if name == "reason":
        return _reason(wanted, observed[name])
    if name == "kv_events":
        wanted = {KV_EVENT_TYPES.get(kind, kind): count for kind, count in wanted.items()}
    return _compare(wanted, observed[name], tolerance)


def _after(steps: list[Any] | None, number: int) -> Any:
    """The entry of a step; the last one if all was over before."""
    return steps[min(number, len(steps)) - 1] if steps and number > 0 else None


def _queues(wanted: dict[str, Any], seen: dict[str, Any] | None) -> list[str]:
    if seen is None:
        return ["there was no step"]
    out = []
    for name, value in wanted.items():
        if name not in seen:
            out.append(f"{name}: the runner does not know this expectation")
        elif isinstance(value, int):
            out += _compare(value, len(seen[name]), None)
        else:
            out += [f"{name}: {line}" for line in _compare(list(map(str, value)), seen[name], None)]
    return out


def _compare(wanted: Any, seen: Any, tolerance: Any) -> list[str]:
    if isinstance(wanted, dict):
        if not isinstance(seen, dict):
            return [f"want {wanted}, have {seen}"]
        by_name = {str(key): value for key, value in seen.items()}
        return [
            f"{key}: {line}"
            for key, value in wanted.items()
            for line in (
                _compare(value, by_name[str(key)], tolerance) if str(key) in by_name else ["not observed"]
            )
        ]
    if isinstance(seen, dict) and seen and not isinstance(wanted, bool | str):
        seen = list(seen.values())  # in the order of the requests
    if isinstance(wanted, list):
        same = isinstance(seen, list) and len(wanted) == len(seen)
        if same and not any(_compare(w, s, tolerance) for w, s in zip(wanted, seen, strict=True)):
            return []
        return [f"want {wanted}, have {seen}"]
    if isinstance(seen, list):  # one value for all
        wrong = [value for value in seen if not _equal(wanted, value, tolerance)]
        return [f"want {wanted} everywhere, have {seen}"] if wrong or not seen else []
    return [] if _equal(wanted, seen, tolerance) else [f"want {wanted}, have {seen}"]


def _equal(wanted: Any, seen: Any, tolerance: Any) -> bool:
    numbers = [isinstance(v, int | float) and not isinstance(v, bool) for v in (wanted, seen)]
    if not all(numbers):
        return type(wanted) is type(seen) and wanted == seen
    return abs(wanted - seen) <= _allowed(wanted, seen, tolerance)


def _allowed(wanted: float, seen: float, tolerance: Any) -> float:
    """How far two numbers may lie apart.

    A tolerance is absolute, but relative for "1%" and for one below 1 on a count. Without one,
    three or more decimals are a rounded figure, everything else is exact.
    """
    if isinstance(tolerance, str):
        return abs(wanted) * float(tolerance.rstrip("% ")) / 100
    if tolerance is not None:
        return abs(wanted) * tolerance if isinstance(seen, int) and tolerance < 1 else tolerance
    decimals = len(repr(float(wanted)).partition(".")[2]) if "e" not in repr(float(wanted)) else 9
    return 0.5 * 10.0**-decimals + 1e-12 if decimals >= 3 else 1e-9


def _reason(wanted: str | None, seen: str | None) -> list[str]:
    """Same content: every number that the expected reason names stands in ours too (ms may be s)."""
    if not wanted or not seen:
        return [] if bool(wanted) == bool(seen) else [f"want {wanted!r}, have {seen!r}"]
    ours = _numbers(seen)
    missing = [n for n in _numbers(wanted) if n not in ours and n / 1000 not in ours]
    return [f"want {wanted!r}, have {seen!r}, which lacks {missing}"] if missing else []


def _numbers(text: str) -> list[float]:
    plain = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)  # thousands
    return [float(n) for n in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?", plain)]
