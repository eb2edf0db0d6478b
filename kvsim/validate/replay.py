"""A measured run replayed request by request: what an engine logged of each, and its counters over time."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kvsim.errors import KvsimError
from kvsim.gpu.cost import StepCost
from kvsim.gpu.cost.calibration import ENGINE, calibration
from kvsim.results import MemorySink, RequestLog, StepLog
from kvsim.scenario import Scenario
from kvsim.sim.build import make_cores, plan_engine
from kvsim.sim.deployment import Deployment
from kvsim.sim.recorder import Recorder, with_notes
from kvsim.sim.run import Simulation
from kvsim.tokens import segments, stream_key
from kvsim.validate.score import figures
from kvsim.workload.request import Request, RequestBlock, Workload, blocks_of
from kvsim.workload.streams import token_streams
from kvsim.workload.trace import TraceWorkload
from kvsim.workload.trace_lines import read_lines

REQUEST_COLUMNS = (
    "request_id",
    "input_toks",
    "output_toks",
    "queued_s",
    "first_token_s",
    "last_token_s",
)
SERIES_COLUMNS = ("t", "running", "waiting", "kv_cache_pct")
_USUAL = (512, 16, 32, 64, 128, 256)  # tokens an id of a trace
LATENCIES = ("ttft", "tpot", "e2e")


@dataclass(frozen=True)
class MeasuredRun:
    """requests: `REQUEST_COLUMNS`, seconds. series: `SERIES_COLUMNS`, or None."""

    path: Path
    requests: pd.DataFrame
    series: pd.DataFrame | None

    @property
    def latencies(self) -> pd.DataFrame:
        """ttft, tpot, e2e in seconds, counted from `queued_s`."""
        r = self.requests
        later = (r.output_toks - 1).where(r.output_toks > 1)
        return pd.DataFrame(
            {
                "ttft": r.first_token_s - r.queued_s,
                "tpot": (r.last_token_s - r.first_token_s) / later,
                "e2e": r.last_token_s - r.queued_s,
            }
        )

    @property
    def fewest_preemptions(self) -> pd.Series | None:
        """At each sample of the series: how often the waiting counter has risen since the last arrival.

        Only a preempted request can make it rise then; two in one interval, or one beside an admission,
        are not seen, so it is a lower bound.
        """
        if self.series is None:
            return None
        return waiting_rises(self.series.t, self.series.waiting, float(self.requests.queued_s.max()))


@dataclass(frozen=True)
class Replay:
    """requests: rows of the simulated run. steps: of its engine. series: as of `MeasuredRun`, simulated."""

    measured: MeasuredRun
    requests: pd.DataFrame
    steps: pd.DataFrame
    series: pd.DataFrame
    num_preemptions: int

    @property
    def fewest_preemptions(self) -> pd.Series:
        """As `MeasuredRun.fewest_preemptions`, of the simulated counters."""
        after = float(self.measured.requests.queued_s.max())
        return waiting_rises(self.series.t, self.series.waiting, after)

    def table(self) -> pd.DataFrame:
        """A line for the mean and the median of each latency: measured, predicted, s; error, percent."""
        lines = []
        measured = self.measured.latencies
        for name in LATENCIES:
            for which in ("mean", "median"):
                was, now = (float(getattr(x[name], which)()) for x in (measured, self.requests))
                lines.append(
                    {"latency": name, "of": which, "measured": was, "predicted": now}
                    | {"error": 100.0 * (now / was - 1.0)}
                )
        return pd.DataFrame(lines)

    def errors(self) -> dict[str, float]:
        return figures(self.table().error.to_numpy(float))


def is_requests_table(columns: pd.Index) -> bool:
    return set(REQUEST_COLUMNS) <= set(columns)


def read_run(path: Path) -> MeasuredRun:
    """A file of requests, and of counters if ``<name>_timeseries.csv`` lies beside ``<name>_requests.csv``.

    Raises KvsimError naming file, row and fault.
    """
    requests = _table(path, REQUEST_COLUMNS, texts=("request_id",))
    for before, after in (("queued_s", "first_token_s"), ("first_token_s", "last_token_s")):
        wrong = np.flatnonzero((requests[after] < requests[before]).to_numpy())
        if len(wrong):
            raise KvsimError(f"{path}: row {wrong[0] + 1}: {after} lies before {before}")
    for column in ("input_toks", "output_toks"):
        wrong = np.flatnonzero((requests[column] < 1).to_numpy())
        if len(wrong):
            raise KvsimError(f"{path}: row {wrong[0] + 1}: {column} must be 1 or more")
    beside = path.with_name(path.name.replace("_requests", "_timeseries"))
    series = None
    if beside != path and beside.is_file():
        series = _table(beside, SERIES_COLUMNS)
    return MeasuredRun(path, requests.sort_values("queued_s", kind="stable", ignore_index=True), series)


def _table(path: Path, needed: tuple[str, ...], texts: tuple[str, ...] = ()) -> pd.DataFrame:
    try:
        frame = pd.read_csv(path, dtype=dict.fromkeys(texts, str))
    except FileNotFoundError:
        raise KvsimError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise KvsimError(f"{path}: cannot be read as CSV: {str(error).splitlines()[0]}") from None
    missing = [column for column in needed if column not in frame]
    if missing:
        raise KvsimError(f"{path}: column {missing[0]} is missing")
    if not len(frame):
        raise KvsimError(f"{path}: has no rows")
    for column in needed:
        if column in texts:
            continue
        values = pd.to_numeric(frame[column], errors="coerce").to_numpy(float)
        bad = np.flatnonzero(~np.isfinite(values) | (values < 0))
        if len(bad):
            cell = frame[column].iloc[bad[0]]
            raise KvsimError(f"{path}: row {bad[0] + 1}: {column} is {cell}, not a number from 0")
        frame[column] = values
    return frame


@dataclass(frozen=True)
class MeasuredWorkload:
    """The requests of a measured run at the times at which its engine saw them.

    trace: whose prompts they have, in the order of the file; None for prompts that share nothing.
    """

    run: MeasuredRun
    trace: TraceWorkload | None = None
    max_concurrency: None = None
    has_follow_ups: bool = False
    has_sessions: bool = False

    @property
    def num_requests(self) -> int:
        return len(self.run.requests)

    def blocks(self, seed: int) -> Iterator[RequestBlock]:
        return blocks_of(self.requests(seed))

    def requests(self, seed: int) -> Iterator[Request]:
        """Raises KvsimError where the trace is not of this run."""
        rows = self.run.requests
        prompts = self._prompts(seed) if self.trace else None
        outputs = token_streams(stream_key(seed, "output"), 0, len(rows))
        own = token_streams(stream_key(seed, "suffix"), 0, len(rows))
        lengths = rows[["input_toks", "output_toks"]].to_numpy(np.int64).tolist()
        for i, (name, time) in enumerate(zip(rows.request_id, rows.queued_s.to_numpy(float), strict=True)):
            num_input, num_output = lengths[i]
            prompt = prompts[name] if prompts else segments((int(own[i]), 0, num_input))
            output = segments((int(outputs[i]), 0, num_output))
            yield Request(name, float(time), prompt, output, num_output)

    def _prompts(self, seed: int) -> dict[str, NDArray[np.uint64]]:
        """Prompts by request id: the trace has the rows of the file in the file's order."""
        assert self.trace is not None
        names = pd.read_csv(self.run.path, dtype=str).request_id
        lengths = dict(zip(self.run.requests.request_id, self.run.requests.input_toks, strict=True))
        requests = list(self.trace.requests(seed))
        if len(requests) != len(names):
            raise KvsimError(
                f"{self.trace.path}: {len(requests):,} rows, but {self.run.path} has {len(names):,} requests"
            )
        found = {}
        for number, (name, request) in enumerate(zip(names, requests, strict=True), 1):
            if request.num_prompt_tokens != lengths[name]:
                raise KvsimError(
                    f"{self.trace.path} line {number}: {request.num_prompt_tokens:,} prompt tokens, "
                    f"but {name} of {self.run.path} has {lengths[name]:,.0f}"
                )
            found[name] = request.prompt
        return found


