"""A vLLM start-up log, 0.6 to 0.33: what it prints about memory, and whether it adds up.

Texts: `v1/worker/gpu_worker.py`, `v1/core/kv_cache_utils.py`, `utils/mem_utils.py` of 0.16.0 and 0.33.0, and
`worker/worker.py` of the V0 engine (0.6.4: "the current vLLM instance can use ...").
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu.config_json import read_json
from kvsim.gpu.prediction import GIB, MemoryPrediction

_MOST_BYTES = 256 << 20
_ROUNDING_GIB = 0.035  # every printed part is rounded to 0.01; seven of them, or a share printed as 0.9

_N = r"(-?[\d,]*\.?\d+)"
_GIB = rf"{_N}\s?Gi?B"
# First match of each counts: with several ranks, the first one's line.
_PATTERNS: dict[str, tuple[str, ...]] = {
    "version": (r"engine \(v(\d[^)\s]*)\) with config", r"vLLM (?:API server )?version (\d[\w.]*)"),
    "model": (r"\bmodel='([^']+)'", r"--model[= ](\S+)", r"vllm serve (\S+)"),
    "max_model_len": (r"max_seq_len=(\d+)", rf"Maximum concurrency for {_N} tokens"),
    "tensor_parallel_size": (r"tensor_parallel_size=(\d+)",),
    "pipeline_parallel_size": (r"pipeline_parallel_size=(\d+)",),
    "quantization": (r"\bquantization='?([\w-]+)",),
    "kv_cache_dtype": (r"kv_cache_dtype='?([\w.]+)",),
    "enforce_eager": (r"enforce_eager=(True|False)",),
    "max_num_batched_tokens": (
        r"max_num_batched_tokens'?[=:]\s*(\d+)",
        r"max_num_batched_tokens[= ](\d+)",
    ),
    "max_num_seqs": (r"max_num_seqs'?[=:]\s*(\d+)",),
    "weights_gib": (
        rf"Model loading took {_GIB}",
        rf"model weights take {_GIB}",
        rf"Loading model weights took {_GIB}",
    ),
    "peak_torch_gib": (rf"peak_torch_memory={_GIB}",),
    "total_gib": (
        rf"total_gpu_memory \({_GIB}\)",
        rf"total_gpu_memory={_GIB}",
        rf"on device \({_N}/{_N} GiB\)",
    ),
    "gpu_memory_utilization": (
        rf"gpu_memory_utilization \({_N}\)",
        rf"memory utilization is \({_N},",
        rf"gpu_memory_utilization'?[=:]\s*{_N}",
    ),
    "requested_gib": (rf"memory utilization is \([\d.]+, {_GIB}\)", rf"utilization \([\d.]+\) = {_GIB}"),
    "consumed_gib": (rf"{_GIB} for consumed memory",),
    "activation_gib": (
        rf"activation peak memory takes {_GIB}",
        rf"{_GIB} for peak activation",
        rf"torch peak memory increase: {_GIB}",
    ),
    "non_torch_gib": (
        rf"non_torch_memory takes {_GIB}",
        rf"{_GIB} for non-torch",
        rf"non_torch_memory={_GIB}",
    ),
    "cuda_graph_gib": (rf"Estimated CUDA graph memory: {_GIB}",),
    "captured_graph_gib": (rf"Graph capturing finished in [\d.]+ secs?, took {_GIB}",),
    "available_gib": (
        rf"Available KV cache memory: {_GIB}",
        rf"reserved for KV Cache is {_GIB}",
        rf"kv_cache_size={_GIB}",
    ),
    "num_gpu_blocks": (rf"# (?:GPU|cuda) blocks: {_N}", rf"num_gpu_blocks[= ]{_N}"),
    "block_size": (r"\bblock_size'?[=:]\s*(\d+)", r"attention block size to (\d+) tokens"),
    "kv_tokens": (rf"GPU KV cache size: {_N} tokens",),
    "max_concurrency": (rf"Maximum concurrency for [\d,]+ tokens per request: {_N}x",),
    "needed_gib": (rf"\({_GIB} KV cache is needed",),
    "longest": (r"estimated maximum model length is (\d+)",),
}
_TEXTS = {"version", "model", "quantization", "kv_cache_dtype"}
_RESULTS = ("available_gib", "num_gpu_blocks", "kv_tokens", "weights_gib", "needed_gib")


@dataclass(frozen=True)
class LogFacts:
    """What a log prints, None where it does not. GiB of one GPU, as rounded by vLLM."""

    version: str | None = None
    model: str | None = None
    max_model_len: int | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    enforce_eager: bool | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    weights_gib: float | None = None
    peak_torch_gib: float | None = None
    total_gib: float | None = None
    gpu_memory_utilization: float | None = None
    requested_gib: float | None = None
    consumed_gib: float | None = None
    activation_gib: float | None = None
    non_torch_gib: float | None = None
    cuda_graph_gib: float | None = None
    captured_graph_gib: float | None = None
    available_gib: float | None = None
    num_gpu_blocks: int | None = None
    block_size: int | None = None
    kv_tokens: int | None = None
    max_concurrency: float | None = None
    needed_gib: float | None = None
    longest: int | None = None

    def flags(self) -> dict[str, Any]:
        """What `kvsim.plan_capacity` can be asked with."""
        names = ("max_model_len", "tensor_parallel_size", "pipeline_parallel_size", "max_num_seqs")
        more = ("max_num_batched_tokens", "gpu_memory_utilization", "enforce_eager", "kv_cache_dtype")
        found = {name: getattr(self, name) for name in (*names, *more) if getattr(self, name) is not None}
        if self.block_size is not None and self.block_size % 16 == 0 and self.block_size <= 256:
            found["block_size"] = self.block_size
        return found


@dataclass(frozen=True)
class Difference:
    """One part, as printed and as predicted, in GiB, and the likeliest cause of what is between."""

    part: str
    printed_gib: float
    predicted_gib: float
    cause: str


def read_log(path: Path) -> LogFacts:
    """Raises KvsimError if the file cannot be read or is no start-up log."""
    try:
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise KvsimError(f"{path}: {size >> 20} MiB is too long for a start-up log; cut it to its start")
        text = path.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise KvsimError(f"{path}: {error.strerror or error}") from error
    facts = facts_of(text)
    if all(getattr(facts, name) is None for name in _RESULTS):
        raise KvsimError(f"{path}: no line of a vLLM start-up log in it, such as 'Available KV cache memory'")
    return facts


def facts_of(text: str) -> LogFacts:
    """Everything that the text of a log says."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    found: dict[str, Any] = {}
    for name, patterns in _PATTERNS.items():
        for pattern in patterns:
            match = re.search(pattern, text)
            if match:
                value = _value(name, match[match.lastindex or 1])
                if value is not None:
                    found[name] = value
                    break
    if "activation_gib" not in found and {"peak_torch_gib", "weights_gib"} <= set(found):
        found["activation_gib"] = round(found["peak_torch_gib"] - found["weights_gib"], 4)
    return LogFacts(**found)


