"""A router in the situation that a case describes, and what can be seen of it."""

import re
from dataclasses import fields
from typing import Any

import numpy as np
from case_forms import Case
from case_prompts import pieces

from kvsim.cluster.policies import POLICIES, policy_class
from kvsim.cluster.policies.aibrix import AibrixPrefixCache
from kvsim.cluster.router import Router, TargetFacts
from kvsim.tokens import PLACEHOLDER_STREAM, Segments, segments, stream_key
from kvsim.workload.request import ImageFeature, LoRA, Request

BLOCK_SIZE = 16
NUM_GPU_BLOCKS = 100_000
REQUEST_KEYS = {"id", "prompt", "text", "session", "cache_salt", "lora", "max_tokens"}
FACTS = {"block_size", "num_gpu_blocks", "max_num_seqs", "max_num_batched_tokens"}
# What the originals call parameters besides our names
ALIASES = {
    "router_kv_events": "use_kv_events",  # Dynamo's command line
    # AIBrix's variables, without AIBRIX_PREFIX_CACHE_
    "standard_deviation_factor": "stddev_factor",
    "load_imbalance_factor": "imbalance_factor",
    "load_imbalance_min_gap": "imbalance_abs",
    "pod_running_request_imbalance_abs_count": "imbalance_abs",
}


def prompt_of(entry: Any) -> tuple[Segments, tuple[ImageFeature, ...]]:
    """A prompt in the notation of cases, or `[[piece, characters], ...]`; a character becomes a token."""
    if isinstance(entry, list) and all(isinstance(part, list) for part in entry):
        rows = [(stream_key("text", piece), 0, 1) for piece, count in entry for _ in range(count)]
        return segments(*rows), ()
    rows, features, at = [], [], 0
    for kind, name, first, end in pieces(entry):
        if kind == "image":
            features.append(ImageFeature(name, at, end))
        stream = PLACEHOLDER_STREAM if kind == "image" else stream_key("prompt", kind, name)
        rows.append((stream, first, end - first))
        at += end - first
    return segments(*rows), tuple(features)


def request_of(entry: Any, request_id: str = "request") -> Request:
    """A request from a prompt, or from a mapping with more; AssertionError for what is not known."""
    entry = entry if isinstance(entry, dict) else {"prompt": entry}
    unknown = entry.keys() - REQUEST_KEYS
    assert not unknown, f"request {entry.get('id', '')}: the runner does not know {sorted(unknown)}"
    assert ("prompt" in entry) != ("text" in entry), f"request {entry}: either prompt or text"
    prompt, features = prompt_of(entry["text"] if "text" in entry else entry["prompt"])
    name = str(entry.get("id", request_id))
    lora = entry.get("lora")
    return Request(
        name,
        0.0,
        prompt,
        segments((stream_key("output", name), 0, 1)),
        int(entry.get("max_tokens", 1)),
        features,
        entry.get("cache_salt"),
        LoRA(str(lora["name"]), 1, str(lora["path"])) if lora else None,
        session=None if entry.get("session") is None else str(entry["session"]),
    )


def has_text(case: Case) -> bool:
    """Whether a case counts characters."""
    requests = case.get("requests") or [case.get("request") or {}]
    return any(isinstance(entry, list) or (isinstance(entry, dict) and "text" in entry) for entry in requests)


def router_of(case: Case, seed: int) -> Router:
    """The router of a case that knows nothing yet."""
    parameters = dict(case["policy"])
    name = str(parameters.pop("name"))
    policy = policy_class(name if name in POLICIES else name.replace("-", "_"))
    if policy is AibrixPrefixCache and "block_size" in parameters:  # it knows of no engine's blocks
        parameters["prefix_cache_block_size"] = parameters.pop("block_size")
    facts = {"num_gpu_blocks": NUM_GPU_BLOCKS, "block_size": BLOCK_SIZE}
    known = {f.name for f in fields(policy)}
    facts |= {key: parameters.pop(key) for key in FACTS & parameters.keys() - known}
    if has_text(case) and "chars_per_token" in known:
        parameters.setdefault("chars_per_token", 1)
    parameters = {spelled(key, known): value for key, value in parameters.items()}
    if "weights" in case:
        parameters["weights"] = case["weights"]
    targets = [TargetFacts(str(name), **facts) for name in case["replicas"]]
    return Router(policy(**parameters), targets, seed)


def spelled(name: str, known: set[str]) -> str:
    """A parameter in the original's spelling, `maxTTFTPenaltyMs`, `eviction-interval-secs` or as a flag."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name.lstrip("-"))
    snake = words.lower().replace("-", "_").removeprefix("aibrix_prefix_cache_")
    names = name, snake, ALIASES.get(snake, ""), f"prefix_cache_{snake}", f"router_{snake}"
    return next((each for each in names if each in known), name)


def block_keys(router: Router, request: Request) -> list[int]:
    """What KV events call a request's full blocks."""
    router.overlaps(request)
    return [int(key) for key in np.array(router.state.hashes[:, 0])]
