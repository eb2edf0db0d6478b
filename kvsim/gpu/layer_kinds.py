"""Kind of every layer of a model, by the rule that each family's configuration class has for it.

Kinds: "full", "sliding", "chunked" attention, "linear" (a recurrent state: gated delta net, Mamba-2,
lightning attention, short convolution), "none" (an MLP or experts alone).
"""

from collections.abc import Mapping
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu.config_json import Config, integer, listed, section, shown

_KINDS = {
    "full_attention": "full",
    "deepseek_sparse_attention": "full",
    "attention": "full",
    "global": "full",
    "sliding_attention": "sliding",
    "local": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "mamba": "linear",
    "mamba2": "linear",
    "conv": "linear",
    "mlp": "none",
    "moe": "none",
}
# Attention of DeepSeek V4: a window and, compressed, everything before it.
_COMPRESSED = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128, "sliding_attention": 0}
# Layers between two that see everything, where a window is stated without a pattern.
_EVERY = {"gemma3": 6, "gemma2": 2, "gpt_oss": 2, "cohere2": 4}


def layer_types(text: Config, layers: int) -> tuple[str, ...]:
    """Kind of every layer; raises KvsimError for a list of the wrong length or an unknown kind."""
    if compress_ratios(text, layers):
        return tuple("full" if ratio > 1 else "sliding" for ratio in compress_ratios(text, layers))
    pattern_text = text.get("hybrid_override_pattern")
    if isinstance(pattern_text, str):
        return _pattern_layer_types(pattern_text, layers)
    stated = listed(text, "layer_types") or listed(text, "layers_block_type")
    if stated:
        return _stated_layer_types(stated, layers)
    if text.get("block_configs"):
        return _block_layer_types(text, layers)
    numbered = _numbered_layer_types(text, layers)
    if numbered:
        return numbered
    pattern = integer(text, "sliding_window_pattern", "_sliding_window_pattern") or None
    family = str(text.get("model_type", ""))
    if text.get("sliding_window") and text.get("use_sliding_window") is not False:
        return _window_layer_types(text, layers, pattern, family)
    every = integer(text, "full_attention_interval")  # Qwen3-Next and its heirs
    if every:
        return tuple("full" if (i + 1) % every == 0 else "linear" for i in range(layers))
    if text.get("attention_chunk_size"):  # Llama 4: every fourth layer sees everything
        return tuple("full" if (i + 1) % 4 == 0 else "chunked" for i in range(layers))
    return ("full",) * layers


def compress_ratios(text: Config, layers: int) -> tuple[int, ...]:
    """DeepSeek V4's tokens per compressed latent of every layer; empty for other models."""
    ratios = listed(text, "compress_ratios")
    if not ratios and text.get("model_type") == "deepseek_v4":
        ratios = [_COMPRESSED.get(str(kind), -1) for kind in listed(text, "layer_types")]
    if not ratios:
        return ()
    wrong = next((ratio for ratio in ratios if isinstance(ratio, bool) or ratio not in (0, 1, 4, 128)), None)
    if wrong is not None:
        raise KvsimError(f"model: compress_ratios holds {shown(wrong)}; known are 0, 4 and 128")
    if len(ratios) < layers:
        raise KvsimError(f"model: compress_ratios has {len(ratios)} entries for {layers} layers")
    return tuple(ratios[:layers])


def indexed_layers(text: Config, layers: int) -> tuple[int, ...]:
    """Layers with a sparse indexer of their own (`DeepseekV2MLAAttention`: some share another layer's)."""
    sparse = section(text, "sparse_attention_config")
    if sparse:
        marks = listed(sparse, "sparse_attention_freq") or [1] * layers
        return tuple(i for i, mark in enumerate(marks[:layers]) if mark)
    if not integer(text, "index_head_dim"):
        return ()
    every, offset = integer(text, "index_topk_freq") or 1, text.get("index_skip_topk_offset", 2)
    pattern = text.get("index_topk_pattern")
    if isinstance(pattern, str):
        return tuple(i for i in range(layers) if pattern[i : i + 1] != "S")
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= layers:
        raise KvsimError(f"model: index_skip_topk_offset is {shown(offset)}, wanted 0 to {layers}")
    return tuple(i for i in range(layers) if max(i - offset + 1, 0) % every == 0)


