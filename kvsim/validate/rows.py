"""Tables of measured serving runs: read, recognised by their columns, checked row by row."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from kvsim.errors import KvsimError
from kvsim.files import foreign_separator
from kvsim.gpu import catalog
from kvsim.gpu.model import ModelSpec

TEXTS = ("id", "source", "model", "gpu", "dtype")
FURTHER_TEXTS = ("engine", "engine_version", "kv_dtype", "load_mode", "shared_prefix", "notes")
COUNTS = ("tp", "mean_input_len", "mean_output_len")
LOADS = ("request_rate_rps", "concurrency")  # one of them at least
FURTHER_NUMBERS = (
    "num_requests",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "gpu_mem_util",
    "num_gpu_blocks",
)
FURTHER_FLAGS = ("prefix_caching",)
# What is measured; milliseconds but for the rates.
MEASURED = (
    "ttft_mean_ms",
    "tpot_mean_ms",
    "tpot_derived_ms",
    "e2e_mean_ms",
    "out_tok_s",
    "req_s",
)
NEEDED = (*TEXTS, *COUNTS)
_NUMBERS = (*COUNTS, *LOADS, *FURTHER_NUMBERS, *MEASURED)
_WHOLE = {"tp", "concurrency", *FURTHER_NUMBERS} - {"gpu_mem_util"}

# How the rows are grouped; a row is in the first class that fits it.
FAILING, MOE, FP4, DENSE = "failing requests", "MoE", "4-bit weights", "dense, 8 or 16 bits"
CLASSES = (DENSE, FP4, MOE, FAILING)

# Weight formats as tables name them -> ending of a model's name in the catalog.
_FORMATS = {"fp8": "-FP8", "fp4": "-NVFP4", "nvfp4": "-NVFP4", "int4": "-INT4", "int8": "-INT8"}
_PLAIN = ("bf16", "bfloat16", "fp16", "float16", "half", "auto", "fp16/bf16")
_FOUR_BITS = ("nvfp4", "mxfp4", "int4", "nf4")
_STATED = re.compile(r"\s*\((?:not stated|nominal)[^)]*\)")


@dataclass(frozen=True)
class ServingRow:
    """One measured point: what was served how, and the figures. Times in milliseconds.

    values: the cells of `NEEDED`, `LOADS` and what else is filled in. model: as served.
    """

    line: int
    values: dict[str, Any]
    model: str
    spec: ModelSpec
    gpu: str

    @property
    def id(self) -> str:
        return str(self.values["id"])

    @property
    def source(self) -> str:
        """Who measured: the first word of the row's source."""
        return str(self.values["source"]).split(" ")[0]

    @property
    def kind(self) -> str:
        """One of `CLASSES`."""
        failures = re.search(r"failures (\d+)", str(self.get("notes", "")))
        if failures and int(failures[1]):
            return FAILING
        if self.spec.num_moe_layers:
            return MOE
        return FP4 if self.spec.quantization in _FOUR_BITS else DENSE

    @property
    def concurrency(self) -> int | None:
        """Of a closed loop."""
        return self.get("concurrency")

    def get(self, column: str, default: Any = None) -> Any:
        return self.values.get(column, default)

    @property
    def measured(self) -> dict[str, float]:
        """ttft, tpot (`tpot_mean_ms`, else `tpot_derived_ms`), e2e in ms; tokens and requests a second."""
        found = {
            "ttft": self.get("ttft_mean_ms"),
            "tpot": self.get("tpot_mean_ms", self.get("tpot_derived_ms")),
            "e2e": self.get("e2e_mean_ms"),
            "tokens": self.get("out_tok_s"),
            "requests": self.get("req_s"),
        }
        return {name: value for name, value in found.items() if value is not None}


