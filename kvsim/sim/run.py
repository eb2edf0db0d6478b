"""A run: requests arrive, instances serve them, rows and figures come out."""

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import simpy

from kvsim.cluster.fleet import Fleet
from kvsim.cluster.notes import DONE
from kvsim.cluster.serve import FOLLOW_UPS, PAUSE
from kvsim.engine.config import EngineConfig
from kvsim.errors import KvsimError
from kvsim.gpu.cost import StepCost
from kvsim.results import (
    EventLog,
    RequestLog,
    RouterStats,
    RunResult,
    Sinks,
    StepLog,
    Tables,
    folder_name,
    joined,
    replacing,
    summarize,
)
from kvsim.sim.build import Cell, Scenario
from kvsim.sim.cells import CellResult, Dealt, MapCells, deployment_of, facts_of, replica_stats
from kvsim.sim.clock import wait_until
from kvsim.sim.deployment import Deployment
from kvsim.sim.instance import Instance
from kvsim.sim.recorder import Recorder
from kvsim.sim.refusal import refusal
from kvsim.sim.sessions import OVER, Clients
from kvsim.sim.stats import merged
from kvsim.sim.stepping import SteppingFleet
from kvsim.workload.request import FollowUp, Request, RequestBlock, Workload, requests_of

TOKENS_AT_ONCE = 1 << 22  # prepared together: 4 MiB of block hashes at 16 tokens a block

# Called as requests enter an engine and as it goes on: how many have ended, of how many if known,
# simulated seconds.
OnProgress = Callable[[int, int | None, float], None]


class AllRefusedError(KvsimError):
    """Not one request could ever run; the message gives the reason of the first."""


