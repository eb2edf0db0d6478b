"""The scenario: one frozen, checked description of a run."""

import dataclasses
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.cost.calibration import Calibration
from kvsim.gpu.model import ModelSpec
from kvsim.rules import releases
from kvsim.scenario.calibration import read_calibration
from kvsim.scenario.cluster import ClusterSection
from kvsim.scenario.content import digest_of
from kvsim.scenario.engine import EngineSection, Section, key
from kvsim.scenario.groups import Surroundings, settled
from kvsim.scenario.measuring import RecordSection, SloSection
from kvsim.scenario.named import (
    GpuName,
    ModelName,
    Text,
    Version,
    folder_of,
    pinned_calibration,
    pinned_model,
)
from kvsim.scenario.served import Served, filled_engine
from kvsim.scenario.sweep_block import SweepSection
from kvsim.scenario.workload import (
    WorkloadSpec,
    count_key,
    image_parts,
    plain_section,
    type_name,
    with_processor,
    workload_section,
)
from kvsim.scenario.yaml_file import dump
from kvsim.workload.checks import FieldError, shown
from kvsim.workload.image_tokens import PROCESSORS, processor_of
from kvsim.workload.request import Workload
from kvsim.workload.trace import TraceWorkload
from kvsim.workload.trace_lines import fingerprint

if TYPE_CHECKING:
    from kvsim.results import RunResult
    from kvsim.sim.build import Cell
    from kvsim.sim.step_view import StepView
    from kvsim.sweep import SweepResult

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def _calibration(value: str, info: ValidationInfo) -> str:
    """A calibration file of the scenario's GPU."""
    if "gpu" in info.data:  # else another error will be told
        read_calibration(value, folder_of(info), info.data["gpu"])
    return value


