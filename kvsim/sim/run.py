"""A run: requests arrive, instances serve them, rows and figures come out."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import simpy

from kvsim.engine.config import EngineConfig
from kvsim.engine.core import EngineCore
from kvsim.errors import KvsimError
from kvsim.results import (
    FolderSink,
    MemorySink,
    ParquetSink,
    RequestLog,
    RunResult,
    Sink,
    folder_name,
    replacing,
    summarize,
)
from kvsim.results.store import REQUESTS
from kvsim.sim.build import Scenario, make_cores, plan_engine
from kvsim.sim.instance import Instance
from kvsim.sim.source import request_source
from kvsim.sim.stats import merged
from kvsim.workload.request import Request, Workload

# Called as each request enters an engine: how many have ended, of how many if known, simulated seconds.
OnProgress = Callable[[int, int | None, float], None]


class AllRefusedError(KvsimError):
    """Not one request could ever run; the message gives the reason of the first."""


class Simulation:
    """Instances, the request source and the log on one clock."""

    def __init__(
        self,
        config: EngineConfig,
        cores: list[EngineCore],
        workload: Workload,
        seed: int,
        log: RequestLog,
        on_progress: OnProgress | None = None,
    ) -> None:
        self.env = simpy.Environment(0.0)  # a clock of floats from the start: compiled code is typed
        self.instances = [Instance(self.env, core, log, number) for number, core in enumerate(cores)]
        self.log = log
        self.first_refusal: str | None = None
        self.simulated_seconds = 0.0
        self._config = config
        self._num_requests = workload.num_requests
        self._on_progress = on_progress
        self._input_error: KvsimError | None = None
        self._round_robin = itertools.cycle(self.instances)
        requests = self._guarded(workload.requests(seed))
        self._source = self.env.process(request_source(self.env, requests, self._arrive))

    def run(self, horizon: float | None = None) -> None:
        """Until nothing is left to do, or for `horizon` seconds. Raises what the workload raises."""
        try:
            self.env.run(until=horizon)
        except Exception:
            if self._input_error is not None:  # SimPy re-makes exceptions; give out the one that was raised
                raise self._input_error from None
            raise
        for instance in self.instances:
            instance.close(horizon)
        self.simulated_seconds = self._last_instant(horizon)
        self.log.close()

    def _last_instant(self, horizon: float | None) -> float:
        """The horizon if it cut the run short, else when the last step ended."""
        if horizon is not None and (self._source.is_alive or self.log.num_ended < self.log.num_arrived):
            return horizon
        return max(instance.busy_until for instance in self.instances)

    def stats(self) -> dict[str, Any]:
        return merged([instance.core.stats() for instance in self.instances])

    def _guarded(self, requests: Iterator[Request]) -> Iterator[Request]:
        try:
            yield from requests
        except KvsimError as error:
            self._input_error = error
            raise

    def _arrive(self, request: Request) -> None:
        num_prompt_tokens = request.num_prompt_tokens
        number = self.log.arrive(request.request_id, request.arrival_time, num_prompt_tokens)
        reason = refusal(self._config, request, num_prompt_tokens)
        if reason is not None:
            self.first_refusal = self.first_refusal or reason
            self.log.refuse(number, reason)
        else:
            self._report_progress()
            next(self._round_robin).submit(request, number)

    def _report_progress(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.log.num_ended, self._num_requests, self.env.now)


def refusal(config: EngineConfig, request: Request, num_prompt_tokens: int) -> str | None:
    """Why a request can never run to its end, or None."""
    num_output_tokens = min(request.num_output_tokens, request.max_tokens)
    largest_image = max((feature.length for feature in request.features), default=0)
    return config.refusal(num_prompt_tokens, num_output_tokens, largest_image)


def run_scenario(
    scenario: Scenario, on_progress: OnProgress | None = None, sink: Sink | None = None
) -> RunResult:
    """Simulate a scenario; rows go to `sink`, else to memory.

    Raises KvsimError for a scenario without room for a request, a broken trace line, and
    `AllRefusedError`.
    """
    sink = sink or MemorySink()
    plan = plan_engine(scenario)
    config, cost = plan.config, plan.cost
    cores = make_cores(config, cost, scenario.cluster.replicas)
    simulation = Simulation(
        config, cores, scenario.build_workload(), scenario.seed, RequestLog(sink), on_progress
    )
    simulation.run(scenario.horizon)
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
    result = RunResult(scenario.to_yaml(), summarize(head, simulation.stats(), sink), sink)
    check_any_ran(result.metrics["requests"], simulation.first_refusal, scenario.engine)
    return result


def run_to_folder(
    scenario: Scenario, results_dir: Path, on_progress: OnProgress | None = None
) -> tuple[RunResult, Path]:
    """Simulate and write ``<results_dir>/<name>-<8 hex of the scenario's hash>``, whole or not at all.

    Raises as `run_scenario`, and `ResultsError` where the folder cannot be written.
    """
    target = results_dir / folder_name(scenario.name, scenario.scenario_hash)
    with replacing(target) as folder:
        sink = ParquetSink(folder / REQUESTS)
        try:
            result = run_scenario(scenario, on_progress, sink)
        finally:
            sink.close()
        result.write_texts(folder)
    return RunResult(result.scenario, result.metrics, FolderSink(target)), target


def check_any_ran(counts: Mapping[str, int], reason: str | None, engine: Any) -> None:
    """Raises AllRefusedError; `counts` has the keys total and refused."""
    if counts["total"] and counts["refused"] == counts["total"]:
        which = "the only request was" if counts["total"] == 1 else f"all {counts['total']:,} requests were"
        override = engine.num_gpu_blocks_override
        cause = f" (engine.num_gpu_blocks_override: {override})" if override and "pool" in str(reason) else ""
        raise AllRefusedError(f"{which} refused: {reason}{cause}")
