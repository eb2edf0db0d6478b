"""The ``quantization_config`` of a checkpoint in its dialects: format, groups, what stayed in 16 bits."""

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu.config_json import Config, integer, listed, section, shown
from kvsim.gpu.model import QUANT_BYTES

# Keys under which the libraries list the modules that they left alone.
_IGNORED = ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules", "llm_int8_skip_modules")
_METHODS = (
    "gptq",
    "awq",
    "auto-round",
    "bitsandbytes",
    "compressed-tensors",
    "modelopt",
    "fp8",
    "fbgemm_fp8",
    "mxfp4",
)
# Parts of `kvsim.gpu.weights.weight_parts`, by a module of theirs.
_MODULES = {
    "attention": ("self_attn.q_proj", "self_attn.kv_b_proj", "attn.qkv"),
    "linear_attention": ("linear_attn.in_proj_qkvz", "linear_attn.in_proj_qkv", "mixer.in_proj"),
    "experts": ("mlp.experts.0.gate_proj", "block_sparse_moe.experts.0.w1"),
    "shared": ("mlp.shared_experts.gate_proj", "mlp.shared_expert.gate_proj"),
    "dense": ("mlp.gate_proj", "mlp.gate_up_proj"),
}
_PREFIXES = ("model.layers.{}", "model.language_model.layers.{}", "language_model.model.layers.{}")


@dataclass(frozen=True)
class QuantizationFacts:
    """name: in `QUANT_BYTES` or None. group_size: weights with one scale, 0 unknown.

    unquantized: parts that some layers keep in the model's own type, and the share of layers that do.
    kv_cache_fp8: the checkpoint brings scales of an fp8 KV cache, which vLLM then uses for
    --kv-cache-dtype auto.
    """

    name: str | None = None
    group_size: int = 0
    unquantized: tuple[tuple[str, float], ...] = ()
    kv_cache_fp8: bool = False


def read_quantization(config: Config, kinds: tuple[str, ...]) -> QuantizationFacts:
    """The weights' format. Raises KvsimError for one that is not known."""
    details = section(config, "quantization_config") or section(config, "compression_config")
    if not details:
        details = section(section(config, "text_config"), "quantization_config")
    inner = details.get("quantization")
    details = {**details, **inner} if isinstance(inner, Mapping) else details
    found = str(config.get("quantization") or details.get("quant_method") or _producer(details)).lower()
    if not found:
        return QuantizationFacts()
    name = _format(found.replace("_", "-") if "compressed" in found else found, details)
    if name not in QUANT_BYTES:
        key, known = (
            ("quantization", QUANT_BYTES) if config.get("quantization") else ("quant_method", _METHODS)
        )
        raise KvsimError(f"model: {key} {found[:40]!r} is not known; known are {', '.join(known)}")
    return QuantizationFacts(
        name, _group_size(details), _unquantized(details, kinds), _has_fp8_cache(details)
    )


def _producer(details: Config) -> str:
    """`hf_quant_config.json` of modelopt names its producer in place of a method."""
    producer = details.get("producer")
    return str(producer.get("name", "")) if isinstance(producer, Mapping) else ""


def _format(found: str, details: Config) -> str:
    bits = integer(details, "bits", "w_bit", "num_bits")
    algorithm = str(details.get("quant_algo", "")).upper()
    if found in ("gptq", "gptq_marlin", "auto-round", "awq", "awq_marlin", "auto_gptq", "auto_awq"):
        return "int8" if bits == 8 else "int4"
    if found == "bitsandbytes":
        return "int8" if details.get("load_in_8bit") else "nf4"
    if found.startswith("modelopt"):
        return "nvfp4" if "FP4" in algorithm or "MIXED" in algorithm or found.endswith("fp4") else "fp8"
    if found == "compressed-tensors":
        return _compressed(details)
    return {"fbgemm_fp8": "fp8", "deepseek_v4_fp8": "fp8"}.get(found, found)


def _first_weights(details: Config) -> Config:
    """compressed-tensors: the weights of the first group."""
    first: Any = next(iter(section(details, "config_groups").values()), None)
    return section(first, "weights") if isinstance(first, Mapping) else {}


def _compressed(details: Config) -> str:
    """Bits and kind of the first group's weights; 4-bit integers if it does not say."""
    weights = _first_weights(details)
    bits, kind = integer(weights, "num_bits") or 4, str(weights.get("type", "int"))
    return {(8, "float"): "fp8", (8, "int"): "int8", (4, "float"): "nvfp4"}.get((bits, kind), "int4")


def _group_size(details: Config) -> int:
    value = details.get("group_size", details.get("q_group_size", _first_weights(details).get("group_size")))
    if value is None or value == -1:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1 << 20:
        raise KvsimError(f"model: group_size is {shown(value)}, wanted -1 or a whole number above 0")
    return value


def _has_fp8_cache(details: Config) -> bool:
    scheme = details.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        return scheme.get("num_bits") == 8
    return str(details.get("kv_cache_quant_algo") or scheme or "").upper().startswith("FP8")


def _unquantized(details: Config, kinds: tuple[str, ...]) -> tuple[tuple[str, float], ...]:
    """Parts of which modules are ignored, with the share of layers where they are."""
    patterns = [str(each) for key in _IGNORED for each in listed(details, key)]
    layers = range(len(kinds))
    where = {
        "attention": [i for i in layers if kinds[i] not in ("linear", "none")],
        "linear_attention": [i for i in layers if kinds[i] == "linear"],
    }
    shares = []
    for part, modules in _MODULES.items():
        held = where.get(part, list(layers))
        ignored = sum(_ignored(modules, i, patterns) for i in held)
        if ignored:
            shares.append((part, ignored / len(held)))
    return tuple(shares)


def _ignored(modules: tuple[str, ...], layer: int, patterns: list[str]) -> bool:
    names = [f"{prefix.format(layer)}.{module}" for prefix in _PREFIXES for module in modules]
    return any(_matches(name, pattern) for name in names for pattern in patterns)


def _matches(name: str, pattern: str) -> bool:
    """A regular expression ("re:"), a wildcard, a whole module, or the start or a piece of its path."""
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], name) is not None
        except re.error:
            return False
    if "*" in pattern:
        return fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(name, f"{pattern}.*")
    return f".{pattern}." in f".{name}."