class Scenario(Section):
    """A run, described. Sections and keys are those of the YAML file.

    `model` names a row of the catalog or a config.json (or its folder), looked for beside the scenario
    file and then in the working directory; `model_sha256`, that file's SHA-256, stands in for it in
    `scenario_hash`. `workload` is one of kvsim.workload's descriptions or a mapping with its `type`. Every
    default is filled in; what stays None has no value, or vLLM derives it from the model.
    Raises pydantic's ValidationError; `load_scenario` turns it into one line.
    """

    name: str = key(
        ...,
        "names the results folder; a file without it lends its own name",
        pattern=rf"^{_NAME.pattern}$",
    )
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = key(0, "of everything drawn at random")
    vllm_version: Version = key(
        "0.33", f"whose rules apply: {' or '.join(releases())}", examples=list(releases())
    )
    model: ModelName = key(
        ...,
        "a name of `kvsim models`, or a config.json (or its folder), sought beside the scenario first",
        examples=catalog.model_names(),
    )
    model_sha256: Annotated[str | None, Field(validate_default=True)] = key(
        None,
        "pins that config.json; stands in for its path in the scenario's hash",
        pattern="^[0-9a-f]{64}$",
    )
    gpu: GpuName = key(
        ..., "a name of `kvsim gpus`; case, dashes and blanks do not matter", examples=catalog.gpu_names()
    )
    calibration: Annotated[Text, AfterValidator(_calibration)] | None = key(
        None, "a file of `kvsim calibrate fit` for this GPU, sought as model is; else kvsim's own numbers"
    )
    calibration_sha256: Annotated[str | None, Field(validate_default=True)] = key(
        None,
        "pins that calibration; stands in for its path in the scenario's hash",
        pattern="^[0-9a-f]{64}$",
    )
    horizon: Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)] | None = key(
        None, "stop after so long; until all is done if absent", "seconds", examples=[120]
    )
    warm_up: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] = key(
        0.0, "requests that arrived before are left out of latencies, rates and goodput", "seconds"
    )
    workload: Annotated[Any, BeforeValidator(workload_section)] = key(..., "the traffic")
    engine: EngineSection = Field(
        default_factory=EngineSection, validate_default=True, description="vLLM's flags"
    )
    cluster: ClusterSection = Field(
        default_factory=ClusterSection, validate_default=True, description="replicas, routers and links"
    )
    slo: SloSection | None = key(None, "limits for goodput")
    record: RecordSection = Field(
        default_factory=RecordSection, description="tables beside that of the requests"
    )

    _folder: Path = PrivateAttr(default=Path())
    _trace: "_TraceFile | None" = PrivateAttr(default=None)
    _given: Mapping[str, Any] = PrivateAttr(default_factory=dict)
    _sweep: SweepSection | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any) -> None:
        self._folder = Path((context or {}).get("folder", ""))

    @model_validator(mode="wrap")
    @classmethod
    def _keep_given(cls, values: Any, handler: ModelWrapValidatorHandler["Scenario"]) -> "Scenario":
        scenario = handler(values)
        if isinstance(values, Mapping):
            scenario._given = dict(values)
        return scenario

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            letters = "letters, digits, dot, dash and underscore"
            raise ValueError(f"{shown(value)} cannot name a folder; use {letters}")
        return value

    @field_validator("model_sha256")
    @classmethod
    def _pin_model(cls, value: str | None, info: ValidationInfo) -> str | None:
        if "model" not in info.data:
            return value  # another error will be told
        return pinned_model(info.data["model"], value, folder_of(info))

    @field_validator("calibration_sha256")
    @classmethod
    def _pin_calibration(cls, value: str | None, info: ValidationInfo) -> str | None:
        if "calibration" not in info.data:
            return value  # another error will be told
        return pinned_calibration(info.data["calibration"], value, folder_of(info))

    @field_validator("warm_up")
    @classmethod
    def _check_warm_up(cls, value: float, info: ValidationInfo) -> float:
        horizon = info.data.get("horizon")
        if horizon is not None and value >= horizon:
            raise ValueError(f"{value:g} s leave nothing to measure before horizon, {horizon:g} s")
        return value

    @field_validator("workload")
    @classmethod
    def _check_workload(cls, value: WorkloadSpec, info: ValidationInfo) -> WorkloadSpec:
        if isinstance(value, TraceWorkload):
            return value
        count = count_key(value)
        if getattr(value, count) is None and info.data.get("horizon") is None:
            raise FieldError(count, "missing; say how many, or give horizon in seconds")
        for path, images in image_parts(value).items():
            if images.image_size is not None and images.processor is None:
                family = processor_of(info.data.get("model", ""))
                if family is None and "model" in info.data:
                    raise FieldError(f"{path}image_size", _unknown_pixels(info.data["model"]))
                value = with_processor(value, family)
        return value

    @field_validator("engine")
    @classmethod
    def _fill_engine(cls, value: EngineSection, info: ValidationInfo) -> EngineSection:
        if not {"vllm_version", "model", "gpu", "workload"} <= info.data.keys():
            return value  # another error will be told
        model, gpu, workload = (info.data[key] for key in ("model", "gpu", "workload"))
        return filled_engine(value, info.data["vllm_version"], model, gpu, workload, folder_of(info))

    @field_validator("cluster")
    @classmethod
    def _fill_cluster(cls, value: ClusterSection, info: ValidationInfo) -> ClusterSection:
        if not {field.name for field in dataclasses.fields(Surroundings)} - {"folder"} <= info.data.keys():
            return value  # another error will be told
        known = {key: item for key, item in info.data.items() if key in Surroundings.__annotations__}
        return settled(value, Surroundings(**known, folder=folder_of(info)))

    @property
    def served(self) -> Served:
        """What an engine serves where a group of the cluster says nothing else."""
        return Served(
            self.vllm_version,
            self.model,
            self.gpu,
            self.engine,
            self.calibration,
            self.image_pixels,
            self._folder,
        )

    @property
    def model_spec(self) -> ModelSpec:
        """The model's shape, with the engine's dtype and quantization."""
        return self.served.model_spec

    @property
    def step_calibration(self) -> Calibration | None:
        """Numbers of the step times, where the scenario names a file of them."""
        return self.served.step_calibration

    def _pinned_calibration(self) -> dict[str, str | None]:
        if not self.calibration:
            return {}
        return {"calibration": self.calibration, "calibration_sha256": self.calibration_sha256}

    @property
    def limits(self) -> dict[str, float]:
        """Limits to ttft, tpot and e2e, in seconds, as far as they are stated."""
        return self.slo.limits if self.slo else {}

    @property
    def image_pixels(self) -> int | None:
        """The greatest area of a picture, if it is given (vLLM's `mm_processor_kwargs`)."""
        limits = [images.max_pixels for images in image_parts(self.workload).values()]
        return max((limit for limit in limits if limit is not None), default=None) if all(limits) else None

    @property
    def given(self) -> Mapping[str, Any]:
        """The values that it was made from, before defaults were filled in."""
        return self._given

    @property
    def sweep_block(self) -> SweepSection | None:
        """The `sweep:` block of its file."""
        return self._sweep

    @property
    def folder(self) -> Path:
        """Where relative paths count from first."""
        return self._folder

    @property
    def given_trace(self) -> Path | None:
        """The trace that stands in for workload.path, as with --trace."""
        return self._trace.given if self._trace else None

    @property
    def trace_path(self) -> Path | None:
        """The trace file that is replayed, found; None for other workloads."""
        return self._trace.path if self._trace else None

    @property
    def num_gpus(self) -> int:
        """Of all replicas."""
        if self.cluster.is_short:
            return self.cluster.replicas * self.engine.num_gpus
        return sum(group.replicas * group.engine.num_gpus for group in self.cluster.groups.values())

    def cells(self) -> "tuple[Cell, ...]":
        """Routers with the groups that they serve; raises KvsimError for one without room for a request."""
        from kvsim.scenario.cells import cells_of  # the simulator is only needed here

        return cells_of(self)

    def build_workload(self) -> Workload:
        """The traffic, ready to yield requests."""
        spec: WorkloadSpec = self.workload
        if self._trace is None or not isinstance(spec, TraceWorkload):
            return spec
        return spec.located(str(self._trace.path), self._trace.num_rows)

    def resolved(self) -> dict[str, Any]:
        """Everything with all defaults, in a fixed order, of plain values; `load_scenario` reads it back."""
        return {
            "name": self.name,
            "seed": self.seed,
            "vllm_version": self.vllm_version,
            "model": self.model,
            **({"model_sha256": self.model_sha256} if self.model_sha256 else {}),
            "gpu": self.gpu,
            **self._pinned_calibration(),
            "engine": self.engine.model_dump(),
            "workload": _plain(plain_section(self.workload)),
            "cluster": self.cluster.resolved(),
            "horizon": self.horizon,
            "warm_up": self.warm_up,
            "slo": self.slo.model_dump() if self.slo else None,
            "record": self.record.model_dump(),
        }

    def to_yaml(self) -> str:
        """`resolved` as YAML text."""
        return dump(self.resolved())

    @property
    def scenario_hash(self) -> str:
        """SHA-256 (hex) over the canonical JSON of `resolved`.

        A trace, a config.json, a calibration and a user's policy count by their content, not by where they
        lie; what is recorded beside the requests does not count, since it changes nothing else.
        """
        return digest_of(self.resolved())

    def run(self) -> "RunResult":
        """Simulate; the result has DataFrame views. Raises KvsimError if the scenario cannot run."""
        from kvsim.sim.run import run_scenario  # the simulator is only needed here

        return run_scenario(self)

    def sweep(
        self,
        set: Mapping[str, Any] | None = None,
        *,
        points: Sequence[Mapping[str, Any]] = (),
        sample: str | None = None,
        seed: int | None = None,
        find: str | None = None,
        subject_to: str | Sequence[str] = (),
        tolerance: float | None = None,
        max_points: int | None = None,
        out: str | Path | None = None,
        workers: int | None = None,
        ray: str | None = None,
        fresh: bool = False,
        ignore_block: bool = False,
        progress: bool = True,
    ) -> "SweepResult":
        """Run it with other values of some keys, as `kvsim sweep` does, on top of the file's `sweep:` block.

        set: dotted key -> list of values, or a range as text such as "0.5:0.95:0.05".
        out: folder that keeps points as they finish; None keeps nothing. ignore_block: without the file's
        block. The others: see docs/sweep.md.
        Raises KvsimError for what is wrong with keys, values, folder or workers; a point that fails is a row
        with its ``error``.
        """
        from kvsim.sweep.sweep import sweep_scenario  # made of scenarios, so it stands above this package

        return sweep_scenario(
            self,
            set,
            points=points,
            sample=sample,
            seed=seed,
            find=find,
            subject_to=[subject_to] if isinstance(subject_to, str) else subject_to,
            tolerance=tolerance,
            max_points=max_points,
            out=out,
            workers=workers,
            ray=ray,
            fresh=fresh,
            ignore_block=ignore_block,
            progress=progress,
        )

    def compare_routers(
        self,
        policies: Sequence[str | Mapping[str, Any]],
        *,
        out: str | Path | None = None,
        workers: int | None = None,
        ray: str | None = None,
        fresh: bool = False,
        progress: bool = True,
    ) -> "SweepResult":
        """Run it under each of these routing policies, as `kvsim run --compare-routers` does.

        policies: names, "name:parameter=value", or mappings with the key policy. The others: see `sweep`.
        The result's ``frame`` has a row for each policy, its ``replicas`` one for each policy and replica.
        Raises KvsimError for unknown policies and wrong parameters; one that fails later is a row with its
        ``error``.
        """
        from kvsim.sweep.sweep import compare_scenario  # made of scenarios, so it stands above this package

        return compare_scenario(
            self, policies, out=out, workers=workers, ray=ray, fresh=fresh, progress=progress
        )

    def steps(
        self, first: int = 1, count: int | None = None, *, blocks: bool = False
    ) -> Iterator["StepView"]:
        """Engine steps one by one, from number `first` (1-based), as the attention backend sees them.

        blocks: with the block map. Nothing is simulated beyond what is asked for. Raises KvsimError
        as `run` does, and if the run has fewer steps than `first`.
        """
        from kvsim.sim.steps import scenario_steps  # as above

        return scenario_steps(self, first, count=count, blocks=blocks)


