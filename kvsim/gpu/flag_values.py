"""Values of vLLM's flags as its argument parser takes them: numbers with suffixes, shares, JSON objects.

`human_readable_int` and the argument types of `engine/arg_utils.py` (vLLM 0.33.0).
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from kvsim.errors import KvsimError

_LEVELS = ("0", "1", "2", "3")
_GRAPH_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
_COMPILATION_MODES = ("NONE", "STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE", "VLLM_COMPILE")
_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def whole_number(text: str, flag: str) -> int:
    """vLLM's human-readable integers: 8192, 32k (thousands), 32K (1,024s); -1 or "auto" for automatic."""
    if text == "auto":
        return -1
    if re.fullmatch(r"-?\d{16,}(?:\.\d*)?[kKmMgGtT]?", text):
        raise KvsimError(f"{flag}: {text[:60]} is too large")
    found = re.fullmatch(r"(-?\d{1,15}(?:\.\d{1,9})?)([kKmMgGtT]?)", text)
    value = float(found[1]) * _SUFFIXES.get(found[2], 1) if found else 0.5
    if value != int(value):
        raise KvsimError(f"{flag}: {text[:60]!r} is not a whole number, such as 8192 or 8k")
    return int(value)


def share(text: str, flag: str) -> float:
    value = _float(text)
    if value is None or not 0 < value <= 1:
        raise KvsimError(f"{flag}: {text[:60]!r} is not above 0 and at most 1")
    return value


def _real(text: str, flag: str) -> float:
    value = _float(text)
    if value is None or not 0 <= value < 1e9:
        raise KvsimError(f"{flag}: {text[:60]!r} is not a number from 0")
    return value


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def switch(text: str, flag: str) -> bool:
    """The value that releases up to 0.8 let follow a switch."""
    if text.lower() not in ("true", "false"):
        raise KvsimError(f"{flag}: {text[:60]!r} is neither true nor false")
    return text.lower() == "true"


def optimization_level(text: str, flag: str) -> int | str:
    """A digit of -O, or a name as it is."""
    if text.isdigit() and text not in _LEVELS:
        raise KvsimError(f"{flag}: {text} is no level of optimization; one of {', '.join(_LEVELS)}")
    return int(text) if text.isdigit() else text


def captures_nothing(compilation: Mapping[str, Any]) -> bool:
    """Whether --compilation-config switches compiled code or CUDA graphs off. Raises KvsimError."""
    graphs = _named(compilation, "cudagraph_mode", _GRAPH_MODES)
    key = "mode" if "mode" in compilation else "level"
    return graphs == "NONE" or _named(compilation, key, _COMPILATION_MODES) in ("NONE", "0")


def _named(compilation: Mapping[str, Any], key: str, known: tuple[str, ...]) -> str:
    """The value in capitals, or a number as text; empty if absent."""
    value = compilation.get(key)
    text = "" if value is None else str(value).upper()
    if text and not text.isdigit() and text not in known:
        wanted = ", ".join(known)
        raise KvsimError(f"--compilation-config: {key} {str(value)[:40]!r} is not known; one of {wanted}")
    return text


def _text(text: str, flag: str) -> str:
    return text


def _object(text: str, flag: str) -> dict[str, Any]:
    """A JSON object, or vLLM's older form key=value,key=value."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        pairs = [part.partition("=") for part in text.split(",")]
        if not all(key and equals and number.isdigit() and len(number) < 16 for key, equals, number in pairs):
            raise KvsimError(f"{flag}: {text[:60]!r} is not a JSON object") from None
        value = {key: int(number) for key, _, number in pairs}
    if not isinstance(value, dict):
        raise KvsimError(f"{flag}: {text[:60]!r} is not a JSON object")
    return value


# How to read the flags that bear on memory.
VALUES: dict[str, Callable[[str, str], Any]] = {
    "max-model-len": whole_number,
    "max-num-seqs": whole_number,
    "max-num-batched-tokens": whole_number,
    "tensor-parallel-size": whole_number,
    "pipeline-parallel-size": whole_number,
    "decode-context-parallel-size": whole_number,
    "data-parallel-size": whole_number,
    "block-size": whole_number,
    "num-gpu-blocks-override": whole_number,
    "kv-cache-memory-bytes": whole_number,
    "max-loras": whole_number,
    "max-lora-rank": whole_number,
    "gpu-memory-utilization": share,
    "cpu-offload-gb": _real,
    "swap-space": _real,
    "kv-cache-dtype": _text,
    "quantization": _text,
    "load-format": _text,
    "dtype": _text,
    "mamba-cache-mode": _text,
    "mamba-ssm-cache-dtype": _text,
    "limit-mm-per-prompt": _object,
    "mm-processor-kwargs": _object,
    "speculative-config": _object,
    "hf-overrides": _object,
    "rope-scaling": _object,
    "compilation-config": _object,
}


def plain_value(text: str) -> Any:
    """A value after a dotted flag: JSON, a number with a suffix, or text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return whole_number(text, "") if text != "auto" else text
    except KvsimError:
        return text
