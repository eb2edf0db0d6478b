"""Scenario files of the conformance traces: what arrives when, and which tokens it consists of.

A scenario is a JSON object with `config`, `requests` and `actions`. Prompts are lists of
segments; outputs are drawn from `out_seed`, so that recorder and replay see the same tokens.
"""

import json
from pathlib import Path
from typing import Any

from kvsim.cache.groups import KVGroup
from kvsim.engine.config import EngineConfig
from kvsim.errors import KvsimError
from kvsim.rules import rules_for

STOP_TOKEN = 2
_VOCABULARY = 32000
_FIRST = 3
_MASK = (1 << 64) - 1
_GOLDEN, _OUTPUT = 0x9E3779B97F4A7C15, 0xD1342543DE82EF95

_REQUEST_DEFAULTS: dict[str, Any] = {
    "arrive": 1,
    "max_tokens": 16,
    "priority": 0,
    "mm": [],
    "lora": None,
    "salt": None,
    "stop_at": None,
    "abort_at": None,
    "accept": [1],
    "skip_reading_prefix_cache": False,
}

_CONFIG_NAMES = {  # scenario field -> engine flag, where they differ
    "hash_algo": "prefix_caching_hash_algo",
    "policy": "scheduling_policy",
    "retention_interval": "prefix_cache_retention_interval",
}


def _mix64(x: int) -> int:
    x &= _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _drawn(base: int, index: int) -> int:
    return _FIRST + _mix64(base + index * _GOLDEN) % (_VOCABULARY - _FIRST)


def random_tokens(seed: int, n: int) -> list[int]:
    base = _mix64(seed * _GOLDEN + 1)
    return [_drawn(base, i) for i in range(n)]


def output_token(request: dict[str, Any], index: int) -> int:
    """The output number `index` (0-based) that a request samples."""
    if request["stop_at"] is not None and index + 1 == request["stop_at"]:
        return STOP_TOKEN
    return _drawn(_mix64(request["out_seed"] * _OUTPUT + 7), index)


def num_accepted(request: dict[str, Any], index: int, num_drafts: int) -> int:
    pattern = request["accept"]
    return min(num_drafts, pattern[index % len(pattern)])


def _segment_tokens(segment: dict[str, Any], by_id: dict[str, dict[str, Any]]) -> list[int]:
    match segment:
        case {"tokens": tokens}:
            return list(tokens)
        case {"rand": n, "seed": seed}:
            return random_tokens(seed, n)
        case {"range": [first, end]}:
            return list(range(first, end))
        case {"repeat": token, "n": n}:
            return [token] * n
        case {"prompt_of": other}:
            tokens = prompt_tokens(by_id[other], by_id)
            return tokens[: segment.get("n", len(tokens))]
        case {"output_of": other, "n": n}:
            return [output_token(by_id[other], i) for i in range(n)]
    raise KvsimError(f"unknown prompt segment {segment}")


def prompt_tokens(request: dict[str, Any], by_id: dict[str, dict[str, Any]]) -> list[int]:
    return [token for segment in request["prompt"] for token in _segment_tokens(segment, by_id)]


class Scenario:
    """A loaded scenario: requests with defaults and prompt tokens, actions, trace options."""

    def __init__(self, path: Path) -> None:
        data = json.loads(path.read_text())
        self.name: str = data["name"]
        self.actions: list[dict[str, Any]] = data.get("actions", [])
        self.trace: dict[str, Any] = data.get("trace", {})
        self.requests = [{"out_seed": i, **_REQUEST_DEFAULTS, **r} for i, r in enumerate(data["requests"], 1)]
        self.by_id = {request["id"]: request for request in self.requests}
        for i, request in enumerate(self.requests):
            request["arrival_time"] = float(request["arrive"]) + i * 1e-6
            request["prompt_token_ids"] = prompt_tokens(request, self.by_id)


def engine_config(recorded: dict[str, Any], vllm_version: str) -> EngineConfig:
    """The engine of a trace from the config in its header."""
    flags = {_CONFIG_NAMES.get(name, name): value for name, value in recorded.items()}
    if not rules_for(vllm_version).full_sequence_gate:
        flags.pop("scheduler_reserve_full_isl", None)  # headers have it, that vLLM does not
    flags["kv_groups"] = tuple(
        KVGroup(g["kind"], g.get("block_size"), g.get("window", g.get("chunk")))
        for g in recorded["kv_groups"]
    )
    # vLLM's engine-wide block size becomes the smallest of the groups.
    flags["block_size"] = min(g.block_size or recorded["block_size"] for g in flags["kv_groups"])
    flags["kv_groups"] = tuple(
        KVGroup(g.kind, g.block_size or recorded["block_size"], g.window) for g in flags["kv_groups"]
    )
    return EngineConfig(**flags, vllm_version=vllm_version, log_capacity=1 << 16)
