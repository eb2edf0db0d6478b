"""Shape facts of a model, read from a Hugging Face ``config.json`` in whatever dialect it is written.

The catalog keeps its rows in the same form, so there is one reader for all models.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu.config_json import Config, integer, listed, read_json, section, shown, size

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}

# Bytes of one weight of a quantised linear layer, scales included; embeddings and head stay 16-bit.
# mxfp8 and mxfp4: one scale byte for 32 weights; nvfp4: one for 16; nf4 (bitsandbytes): four for 64;
# int4: groups of 128 with a 16-bit scale and a zero point.
QUANT_BYTES = {
    "fp8": 1.0,
    "int8": 1.0,
    "mxfp8": 1.03125,
    "nvfp4": 0.5625,
    "nf4": 0.5625,
    "mxfp4": 0.53125,
    "int4": 0.519,
}

MAX_LAYERS = 10_000

_LAYER_KINDS = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "mamba": "linear",
    "mamba2": "linear",
    "mlp": "none",
    "moe": "none",
}


@dataclass(frozen=True)
class VisionSpec:
    """Vision encoder facts. Sizes in pixels are of one patch side; pixel limits are areas of an image.

    One language token stands for spatial_merge_size^2 patches. deepstack_levels: encoder layers whose
    output also goes into the first language layers (Qwen3-VL).
    """

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    patch_size: int
    spatial_merge_size: int
    temporal_patch_size: int
    out_hidden_size: int
    gated_mlp: bool
    min_pixels: int | None
    max_pixels: int | None
    deepstack_levels: int = 0

    @property
    def pixels_per_token_side(self) -> int:
        return self.patch_size * self.spatial_merge_size

    @property
    def num_parameters(self) -> int:
        """Weights of the blocks and the merger; biases, norms and deepstack mergers are left out."""
        mlp = (3 if self.gated_mlp else 2) * self.hidden_size * self.intermediate_size
        merged = self.hidden_size * self.spatial_merge_size**2
        return self.depth * (4 * self.hidden_size**2 + mlp) + merged * (merged + self.out_hidden_size)


@dataclass(frozen=True)
class LinearSpec:
    """State of one linear-attention (gated delta) or Mamba-2 layer, before any tensor split.

    conv_dim: channels of the short convolution. inner_size: width of the gate and of the output.
    state_size: elements of the recurrent state. state_bytes: of one of those; 0 means the model's own type.
    """

    conv_dim: int
    conv_kernel: int
    state_size: int
    inner_size: int
    state_bytes: int = 0


@dataclass(frozen=True)
class EncoderSpec:
    """Encoder of an encoder-decoder model, whose decoder layers also keep K and V of its output.

    num_tokens: outputs of one input, at most (Whisper: 1,500 for 30 seconds).
    """

    num_layers: int
    intermediate_size: int
    num_tokens: int


@dataclass(frozen=True)
class ModelSpec:
    """Shape of one model; 0 or None where a fact is absent. See `from_config` for the sources of fields.

    layer_types: one of "full", "sliding", "chunked", "linear", "none" (an MLP alone) per layer.
    dtype: of weights and, unless --kv-cache-dtype says otherwise, of the KV cache.
    quantization: of the linear layers, a name in `QUANT_BYTES` or None.
    num_moe_layers: layers with routed experts; the others have one MLP of intermediate_size.
    stated_parameters: number of weights if known, vision encoder included.
    partial_rotary_factor: share of a head that the rotary embedding turns.
    multimodal_rope: rotary embedding with three position axes; vLLM keeps a four times longer table for it.
    source: where the facts come from.
    """

    name: str
    source: str
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    dtype: str
    max_position_embeddings: int | None
    tie_word_embeddings: bool
    layer_types: tuple[str, ...]
    sliding_window: int | None
    v_head_dim: int
    global_num_key_value_heads: int
    global_head_dim: int
    num_kv_shared_layers: int
    kv_lora_rank: int
    q_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    index_head_dim: int
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_intermediate_size: int
    num_moe_layers: int
    quantization: str | None
    stated_parameters: int | None
    vision: VisionSpec | None
    linear: LinearSpec | None = None
    encoder: EncoderSpec | None = None
    attention_output_gate: bool = False
    partial_rotary_factor: float = 1.0
    multimodal_rope: bool = False

    @property
    def is_mla(self) -> bool:
        return self.kv_lora_rank > 0

    @property
    def weight_dtype_bytes(self) -> float:
        """Bytes of one weight of a linear layer."""
        return QUANT_BYTES[self.quantization] if self.quantization else DTYPE_BYTES.get(self.dtype, 2)

    @property
    def embedding_parameters(self) -> int:
        """Input embedding and, unless tied, the output head: never quantised."""
        return self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)

    @property
    def attention_parameters(self) -> int:
        """Weights of one layer's attention projections (biases and norms are left out)."""
        if not self.is_mla:
            heads = (3 if self.attention_output_gate else 2) * self.num_attention_heads * self.head_dim
            return self.hidden_size * (heads + self.num_key_value_heads * (self.head_dim + self.v_head_dim))
        qk = self.qk_nope_head_dim + self.qk_rope_head_dim
        q_out = self.num_attention_heads * qk
        q = self.q_lora_rank * (self.hidden_size + q_out) if self.q_lora_rank else self.hidden_size * q_out
        kv_up = self.kv_lora_rank * self.num_attention_heads * (self.qk_nope_head_dim + self.v_head_dim)
        kv = self.hidden_size * (self.kv_lora_rank + self.qk_rope_head_dim) + kv_up
        return q + kv + self.num_attention_heads * self.v_head_dim * self.hidden_size

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert (gate, up, down)."""
        return 3 * self.hidden_size * self.moe_intermediate_size

    @property
    def dense_mlp_parameters(self) -> int:
        """Weights of one dense layer's MLP (gate, up, down)."""
        return 3 * self.hidden_size * self.intermediate_size

    @property
    def shared_parameters(self) -> int:
        """Weights of one MoE layer that every token uses: shared experts and router."""
        return self.hidden_size * (3 * self.shared_intermediate_size + self.num_experts)

    @property
    def num_parameters(self) -> int:
        """Weights of the whole model: as stated, else counted from the shape (norms and biases left out)."""
        if self.stated_parameters:
            return self.stated_parameters
        moe = self.num_moe_layers * (self.num_experts * self.expert_parameters + self.shared_parameters)
        dense = (self.num_hidden_layers - self.num_moe_layers) * self.dense_mlp_parameters
        vision = self.vision.num_parameters if self.vision else 0
        linear = self.layer_types.count("linear")
        attention = (self.num_hidden_layers - linear) * self.attention_parameters
        attention += linear * self.linear_parameters
        return self.embedding_parameters + attention + moe + dense + vision + self.encoder_parameters

    @property
    def linear_parameters(self) -> int:
        """Weights of one linear-attention layer: input and gate projections, output."""
        if self.linear is None:
            return self.attention_parameters
        return self.hidden_size * (self.linear.conv_dim + 2 * self.linear.inner_size)

    @property
    def encoder_parameters(self) -> int:
        """Weights of an encoder-decoder model's encoder and cross-attention, less the gates counted above."""
        if self.encoder is None:
            return 0
        square = 4 * self.hidden_size**2
        encoder = self.encoder.num_layers * (square + 2 * self.hidden_size * self.encoder.intermediate_size)
        gates = self.hidden_size * self.intermediate_size  # a decoder of this kind has none
        return encoder + self.num_hidden_layers * (square - gates)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights; 16-bit embeddings, head and vision encoder beside quantised linears."""
        full = DTYPE_BYTES.get(self.dtype, 2)
        vision = self.vision.num_parameters if self.vision else 0
        kept = min(self.embedding_parameters + vision, self.num_parameters)
        return int(kept * full + (self.num_parameters - kept) * self.weight_dtype_bytes)

    @classmethod
    def from_config(cls, config: Config, name: str = "", source: str = "given") -> "ModelSpec":
        """Read a Hugging Face config (nested ``text_config`` too) or a case's few shape keys.

        Only ``num_hidden_layers`` is required; facts that are absent are 0, so that a capacity
        question needs no more than the attention shape. Raises KvsimError naming the bad key.
        """
        text = {**config, **(section(config, "text_config") or section(config, "language_config"))}
        if text.get("is_encoder_decoder"):
            text |= _decoder(text)
        layers = size(text, "num_hidden_layers", "n_layer", required=True, most=MAX_LAYERS)
        hidden = size(text, "hidden_size", "n_embd")
        heads = size(text, "num_attention_heads", "n_head")
        kv_heads = size(text, "num_key_value_heads", "num_kv_heads") or heads
        head_dim = size(text, "head_dim") or (hidden // heads if heads else 0)
        experts = integer(text, "n_routed_experts", "num_experts", "num_local_experts")
        moe_size = integer(text, "moe_intermediate_size") or integer(text, "intermediate_size")
        kinds = _layer_types(text, layers)
        family = str(text.get("model_type", ""))
        return cls(
            name=name or str(config.get("name") or config.get("_name_or_path") or "model"),
            source=source,
            num_hidden_layers=layers,
            hidden_size=hidden,
            intermediate_size=integer(text, "intermediate_size_mlp", "intermediate_size", "ffn_dim"),
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            vocab_size=size(text, "vocab_size"),
            dtype=str(text.get("dtype") or text.get("torch_dtype") or "bfloat16").removeprefix("torch."),
            max_position_embeddings=integer(text, "max_position_embeddings") or None,
            tie_word_embeddings=bool(text.get("tie_word_embeddings", family.startswith("gemma"))),
            layer_types=kinds,
            sliding_window=_window(text, kinds),
            v_head_dim=integer(text, "v_head_dim") or head_dim,
            global_num_key_value_heads=integer(text, "num_global_key_value_heads"),
            global_head_dim=integer(text, "global_head_dim"),
            num_kv_shared_layers=integer(text, "num_kv_shared_layers"),
            kv_lora_rank=integer(text, "kv_lora_rank"),
            q_lora_rank=integer(text, "q_lora_rank"),
            qk_rope_head_dim=integer(text, "qk_rope_head_dim"),
            qk_nope_head_dim=integer(text, "qk_nope_head_dim"),
            index_head_dim=integer(text, "index_head_dim"),
            num_experts=experts,
            num_experts_per_tok=integer(text, "num_experts_per_tok", "experts_per_token"),
            moe_intermediate_size=moe_size if experts else 0,
            shared_intermediate_size=_shared_size(text, moe_size),
            num_moe_layers=_moe_layers(text, layers) if experts else 0,
            quantization=_quantization(config),
            stated_parameters=integer(config, "num_parameters") or None,
            vision=_vision(config),
            linear=_linear(text),
            encoder=_encoder(text),
            attention_output_gate=bool(
                text.get("attn_output_gate", integer(text, "full_attention_interval"))
            ),
            partial_rotary_factor=_share(text, "partial_rotary_factor"),
            multimodal_rope=_multimodal_rope(text, config),
        )


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
    try:
        model = ModelSpec.from_config(_sixteen_bit(config), path.parent.name or str(path), str(path))
    except KvsimError as error:
        raise KvsimError(f"{path}: {str(error).removeprefix('model: ')}") from error
    if not (model.hidden_size and (model.num_key_value_heads or model.is_mla)):
        raise KvsimError(f"{path}: needs hidden_size, num_attention_heads and num_key_value_heads")
    if not (model.head_dim or model.is_mla):
        sizes = f"hidden_size {model.hidden_size} for {model.num_attention_heads} num_attention_heads"
        raise KvsimError(f"{path}: {sizes} leaves no head_dim; give head_dim")
    return model


def _sixteen_bit(config: Config) -> dict[str, Any]:
    keys = ("dtype", "torch_dtype")
    wide = {key: "bfloat16" for key in keys if config.get(key) in ("float32", "float", "auto")}
    nested = config.get("text_config")
    return {**config, **wide, **({"text_config": _sixteen_bit(nested)} if isinstance(nested, dict) else {})}


def _layer_types(text: Config, layers: int) -> tuple[str, ...]:
    """Kind of every layer, by the rule each family's configuration class has for it."""
    pattern_text = text.get("hybrid_override_pattern")
    if isinstance(pattern_text, str):
        return _pattern_layer_types(pattern_text, layers)
    stated = listed(text, "layer_types") or listed(text, "layers_block_type")
    if stated:
        return _stated_layer_types(stated, layers)
    pattern = integer(text, "sliding_window_pattern", "_sliding_window_pattern") or None
    family = str(text.get("model_type", ""))
    if text.get("sliding_window"):
        return _window_layer_types(text, layers, pattern, family)
    every = integer(text, "full_attention_interval")  # Qwen3-Next and its heirs
    if every:
        return tuple("full" if (i + 1) % every == 0 else "linear" for i in range(layers))
    if text.get("attention_chunk_size"):  # Llama 4: every fourth layer sees everything
        return tuple("full" if (i + 1) % 4 == 0 else "chunked" for i in range(layers))
    return ("full",) * layers