def read_rows(path: Path) -> list[ServingRow]:
    """Raises KvsimError, one line with the file, the row (1 is the first below the header) and the fault."""
    frame = _frame(path)
    mark = foreign_separator(frame.columns)
    if mark:
        raise KvsimError(f"{path}: columns are separated by {mark}; write commas")
    missing = [column for column in NEEDED if column not in frame]
    if missing:
        raise KvsimError(f"{path}: column {missing[0]} is missing{_unit_hint(missing[0], frame)}")
    if not set(LOADS) & set(frame):
        raise KvsimError(f"{path}: column {' or '.join(LOADS)} is missing")
    if not set(MEASURED) & set(frame):
        hint = _unit_hint(MEASURED[0], frame)
        raise KvsimError(f"{path}: nothing measured; one of {', '.join(MEASURED)}{hint}")
    if not len(frame):
        raise KvsimError(f"{path}: has no rows")
    return list(_checked(path, frame))


def _frame(path: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(path, dtype=str, keep_default_na=False)
    except FileNotFoundError:
        raise KvsimError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise KvsimError(f"{path}: cannot be read as CSV: {str(error).splitlines()[0]}") from None


def _unit_hint(column: str, frame: pd.DataFrame) -> str:
    """A column of the same name in another unit."""
    stem = column.rsplit("_", 1)[0]
    others = [name for name in frame if name != column and str(name).rsplit("_", 1)[0] == stem]
    return f"; {others[0]} is there, give it as {column}" if others else ""


def _checked(path: Path, frame: pd.DataFrame) -> Iterator[ServingRow]:
    for line, cells in enumerate(frame.to_dict("records"), 1):
        where = f"{path}: row {line}"
        values = {str(column): str(cell).strip() for column, cell in cells.items() if str(cell).strip()}
        lacking = [column for column in NEEDED if column not in values]
        if lacking:
            raise KvsimError(f"{where}: {lacking[0]} is empty")
        if values.get("engine", "vllm").lower() != "vllm":
            raise KvsimError(f"{where}: engine is {values['engine']}, kvsim models vllm")
        numbers = {column: _number(where, column, values[column]) for column in _NUMBERS if column in values}
        if not any(column in numbers for column in LOADS):
            raise KvsimError(f"{where}: neither {' nor '.join(LOADS)} is given")
        if not any(column in numbers for column in MEASURED):
            raise KvsimError(f"{where}: nothing measured; one of {', '.join(MEASURED)}")
        flags = {column: _flag(where, column, values[column]) for column in FURTHER_FLAGS if column in values}
        yield _row(where, line, {**values, **numbers, **flags})


def _number(where: str, column: str, text: str) -> float | int:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise KvsimError(f"{where}: {column} is {text!r}, not a number")
    if value <= 0:
        raise KvsimError(f"{where}: {column} is {text}, must be above 0")
    if column in _WHOLE:
        if value != int(value):
            raise KvsimError(f"{where}: {column} is {text}, must be a whole number")
        return int(value)
    return value


def _flag(where: str, column: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise KvsimError(f"{where}: {column} is {text!r}, must be True or False")
    return text.lower() == "true"


def _row(where: str, line: int, values: dict[str, Any]) -> ServingRow:
    try:
        gpu = catalog.gpu(values["gpu"]).name
        name = _model_name(str(values["model"]), str(values["dtype"]))
        return ServingRow(line, values, name, catalog.model(name), gpu)
    except KvsimError as error:
        raise KvsimError(f"{where}: {error}") from None


def _model_name(model: str, dtype: str) -> str:
    """The catalog's name of a model served in a format: a name that says its own format keeps it."""
    kind = _STATED.sub("", dtype).strip().lower()
    spec = catalog.model(model)
    if kind in _PLAIN:
        return model
    if kind not in _FORMATS:
        known = ", ".join([*_FORMATS, *_PLAIN])
        raise KvsimError(f"dtype is {dtype!r}; one of {known}")
    own = spec.quantization or ""
    if own and own[-1] == kind[-1]:  # both of 4 bits, or of 8
        return model
    return model + _FORMATS[kind]
