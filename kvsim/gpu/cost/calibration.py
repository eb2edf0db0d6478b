"""Calibrations: the numbers of the closed forms for one GPU, with where they come from. Data, not code."""

import json
import zlib
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvsim.errors import KvsimError
from kvsim.files import readable, write_whole
from kvsim.gpu import catalog
from kvsim.gpu.catalog import GpuSpec
from kvsim.gpu.cost import forms
from kvsim.gpu.cost.forms import Device, Spec
from kvsim.gpu.cost.residual import ResidualTable

DATA = Path(catalog.__file__).parent / "data" / "calibrations"
FORMAT = 1
ENGINE = "engine/host"  # key of the whole-engine numbers (engine.json)

ENGINE_PARAMETERS: Spec = {
    "step": (200.0, 0.0, 1e5, "us of host time a step that nothing hides"),
    "step_per_rank": (200.0, 0.0, 1e5, "us more for each tensor-parallel rank beyond the first"),
    "step_per_request": (0.0, 0.0, 1e4, "us more for each request of the batch"),
    "synchronous": (0.0, 0.0, 1e5, "us more a step without asynchronous scheduling"),
    "frontend": (0.0, 0.0, 1e6, "us from a request's arrival until the engine sees it"),
    "frontend_per_token": (0.0, 0.0, 1e3, "us of that for each prompt token (tokeniser)"),
}

# Operation -> the numbers its form takes; docs/cost.md says what each is.
OPERATIONS: dict[str, Spec] = {
    "attention_prefill": forms.PREFILL_PARAMETERS | forms.MIXED_PARAMETERS,
    "attention_decode": forms.DECODE_PARAMETERS,
    "attention_prefill_window": forms.PREFILL_PARAMETERS | forms.MIXED_PARAMETERS,
    "attention_decode_window": forms.DECODE_PARAMETERS,
    "attention_prefill_large": forms.PREFILL_PARAMETERS | forms.MIXED_PARAMETERS,
    "attention_decode_large": forms.DECODE_PARAMETERS,
    "attention_encoder": forms.ENCODER_PARAMETERS,
    "gemm": forms.GEMM_PARAMETERS,
    "small": forms.SMALL_PARAMETERS,
    "sampler": forms.SMALL_PARAMETERS,
    "moe": forms.MOE_PARAMETERS,
    "all_reduce_custom": forms.ALL_REDUCE_PARAMETERS,
    "all_reduce_eager": forms.ALL_REDUCE_PARAMETERS,
    "all_reduce_nccl": forms.ALL_REDUCE_PARAMETERS,
    "send": forms.SEND_PARAMETERS,
    "engine": ENGINE_PARAMETERS,
}


