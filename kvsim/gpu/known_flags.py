"""The flags of vLLM 0.6 to 0.33 by name and kind (``data/serve_flags.json``), and which bear on memory."""

import json
from functools import cache
from pathlib import Path
from typing import Any

SWITCHES = {
    "enforce-eager",
    "skip-mm-profiling",
    "language-model-only",
    "async-scheduling",
    "enable-chunked-prefill",
    "enable-prefix-caching",
    "enable-expert-parallel",
    "enable-lora",
    "fully-sharded-loras",
    "enable-hybrid-kv-cache-manager",
}
NOT_MODELLED = {
    "attention-config",
    "enable-cumem-allocator",
    "enable-sleep-mode",
    "enable-sliding-window",
    "enable-tower-connector-lora",
    "kv-cache-dtype-skip-layers",
    "kv-sharing-fast-prefill",
    "lora-dtype",
    "mamba-block-size",
    "mamba-cache-dtype",
    "mm-encoder-only",
    "mm-encoder-tp-mode",
    "mm-ipc-gpu-memory-gb",
    "offload-group-size",
    "prefill-context-parallel-size",
    "quantization-config",
    "use-replayssm",
}
ALIASES = {"device-memory-utilization": "gpu-memory-utilization", "kv-cache-memory": "kv-cache-memory-bytes"}
DRAFT_FLAGS = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}


@cache
def known_flags() -> dict[str, str]:
    """Every flag of vLLM 0.6 to 0.33: "switch", "value", "optional" (value) or "list"."""
    data = _data()
    return {name: kind for kind in ("switch", "value", "optional", "list") for name in data[kind]}


@cache
def short_flags() -> dict[str, str]:
    """Full names by their abbreviations."""
    found: dict[str, str] = _data()["short"]
    return found


@cache
def _data() -> dict[str, Any]:
    path = Path(__file__).parent / "data" / "serve_flags.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