def replay(run: MeasuredRun, scenario: Scenario, trace: TraceWorkload | None = None) -> Replay:
    """Serve the run's requests as the scenario's engine would; its own workload does not count.

    Raises KvsimError for an engine that cannot run or a trace of another run.
    """
    workload: Workload = MeasuredWorkload(run, trace)
    plan = plan_engine(scenario)
    config = with_notes(plan.config, steps=True, events=False)
    cores = make_cores(config, without_frontend(plan.cost), replicas=1)
    requests, steps = MemorySink(), MemorySink()
    recorder = Recorder(StepLog(steps, config.num_gpu_blocks))
    log = RequestLog(requests)
    simulation = Simulation(Deployment.of(cores), workload, scenario.seed, log, recorder=recorder)
    simulation.run()
    recorder.close()
    rows, engine_steps = requests.read().to_pandas(), steps.read().to_pandas()
    refused = rows[rows.status == "refused"]
    if len(refused):
        raise KvsimError(f"{len(refused):,} requests were refused: {refused.reason.iloc[0]}")
    times = None if run.series is None else run.series.t.to_numpy(float)
    preemptions = int(engine_steps.num_preempted.sum())
    return Replay(run, rows, engine_steps, sampled(engine_steps, times), preemptions)


def prompts_of(path: Path) -> TraceWorkload:
    """A trace whose ids stand for as many tokens as its first row says; raises KvsimError for a bad one."""
    return TraceWorkload(path=str(path), trace_block_size=_tokens_an_id(path))


