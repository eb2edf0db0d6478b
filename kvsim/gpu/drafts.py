"""Speculative decoding as far as memory goes: drafts per step, built-in draft layers, a draft model."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.capacity_flags import draft_tokens
from kvsim.gpu.memory_setup import MemorySetup
from kvsim.gpu.model import ModelSpec
from kvsim.gpu.weights import loaded_bytes

_WITHOUT_MODEL = ("ngram", "suffix", "mtp")


@dataclass(frozen=True)
class Drafts:
    """What --speculative-config asks for.

    tokens: drafts per step. method: as given, lower case. name: the draft model's, None for methods
    that need none.
    """

    tokens: int = 0
    method: str = ""
    name: str | None = None

    @property
    def mtp_layers(self) -> int:
        """Built-in draft layers with a cache of their own; vLLM runs one of them again and again."""
        return 1 if self.tokens and "mtp" in self.method else 0

    @cached_property
    def model(self) -> ModelSpec | None:
        """The draft model's shape; None without one or where it is not known."""
        try:
            return catalog.model(self.name) if self.tokens and self.name else None
        except KvsimError:
            return None


def drafts_of(flags: Mapping[str, Any]) -> Drafts:
    """Raises KvsimError "speculative_config: ..." for a wrong number of drafts."""
    config: Any = flags.get("speculative_config") or {}
    method, name = str(config.get("method") or "").lower(), config.get("model")
    needs_model = isinstance(name, str) and not any(word in method for word in _WITHOUT_MODEL)
    return Drafts(draft_tokens(flags), method, name if needs_model else None)


def draft_weight_bytes(drafts: Drafts, target: ModelSpec, setup: MemorySetup) -> int:
    """Bytes of the draft model or the built-in draft layers on one GPU (of the last pipeline stage).

    A built-in layer is one more layer of the target with a projection of two hidden states to one; it
    shares embedding and head.
    """
    tp = setup.tensor_parallel_size
    if drafts.model is not None:
        return round(loaded_bytes(drafts.model, tp))
    if not drafts.mtp_layers:
        return 0
    bare = replace(target, vocab_size=0, vision=None, encoder=None, stated_parameters=None)
    joined = 2 * target.hidden_size**2 * target.weight_dtype_bytes
    return round(max(target.mtp_layers, 1) * (loaded_bytes(bare, tp) / target.num_hidden_layers + joined))
