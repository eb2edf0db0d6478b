"""Runs the cases of a router: kinds routing, routing_index and dp.

Everything goes through `kvsim.cluster.router.Router` and the policies of the catalog. A case names replicas
(the order of the list is the order in which a router scans them), says what the router knows of them, and
asks for one request or for several in turn. Where ties are drawn, the case is run with many seeds:
`chosen_any` must be exactly what comes up, `chosen` the only one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from case_forms import Case
from case_prompts import Prompts
from case_router_history import note_history

from kvsim.cluster.policies import policy_class
from kvsim.cluster.router import Router, TargetFacts
from kvsim.tokens import PLACEHOLDER_STREAM, Segments, segments, stream_key
from kvsim.workload import ImageFeature, LoRA, Request

SEEDS = 64
BLOCK_SIZE = 16
STEP = 1e-3  # s between requests

META = {"id", "title", "area", "kind", "how", "source", "why", "name", "vllm_version", "tolerance", "variants"}
KNOWN = {"policy", "replicas", "index", "removed", "metrics", "running", "match_percent", "booked", "weights"}
REQUEST_KEYS = {"id", "prompt", "text", "session", "cache_salt", "lora", "max_tokens", "expect", "hold"}
Part = tuple[str, Case, Case]  # where, what is expected, what was seen


def check_keys(case: Case, allowed: set[str], where: str = "") -> None:
    unknown = case.keys() - allowed
    assert not unknown, f"{where}the runner does not know {sorted(unknown)}"
