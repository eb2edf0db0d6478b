"""A model's shape out of a Hugging Face ``config.json``, in whatever dialect it is written.

The catalog keeps its rows in the same form, so there is one reader for all models.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu.config_checks import check_heads, check_kind, dtype_of
from kvsim.gpu.config_json import Config, integer, listed, read_json, section, shown, size
from kvsim.gpu.layer_kinds import compress_ratios, indexed_layers, layer_types, mlp_layers, window_of
from kvsim.gpu.model import DTYPE_BYTES, EncoderSpec, LinearSpec, ModelSpec
from kvsim.gpu.model_length import read_lengths
from kvsim.gpu.quantization_config import read_quantization
from kvsim.gpu.vision_config import read_vision

MAX_LAYERS = 10_000

_NESTED = ("text_config", "language_config", "llm_config", "thinker_config")
# Families whose MLP has no gate: up and down alone.
_UNGATED = ("opt", "phi", "phi-msft", "gpt2", "gpt_bigcode", "gptj", "gpt_neox", "starcoder2", "falcon")
_UNGATED_TOO = ("bloom", "mpt", "whisper", "nemotron", "nemotron_h", "persimmon")
_CHOSEN = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_k")
_CHOSEN_TOO = ("moe_topk", "top_k_experts")
_WIDTHS = ("intermediate_size_mlp", "dense_intermediate_size", "intermediate_size", "ffn_dim")


def read_model(config: Config, name: str = "", source: str = "given") -> ModelSpec:
    """Read a Hugging Face config (nested ``text_config`` too) or a case's few shape keys.

    Only ``num_hidden_layers`` is required; facts that are absent are 0, so that a capacity
    question needs no more than the attention shape. Raises KvsimError naming the bad key.
    """
    text = _text(config)
    if text.get("is_encoder_decoder"):
        text |= _decoder(text)
    layers = _num_layers(text)
    if text.get("cross_attention_layers"):
        raise KvsimError("model: cross_attention_layers (Llama 3.2 Vision) are not modelled")
    kinds = layer_types(text, layers)
    hidden = size(text, "hidden_size", "n_embd", "d_model")
    heads = size(text, "num_attention_heads", "n_head", "n_heads", "num_heads")
    kv_heads = _kv_heads(text) or heads
    head_dim = _head_dim(text, hidden, heads)
    check_heads(text, heads, kv_heads)
    experts = integer(text, "n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
    moe_size = integer(text, "moe_intermediate_size", "intermediate_size") if experts else 0
    family = str(text.get("model_type", ""))
    quantization = read_quantization(config, kinds)
    moe_layers, dense_layers = _mlp_layers(text, layers, experts)
    lengths = read_lengths(text)
    return ModelSpec(
        name=name or str(config.get("name") or config.get("_name_or_path") or "model"),
        source=source,
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=_intermediate_size(text, hidden),
        num_attention_heads=heads,
        num_key_value_heads=integer(text, "swa_num_key_value_heads") or kv_heads,
        head_dim=integer(text, "swa_head_dim") or head_dim,
        vocab_size=size(text, "vocab_size", "padded_vocab_size"),
        dtype=dtype_of(text),
        max_position_embeddings=lengths.shortest,
        tie_word_embeddings=bool(text.get("tie_word_embeddings", family.startswith("gemma"))),
        layer_types=kinds,
        sliding_window=window_of(text, kinds),
        v_head_dim=integer(text, "swa_v_head_dim", "v_head_dim") or head_dim,
        global_num_key_value_heads=kv_heads
        if integer(text, "swa_num_key_value_heads")
        else integer(text, "num_global_key_value_heads"),
        global_head_dim=head_dim
        if integer(text, "swa_num_key_value_heads")
        else integer(text, "global_head_dim"),
        global_v_head_dim=integer(text, "v_head_dim") if integer(text, "swa_num_key_value_heads") else 0,
        num_kv_shared_layers=integer(text, "num_kv_shared_layers"),
        kv_lora_rank=integer(text, "kv_lora_rank"),
        q_lora_rank=integer(text, "q_lora_rank"),
        qk_rope_head_dim=integer(text, "qk_rope_head_dim"),
        qk_nope_head_dim=integer(text, "qk_nope_head_dim"),
        index_head_dim=integer(text, "index_head_dim")
        or integer(section(text, "sparse_attention_config"), "sparse_index_dim"),
        indexed_layers=indexed_layers(text, layers),
        moe_latent_size=integer(text, "moe_latent_size", "routed_expert_hidden_size"),
        num_experts=experts,
        num_experts_per_tok=integer(text, *_CHOSEN, *_CHOSEN_TOO),
        moe_intermediate_size=moe_size if experts else 0,
        shared_intermediate_size=_shared_size(text, moe_size),
        num_moe_layers=moe_layers,
        num_dense_layers=dense_layers,
        quantization=quantization.name,
        stated_parameters=integer(config, "num_parameters") or None,
        vision=read_vision(config),
        linear=_linear(text),
        encoder=_encoder(text),
        attention_output_gate=bool(text.get("attn_output_gate", integer(text, "full_attention_interval"))),
        partial_rotary_factor=_share(text, "partial_rotary_factor"),
        multimodal_rope=_multimodal_rope(text, config),
        compress_ratios=compress_ratios(text, layers),
        o_lora_rank=integer(text, "o_lora_rank"),
        o_groups=integer(text, "o_groups"),
        index_n_heads=integer(text, "index_n_heads"),
        quant_group_size=quantization.group_size,
        unquantized=quantization.unquantized,
        expert_quantization=_expert_format(text, quantization.name),
        gated_mlp=family not in (*_UNGATED, *_UNGATED_TOO),
        mtp_layers=integer(text, "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"),
        kv_cache_fp8=quantization.kv_cache_fp8,
        lengths=lengths,
    )


def _head_dim(text: Config, hidden: int, heads: int) -> int:
    stated = size(text, "head_dim", "kv_channels", "attention_head_dim")
    if stated or not heads:
        return stated
    if hidden % heads and not text.get("kv_lora_rank"):
        sizes = f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}"
        raise KvsimError(f"model: {sizes}; give head_dim")
    return hidden // heads


def _num_layers(text: Config) -> int:
    blocks = listed(text, "layers_block_type")
    if blocks and text.get("num_hidden_layers") is None and len(blocks) <= MAX_LAYERS:
        return len(blocks)
    keys = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    return size(text, *keys, required=True, most=MAX_LAYERS)


def model_from_file(path: str | Path) -> ModelSpec:
    """Read a Hugging Face ``config.json`` (or the folder that holds it).

    A float32 checkpoint counts as bfloat16, as vLLM's ``--dtype auto`` loads it.
    Raises KvsimError if the file is missing, not JSON or lacks the shape.
    """
    path = Path(path)
    path = path / "config.json" if path.is_dir() else path
    config = read_json(path)
    if not isinstance(config, dict):
        raise KvsimError(f"{path}: a config.json holds one JSON object, this is {shown(config)}")
    config = _with_quantization_file(config, path)
    try:
        check_kind(config)
        model = read_model(_sixteen_bit(config), path.parent.name or str(path), str(path))
    except KvsimError as error:
        raise KvsimError(f"{path}: {str(error).removeprefix('model: ')}") from error
    needed = {"hidden_size": model.hidden_size, "num_attention_heads": model.num_attention_heads}
    missing = [key for key, value in needed.items() if not value]
    if missing:
        raise KvsimError(f"{path}: {' and '.join(missing)} missing; kvsim knows no size without")
    return model


def _with_quantization_file(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """modelopt states the format in a file of its own, beside a config.json that does not."""
    beside = path.parent / "hf_quant_config.json"
    if path.name != "config.json" or config.get("quantization_config") or not beside.is_file():
        return config
    return {**config, "quantization_config": read_json(beside)}


def _text(config: Config) -> dict[str, Any]:
    """The language model's keys, those of a nested section before those around it."""
    nested = next((section(config, key) for key in _NESTED if section(config, key)), None)
    if not nested:
        return dict(config)
    return {**config, **_text(nested)}


