"""A run: requests arrive, instances serve them, rows and figures come out."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from kvsim.engine.config import EngineConfig
from kvsim.engine.core import NO_ARRIVALS, EngineCore
from kvsim.errors import KvsimError
from kvsim.gpu.cost import StepCost
from kvsim.results import (
    EventLog,
    RequestLog,
    RunResult,
    Sinks,
    StepLog,
    Tables,
    folder_name,
    replacing,
    summarize,
)
from kvsim.sim.build import Scenario, make_cores, plan_engine
from kvsim.sim.instance import Instance
from kvsim.sim.recorder import Recorder, with_notes
from kvsim.sim.source import Places, limited_source, request_source
from kvsim.sim.stats import merged
from kvsim.sim.stepping import SteppingInstance
from kvsim.workload.request import Request, RequestBlock, Workload, blocks_of, requests_of

TOKENS_AT_ONCE = 1 << 22  # prepared together: 4 MiB of block hashes at 16 tokens a block

# Called as requests enter an engine and as it goes on: how many have ended, of how many if known,
# simulated seconds.
OnProgress = Callable[[int, int | None, float], None]


class AllRefusedError(KvsimError):
    """Not one request could ever run; the message gives the reason of the first."""


class Simulation:
    """Instances, the request source and the log on one clock.

    step_by_step: one event of the clock for each request and each engine step, instead of whole
    stretches that nothing can disturb. The results are the same, to the byte; a law says so.
    """

    def __init__(
        self,
        config: EngineConfig,
        cores: list[EngineCore],
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
        self._first_refused: tuple[int, str] | None = None  # its number, and why
        self.simulated_seconds = 0.0
        self._config = config
        self._horizon = math.inf if horizon is None else horizon
        self._num_requests = workload.num_requests
        self._on_progress = on_progress
        self._input_error: KvsimError | None = None
        self._cut_short = False  # a request would have come after the horizon
        self._held_to_the_end = False  # one waited at its client when the horizon came
        self._num_routed = 0
        self._places = Places(self.env, workload.max_concurrency)
        # An end at one instance lets a request reach another: then none may run ahead.
        step_by_step = step_by_step or (self._places.limited and len(cores) > 1)
        kind = partial(SteppingInstance, self.env, self._places) if step_by_step else Instance
        recorder = recorder or Recorder()
        self.instances = [
            kind(core, log, number, self._horizon, recorder) for number, core in enumerate(cores)
        ]
        self._held_back = self._places.limited and not step_by_step  # the engine lets requests go out
        for core in cores:
            core.limit_client(workload.max_concurrency or 0 if self._held_back else 0, self._horizon)
        blocks = self._guarded(workload.blocks(seed))
        if step_by_step:
            blocks = blocks_of(requests_of(blocks), 1)
        if self._places.limited and step_by_step:
            self.env.process(limited_source(self.env, blocks, self._places, self._refusal, self._arrive))
        else:
            self.env.process(request_source(self.env, blocks, self._arrive))

    def run(self) -> None:
        """Until nothing is left to do, or to the horizon. Raises what the workload raises."""
        try:
            self.env.run(until=None if math.isinf(self._horizon) else self._horizon)
        except Exception:
            if self._input_error is not None:  # SimPy re-makes exceptions; give out the one that was raised
                raise self._input_error from None
            raise
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

    @property
    def first_refusal(self) -> str | None:
        """Why the first of the refused requests can never run."""
        return self._first_refused[1] if self._first_refused else None

    def stats(self) -> dict[str, Any]:
        return merged([instance.core.stats() for instance in self.instances])

    def _guarded(self, blocks: Iterator[RequestBlock]) -> Iterator[RequestBlock]:
        """Blocks up to the horizon, in parts that are not too large to be hashed at once."""
        try:
            for block in blocks:
                if self._held_to_the_end:
                    return
                in_time = int(np.searchsorted(block.arrival_times, self._horizon))
                yield from _parts(block[:in_time])
                if in_time < len(block):
                    self._cut_short = True
                    return
        except KvsimError as error:
            self._input_error = error
            raise

    def _arrive(self, block: RequestBlock, until: float) -> None:
        """Requests reach the server, or their client; no others do before `until`."""
        if self._held_to_the_end:
            return
        lengths = block.num_prompt_tokens
        first = self.log.arrive(block.request_ids, block.arrival_times, lengths)
        accepted = self._refuse(block, first)
        for instance, chosen in self._routed(accepted):
            arrivals = NO_ARRIVALS
            if len(chosen):
                self._report_progress(block.arrival_times[0])
                part = block if len(chosen) == len(block) else block.take(chosen)
                arrivals = instance.core.prepare(part, first + 1 + chosen, limited=self._held_back)
            elif not instance.core.has_requests():
                continue
            for _ in instance.submit(arrivals, until):
                self._report_progress(instance.now)
            if self._held_back:
                self._take_back(instance.unsent)

    def _take_back(self, unsent: NDArray[np.void]) -> None:
        """Requests that waited at their client to the end never were: no others follow them."""
        if not len(unsent):
            return
        number = int(unsent["uid"][0]) - 1
        self._cut_short = self._held_to_the_end = True
        self.log.take_back(number)
        if self._first_refused is not None and self._first_refused[0] >= number:
            self._first_refused = None

    def _routed(self, accepted: NDArray[np.int64]) -> Iterator[tuple[Instance, NDArray[np.int64]]]:
        """Requests dealt out in turn."""
        count = len(self.instances)
        turn = (self._num_routed + np.arange(len(accepted))) % count
        self._num_routed += len(accepted)
        for number, instance in enumerate(self.instances):
            yield instance, accepted[turn == number]

    def _refuse(self, block: RequestBlock, first: int) -> NDArray[np.int64]:
        """Places of the requests that can run; the others are refused."""
        doubtful = self._config.may_refuse(
            block.num_prompt_tokens, block.num_output_tokens, block.largest_images()
        )
        for i in np.flatnonzero(doubtful).tolist():
            request = block[i]
            reason = self._refusal(request)
            if reason is None:
                doubtful[i] = False
            else:
                self._first_refused = self._first_refused or (first + i, reason)
                self.log.refuse(first + i, reason)
        return np.flatnonzero(~doubtful)

    def _refusal(self, request: Request) -> str | None:
        return refusal(self._config, request, request.num_prompt_tokens)

    def _report_progress(self, now: float) -> None:
        if self._on_progress is not None:
            self._on_progress(self.log.num_ended, self._num_requests, now)


def _parts(block: RequestBlock) -> Iterator[RequestBlock]:
    """A block cut so that its parts have no more than `TOKENS_AT_ONCE` tokens, or are single requests."""
    ends = np.cumsum(block.num_prompt_tokens + block.num_output_tokens)
    first = 0
    while first < len(block):
        limit = TOKENS_AT_ONCE + (int(ends[first - 1]) if first else 0)
        end = max(int(np.searchsorted(ends, limit, side="right")), first + 1)
        yield block[first:end]
        first = end


def refusal(config: EngineConfig, request: Request, num_prompt_tokens: int) -> str | None:
    """Why a request can never run to its end, or None."""
    num_output_tokens = min(request.num_output_tokens, request.max_tokens)
    largest_image = max((feature.length for feature in request.features), default=0)
    return config.refusal(num_prompt_tokens, num_output_tokens, largest_image)


def run_scenario(
    scenario: Scenario, on_progress: OnProgress | None = None, sinks: Sinks | None = None
) -> RunResult:
    """Simulate a scenario; rows go to `sinks`, else to memory.

    Raises KvsimError for a scenario without room for a request, a broken trace line, and
    `AllRefusedError`.
    """
    sinks = sinks or Sinks.in_memory(scenario.record.steps, scenario.record.events)
    plan = plan_engine(scenario)
    cost = plan.cost
    config = with_notes(plan.config, scenario.record.steps, scenario.record.events)
    cores = make_cores(config, cost, scenario.cluster.replicas)
    log = RequestLog(sinks.requests)
    steps = StepLog(sinks.steps, config.num_gpu_blocks) if sinks.steps else None
    events = EventLog(sinks.events) if sinks.events else None
    recorder = Recorder(steps, events)
    simulation = Simulation(
        config,
        cores,
        scenario.build_workload(),
        scenario.seed,
        log,
        on_progress,
        horizon=scenario.horizon,
        recorder=recorder,
    )
    simulation.run()
    recorder.close()
    head = {
        "name": scenario.name,
        "scenario_hash": scenario.scenario_hash,
        "vllm_version": scenario.vllm_version,
        "model": scenario.model,
        "gpu": scenario.gpu,
        "seed": scenario.seed,
        "capacity": plan.capacity,
        "step_time": cost.description,
        "simulated_seconds": simulation.simulated_seconds,
    }
    metrics = summarize(
        head, simulation.stats(), sinks.requests, slo=scenario.limits, warm_up=scenario.warm_up
    )
    check_any_ran(metrics["requests"], simulation.first_refusal, scenario.engine)
    metrics["step_time_notes"] = beyond_measured(cost, config, metrics)
    return RunResult(scenario.to_yaml(), metrics, sinks)


def beyond_measured(cost: StepCost, config: EngineConfig, metrics: Mapping[str, Any]) -> list[str]:
    """What of a run's longest request and largest batch lies beyond the measured kernels."""
    requests = metrics["vllm:num_requests_running"]["peak"]
    return cost.beyond(metrics["longest_context"], requests, config.max_num_batched_tokens)


def run_to_folder(
    scenario: Scenario, results_dir: Path, on_progress: OnProgress | None = None
) -> tuple[RunResult, Path]:
    """Simulate and write ``<results_dir>/<name>-<8 hex of the scenario's hash>``, whole or not at all.

    Raises as `run_scenario`, and `ResultsError` where the folder cannot be written.
    """
    target = results_dir / folder_name(scenario.name, scenario.scenario_hash)
    with replacing(target) as folder:
        sinks = Sinks.in_folder(folder, scenario.record.steps, scenario.record.events)
        try:
            result = run_scenario(scenario, on_progress, sinks)
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