def _value(name: str, text: str) -> Any:
    if name in _TEXTS:
        return None if text in ("None", "auto") else text
    if name == "enforce_eager":
        return text == "True"
    number = float(text.replace(",", "")) if len(text) < 20 else None
    if number is None:
        return None
    kinds = {field.name: str(field.type) for field in fields(LogFacts)}
    return int(number) if kinds[name].startswith("int") else number


def adds_up(facts: LogFacts) -> tuple[float, float] | None:
    """(GiB left over after all printed parts, what rounding allows); None if a part is not printed.

    Left over, positive: something else took it. With `consumed` (recent releases), it holds weights and
    non-torch, and the printed activation holds the graph estimate where that is counted.
    """
    requested = facts.requested_gib
    if requested is None and facts.total_gib is not None and facts.gpu_memory_utilization is not None:
        requested = facts.total_gib * facts.gpu_memory_utilization
    if requested is None or facts.available_gib is None or facts.activation_gib is None:
        return None
    if facts.consumed_gib is not None:
        used = facts.consumed_gib + facts.activation_gib
    elif facts.weights_gib is not None and facts.non_torch_gib is not None:
        used = facts.weights_gib + facts.non_torch_gib + facts.activation_gib
    else:
        return None
    return requested - used - facts.available_gib, _ROUNDING_GIB