class Simulation:
    """A deployment, the request source and the log on one clock.

    step_by_step: one event of the clock for each request and each engine step, instead of whole
    stretches that nothing can disturb. The results are the same, to the byte; a law says so.
    """

    def __init__(
        self,
        deployment: Deployment,
        workload: Workload,
        seed: int,
        log: RequestLog,
        on_progress: OnProgress | None = None,
        *,
        horizon: float | None = None,
        recorder: Recorder | None = None,
        step_by_step: bool = False,
    ) -> None:
        self.env = simpy.Environment(0.0)  # a clock of floats from the start: compiled code is typed
        self.log = log
        self.first_refusal: str | None = None  # why the first of the refused requests can never run
        self.simulated_seconds = 0.0
        self.num_not_sent = 0  # requests of sessions that ended before, with one that was refused or aborted
        self.deployment = deployment
        self._horizon = math.inf if horizon is None else horizon
        self._num_requests = workload.num_requests
        self._on_progress = on_progress
        self._input_error: KvsimError | None = None
        self._cut_short = False  # a request would have come after the horizon
        self._follow_ups: dict[int, FollowUp] = {}  # by uid of the request under way that they follow
        recorder = recorder or Recorder()
        self.instances = [
            Instance(core, log, number, self._horizon, recorder)
            for number, core in enumerate(deployment.cores)
        ]
        self._step_by_step = step_by_step
        blocks, most = self._guarded(workload.blocks(seed)), workload.max_concurrency
        self._clients: Clients | None = None
        if workload.has_follow_ups and most is not None:
            configs = list({id(core.config): core.config for core in deployment.cores}.values())
            self._clients, most = Clients(requests_of(blocks), most, configs), None
        self._refused: list[tuple[float, int, str]] = []  # time, uid, id; clients go on from there, too
        kind: Any = partial(SteppingFleet, self.env) if step_by_step else Fleet
        self._fleet = deployment.fleet(
            kind,
            seed,
            self._collect,
            max_concurrency=most,
            horizon=self._horizon,
            has_follow_ups=workload.has_follow_ups,
            logs_are_recorded=recorder.reads_logs,
        )
        self.env.process(self._serve(self._first_of_clients() if self._clients else blocks))

    def run(self) -> None:
        """Until nothing is left to do, or to the horizon. Raises what the workload or a policy raises."""
        try:
            self.env.run()
        except Exception:
            if self._input_error is not None:  # SimPy re-makes exceptions; give out the one that was raised
                raise self._input_error from None
            raise
        self._fleet.close()
        self._note_sent()
        if self._fleet.has_waiting or np.isfinite(self._fleet.take_ends()["think_time"]).any():
            self._cut_short = True
        for instance in self.instances:
            instance.close()
        self.simulated_seconds = self._last_instant()
        self.log.close()

    def _last_instant(self) -> float:
        """The horizon if it cut the run short, else when the last step ended."""
        if self._cut_short or self.log.num_ended < self.log.num_arrived:
            return self._horizon if math.isfinite(self._horizon) else self._latest_end()
        return self._latest_end()

    def _latest_end(self) -> float:
        return max(instance.busy_until for instance in self.instances)

    def stats(self) -> dict[str, Any]:
        return merged([instance.core.stats() for instance in self.instances])

    def router_stats(self) -> RouterStats:
        """What the router counted."""
        router = self._fleet.router
        counted = router.state.scalars[0]
        messages = {name: int(counted[name]) for name in ("num_messages", "num_lost_messages")}
        listens = counted["reads_events"] and router.num_targets > 1
        return RouterStats(router.name, router.policy.names[0], messages if listens else {})

    # ------------------------------------------------------------ requests

    def _serve(self, blocks: Iterator[RequestBlock]) -> Generator[simpy.Event, None, None]:
        """Process: hand over each block in time, with the time at which the next one begins."""
        block = next(blocks, None)
        while block is not None:
            following = next(blocks, None)
            known_until = math.inf if following is None else float(following.arrival_times[0])
            yield from wait_until(self.env, float(block.arrival_times[0]))
            self._extend(block, known_until)
            why = yield from self._go_on(known_until)
            block = None if why == DONE else following  # a full client lets nobody out before the horizon

    def _first_of_clients(self) -> Iterator[RequestBlock]:
        assert self._clients is not None
        if begun := self._clients.begin():
            yield RequestBlock.of(begun)

    def _extend(self, block: RequestBlock, known_until: float, *, are_follow_ups: bool = False) -> None:
        self._note_sent()
        why = partial(_refusal_of, block)
        self._fleet.extend(block, known_until, why, are_follow_ups=are_follow_ups)

    def _go_on(self, known_until: float) -> Generator[simpy.Event, None, Any]:
        """Serve until MORE requests must be known, or all is DONE."""
        why = PAUSE
        while why in (PAUSE, FOLLOW_UPS):
            turn = self._fleet.go_on()
            why = (yield from turn) if self._step_by_step else turn
            self._note_sent()
            if why == FOLLOW_UPS and (requests := self._next_turns()):
                self._extend(RequestBlock.of(requests), known_until, are_follow_ups=True)
            if self._on_progress is not None:
                self._on_progress(self.log.num_ended, self._num_requests, self._fleet.now)
        return why

    def _next_turns(self) -> list[Request]:
        """What follows from the requests that have ended, or were refused, in order of arrival.

        Of those that arrive together, what follows from an earlier end goes first.
        """
        requests, refused, self._refused = list[Request](), self._refused, []
        ends = [(float(end["time"]), int(end["uid"]), end) for end in self._fleet.take_ends()]
        for time, uid, what in sorted([*ends, *refused], key=lambda each: each[:2]):
            if isinstance(what, str):
                assert self._clients is not None
                requests += self._clients.refused(what, time)
            else:
                requests += self._following(time, uid, what)
        return sorted(requests, key=lambda request: request.arrival_time)

    def _following(self, time: float, uid: int, end: np.void) -> list[Request]:
        """What follows from the end of a request at `time`, an END_DTYPE row."""
        follow_up = self._follow_ups.pop(uid, None)
        if follow_up is None:
            return []
        if not math.isfinite(end["think_time"]):
            self.num_not_sent += follow_up.num_requests
            return []
        if self._clients is not None and follow_up is OVER:
            return self._clients.over(time)
        request = follow_up.next_request(time + float(end["think_time"]), int(end["num_output_tokens"]))
        return [request] if self._clients is None else self._clients.go_on(request)

    def _note_sent(self) -> None:
        """Open rows of the log for the requests that have set out."""
        sent = self._fleet.take_sent()
        if not sent.request_ids:
            return
        first = self.log.arrive(sent.request_ids, sent.times, sent.num_prompt_tokens, sent.sessions)
        assert first == sent.first_uid - 1
        for k, reason in sent.reasons.items():
            self.first_refusal = self.first_refusal or reason
            self.log.refuse(first + k, reason)
            if self._clients is not None:
                self._refused.append((float(sent.times[k]), first + 1 + k, sent.request_ids[k]))
        for k, follow_up in enumerate(sent.follow_ups or ()):
            if follow_up is not None and k in sent.reasons:
                self.num_not_sent += follow_up.num_requests
            elif follow_up is not None:
                self._follow_ups[first + 1 + k] = follow_up

    def _collect(self, number: int) -> None:
        self._note_sent()
        self.instances[number].collect()

    def _guarded(self, blocks: Iterator[RequestBlock]) -> Iterator[RequestBlock]:
        """Blocks up to the horizon, in parts that are not too large to be hashed at once."""
        try:
            for block in blocks:
                in_time = int(np.searchsorted(block.arrival_times, self._horizon))
                yield from _parts(block[:in_time])
                if in_time < len(block):
                    self._cut_short = True
                    return
        except KvsimError as error:
            self._input_error = error
            raise