class Record(BaseModel):
    """No key that is not meant, and no change once read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Source(Record):
    """Where measurements come from, in the words of whoever published them."""

    package: str
    version: str = ""
    licence: str = ""
    kernel: str = ""
    engine: str = ""
    note: str = ""


class Error(Record):
    """Absolute percentage errors of the model against rows, as `kvsim calibrate evaluate` scores them."""

    rows: int
    mape: float
    median: float
    p90: float


class ValueSet(Record):
    """The numbers of one operation in one dtype.

    parameters: under the names of the form. residual: see `ResidualTable.to_json`.
    measured: column -> (lowest, highest) of the rows. rows: fitted. tables: fingerprints of the
    tables that they are from. fitted, left_out: how they and the quarter never fitted score.
    """

    unit: str = "us"
    parameters: dict[str, float]
    residual: dict[str, Any] | None = None
    source: Source
    measured: dict[str, tuple[float, float]] = Field(default_factory=dict)
    rows: int = 0
    tables: list[str] = Field(default_factory=list)
    fitted: Error | None = None
    left_out: Error | None = None
    borrowed_from: str = ""

    @property
    def table(self) -> ResidualTable | None:
        return ResidualTable.from_json(self.residual) if self.residual else None


class Calibration(Record):
    """What is known of one GPU. values: ``operation/dtype`` -> its numbers."""

    format: int = FORMAT
    gpu: str
    values: dict[str, ValueSet]

    def find(self, operation: str, dtype: str = "bfloat16") -> ValueSet | None:
        return self.values.get(f"{operation}/{dtype}")

    def get(self, operation: str, dtype: str = "bfloat16") -> ValueSet:
        """Raises KvsimError if neither this GPU nor those it borrows from have the operation."""
        found = self.find(operation, dtype)
        if found is None:
            raise KvsimError(f"calibration of {self.gpu}: nothing is known of {operation} in {dtype}")
        return found

    @property
    def borrowed(self) -> dict[str, list[str]]:
        """GPU -> operations that are taken from it."""
        taken: dict[str, list[str]] = {}
        for key, values in self.values.items():
            if values.borrowed_from:
                taken.setdefault(values.borrowed_from, []).append(key)
        return taken

    def save(self, path: Path) -> None:
        """Write as JSON, one value set a paragraph; whole or not at all. Raises KvsimError if it cannot."""
        record = self.model_dump(exclude_defaults=True) | {"format": self.format}
        write_whole(path, (json.dumps(record, indent=1) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> "Calibration":
        """Raises KvsimError naming the file and the first key that is wrong."""
        try:
            record = cls.model_validate_json(readable(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise KvsimError(f"{path}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise KvsimError(f"{path}: is no text; a calibration is JSON, as fit writes it") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "file"
            raise KvsimError(f"{path}: {where}: {first['msg']}") from None
        record._check(path)
        return record

    def _check(self, path: Path) -> None:
        if self.format != FORMAT:
            raise KvsimError(f"{path}: format is {self.format}, this kvsim reads {FORMAT}")
        for key, values in self.values.items():
            operation = key.split("/")[0]
            spec = OPERATIONS.get(operation)
            if spec is None:
                raise KvsimError(f"{path}: values.{key}: unknown operation; one of {', '.join(OPERATIONS)}")
            missing = sorted(set(spec) - set(values.parameters))
            if missing:
                raise KvsimError(f"{path}: values.{key}.parameters lacks {missing[0]}")
            for name, value in values.parameters.items():
                if not 0.0 <= value < 1e9:
                    raise KvsimError(f"{path}: values.{key}.parameters.{name}: {value} is no such number")
            try:
                values.table  # noqa: B018 - reads it
            except (ValueError, KeyError, TypeError, zlib.error):
                raise KvsimError(f"{path}: values.{key}.residual does not fill its axes") from None


@cache
def _devices() -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = json.loads((DATA / "devices.json").read_text(encoding="utf-8"))
    return {name: row for name, row in rows.items() if name != "about"}


def _device_row(name: str) -> dict[str, Any]:
    row = _devices().get(name)
    if row is None:
        raise KvsimError(f"gpu: {name} has no entry in {DATA / 'devices.json'}")
    return row


def device(gpu: GpuSpec) -> Device:
    """Rates of a catalog GPU in the forms' units; raises KvsimError for one without an entry."""
    row = _device_row(gpu.name)
    return Device(
        gpu.name,
        flops=gpu.bf16_flops * 1e-6,
        fp8_flops=(gpu.fp8_flops or 0.0) * 1e-6,
        bandwidth=gpu.bandwidth * 1e-6,
        sms=row["sms"],
        l2_bytes=row["l2_mb"] * 1e6,
        link=gpu.link_bandwidth * 1e-6,
    )


def own_calibration(name: str) -> Calibration:
    """What was measured on the GPU of that catalog name; empty if nothing was."""
    stem = _device_row(name).get("calibration")
    path = DATA / f"{stem}.json"
    return Calibration.load(path) if stem and path.exists() else Calibration(gpu=name, values={})


@cache
def calibration(name: str) -> Calibration:
    """A GPU's own value sets, those of its nearest relatives for what it lacks, and its host times."""
    return completed(own_calibration(name))


def completed(own: Calibration) -> Calibration:
    """`own` with what it lacks borrowed from the GPU's relatives, marked so, and the host times."""
    values = {ENGINE: _engine_set(own.gpu), **own.values}
    gemm = own.find("gemm")
    for relative in _device_row(own.gpu).get("borrow", ()):
        theirs = own_calibration(relative)
        for key, value in theirs.values.items():
            if key not in values:
                values[key] = _borrowed(value, relative, gemm, theirs.find("gemm"))
    return Calibration(gpu=own.gpu, values=values)


def supplemented(own: Calibration) -> Calibration:
    """A user's calibration with kvsim's own numbers of that GPU for what it lacks, then `completed`."""
    return completed(Calibration(gpu=own.gpu, values={**own_calibration(own.gpu).values, **own.values}))


def _borrowed(value: ValueSet, relative: str, own: ValueSet | None, theirs: ValueSet | None) -> ValueSet:
    """A relative's numbers. Where both have matrix products, the share of the peak that other kernels
    reach changes as theirs does: data sheets count power limits and accumulation differently."""
    parameters = dict(value.parameters)
    if own and theirs and "flops_efficiency" in parameters:
        ratio = own.parameters["flops_efficiency"] / theirs.parameters["flops_efficiency"]
        parameters["flops_efficiency"] *= ratio
    return value.model_copy(update={"borrowed_from": relative, "parameters": parameters})


@cache
def _engine_sets() -> dict[str, ValueSet]:
    rows = json.loads((DATA / "engine.json").read_text(encoding="utf-8"))
    return {name: ValueSet.model_validate(row) for name, row in rows.items() if name != "about"}


def _engine_set(gpu: str) -> ValueSet:
    return _engine_sets().get(gpu) or _engine_sets()["default"]