@dataclasses.dataclass(frozen=True)
class _TraceFile:
    path: Path
    num_rows: int
    given: Path | None


def with_trace(scenario: Scenario, folder: Path, given: Path | None = None) -> Scenario:
    """The scenario with its trace file found and fingerprinted.

    A path in the file is tried beside that file first, then in the working directory; `given`
    (from the command line) replaces it and counts from the working directory. Raises FieldError.
    """
    spec = scenario.workload
    if not isinstance(spec, TraceWorkload):
        if given is not None:
            raise FieldError("type", f"{type_name(spec)} replays no trace; --trace needs type: trace")
        return scenario
    path = _find_trace(spec.path, folder) if given is None else _regular(given)
    digest, num_rows = _fingerprint(path)
    if num_rows == 0:
        raise KvsimError(f"{path}: empty; a trace needs at least one row")
    if given is None and spec.sha256 not in (None, digest):
        raise FieldError("sha256", f"{path} holds other rows, with {digest}")
    spec = dataclasses.replace(spec, path=str(given or spec.path), sha256=digest)
    found = scenario.model_copy(update={"workload": spec})
    found._trace = _TraceFile(path, num_rows, given)
    return found


def _fingerprint(path: Path) -> tuple[str, int]:
    """Of a sweep's many scenarios only the first reads the trace for it."""
    try:
        now = os.stat(path)
    except OSError:
        return fingerprint(path)  # says what is wrong
    return _fingerprint_once(path, (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns))


@lru_cache(maxsize=16)
def _fingerprint_once(path: Path, state: tuple[int, ...]) -> tuple[str, int]:
    return fingerprint(path)


def _unknown_pixels(model: str) -> str:
    known = ", ".join(PROCESSORS)
    return f"not known how {model} turns pixels to tokens; give image_tokens, or processor: one of {known}"


def _find_trace(path: str, folder: Path) -> Path:
    places = [folder / path, Path(path)]
    for place in places:
        if catalog.is_file(place):
            return place
    tried = " and ".join(dict.fromkeys(str(place) for place in places))
    there = any(os.path.exists(place) for place in places)
    raise FieldError("path", f"{shown(path)} is not {'a regular file' if there else 'there'} (tried {tried})")


def _regular(path: Path) -> Path:
    """A trace is read more than once, which a pipe does not allow."""
    if os.path.exists(path) and not catalog.is_file(path):
        raise FieldError("path", "not a regular file")
    return path


def _plain(value: Any) -> Any:
    """JSON- and YAML-safe: infinity is written inf."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return "inf" if value == math.inf else value
