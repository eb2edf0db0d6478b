"""The highest, or lowest, value of a key that keeps every limit, by doubling and then bisection.

The limits are taken to hold up to some value and to fail from there on (the other way round for the
lowest), as latency does with load. Which values are probed follows from the verdicts alone, so a search
asks for the same points whoever computes them.
"""

import math
import re
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import NamedTuple

from kvsim.errors import KvsimError
from kvsim.scenario.loader import key_path

DEFAULT_TOLERANCE = 0.01  # relative, of fractional values; whole ones are found exactly
MAX_DOUBLINGS = 40

Number = int | float
_FORM = re.compile(r"(max|min):([^=:]+)(?:=([^:]+):([^:]+))?")


@dataclass(frozen=True)
class Find:
    """`goal` is max or min; low and high are the ends of the search where they were given."""

    text: str
    goal: str
    key: str
    low: Number | None = None
    high: Number | None = None


class Verdict(NamedTuple):
    """Whether a value keeps every limit; if not, what it breaks. Refused: no scenario has such a value."""

    good: bool
    problem: str = ""
    refused: bool = False


@dataclass
class Answer:
    """The best good value, the bad one next to it, and what was wrong there."""

    best: Number | None = None
    beyond: Number | None = None
    problem: str = ""
    probes: list[Number] = field(default_factory=list)


Search = Generator[Number, Verdict, Answer]


def read_find(text: str) -> Find:
    """ "max:KEY", "min:KEY", or either with =LOW:HIGH; raises KvsimError."""
    parts = _FORM.fullmatch(text.strip())
    where = key_path(parts[2]) if parts else ()
    if parts is None or not all(where):
        raise KvsimError(f"--find {text}: write max:KEY or min:KEY, such as max:workload.rate")
    key = ".".join(where)
    if parts[3] is None:
        return Find(f"{parts[1]}:{key}", parts[1], key)
    low, high = (_number(end, text) for end in (parts[3], parts[4]))
    if not 0 < low < high:
        raise KvsimError(f"--find {text}: empty range; write LOW:HIGH with 0 < LOW < HIGH")
    return Find(f"{parts[1]}:{key}={low}:{high}", parts[1], key, low, high)


def _number(text: str, whole_text: str) -> Number:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise KvsimError(f"--find {whole_text}: {text.strip()} is not a number")
    return value


def search(find: Find, start: Number, *, whole: bool, tolerance: float | None) -> Search:
    """Yields values to probe, is sent their verdicts, and returns the answer.

    whole: only whole numbers. tolerance: relative distance between the answer and the value beyond it.
    """
    answer = Answer()
    up = find.goal == "max"
    if find.low is not None and find.high is not None:
        ends = (find.low, find.high) if up else (find.high, find.low)
        yield from _between_ends(answer, *ends)
    else:
        yield from _bracket(answer, start, whole=whole, up=up)
    if answer.best is None or answer.beyond is None:
        return answer
    while (middle := _middle(answer.best, answer.beyond, whole, tolerance)) is not None:
        yield from _probe(answer, middle)
    return answer


def _probe(answer: Answer, value: Number) -> Generator[Number, Verdict, Verdict]:
    answer.probes.append(value)
    verdict = yield value
    if verdict.good:
        answer.best = value
    elif answer.best is not None or answer.beyond is None or not verdict.refused:
        answer.beyond, answer.problem = value, verdict.problem
    return verdict


def _between_ends(answer: Answer, easy: Number, hard: Number) -> Generator[Number, Verdict, None]:
    if (yield from _probe(answer, easy)).good:
        yield from _probe(answer, hard)


def _bracket(answer: Answer, start: Number, *, whole: bool, up: bool) -> Generator[Number, Verdict, None]:
    """Doubles away from a good start, or halves back from a bad one (the lowest: the other way round)."""
    value = start
    good = (yield from _probe(answer, value)).good
    grow = up == good
    for _ in range(MAX_DOUBLINGS):
        nearer = value * 2 if grow else value // 2 if whole else value / 2
        if nearer < 1 and whole:
            return
        value = nearer
        verdict = yield from _probe(answer, value)
        if verdict.good != good or verdict.refused:
            return


def _middle(best: Number, beyond: Number, whole: bool, tolerance: float | None) -> Number | None:
    """The next value to probe; None where the two are near enough."""
    low, high = sorted((best, beyond))
    if whole:
        near = max(1, int(low * (tolerance or 0.0)))
        return (int(low) + int(high)) // 2 if high - low > near else None
    if high <= low * (1 + (tolerance or DEFAULT_TOLERANCE)):
        return None
    middle = float(f"{math.sqrt(low * high):.6g}")
    return middle if low < middle < high else None
