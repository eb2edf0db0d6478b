"""The highest, or lowest, value of a key that keeps every limit, by doubling and then bisection.

The limits are taken to hold up to some value and to fail from there on (the other way round for the
lowest), as latency does with load. Only values that a scenario may have are probed; one that is refused
says nothing about the limits. Which values are probed follows from the verdicts alone, so a search asks for
the same points whoever computes them.
"""

import math
import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kvsim.errors import KvsimError
from kvsim.scenario.loader import key_path

DEFAULT_TOLERANCE = 0.01  # relative, of fractional values; whole ones are found exactly
MAX_DOUBLINGS = 40
MAX_LOOKS = 1024  # whole numbers looked at for one that is permitted

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
    """Whether a value keeps every limit; if not, what it breaks."""

    good: bool
    problem: str = ""


class Refused(NamedTuple):
    """A value that no scenario may have, and why."""

    value: Number
    why: str


@dataclass
class Answer:
    """The best good value, the bad one next to it, and what was wrong there.

    `refused` is what ended the search on the side where it goes.
    """

    best: Number | None = None
    beyond: Number | None = None
    problem: str = ""
    refused: Refused | None = None
    probes: list[Number] = field(default_factory=list)


Search = Generator[Number, Verdict, Answer]
Refusal = Callable[[Number], str | None]  # why no scenario may have a value, or None


def read_find(text: str, option: str | None = None) -> Find:
    """ "max:KEY", "min:KEY", or either with =LOW:HIGH; raises KvsimError that begins with `option`."""
    option = option or f"--find {text}"
    parts = _FORM.fullmatch(text.strip())
    where = key_path(parts[2]) if parts else ()
    if parts is None or not all(where):
        raise KvsimError(f"{option}: write max:KEY or min:KEY, such as max:workload.rate")
    key = ".".join(where)
    if parts[3] is None:
        return Find(f"{parts[1]}:{key}", parts[1], key)
    low, high = (_number(end, option) for end in (parts[3], parts[4]))
    if not 0 < low < high:
        raise KvsimError(f"{option}: empty range; write LOW:HIGH with 0 < LOW < HIGH")
    return Find(f"{parts[1]}:{key}={low}:{high}", parts[1], key, low, high)


def _number(text: str, option: str) -> Number:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise KvsimError(f"{option}: {text.strip()} is not a number")
    return value


def search(
    find: Find,
    start: Number,
    *,
    whole: bool,
    tolerance: float | None,
    refusal: Refusal = lambda value: None,
) -> Search:
    """Yields values to probe, is sent their verdicts, and returns the answer.

    whole: only whole numbers. tolerance: relative distance between the answer and the value beyond it.
    refusal: of a value, known without a run.
    """
    answer = Answer()
    up = find.goal == "max"
    if find.low is not None and find.high is not None:
        ends = (find.low, find.high) if up else (find.high, find.low)
        yield from _between_ends(answer, *ends, whole=whole, refusal=refusal)
    else:
        yield from _bracket(answer, start, whole=whole, up=up, refusal=refusal)
    if answer.best is None or answer.beyond is None:
        return answer
    while (middle := _middle(answer.best, answer.beyond, whole, tolerance, refusal)) is not None:
        yield from _probe(answer, middle)
    return answer


def _probe(answer: Answer, value: Number) -> Generator[Number, Verdict, Verdict]:
    answer.probes.append(value)
    verdict = yield value
    if verdict.good:
        answer.best = value
    else:
        answer.beyond, answer.problem = value, verdict.problem
    return verdict


def _between_ends(
    answer: Answer, easy: Number, hard: Number, *, whole: bool, refusal: Refusal
) -> Generator[Number, Verdict, None]:
    """The ends, or what is permitted next to them."""
    first = easy if refusal(easy) is None else permitted_next_to(easy, hard, refusal, whole=whole)
    last = hard
    if (why := refusal(hard)) is not None:
        answer.refused = Refused(hard, why)
        inner = None if first is None else permitted_next_to(hard, first, refusal, whole=whole)
        last = first if inner is None else inner  # type: ignore[assignment]
    if first is None or not (yield from _probe(answer, first)).good:
        return
    if last == first or (yield from _probe(answer, last)).good:
        return
    answer.refused = None  # a limit binds before that


def _bracket(
    answer: Answer, start: Number, *, whole: bool, up: bool, refusal: Refusal
) -> Generator[Number, Verdict, None]:
    """Doubles away from a good start, or halves back from a bad one (the lowest: the other way round)."""
    value = start
    if (why := refusal(start)) is not None:
        answer.refused = Refused(start, why)
        return
    good = (yield from _probe(answer, value)).good
    grow = up == good
    for _ in range(MAX_DOUBLINGS):
        further: Number = value * 2 if grow else value // 2 if whole else value / 2
        if further < 1 and whole:
            return
        why = refusal(further)
        edge = further if why is None else permitted_next_to(further, value, refusal, whole=whole)
        changed = edge is not None and (yield from _probe(answer, edge)).good != good
        if changed or edge is None or why is not None:
            answer.refused = None if changed or why is None else Refused(further, why)
            return
        value = edge


def permitted_next_to(refused: Number, end: Number, refusal: Refusal, *, whole: bool) -> Number | None:
    """The permitted value nearest to a refused one on the way to `end`, which is left out; None without one.

    Of fractions and far ends, what is permitted is taken to lie in one piece.
    """
    step = 1 if end > refused else -1
    if whole and abs(int(end) - int(refused)) <= MAX_LOOKS:
        way = range(int(refused) + step, int(end), step)
        return next((value for value in way if refusal(value) is None), None)
    if refusal(end) is not None:
        return None
    inside, outside = end, refused
    while (middle := _halfway(inside, outside, whole=whole)) is not None:
        if refusal(middle) is None:
            inside = middle
        else:
            outside = middle
    return None if inside == end else inside


def _halfway(a: Number, b: Number, *, whole: bool) -> Number | None:
    """Between the two; None where they are next to each other (fractions: to six digits)."""
    low, high = sorted((a, b))
    middle: Number = (int(low) + int(high)) // 2 if whole else float(f"{(low + high) / 2:.6g}")
    return middle if low < middle < high else None


def _middle(
    best: Number, beyond: Number, whole: bool, tolerance: float | None, refusal: Refusal
) -> Number | None:
    """The next value to probe; None where the two are near enough, or nothing between them is permitted."""
    low, high = sorted((best, beyond))
    if whole:
        near = max(1, int(low * (tolerance or 0.0)))
        if high - low <= near:
            return None
        around = _outwards((int(low) + int(high)) // 2, int(low), int(high))
        return next((value for value in around if refusal(value) is None), None)
    if high <= low * (1 + (tolerance or DEFAULT_TOLERANCE)):
        return None
    middle = float(f"{math.sqrt(low * high):.6g}")
    return middle if low < middle < high and refusal(middle) is None else None


def _outwards(middle: int, low: int, high: int) -> Iterator[int]:
    """Whole numbers between low and high, the nearest to the middle first."""
    for distance in range(MAX_LOOKS // 2):
        for value in dict.fromkeys((middle - distance, middle + distance)):
            if low < value < high:
                yield value