def _parts(block: RequestBlock) -> Iterator[RequestBlock]:
    """A block cut so that its parts have no more than `TOKENS_AT_ONCE` tokens, or are single requests."""
    ends = np.cumsum(block.num_prompt_tokens + block.num_output_tokens)
    first = 0
    while first < len(block):
        limit = TOKENS_AT_ONCE + (int(ends[first - 1]) if first else 0)
        end = max(int(np.searchsorted(ends, limit, side="right")), first + 1)
        yield block[first:end]
        first = end


def _refusal_of(block: RequestBlock, config: EngineConfig, i: int) -> str | None:
    return refusal(config, block[i])


def run_scenario(
    scenario: Scenario,
    on_progress: OnProgress | None = None,
    sinks: Sinks | None = None,
    map_cells: MapCells = map,
) -> RunResult:
    """Simulate a scenario; rows go to `sinks`, else to memory.

    map_cells: computes cells, if there are several; they may be computed in other processes.
    Raises KvsimError for a scenario without room for a request, a broken trace line, and
    `AllRefusedError`.
    """
    sinks = sinks or Sinks.in_memory(scenario.record.steps, scenario.record.events)
    cells = scenario.cells()
    if len(cells) == 1:
        results = [run_cell(scenario, cells, 0, sinks, on_progress)]
    else:
        apart = list(map_cells(partial(run_apart, scenario), range(len(cells))))
        results = [result for _, result in apart]
        joined([tables for tables, _ in apart], [len(result.replicas) for result in results], sinks)
    replicas = [replica for result in results for replica in result.replicas]
    head = {
        "name": scenario.name,
        "scenario_hash": scenario.scenario_hash,
        "vllm_version": scenario.vllm_version,
        "model": scenario.model,
        "gpu": scenario.gpu,
        "seed": scenario.seed,
        **facts_of(cells, named=not scenario.cluster.is_short),
        "simulated_seconds": max(result.simulated_seconds for result in results),
    }
    metrics = summarize(
        head,
        merged([replica.stats for replica in replicas]),
        sinks.requests,
        slo=scenario.limits,
        warm_up=scenario.warm_up,
        replicas=replicas,
        routers=[result.router for result in results],
    )
    not_sent = [result.num_not_sent for result in results if result.num_not_sent is not None]
    if not_sent:
        metrics["num_requests_not_sent"] = sum(not_sent)
    refusals = [result.first_refusal for result in results if result.first_refusal]
    check_any_ran(metrics["requests"], refusals[0] if refusals else None, scenario.engine)
    plans = {group.name: group.plan for cell in cells for group in cell.groups}
    notes = [note for plan in plans.values() for note in beyond_measured(plan.cost, plan.config, metrics)]
    metrics["step_time_notes"] = list(dict.fromkeys(notes))
    return RunResult(scenario.to_yaml(), metrics, sinks)