def _sixteen_bit(config: Config) -> dict[str, Any]:
    keys = ("dtype", "torch_dtype")
    wide = {key: "bfloat16" for key in keys if config.get(key) in ("float32", "float", "auto")}
    nested = {key: _sixteen_bit(value) for key in _NESTED if isinstance(value := config.get(key), dict)}
    return {**config, **wide, **nested}


def _kv_heads(text: Config) -> int:
    """KV heads; Falcon's and MPT's own keys too."""
    groups = [section(section_of, "attention") for section_of in listed(text, "block_configs")]
    shared = [integer(group, "n_heads_in_group") for group in groups if group.get("n_heads_in_group")]
    if shared:  # Nemotron NAS: query heads of one KV head, the same wherever a block attends
        return integer(text, "num_attention_heads") // max(shared)
    found = size(text, "num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
    own = size(section(text, "attn_config"), "kv_n_heads")
    if text.get("multi_query") is True and not text.get("new_decoder_architecture"):
        return 1
    return found or own


def _intermediate_size(text: Config, hidden: int) -> int:
    if listed(text, "block_configs"):
        return _mean_width(listed(text, "block_configs"), hidden)
    stated = integer(
        text,
        "intermediate_size_mlp",
        "dense_intermediate_size",
        "intermediate_size",
        "ffn_dim",
        "ffn_hidden_size",
    )
    stated = stated or integer(text, "n_inner")
    if stated or text.get("model_type") not in ("gpt2", "gpt_bigcode", "falcon", "bloom", "mpt", "gptj"):
        return stated
    return 4 * hidden


def _mean_width(blocks: list[Any], hidden: int) -> int:
    """Nemotron NAS: mean width of the blocks' MLPs (`_ffn_mult_to_intermediate_size`)."""
    total = 0
    for block in blocks:
        mlp = section(block, "ffn")
        multiple = mlp.get("ffn_mult")
        if isinstance(multiple, int | float) and not isinstance(multiple, bool) and 0 < multiple < 100:
            width = int(2 * multiple * hidden / 3)
            total += -(-width // 256) * 256
    return total // len(blocks)


def _shared_size(text: Config, moe_size: int) -> int:
    if str(text.get("model_type", "")).startswith("llama4"):
        return moe_size  # `Llama4MoE` has one shared expert, which no key states
    keys = (
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
    )
    count = integer(text, "n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    return integer(text, *keys) or count * moe_size


def _mlp_layers(text: Config, layers: int, experts: int) -> tuple[int, int]:
    """(layers of routed experts, layers of one MLP)."""
    told = mlp_layers(text, layers)
    if told is None:
        moe = _moe_layers(text, layers) if experts else 0
        return moe, layers - moe
    return told if experts else (0, told[1])


def _moe_layers(text: Config, layers: int) -> int:
    stated = integer(text, "num_moe_layers")
    dense = max(
        integer(text, "first_k_dense_replace", "moe_layer_start_index"), len(listed(text, "mlp_only_layers"))
    )
    frequency = text.get("moe_layer_freq")
    if isinstance(frequency, list | tuple):  # one mark per layer
        return sum(mark == 1 for mark in frequency[:layers])
    step = integer(text, "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq") or 1
    return min(stated, layers) or max(layers - dense, 0) // step


def _expert_format(text: Config, quantization: str | None) -> str | None:
    """DeepSeek V4 keeps its experts in MXFP4 beside fp8 layers."""
    return "mxfp4" if quantization == "fp8" and text.get("expert_dtype") == "fp4" else None


def _decoder(text: Config) -> dict[str, Any]:
    """The decoder's shape under the usual keys, as far as the config has it under its own."""
    names = {
        "num_hidden_layers": "decoder_layers",
        "hidden_size": "d_model",
        "num_attention_heads": "decoder_attention_heads",
        "intermediate_size": "decoder_ffn_dim",
    }
    found = {key: text[own] for key, own in names.items() if text.get(own) is not None}
    kept = {"tie_word_embeddings": text.get("tie_word_embeddings", True)}
    return found | kept | {"model_type": text.get("model_type") or "whisper"}


def _encoder(text: Config) -> EncoderSpec | None:
    if not text.get("is_encoder_decoder"):
        return None
    return EncoderSpec(
        num_layers=size(text, "encoder_layers", required=True, most=MAX_LAYERS),
        intermediate_size=integer(text, "encoder_ffn_dim") or integer(text, "intermediate_size"),
        num_tokens=integer(text, "max_source_positions") or 1500,
    )


def _linear(text: Config) -> LinearSpec | None:
    """Gated delta net (Qwen3-Next and its heirs), Mamba-2, or one of the rarer kinds."""
    state_bytes = DTYPE_BYTES.get(str(text.get("mamba_ssm_dtype") or text.get("mamba_ssm_cache_dtype")), 0)
    keys = integer(text, "linear_num_key_heads") * integer(text, "linear_key_head_dim")
    values = integer(text, "linear_num_value_heads") * integer(text, "linear_value_head_dim")
    if keys and values:
        kernel = integer(text, "linear_conv_kernel_dim") or 4
        state = values * integer(text, "linear_key_head_dim")
        return LinearSpec(2 * keys + values, kernel, state, values, state_bytes)
    inner = integer(text, "mamba_num_heads", "mamba_n_heads") * integer(
        text, "mamba_head_dim", "mamba_d_head"
    )
    state = integer(text, "ssm_state_size", "mamba_d_state")
    if inner and state:
        groups = integer(text, "n_groups", "mamba_n_groups")
        kernel = integer(text, "conv_kernel", "mamba_d_conv") or 4
        return LinearSpec(
            inner + 2 * groups * state, kernel, inner * state, inner, state_bytes, groups, state
        )
    return _other_linear(text)


def _other_linear(text: Config) -> LinearSpec | None:
    kimi = section(text, "linear_attn_config")
    heads, dim = integer(kimi, "num_heads"), integer(kimi, "head_dim")
    if heads and dim:
        inner = heads * dim
        return LinearSpec(3 * inner, integer(kimi, "short_conv_kernel_size") or 4, inner * dim, inner, 4)
    if 0 in listed(text, "attn_type_list"):  # lightning attention: a float32 matrix per head, no convolution
        heads, dim = integer(text, "num_attention_heads"), integer(text, "head_dim")
        inner = heads * dim
        return LinearSpec(0, 1, inner * dim, inner, 4, projected=3 * inner)
    if "conv" in listed(text, "layer_types"):  # LFM2
        width = integer(text, "hidden_size")
        return LinearSpec(width, integer(text, "conv_L_cache") or 3, 0, width)
    return None


def _share(text: Config, key: str) -> float:
    value = text.get(key)
    if value is None:
        value = section(text, "rope_parameters").get(key, 1.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise KvsimError(f"model: {key} is {shown(value)}, wanted a number from 0 to 1")
    return float(value)


def _multimodal_rope(text: Config, config: Config) -> bool:
    rope = {**_rope(text, "rope_scaling"), **_rope(text, "rope_parameters")}
    vision = section(config, "vision_config")
    # Encoders that merge frames of a video belong to the families with three rotary axes.
    return bool(rope.get("mrope_section")) or integer(vision, "temporal_patch_size") > 1


def _rope(text: Config, key: str) -> Config:
    value = text.get(key)
    return value if isinstance(value, Mapping) else {}