def _tokens_an_id(path: Path) -> int | None:
    for _, line in read_lines(path):
        try:
            row = json.loads(line)
            tokens, ids = int(row["input_length"]), len(row["hash_ids"])
        except (ValueError, KeyError, TypeError):
            return None  # the reader says what is wrong
        return next((size for size in _USUAL if -(-tokens // size) == ids), None)
    raise KvsimError(f"{path}: empty; a trace needs at least one row")


def without_frontend(cost: StepCost) -> StepCost:
    """Step times for requests whose time is when the engine saw them."""
    known = cost.calibration or calibration(cost.gpu.name)
    host = known.values[ENGINE]
    parameters = host.parameters | {"frontend": 0.0, "frontend_per_token": 0.0}
    values = known.values | {ENGINE: host.model_copy(update={"parameters": parameters})}
    return replace(cost, calibration=known.model_copy(update={"values": values}))


def sampled(steps: pd.DataFrame, times: NDArray[np.float64] | None) -> pd.DataFrame:
    """The engine's counters at times (seconds), then every second to the end; of the latest step by then."""
    begun = 0.0 if times is None or not len(times) else float(times[-1])
    further = np.arange(begun + 1.0, math.ceil(steps.end_time.max()) + 1.0)
    times = further if times is None else np.concatenate([times, further])
    at = np.searchsorted(steps.start_time.to_numpy(float), times, side="right") - 1
    known = (at >= 0) & (times <= float(steps.end_time.max()))
    rows = steps.iloc[np.maximum(at, 0)]
    return pd.DataFrame(
        {
            "t": times,
            "running": np.where(known, rows.num_running, 0),
            "waiting": np.where(known, rows.num_waiting, 0),
            "kv_cache_pct": np.where(known, 100.0 * rows.kv_cache_usage_perc, 0.0),
        }
    )


def waiting_rises(times: pd.Series, waiting: pd.Series, after: float) -> pd.Series:
    """Cumulated rises of the waiting counter between samples later than `after` (seconds)."""
    rises = waiting.diff().clip(lower=0).fillna(0.0)
    return rises.where(times > after + 1.0, 0.0).cumsum()
