"""The units of a sweep: a single point, or a search that asks for one point after the other.

A job is a generator: it yields points, is sent their outcomes, and returns its rows.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from kvsim.sim.build import WOULD_NOT_START
from kvsim.sweep.asked import Asked, Values
from kvsim.sweep.figures import figures, replica_figures
from kvsim.sweep.points import Point, Resolver
from kvsim.sweep.search import Answer, Number, Verdict, search
from kvsim.sweep.steadiness import unsteady
from kvsim.sweep.store import Outcome

_PROBE_FACTS = ("find.meets", "find.problem")


@dataclass
class Rows:
    """A job's row of the table; for a search a row for each probe, for a cluster one for each replica."""

    row: dict[str, Any]
    probes: list[dict[str, Any]] = field(default_factory=list)
    replicas: list[dict[str, Any]] = field(default_factory=list)


Job = Generator[Point, Outcome, Rows]


def single(point: Point) -> Job:
    """A job of one point."""
    outcome = yield point
    replicas = [{**point.values, **each} for each in replica_figures(outcome.get("summary", {}))]
    return Rows({**point.values, **cells(outcome)}, replicas=replicas)


def cells(outcome: Outcome) -> dict[str, Any]:
    """Figures, and the remark where a real server would not start; or the error."""
    if "error" in outcome:
        return {"error": outcome["error"]}
    lines = outcome["summary"]["capacity"]["lines"]
    remark = next((line for line in lines if line.startswith(WOULD_NOT_START)), None)
    return {**figures(outcome["summary"]), "remark": remark}


def searching(asked: Asked, resolver: Resolver, values: Values) -> Job:
    """A job that looks for the best value of the searched key at some values of the swept ones."""
    assert asked.find is not None
    key = asked.find.key
    start, whole = starting_value(resolver, values, key)
    refusal = cache(lambda value: resolver.point({**values, key: value}).problem)
    probing = search(asked.find, start, whole=whole, tolerance=asked.tolerance, refusal=refusal)
    rows: dict[Number, dict[str, Any]] = {}
    verdict = None
    while True:
        try:
            value = probing.send(verdict) if verdict else next(probing)
        except StopIteration as end:
            return Rows(
                _answer_row(asked, values, end.value, rows), [rows[probe] for probe in end.value.probes]
            )
        point = resolver.point({**values, key: value})
        figures_of = cells((yield point))
        verdict = judge(asked, figures_of)
        facts = {"find.meets": verdict.good, "find.problem": verdict.problem or None}
        rows[value] = {**point.values, **facts, **figures_of}


def judge(asked: Asked, row: dict[str, Any]) -> Verdict:
    """Against every limit; an error keeps none, nor does a server that would not start."""
    if "error" in row:
        return Verdict(False, row["error"])
    if row["remark"] is not None:
        return Verdict(False, row["remark"])
    problems = [problem for limit in asked.constraints if (problem := limit.problem(row)) is not None]
    return Verdict(not problems, "; ".join(problems))


def starting_value(resolver: Resolver, values: Values, key: str) -> tuple[Number, bool]:
    """Where a search begins: the scenario's own value, else 1; and whether only whole numbers will do."""
    _, own = resolver.value(resolver.point(values), key)
    is_number = isinstance(own, int | float) and not isinstance(own, bool) and own > 0
    start: Number = own if is_number else 1
    whole = isinstance(start, int) and resolver.point({**values, key: start + 0.5}).scenario is None
    return start, whole


def _answer_row(
    asked: Asked, values: Values, answer: Answer, rows: dict[Number, dict[str, Any]]
) -> dict[str, Any]:
    assert asked.find is not None
    key = asked.find.key
    facts = {key: answer.best, "find.beyond": answer.beyond, "find.binding": answer.problem or None}
    facts |= {"find.probes": len(answer.probes), "find.note": _note(asked, answer, rows) or None}
    if answer.best is None:
        return {**values, **facts, "error": _why_none(key, answer)}
    figures_of = {name: cell for name, cell in rows[answer.best].items() if name not in _PROBE_FACTS}
    return {**values, **facts, **figures_of, key: answer.best}


def _why_none(key: str, answer: Answer) -> str:
    refused = "" if answer.refused is None else f"{answer.refused.value:g} is refused: {answer.refused.why}"
    if not answer.probes:
        return f"no {key} could be tried; {refused or 'every value of the range is refused'}"
    low, high, count = min(answer.probes), max(answer.probes), len(answer.probes)
    tried = f"{count} values from {low:g} to {high:g}" if count > 1 else f"1 value, {low:g},"
    why = f"no {key} of {tried} keeps every limit; at {answer.beyond:g}: {answer.problem}"
    return f"{why}; {refused}" if refused else why


def _note(asked: Asked, answer: Answer, rows: dict[Number, dict[str, Any]]) -> str:
    """What qualifies an answer: where values were refused, and figures that do not follow the value."""
    notes = []
    if answer.best is not None and answer.refused is not None:
        notes.append(f"{answer.refused.value:g} is refused: {answer.refused.why}")
    assert asked.find is not None
    return "; ".join([*notes, *unsteady(asked.find, asked.constraints, rows)])
