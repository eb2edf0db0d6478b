"""Values of vLLM's flags as its argument parser takes them: numbers with suffixes, shares, JSON objects.

`human_readable_int` and the argument types of `engine/arg_utils.py` (vLLM 0.33.0).
"""

import json
import re
from collections.abc import Callable
from typing import Any

from kvsim.errors import KvsimError

_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def whole_number(text: str, flag: str) -> int:
    """vLLM's human-readable integers: 8192, 32k (thousands), 32K (1,024s); -1 or "auto" for automatic."""
    if text == "auto":
        return -1
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
