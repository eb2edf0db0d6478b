"""Shape facts of a model and the weights that follow from them."""

from dataclasses import dataclass

from kvsim.gpu.config_json import Config
from kvsim.gpu.model_length import LengthFacts, OwnLength, own_length

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}

# Bytes of one weight of a quantised linear layer, scales included; embeddings and head stay 16-bit.
# mxfp8 and mxfp4: one scale byte for 32 weights; nvfp4: one for 16; nf4 (bitsandbytes): four for 64;
# int4: groups of 128 with a 16-bit scale and a 4-bit zero point.
QUANT_BYTES = {
    "fp8": 1.0,
    "int8": 1.0,
    "mxfp8": 1.03125,
    "nvfp4": 0.5625,
    "nf4": 0.5625,
    "mxfp4": 0.53125,
    "int4": 0.51953125,
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
    num_position_embeddings: int = 0

    @property
    def pixels_per_token_side(self) -> int:
        return self.patch_size * self.spatial_merge_size

    @property
    def num_parameters(self) -> int:
        """Weights of patch and position embeddings, blocks and mergers; biases and norms are left out."""
        mlp = (3 if self.gated_mlp else 2) * self.hidden_size * self.intermediate_size
        merged = self.hidden_size * self.spatial_merge_size**2
        patch = 3 * self.temporal_patch_size * self.patch_size**2
        embedding = self.hidden_size * (patch + self.num_position_embeddings)
        mergers = (1 + self.deepstack_levels) * merged * (merged + self.out_hidden_size)
        return embedding + self.depth * (4 * self.hidden_size**2 + mlp) + mergers


@dataclass(frozen=True)
class LinearSpec:
    """State of one linear-attention (gated delta) or Mamba-2 layer, before any tensor split.

    conv_dim: channels of the short convolution. inner_size: width of the gate and of the output.
    state_size: elements of the recurrent state. state_bytes: of one of those; 0 means the model's own type.
    projected: width of queries, keys and values together where no convolution runs over them.
    num_groups: Mamba-2's groups of B and C, of group_state channels each; copied beyond one rank each.
    """

    conv_dim: int
    conv_kernel: int
    state_size: int
    inner_size: int
    state_bytes: int = 0
    num_groups: int = 0
    group_state: int = 0
    projected: int = 0


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
    max_position_embeddings: the length that the configuration states, before any rotary scaling.
    dtype: of weights and, unless --kv-cache-dtype says otherwise, of the KV cache.
    quantization: of the linear layers, a name in `QUANT_BYTES` or None.
    num_moe_layers: layers with routed experts; the others have one MLP of intermediate_size.
    stated_parameters: number of weights if known, vision encoder included.
    partial_rotary_factor: share of a head that the rotary embedding turns.
    multimodal_rope: rotary embedding with three position axes; vLLM keeps a four times longer table for it.
    compress_ratios: DeepSeek V4, tokens per compressed latent of each layer; 0 means a window only.
    quant_group_size: weights of a group with its own scale and zero point (int4, int8); 0 where not stated.
    unquantized: parts of `kvsim.gpu.weights.weight_parts` that the checkpoint left in the model's own type,
        and the share of layers where it did.
    expert_quantization: of routed experts, where it is not the other layers'.
    gated_mlp: whether an MLP has a gate beside up and down.
    mtp_layers: built-in draft layers in the checkpoint, loaded only for speculation.
    kv_cache_fp8: the checkpoint has scales for an fp8 KV cache, so that "auto" means fp8.
    num_dense_layers: layers with one MLP of intermediate_size. moe_latent_size: width that routed experts
        work in, where it is not the hidden size. indexed_layers: those with a sparse indexer of their own.
    lengths: all that the configuration says of lengths and rotary scaling, see `own_length`.
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
    compress_ratios: tuple[int, ...] = ()
    o_lora_rank: int = 0
    o_groups: int = 0
    index_n_heads: int = 0
    quant_group_size: int = 0
    unquantized: tuple[tuple[str, float], ...] = ()
    expert_quantization: str | None = None
    gated_mlp: bool = True
    mtp_layers: int = 0
    kv_cache_fp8: bool = False
    global_v_head_dim: int = 0
    num_dense_layers: int = 0
    moe_latent_size: int = 0
    indexed_layers: tuple[int, ...] = ()
    lengths: LengthFacts | None = None

    @property
    def length_facts(self) -> LengthFacts:
        stated = self.max_position_embeddings
        return self.lengths or LengthFacts(
            stated=(("max_position_embeddings", stated),) if stated is not None else ()
        )

    def own_length(self, minor: int) -> OwnLength | None:
        """What release 0.`minor` takes for the model's maximum; None where none is stated."""
        return own_length(self.length_facts, minor)

    def usual_length(self, minor: int) -> int | None:
        """max_model_len of release 0.`minor` where no flag gives it; None where none is known."""
        own = self.own_length(minor)
        return own.usual if own else None

    @property
    def is_mla(self) -> bool:
        return self.kv_lora_rank > 0

    @property
    def weight_dtype_bytes(self) -> float:
        """Bytes of one weight of a linear layer."""
        if not self.quantization:
            return DTYPE_BYTES.get(self.dtype, 2)
        bits = {"int4": 4, "int8": 8}.get(self.quantization)
        if bits and self.quant_group_size:
            return (bits + (16 + bits) / self.quant_group_size) / 8
        return QUANT_BYTES[self.quantization]

    @property
    def embedding_parameters(self) -> int:
        """Input embedding and, unless tied, the output head: never quantised."""
        return self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)

    @property
    def attention_parameters(self) -> int:
        """Weights of one layer's attention projections (biases and norms are left out)."""
        if self.compress_ratios:
            return self._compressed_attention_parameters
        if not self.is_mla:
            heads = self.num_attention_heads * (
                (2 if self.attention_output_gate else 1) * self.head_dim + self.v_head_dim
            )
            return self.hidden_size * (heads + self.num_key_value_heads * (self.head_dim + self.v_head_dim))
        qk = self.qk_nope_head_dim + self.qk_rope_head_dim
        q_out = self.num_attention_heads * qk
        q = self.q_lora_rank * (self.hidden_size + q_out) if self.q_lora_rank else self.hidden_size * q_out
        kv_up = self.kv_lora_rank * self.num_attention_heads * (self.qk_nope_head_dim + self.v_head_dim)
        kv = self.hidden_size * (self.kv_lora_rank + self.qk_rope_head_dim) + kv_up
        out = self.num_attention_heads * self.v_head_dim * self.hidden_size
        return q + kv + out + self._mean_indexer_parameters

    @property
    def indexer_parameters(self) -> int:
        """Weights of one layer's sparse indexer, whole on every rank."""
        keys = 0 if self.compress_ratios else self.hidden_size * self.index_head_dim
        queries = self.q_lora_rank * self.index_n_heads * self.index_head_dim
        return queries + keys + self.hidden_size * self.index_n_heads

    @property
    def _compressed_attention_parameters(self) -> int:
        """DeepSeek V4: latent down-projections, queries, and the output in groups of low rank."""
        inner = self.num_attention_heads * self.head_dim
        out = inner * self.o_lora_rank + self.o_groups * self.o_lora_rank * self.hidden_size
        return self.replicated_attention_parameters + self.q_lora_rank * inner + out

    @property
    def replicated_attention_parameters(self) -> int:
        """Those of the above that a tensor split copies to every rank."""
        if self.compress_ratios:  # the indexer as an average: only layers of ratio 4 have one
            share = sum(ratio == 4 for ratio in self.compress_ratios) / len(self.compress_ratios)
            down = self.hidden_size * (self.q_lora_rank + self.head_dim)
            return down + round(share * self.indexer_parameters)
        if not self.is_mla:
            return 0
        down = self.hidden_size * (self.kv_lora_rank + self.qk_rope_head_dim + self.q_lora_rank)
        return down + self._mean_indexer_parameters

    @property
    def _mean_indexer_parameters(self) -> int:
        return round(self.indexer_parameters * len(self.indexed_layers) / self.num_hidden_layers)

    @property
    def compressor_parameters(self) -> int:
        """DeepSeek V4: key and gate projections of all compressors, in 16 bits on every rank."""
        total = 0
        for ratio in self.compress_ratios[: self.num_hidden_layers]:
            if ratio > 1:
                overlap = 2 if ratio == 4 else 1
                width = self.head_dim + (self.index_head_dim if ratio == 4 else 0)
                total += 2 * overlap * width * self.hidden_size
        return total

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert (gate, up, down)."""
        return self._mlp_matrices * (self.moe_latent_size or self.hidden_size) * self.moe_intermediate_size

    @property
    def _mlp_matrices(self) -> int:
        return 3 if self.gated_mlp else 2

    @property
    def dense_mlp_parameters(self) -> int:
        """Weights of one dense layer's MLP (gate, up, down)."""
        return self._mlp_matrices * self.hidden_size * self.intermediate_size

    @property
    def shared_parameters(self) -> int:
        """Weights of one MoE layer that every token uses: shared experts and router."""
        shared = self._mlp_matrices * self.shared_intermediate_size + self.num_experts
        return self.hidden_size * (shared + 2 * self.moe_latent_size)

    @property
    def num_parameters(self) -> int:
        """Weights of the whole model: as stated, else counted from the shape (norms and biases left out)."""
        return self.stated_parameters or self.counted_parameters

    @property
    def counted_parameters(self) -> int:
        """Weights counted from the shape; norms, biases and draft layers are left out."""
        moe = self.num_moe_layers * (self.num_experts * self.expert_parameters + self.shared_parameters)
        dense = self.num_dense_layers * self.dense_mlp_parameters
        vision = self.vision.num_parameters if self.vision else 0
        linear = self.layer_types.count("linear")
        attention = (self.num_hidden_layers - linear - self.layer_types.count("none")) * (
            self.attention_parameters
        )
        attention += linear * self.linear_parameters + self.compressor_parameters
        return self.embedding_parameters + attention + moe + dense + vision + self.encoder_parameters

    @property
    def linear_parameters(self) -> int:
        """Weights of one linear-attention layer: input and gate projections, output."""
        if self.linear is None:
            return self.attention_parameters
        inputs = self.linear.projected or self.linear.conv_dim
        return self.hidden_size * (inputs + 2 * self.linear.inner_size)

    @property
    def encoder_parameters(self) -> int:
        """Weights of an encoder-decoder model's encoder and cross-attention."""
        if self.encoder is None:
            return 0
        square = 4 * self.hidden_size**2
        encoder = self.encoder.num_layers * (square + 2 * self.hidden_size * self.encoder.intermediate_size)
        return encoder + self.num_hidden_layers * square

    @classmethod
    def from_config(cls, config: Config, name: str = "", source: str = "given") -> "ModelSpec":
        """Read a Hugging Face config or a case's few shape keys, see `kvsim.gpu.model_config.read_model`."""
        from kvsim.gpu.model_config import read_model

        return read_model(config, name, source)