def _pattern_layer_types(pattern: str, layers: int) -> tuple[str, ...]:
    """Nemotron-H: M for Mamba, * for attention, - and E for a layer that is an MLP or experts alone."""
    kinds = {"M": "linear", "*": "full", "-": "none", "E": "none"}
    if len(pattern) != layers or not set(pattern) <= set(kinds):
        raise KvsimError(f"model: hybrid_override_pattern {shown(pattern)} is not {layers} of M, *, - and E")
    return tuple(kinds[letter] for letter in pattern)


def _stated_layer_types(stated: list[Any], layers: int) -> tuple[str, ...]:
    unknown = sorted({str(kind) for kind in stated if str(kind) not in _LAYER_KINDS})
    if unknown:
        raise KvsimError(f"model: layer_types holds {unknown[0]!r}; known are {', '.join(_LAYER_KINDS)}")
    if len(stated) != layers:
        raise KvsimError(f"model: layer_types has {len(stated)} entries for {layers} layers")
    return tuple(_LAYER_KINDS[kind] for kind in stated)


def _window_layer_types(text: Config, layers: int, pattern: int | None, family: str) -> tuple[str, ...]:
    if pattern is None and family.startswith("gemma3"):
        pattern = 6
    if pattern is None and family in ("gemma2", "gpt_oss"):
        pattern = 2
    if pattern is not None:
        return tuple("full" if (i + 1) % pattern == 0 else "sliding" for i in range(layers))
    if family.startswith("qwen"):  # these state a window but switch it off unless told otherwise
        stated = text.get("use_sliding_window") and text.get("max_window_layers") is not None
        first = integer(text, "max_window_layers") if stated else layers
        return tuple("full" if i < first else "sliding" for i in range(layers))
    return ("sliding",) * layers


