"""A ``vllm serve`` command line, read as it is: flags that bear on memory are used, the rest is listed."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvsim.errors import KvsimError

_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_SHORT = {
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-dcp": "decode-context-parallel-size",
    "-q": "quantization",
}
_NO_VALUE = {  # flags without a value that are common on command lines and do not bear on memory
    "trust-remote-code",
    "enable-auto-tool-choice",
    "disable-log-requests",
    "disable-log-stats",
    "enable-chunked-prefill",
    "enable-prefix-caching",
    "enable-expert-parallel",
    "enable-reasoning",
    "async-scheduling",
    "enable-lora",
    "disable-custom-all-reduce",
    "enable-log-requests",
    "headless",
}


@dataclass(frozen=True)
class ServeFlags:
    """What a command line says.

    values: by the names of `kvsim.plan_capacity`. ignored: the rest, as written.
    """

    model: str | None
    values: dict[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


def whole_number(text: str, flag: str) -> int:
    """vLLM's human-readable integers: 8192, 32k (thousands), 32K (1,024s); -1 or "auto" for automatic."""
    if text == "auto":
        return -1
    found = re.fullmatch(r"(-?\d{1,15}(?:\.\d{1,9})?)([kKmMgG]?)", text)
    value = float(found[1]) * _SUFFIXES.get(found[2], 1) if found else 0.5
    if value != int(value):
        raise KvsimError(f"{flag}: {text[:60]!r} is not a whole number, such as 8192 or 8k")
    return int(value)


def share(text: str, flag: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise KvsimError(f"{flag}: {text[:60]!r} is not above 0 and at most 1")
    return value


def _text(text: str, flag: str) -> str:
    return text


def _object(text: str, flag: str) -> dict[str, Any]:
    """A JSON object, or vLLM's older form key=value,key=value."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        pairs = [part.partition("=") for part in text.split(",")]
        if not all(key and equals and number.isdigit() for key, equals, number in pairs):
            raise KvsimError(f"{flag}: {text[:60]!r} is not a JSON object") from None
        value = {key: int(number) for key, _, number in pairs}
    if not isinstance(value, dict):
        raise KvsimError(f"{flag}: {text[:60]!r} is not a JSON object")
    return value


_FLAGS: dict[str, Callable[[str, str], Any]] = {
    "max-model-len": whole_number,
    "max-num-seqs": whole_number,
    "max-num-batched-tokens": whole_number,
    "tensor-parallel-size": whole_number,
    "pipeline-parallel-size": whole_number,
    "decode-context-parallel-size": whole_number,
    "block-size": whole_number,
    "num-gpu-blocks-override": whole_number,
    "kv-cache-memory-bytes": whole_number,
    "gpu-memory-utilization": share,
    "kv-cache-dtype": _text,
    "quantization": _text,
    "dtype": _text,
    "mamba-cache-mode": _text,
    "limit-mm-per-prompt": _object,
    "mm-processor-kwargs": _object,
    "speculative-config": _object,
}
_SWITCHES = {
    "enforce-eager": ("enforce_eager", True),
    "no-enforce-eager": ("enforce_eager", False),
    "disable-hybrid-kv-cache-manager": ("disable_hybrid_kv_cache_manager", True),
    "no-disable-hybrid-kv-cache-manager": ("disable_hybrid_kv_cache_manager", False),
    "skip-mm-profiling": ("skip_mm_profiling", True),
    "language-model-only": ("language_model_only", True),
    "no-async-scheduling": ("async_scheduling", False),
    "no-enable-prefix-caching": ("enable_prefix_caching", False),
}


def read_command(words: Sequence[str]) -> ServeFlags:
    """Read the words of a command line; a leading "vllm serve" or "python -m vllm..." may be there.

    Raises KvsimError naming the flag for a value that vLLM would not take.
    """
    rest = _without_program(list(words))
    model: str | None = None
    values: dict[str, Any] = {}
    ignored: list[str] = []
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            if model is None:
                model = word
            else:
                ignored.append(word)
            continue
        name, equals, value = word.partition("=")
        flag = _SHORT.get(name) or name.lstrip("-").replace("_", "-")
        if flag in _SWITCHES and not equals:
            key, setting = _SWITCHES[flag]
            values[key] = setting
        elif flag in _FLAGS or flag == "model":
            if not equals:
                if not rest:
                    raise KvsimError(f"--{flag}: its value is missing")
                value = rest.pop(0)
            if flag == "model":
                model = value
            else:
                values[flag.replace("-", "_")] = _FLAGS[flag](value, f"--{flag}")
        else:
            ignored.append(word)
            takes_value = not equals and flag not in _NO_VALUE and not flag.startswith("no-")
            if takes_value and rest and not rest[0].startswith("-") and (model or len(rest) > 1):
                ignored[-1] += f" {rest.pop(0)}"
    return ServeFlags(model, values, tuple(ignored))


def _without_program(words: list[str]) -> list[str]:
    if words and words[0] == "--":
        words = words[1:]
    while words and ("=" in words[0] and re.match(r"[A-Z_]+=", words[0])):  # environment settings
        words = words[1:]
    if words[:1] and words[0].rpartition("/")[2] == "vllm":
        return words[2:] if words[1:2] == ["serve"] else words[1:]
    if words[:1] and re.fullmatch(r"(.*/)?python[\d.]*", words[0]) and words[1:2] == ["-m"]:
        return words[3:]
    return words
