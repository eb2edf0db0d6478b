"""vLLM releases from 0.3 (V0) to 0.33 as far as memory at start-up is concerned.

`kvsim.rules` knows two releases in full. A capacity question also comes from the others, and the rules
that it needs changed at a few points only (read from the wheels 0.6.6 to 0.33.0).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu.model import ModelSpec
from kvsim.rules import VllmRules, rules_for

_OLDEST, _NEWEST = 2, 33
_V0_LONG_CONTEXT = 32768  # beyond, prompts are cut into chunks
_V0_MULTIMODAL_TOKENS = 5120  # `_MULTIMODAL_MODEL_MAX_NUM_BATCHED_TOKENS`
_V2_DENSE_FAMILIES = {
    22: ("qwen3-",),
    23: ("qwen3-", "llama", "mistral"),
    24: ("qwen3-", "llama", "mistral"),
}
_V2_MOE_FAMILIES = ("deepseek-v2", "qwen1.5-moe", "qwen2-57b", "granite-3.0-1b-a", "granite-3.0-3b-a")


@dataclass(frozen=True)
class Release:
    """One release: `minor` of 0.minor.patch, and whether its V0 engine is meant.

    stated: False where the source does not say which release it was.
    """

    minor: int
    patch: int = 0
    v0: bool = False
    stated: bool = True

    @property
    def name(self) -> str:
        return f"0.{self.minor}.{self.patch}"

    @property
    def counts_cuda_graphs(self) -> bool:
        return self.minor >= 20

    @property
    def default_utilization(self) -> float:
        return 0.92 if self.minor >= 20 else 0.9

    @property
    def prints_concurrency_times_length(self) -> bool:
        return (self.minor, self.patch) >= (20, 2)

    @property
    def has_hybrid_groups(self) -> bool:
        """Groups by kind of attention; before 0.9 every layer was stored in full."""
        return not self.v0 and self.minor >= 9

    @property
    def frees_by_device(self) -> bool:
        """The budget is measured on the device, persistent buffers included (0.27 and later)."""
        return self.minor >= 27

    def runs_v2(self, model: ModelSpec) -> bool:
        """Whether Model Runner V2 is the default for a model (`VllmConfig.use_v2_model_runner`).

        0.22 and 0.23: a few families of dense models in 16 bits; 0.24: some of MoE models too; from 0.25
        dense models, from 0.29 all.
        """
        if self.minor >= 29:
            return True
        moe, hybrid = model.num_experts > 0, "linear" in model.layer_types
        if self.minor >= 25:
            return not hybrid and (not moe or _is_one_of(model, _V2_MOE_FAMILIES))
        if self.minor == 24 and _is_one_of(model, _V2_MOE_FAMILIES):
            return True
        dense = not (moe or hybrid or model.vision) and (self.minor == 24 or model.quantization is None)
        return dense and _is_one_of(model, _V2_DENSE_FAMILIES.get(self.minor, ()))

    @property
    def rules(self) -> VllmRules:
        """The capacity rules of that release.

        The patches beside the two releases known in full are those of the wheels 0.13.0 to 0.30.0; 0.29,
        of which there was none, counts as 0.30.
        """
        newer = self.minor >= 21
        return replace(
            rules_for("0.33" if newer else "0.16"),
            null_block_held_back=self.minor >= 29,
            window_cap_counts_in_flight=self.minor >= 26,
            pads_unequal_pages=self.minor >= 26,
            group_size_ratio=1.5 if self.minor >= 18 else 1.25,
            fit_check_first_group_only=14 <= self.minor <= 19,
            largest_batch_tier=self.minor >= 28,
            printed_size_from_concurrency=self.prints_concurrency_times_length,
            cuda_graph_memory_counted=self.counts_cuda_graphs,
            default_gpu_memory_utilization=self.default_utilization,
        )


def release(version: str, engine: str = "") -> Release:
    """The release of a text like "0.16", "0.33.0", "v0.8.5.post1" or "0.11-0.15" (its upper end).

    Empty means not stated: the median of those that published logs state, by engine.
    Raises KvsimError for anything else.
    """
    v0 = engine.lower().startswith("v0")
    if not version.strip():
        return Release(7 if v0 else 20, v0=v0, stated=False)
    last = version.strip().split("-")[-1]
    found = re.fullmatch(r"v?0\.(\d{1,3})(?:\.(\d{1,3}))?((?:\.?post|\.?dev|rc|\+|[a-z]).*)?", last)
    if not found or not _OLDEST <= int(found[1]) <= _NEWEST:
        raise KvsimError(f"vllm_version: {version!r} is not known; give one from 0.6 to 0.{_NEWEST}")
    minor, patch = int(found[1]), int(found[2] or 0)
    return Release(minor, patch, v0 or (not engine and minor < 8))


def batch_limits(
    release: Release,
    memory_bytes: int,
    gpu_name: str,
    model: ModelSpec,
    *,
    max_model_len: int,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    chunked: bool | None = None,
) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs), an API server's defaults where None (`engine/arg_utils.py`).

    chunked: whether prefills are cut into chunks, the release's default if None.
    """
    if chunked is None:
        chunked = chunks_prefill(release, model, max_model_len)
    tokens, seqs = _defaults(release, memory_bytes, gpu_name, model, None if chunked else max_model_len)
    seqs = max_num_seqs or seqs
    if max_num_batched_tokens is None and release.minor >= 9 and not release.v0:
        tokens = min(tokens, seqs * max_model_len)
    tokens = max_num_batched_tokens or tokens
    return tokens, max_num_seqs or min(seqs, tokens)


