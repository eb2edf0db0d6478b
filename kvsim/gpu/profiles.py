"""Parts that a start-up log has shown, kept in a file and used by later predictions."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu.capacity import CapacityPlan
from kvsim.gpu.config_json import read_json
from kvsim.gpu.log_comparison import activation_gib, non_torch_gib
from kvsim.gpu.log_facts import LogFacts
from kvsim.gpu.prediction import GIB

_PARTS = ("weights", "activation", "cuda_graphs", "non_torch")
_ROUNDING = round(0.006 * GIB)  # of a printed size, and a little
# Settings on which the parts depend, by the names of `LogFacts` and `CapacityPlan`.
_SETTINGS = ("tensor_parallel_size", "pipeline_parallel_size", "max_num_batched_tokens", "max_num_seqs")


@dataclass(frozen=True)
class Profile:
    """parts: bytes on one GPU by part. observed_with: what the log said of its server."""

    parts: dict[str, int]
    observed_with: dict[str, Any]

    def doubts(self, plan: CapacityPlan) -> tuple[str, ...]:
        """Settings in which the server of a plan differs from the one that was observed."""
        return tuple(
            f"profile: observed with {name} {self.observed_with[name]}, this server has {getattr(plan, name)}"
            for name in _SETTINGS
            if name in self.observed_with and self.observed_with[name] != getattr(plan, name)
        )


def profile_of(
    facts: LogFacts, plan: CapacityPlan | None = None, tokens_at: Callable[[int], int] | None = None
) -> dict[str, Any]:
    """The observed parts in GiB, and what they were observed with.

    plan: prediction for the same server; then what the log does not tell is taken from it, and non-torch
    is what is left, so that the parts add up to the log's own KV cache memory.
    tokens_at: tokens that the same server prints for so many available bytes; with them the sum meets
    the log's tokens, not only its rounded GiB.
    Raises KvsimError if the log prints none of the parts.
    """
    printed = {
        "weights": facts.weights_gib,
        "activation": activation_gib(facts),
        "cuda_graphs": facts.cuda_graph_gib,
        "non_torch": non_torch_gib(facts),
    }
    parts = {name: gib for name, gib in printed.items() if gib is not None}
    if not parts:
        raise KvsimError("--save-profile: the log prints none of the parts that a profile holds")
    available = _available(facts, tokens_at)
    if plan is not None and plan.prediction is not None and available is not None:
        parts = _balanced(parts, plan, available)
    seen = {key: value for key, value in asdict(facts).items() if value is not None}
    return {
        "kvsim_profile": 1,
        "parts_gib": {name: round(gib, 7) for name, gib in parts.items()},
        "observed_with": seen,
    }


def _balanced(parts: dict[str, float], plan: CapacityPlan, available: int) -> dict[str, float]:
    """All parts, with non-torch (and if need be activation) as what is left of the sum."""
    found = plan.prediction
    assert found is not None
    if not found.cuda_graphs:  # measured, but not taken off by this release
        parts = parts | {"cuda_graphs": 0.0}
    full = {name: getattr(found, name) / GIB for name in _PARTS} | parts
    used = (found.requested - available - sum(extra.size for extra in plan.extras)) / GIB
    full["non_torch"] = used - full["weights"] - full["activation"] - full["cuda_graphs"]
    for name in ("activation", "weights"):  # a part cannot be less than nothing
        if full["non_torch"] < 0:
            taken = min(-full["non_torch"], full[name])
            full[name] -= taken
            full["non_torch"] += taken
    full["non_torch"] = max(full["non_torch"], 0.0)
    return full


def _available(facts: LogFacts, tokens_at: Callable[[int], int] | None) -> int | None:
    """Bytes of the log's KV cache: printed, or the fewest around the printed GiB that give its tokens."""
    if facts.available_bytes is not None:
        return facts.available_bytes
    if facts.available_gib is None:
        return None
    middle = round(facts.available_gib * GIB)
    if tokens_at is None or facts.kv_tokens is None:
        return middle
    low, high = max(middle - _ROUNDING, 0), middle + _ROUNDING
    while low < high:
        half = (low + high) // 2
        low, high = (low, half) if tokens_at(half) >= facts.kv_tokens else (half + 1, high)
    return low + 4096 if tokens_at(low + 4096) == facts.kv_tokens else middle


def save_profile(content: Mapping[str, Any], path: Path) -> None:
    """Write what `profile_of` made; a file that is there stays until the new one is complete."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        unfinished.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        os.replace(unfinished, path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise KvsimError(f"--save-profile: {path}: {error.strerror or error}") from error


def read_profile(path: Path) -> Profile:
    """Raises KvsimError for a file that `save_profile` did not write."""
    try:
        content = read_json(path)
    except KvsimError as error:
        raise KvsimError(str(error).replace("a model's config.json", "a profile")) from error
    parts = content.get("parts_gib") if isinstance(content, Mapping) else None
    if not isinstance(parts, Mapping) or not parts:
        raise KvsimError(f"{path}: not a profile that kvsim capacity --log ... --save-profile wrote")
    for name, gib in parts.items():
        good = isinstance(gib, int | float) and not isinstance(gib, bool) and 0 <= gib < 1e6
        if name not in _PARTS or not good:
            shown = "a number of thousands of digits" if isinstance(gib, int) else repr(str(gib)[:40])
            raise KvsimError(f"{path}: parts_gib: {name[:40]!r} is {shown}, wanted GiB of a known part")
    seen = content.get("observed_with") or {}
    if not isinstance(seen, Mapping):
        raise KvsimError(f"{path}: observed_with: {str(seen)[:40]!r}, wanted an object with keys")
    return Profile({name: round(gib * GIB) for name, gib in parts.items()}, dict(seen))
