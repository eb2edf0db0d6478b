"""A sweep: points handed to workers, outcomes kept as they come, tables at the end."""

import json
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

from kvsim import compiled
from kvsim.scenario import Template
from kvsim.sweep.asked import Asked
from kvsim.sweep.constraints import check_measured, check_names
from kvsim.sweep.figures import figures
from kvsim.sweep.jobs import Job, Rows, searching, single
from kvsim.sweep.points import Point, Resolver, expand
from kvsim.sweep.pools import Pool, lost_worker
from kvsim.sweep.store import Memory, Outcome
from kvsim.sweep.work import rehearse, run_point


@dataclass
class Count:
    """How far a sweep is. Jobs are points, or searches; `points` counts what was computed now."""

    jobs: int
    done: int = 0
    failed: int = 0
    kept: int = 0
    points: int = 0


OnProgress = Callable[[Count], None]
OnCompiling = Callable[[], None]


def do_nothing(*_: Any) -> None:
    """Nobody watches."""


@dataclass(frozen=True)
class Plan:
    """A sweep that was checked and can begin."""

    asked: Asked
    resolver: Resolver
    points: list[Point]

    def jobs(self) -> list[Job]:
        if self.asked.find is None:
            return [single(point) for point in self.points]
        return [searching(self.asked, self.resolver, point.values) for point in self.points]


def plan_sweep(template: Template, asked: Asked, on_compiling: OnCompiling = do_nothing) -> Plan:
    """Every point resolved; raises KvsimError for whatever can be known to be wrong before anything runs."""
    resolver = Resolver(template, asked.options, asked.meanings)
    points = resolver.points(expand(asked))
    if asked.find is not None:
        _check_search(asked, resolver, points, on_compiling)
    return Plan(asked, resolver, points)


def _check_search(
    asked: Asked, resolver: Resolver, points: Sequence[Point], on_compiling: OnCompiling
) -> None:
    """The searched key is a number's, and the limits are about figures that there are."""
    assert asked.find is not None
    first = next(point for point in points if point.scenario)
    assert first.scenario is not None
    resolver.require_number(first, asked.find.key)
    check_measured(asked.constraints, has_slo=first.scenario.slo is not None)
    if not compiled.is_warm():
        on_compiling()
    outcome = json.loads(rehearse(first.scenario)[1])
    if "summary" in outcome:
        check_names(asked.constraints, figures(outcome["summary"]))


def drive(plan: Plan, pool: Pool, store: Memory, on_progress: OnProgress) -> list[Rows]:
    """Run every job; the rows, in the order of the points. Raises KvsimError if workers or disk are lost."""
    return _Driver(plan.jobs(), pool, store, on_progress).run()


class _Driver:
    """Jobs that wait for points, points under way, and who waits for which."""

    def __init__(self, jobs: list[Job], pool: Pool, store: Memory, on_progress: OnProgress) -> None:
        self._jobs, self._pool, self._store, self._on_progress = jobs, pool, store, on_progress
        self._rows: list[Rows | None] = [None] * len(jobs)
        self._ready: deque[tuple[int, Point]] = deque()
        self._waiting: dict[str, list[int]] = {}
        self._under_way: dict[Future[str], Point] = {}
        self._new: set[str] = set()
        self._count = Count(len(jobs))

    def run(self) -> list[Rows]:
        self._on_progress(self._count)
        for number, job in enumerate(self._jobs):
            self._ready.append((number, next(job)))
        while self._ready or self._under_way:
            self._hand_out()
            if self._under_way:
                for future in wait(self._under_way, return_when=FIRST_COMPLETED).done:
                    self._take(future)
        return [rows for rows in self._rows if rows is not None]

    def _hand_out(self) -> None:
        while self._ready and len(self._under_way) < self._pool.slots:
            number, point = self._ready.popleft()
            if point.scenario is None:
                self._advance(number, {"error": point.problem})
            elif (known := self._store.get(point.hash)) is not None:
                self._count.kept += point.hash not in self._new
                self._advance(number, known)
            elif point.hash in self._waiting:
                self._waiting[point.hash].append(number)
            else:
                self._waiting[point.hash] = [number]
                self._under_way[self._submit(point)] = point

    def _submit(self, point: Point) -> "Future[str]":
        assert point.scenario is not None
        try:
            return self._pool.submit(run_point, point.scenario)
        except Exception as error:
            raise lost_worker(error) or error from None

    def _take(self, future: "Future[str]") -> None:
        point = self._under_way.pop(future)
        try:
            outcome: dict[str, Any] = json.loads(future.result())
        except Exception as error:
            raise lost_worker(error) or error from None
        self._store.put(point.hash, point.values, outcome)
        self._new.add(point.hash)
        self._count.points += 1
        for number in self._waiting.pop(point.hash):
            self._advance(number, outcome)

    def _advance(self, number: int, outcome: Outcome) -> None:
        try:
            self._ready.appendleft((number, self._jobs[number].send(outcome)))
        except StopIteration as end:
            self._rows[number] = end.value
            self._count.done += 1
            self._count.failed += "error" in end.value.row
        self._on_progress(self._count)