_CAUSES = {
    "weights": "another weight format, padded experts, or draft layers that the model's name does not tell",
    "activation": "other max_num_seqs, max_num_batched_tokens or image limits than assumed",
    "CUDA graphs": "the graph estimate is not told by the configuration",
    "non-torch": "communication buffers, workspaces, or another process on the card",
}


def differences(facts: LogFacts, predicted: MemoryPrediction) -> list[Difference]:
    """Every printed part beside its prediction, the largest difference first."""
    printed: dict[str, tuple[float | None, int]] = {
        "weights": (facts.weights_gib, predicted.weights),
        "non-torch": (facts.non_torch_gib, predicted.non_torch),
        "CUDA graphs": (facts.cuda_graph_gib, predicted.cuda_graphs),
        "activation": (_activation(facts), predicted.activation),
    }
    if facts.consumed_gib is not None and facts.weights_gib is not None:
        printed["non-torch"] = (facts.consumed_gib - facts.weights_gib, predicted.non_torch)
    rows = [
        Difference(part, gib, size / GIB, _CAUSES[part])
        for part, (gib, size) in printed.items()
        if gib is not None
    ]
    return sorted(rows, key=lambda row: -abs(row.printed_gib - row.predicted_gib))


def _activation(facts: LogFacts) -> float | None:
    """Without the graph estimate, which the newest releases print within it."""
    if facts.activation_gib is None:
        return None
    within = facts.consumed_gib is not None and facts.cuda_graph_gib is not None
    return facts.activation_gib - (facts.cuda_graph_gib or 0) if within else facts.activation_gib


# ---- observed parts as a profile ----

_PROFILE_PARTS = ("weights", "activation", "cuda_graphs", "non_torch")


def profile_of(facts: LogFacts) -> dict[str, Any]:
    """The observed parts in GiB, and what they were observed with."""
    non_torch = facts.non_torch_gib
    if non_torch is None and facts.consumed_gib is not None and facts.weights_gib is not None:
        non_torch = round(facts.consumed_gib - facts.weights_gib, 4)
    parts = {
        "weights": facts.weights_gib,
        "activation": _activation(facts),
        "cuda_graphs": facts.cuda_graph_gib,
        "non_torch": non_torch,
    }
    known = {name: round(gib, 4) for name, gib in parts.items() if gib is not None}
    if not known:
        raise KvsimError("--save-profile: the log prints none of the parts that a profile holds")
    seen = {key: value for key, value in asdict(facts).items() if value is not None}
    return {"kvsim_profile": 1, "parts_gib": known, "observed_with": seen}


def save_profile(facts: LogFacts, path: Path) -> None:
    path.write_text(json.dumps(profile_of(facts), indent=1) + "\n", encoding="utf-8")


def read_profile(path: Path) -> dict[str, int]:
    """Bytes by part; raises KvsimError for a file that `save_profile` did not write."""
    try:
        content = read_json(path)
    except KvsimError as error:
        raise KvsimError(str(error).replace("a model's config.json", "a profile")) from error
    parts = content.get("parts_gib") if isinstance(content, Mapping) else None
    if not isinstance(parts, Mapping) or not parts:
        raise KvsimError(f"{path}: not a profile that kvsim capacity --log ... --save-profile wrote")
    for name, gib in parts.items():
        good = isinstance(gib, int | float) and not isinstance(gib, bool) and 0 <= gib < 1e6
        if name not in _PROFILE_PARTS or not good:
            raise KvsimError(
                f"{path}: parts_gib: {name[:40]!r} is {str(gib)[:40]!r}, wanted GiB of a known part"
            )
    return {name: round(gib * GIB) for name, gib in parts.items()}