def chunks_prefill(
    release: Release, model: ModelSpec, max_model_len: int, flags: Mapping[str, Any] | None = None
) -> bool:
    """Whether a prompt may be cut into several batches.

    flags: enable_chunked_prefill decides; V0 has it for long contexts only, and not beside everything.
    """
    flags = flags or {}
    asked: bool | None = flags.get("enable_chunked_prefill")
    if asked is not None:
        return asked
    if not release.v0:
        return model.encoder is None
    windowed = bool(model.layer_types) and set(model.layer_types) == {"sliding"}
    latent = model.is_mla and release.minor >= 8
    other = windowed or latent or flags.get("enable_lora") or flags.get("speculative_config")
    return max_model_len > _V0_LONG_CONTEXT and not (model.vision or other)


def length_regimes(release: Release, longest: int) -> list[tuple[int, int]]:
    """Lengths up to `longest` in ranges where a longer request never has more memory, the longest first."""
    cut = _V0_LONG_CONTEXT
    if release.v0 and longest > cut:
        return [(cut + 1, longest), (1, cut)]
    return [(1, longest)]


def _defaults(
    release: Release, memory_bytes: int, gpu_name: str, model: ModelSpec, whole_prompt: int | None
) -> tuple[int, int]:
    """whole_prompt: tokens that one batch must hold, None with chunked prefill."""
    if release.v0:
        tokens = max(2048, whole_prompt or 0)
        return max(tokens, _V0_MULTIMODAL_TOKENS) if model.vision else tokens, 256
    tokens, seqs = _of_card(release, memory_bytes, gpu_name)
    return max(tokens, whole_prompt or 0), seqs


def _of_card(release: Release, memory_bytes: int, gpu_name: str) -> tuple[int, int]:
    if _is_huge(release, memory_bytes):
        return 16384, 1024
    return (8192, 1024) if _is_large(release, memory_bytes, gpu_name) else (2048, 256)


def _is_huge(release: Release, memory_bytes: int) -> bool:
    return release.rules.largest_batch_tier and memory_bytes >= 160 << 30


def _is_large(release: Release, memory_bytes: int, gpu_name: str) -> bool:
    name = gpu_name.lower()
    slow = release.minor >= 9 and "a100" in name  # large batches were found slower there
    return release.minor >= 8 and memory_bytes >= 70 << 30 and not slow


def _is_one_of(model: ModelSpec, families: tuple[str, ...]) -> bool:
    return any(family in model.name.lower() for family in families)