def _window(text: Config, kinds: tuple[str, ...]) -> int | None:
    if "chunked" in kinds:
        return integer(text, "attention_chunk_size") or None
    return (integer(text, "sliding_window") or None) if "sliding" in kinds else None


def _shared_size(text: Config, moe_size: int) -> int:
    stated = integer(text, "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
    return stated or integer(text, "n_shared_experts", "num_shared_experts") * moe_size


def _moe_layers(text: Config, layers: int) -> int:
    stated = integer(text, "num_moe_layers")
    dense = max(integer(text, "first_k_dense_replace"), len(listed(text, "mlp_only_layers")))
    step = integer(text, "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq") or 1
    return min(stated, layers) or max(layers - dense, 0) // step


def _quantization(config: Config) -> str | None:
    """The weights' format; a name in `QUANT_BYTES`. Raises KvsimError for one that is not known."""
    details = section(config, "quantization_config") or section(config, "compression_config")
    found = str(config.get("quantization") or details.get("quant_method") or "").lower()
    if not found:
        return None
    readers = {
        "gptq": lambda: "int8" if integer(details, "bits") == 8 else "int4",
        "awq": lambda: "int4",
        "auto-round": lambda: "int8" if integer(details, "bits") == 8 else "int4",
        "bitsandbytes": lambda: "int8" if details.get("load_in_8bit") else "nf4",
        "fbgemm_fp8": lambda: "fp8",
        "modelopt": lambda: "nvfp4" if "FP4" in str(details.get("quant_algo", "")).upper() else "fp8",
        "compressed-tensors": lambda: _compressed(details),
    }
    name = readers[found]() if found in readers else found
    if name not in QUANT_BYTES:
        raise KvsimError(f"model: quantization {found!r} is not known; known are {', '.join(QUANT_BYTES)}")
    return name


def _compressed(details: Config) -> str:
    """compressed-tensors: bits and kind of the first group's weights; 4-bit integers if it does not say."""
    groups = section(details, "config_groups")
    first: Any = next(iter(groups.values()), None)
    weights = section(first, "weights") if isinstance(first, Mapping) else {}
    bits, kind = integer(weights, "num_bits") or 4, str(weights.get("type", "int"))
    return {(8, "float"): "fp8", (8, "int"): "int8", (4, "float"): "nvfp4"}.get((bits, kind), "int4")


def _vision(config: Config) -> VisionSpec | None:
    vision = section(config, "vision_config")
    if not integer(vision, "depth", "num_hidden_layers"):
        return None
    return VisionSpec(
        depth=integer(vision, "depth", "num_hidden_layers"),
        hidden_size=integer(vision, "hidden_size", "embed_dim"),
        intermediate_size=integer(vision, "intermediate_size"),
        num_heads=integer(vision, "num_heads", "num_attention_heads"),
        patch_size=integer(vision, "patch_size"),
        spatial_merge_size=integer(vision, "spatial_merge_size") or 1,
        temporal_patch_size=integer(vision, "temporal_patch_size") or 1,
        out_hidden_size=integer(vision, "out_hidden_size"),
        gated_mlp=str(vision.get("hidden_act", "")) == "silu",
        min_pixels=integer(vision, "min_pixels") or None,
        max_pixels=integer(vision, "max_pixels") or None,
        deepstack_levels=integer(vision, "deepstack_layers")
        or len(listed(vision, "deepstack_visual_indexes")),
    )


def _decoder(text: Config) -> dict[str, Any]:
    """The decoder's shape under the usual keys, as far as the config has it under its own."""
    names = {
        "num_hidden_layers": "decoder_layers",
        "hidden_size": "d_model",
        "num_attention_heads": "decoder_attention_heads",
        "intermediate_size": "decoder_ffn_dim",
        "max_position_embeddings": "max_target_positions",
    }
    found = {key: text[own] for key, own in names.items() if text.get(own) is not None}
    return found | {"tie_word_embeddings": text.get("tie_word_embeddings", True)}


def _encoder(text: Config) -> EncoderSpec | None:
    if not text.get("is_encoder_decoder"):
        return None
    return EncoderSpec(
        num_layers=size(text, "encoder_layers", required=True, most=MAX_LAYERS),
        intermediate_size=integer(text, "encoder_ffn_dim") or integer(text, "intermediate_size"),
        num_tokens=integer(text, "max_source_positions") or 1500,
    )


def _linear(text: Config) -> LinearSpec | None:
    """Gated delta net (Qwen3-Next and its heirs) or Mamba-2 (Nemotron-H)."""
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
        conv = inner + 2 * integer(text, "n_groups", "mamba_n_groups") * state
        return LinearSpec(conv, integer(text, "conv_kernel") or 4, inner * state, inner, state_bytes)
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
    return bool(rope.get("mrope_section")) or integer(vision, "spatial_merge_size") > 1


def _rope(text: Config, key: str) -> Config:
    value = text.get(key)
    return value if isinstance(value, Mapping) else {}