def run_apart(scenario: Scenario, number: int) -> tuple[Sinks, CellResult]:
    """One cell of several, with its tables."""
    sinks = Sinks.in_memory(scenario.record.steps, scenario.record.events)
    return sinks, run_cell(scenario, scenario.cells(), number, sinks)


def run_cell(
    scenario: Scenario,
    cells: Sequence[Cell],
    number: int,
    sinks: Sinks,
    on_progress: OnProgress | None = None,
) -> CellResult:
    """Simulate one cell; its rows go to `sinks`."""
    cell, workload = cells[number], scenario.build_workload()
    deployment = deployment_of(cell, scenario.record)
    blocks = [core.config.num_gpu_blocks for core in deployment.cores]
    steps = StepLog(sinks.steps, blocks) if sinks.steps else None
    events = EventLog(sinks.events) if sinks.events else None
    recorder = Recorder(steps, events)
    simulation = Simulation(
        deployment,
        workload if len(cells) == 1 else Dealt(workload, cells, number),
        scenario.seed,
        RequestLog(sinks.requests, has_sessions=workload.has_sessions),
        on_progress,
        horizon=scenario.horizon,
        recorder=recorder,
    )
    simulation.run()
    recorder.close()
    return CellResult(
        replica_stats(cell, [core.stats() for core in deployment.cores]),
        simulation.router_stats(),
        simulation.simulated_seconds,
        simulation.first_refusal,
        simulation.num_not_sent if workload.has_follow_ups else None,
    )


def beyond_measured(cost: StepCost, config: EngineConfig, metrics: Mapping[str, Any]) -> list[str]:
    """What of a run's longest request and largest batch lies beyond the measured kernels."""
    requests = metrics["vllm:num_requests_running"]["peak"]
    return cost.beyond(metrics["longest_context"], requests, config.max_num_batched_tokens)


def run_to_folder(
    scenario: Scenario,
    results_dir: Path,
    on_progress: OnProgress | None = None,
    map_cells: MapCells = map,
) -> tuple[RunResult, Path]:
    """Simulate and write ``<results_dir>/<name>-<8 hex of the scenario's hash>``, whole or not at all.

    Raises as `run_scenario`, and `ResultsError` where the folder cannot be written.
    """
    target = results_dir / folder_name(scenario.name, scenario.scenario_hash)
    with replacing(target) as folder:
        sinks = Sinks.in_folder(folder, scenario.record.steps, scenario.record.events)
        try:
            result = run_scenario(scenario, on_progress, sinks, map_cells)
        finally:
            sinks.close()
        result.write_texts(folder)
    return RunResult(result.scenario, result.metrics, Tables.of_folder(target)), target


def check_any_ran(counts: Mapping[str, int], reason: str | None, engine: Any) -> None:
    """Raises AllRefusedError; `counts` has the keys total and refused."""
    if counts["total"] and counts["refused"] == counts["total"]:
        which = "the only request was" if counts["total"] == 1 else f"all {counts['total']:,} requests were"
        override = engine.num_gpu_blocks_override
        cause = f" (engine.num_gpu_blocks_override: {override})" if override and "pool" in str(reason) else ""
        raise AllRefusedError(f"{which} refused: {reason}{cause}")