def mlp_layers(text: Config, layers: int) -> tuple[int, int] | None:
    """(layers of routed experts, layers of one MLP) where the pattern tells; None where it does not."""
    pattern, stated = text.get("hybrid_override_pattern"), listed(text, "layers_block_type")
    if isinstance(pattern, str):
        return pattern.count("E"), pattern.count("-")
    if "moe" in stated:
        return stated.count("moe"), stated.count("mlp")
    marks = listed(text, "mlp_layer_types")
    if marks:
        dense = sum(mark == "dense" for mark in marks[:layers])
        return layers - dense, dense
    return None


def _block_layer_types(text: Config, layers: int) -> tuple[str, ...]:
    """Nemotron NAS: every block tells whether it attends."""
    blocks = listed(text, "block_configs")
    if len(blocks) != layers or not all(isinstance(block, Mapping) for block in blocks):
        raise KvsimError(f"model: block_configs has {len(blocks)} entries for {layers} layers")
    attention = [section(block, "attention") for block in blocks]
    return tuple("none" if a.get("no_op") or a.get("replace_with_linear") else "full" for a in attention)


def window_of(text: Config, kinds: tuple[str, ...]) -> int | None:
    """Tokens of the sliding windows, or of the chunks; None without such layers."""
    if "chunked" in kinds:
        return integer(text, "attention_chunk_size") or None
    if "sliding" not in kinds and not compress_ratios(text, len(kinds)):
        return None
    return integer(text, "sliding_window", "sliding_window_size") or None


def _pattern_layer_types(pattern: str, layers: int) -> tuple[str, ...]:
    """Nemotron-H: M for Mamba, * for attention, - and E for a layer that is an MLP or experts alone."""
    kinds = {"M": "linear", "*": "full", "-": "none", "E": "none"}
    if len(pattern) != layers or not set(pattern) <= set(kinds):
        raise KvsimError(f"model: hybrid_override_pattern {shown(pattern)} is not {layers} of M, *, - and E")
    return tuple(kinds[letter] for letter in pattern)


def _stated_layer_types(stated: list[Any], layers: int) -> tuple[str, ...]:
    unknown = sorted({str(kind) for kind in stated if str(kind) not in _KINDS})
    if unknown:
        raise KvsimError(f"model: layer_types holds {unknown[0]!r}; known are {', '.join(_KINDS)}")
    if len(stated) != layers:
        raise KvsimError(f"model: layer_types has {len(stated)} entries for {layers} layers")
    return tuple(_KINDS[str(kind)] for kind in stated)


def _numbered_layer_types(text: Config, layers: int) -> tuple[str, ...]:
    """Lists of numbers: MiniMax (1 attention, 0 lightning), MiMo V2 (1 window, 0 full), Kimi Linear."""
    for key, kinds in (
        ("attn_type_list", ("linear", "full")),
        ("hybrid_layer_pattern", ("full", "sliding")),
    ):
        stated = listed(text, key)
        if not stated:
            continue
        if len(stated) < layers or not all(each in (0, 1) for each in stated):
            raise KvsimError(f"model: {key} is {shown(stated)}, wanted {layers} of 0 and 1")
        return tuple(kinds[each] for each in stated[:layers])
    full = listed(section(text, "linear_attn_config"), "full_attn_layers")
    if full:  # Kimi Linear counts from one
        return tuple("full" if i + 1 in full else "linear" for i in range(layers))
    attending = listed(text, "attn_layer_indices")
    if attending:
        return tuple("full" if i in attending else "linear" for i in range(layers))
    return ()


def _window_layer_types(text: Config, layers: int, pattern: int | None, family: str) -> tuple[str, ...]:
    if pattern is None:
        pattern = next((every for name, every in _EVERY.items() if family.startswith(name)), None)
    if pattern is not None:
        if family.startswith(("gemma2", "gpt_oss")) or pattern > 1:
            return tuple("full" if (i + 1) % pattern == 0 else "sliding" for i in range(layers))
        return ("full",) * layers
    if family.startswith("qwen"):  # these state a window but switch it off unless told otherwise
        stated = text.get("use_sliding_window") and text.get("max_window_layers") is not None
        first = integer(text, "max_window_layers") if stated else layers
        return tuple("full" if i < first else "sliding" for i in range(layers))
    return ("sliding",) * layers
