"""Bytes of weights that one GPU loads: what is split, what every rank copies, and what stays in 16 bits.

Follows vLLM's layers: `VocabParallelEmbedding` pads the vocabulary to 64 and splits it; column and row
parallel projections are split; `ReplicatedLinear` layers are whole on every rank (the router, the
down-projections of latent attention, the sparse indexer, DeepSeek V4's compressors); beyond one rank per
KV head K and V are copied. Quantization methods leave embeddings, head, router and vision tower alone.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kvsim.gpu.kv_cache_spec import cdiv
from kvsim.gpu.model import DTYPE_BYTES, QUANT_BYTES, ModelSpec

VOCABULARY_MULTIPLE = 64
# bitsandbytes before vLLM 0.9 kept the scales of 4-bit blocks quantised: one byte for 64 weights, and four
# for 256 of those (`dequantize_dq` in the loader since).
NESTED_NF4_BYTES = (4 + 8 / 64 + 32 / 64 / 256) / 8
# Kernels' padding of MXFP4 experts, (width, hidden size): Marlin's and Blackwell's see `Mxfp4MoEMethod`;
# for Triton's on Hopper what a log shows, the width alone.
_MXFP4_PADDING = {"marlin": (128, 256), "blackwell": (256, 256), "hopper": (256, 1)}
# Norms and biases are the difference to the stated number of weights, if it is no larger than this.
_SMALL_SHARE = 0.02


@dataclass(frozen=True)
class WeightPart:
    """Weights of one kind on one rank. kept: in the model's own type whatever the quantization."""

    name: str
    parameters: float
    kept: bool = False
    expert: bool = False


def loaded_bytes(
    model: ModelSpec, tp: int = 1, *, tower: bool = True, minor: int = 33, mxfp4_kernel: str = "hopper"
) -> float:
    """Bytes of all weights on one of `tp` ranks, pipeline stages together.

    tower: whether the vision encoder is loaded (not so with images switched off). minor: of vLLM's release.
    mxfp4_kernel: "hopper", "marlin" or "blackwell".
    """
    own = DTYPE_BYTES.get(model.dtype, 2)
    total = 0.0
    for part in weight_parts(model, tp):
        if part.name == "vision" and not tower:
            continue
        total += part.parameters * _bytes_of(model, part, own, minor, mxfp4_kernel)
    return total


def _bytes_of(model: ModelSpec, part: WeightPart, own: float, minor: int, kernel: str) -> float:
    if part.kept or not model.quantization:
        return own
    left = dict(model.unquantized).get(part.name, 0.0)
    return left * own + (1 - left) * _quantised_bytes(model, part, own, minor, kernel)


def _quantised_bytes(model: ModelSpec, part: WeightPart, own: float, minor: int, kernel: str) -> float:
    name = (model.expert_quantization if part.expert else None) or model.quantization
    if name == "mxfp4":  # gpt-oss quantises its experts alone
        return QUANT_BYTES[name] * _mxfp4_padding(model, kernel) if part.expert else own
    if name == "nf4" and minor < 9:
        return NESTED_NF4_BYTES
    return model.weight_dtype_bytes if name == model.quantization else QUANT_BYTES[name or ""]


def _mxfp4_padding(model: ModelSpec, kernel: str) -> float:
    width, hidden = (max(1, size) for size in (model.moe_intermediate_size, model.hidden_size))
    to_width, to_hidden = _MXFP4_PADDING[kernel]
    padded = cdiv(width, to_width) * to_width * cdiv(hidden, to_hidden) * to_hidden
    return padded / (width * hidden)


def mxfp4_kernel(gpu_name: str, minor: int) -> str:
    """Which kernels run MXFP4 experts on a card; Triton's for Hopper came with vLLM from 0.12 on."""
    name = gpu_name.lower()
    if re.search(r"\b(g?b[23]00|gb10)\b", name):
        return "blackwell"
    hopper = not name or re.search(r"\b(g?h[12]00|h800|h20)\b", name)
    return "hopper" if hopper and minor >= 12 else "marlin"


def weight_parts(model: ModelSpec, tp: int = 1) -> Iterator[WeightPart]:
    """All weights on one of `tp` ranks, by kind.

    Names: embedding, attention, linear_attention, router, shared, experts, dense, vision, encoder, other.
    """
    copies = 1 if model.tie_word_embeddings else 2
    vocabulary = cdiv(model.vocab_size, VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    yield WeightPart("embedding", copies * vocabulary * model.hidden_size / tp, kept=True)
    layers, moe, linear = model.num_hidden_layers, model.num_moe_layers, model.layer_types.count("linear")
    bare = model.layer_types.count("none")
    whole = model.replicated_attention_parameters
    split = model.attention_parameters - whole
    attending = layers - linear - bare
    yield WeightPart("attention", attending * (split / tp + whole + _copied_heads(model, tp)))
    yield WeightPart("linear_attention", linear * model.linear_parameters / tp)
    yield WeightPart("compressor", float(model.compressor_parameters), kept=True)
    yield WeightPart("router", moe * model.hidden_size * model.num_experts, kept=True)
    yield WeightPart("shared", moe * (model.shared_parameters - model.hidden_size * model.num_experts) / tp)
    yield WeightPart("experts", moe * model.num_experts * model.expert_parameters / tp, expert=True)
    yield WeightPart("dense", model.num_dense_layers * model.dense_mlp_parameters / tp)
    if model.vision is not None:
        yield WeightPart("vision", model.vision.num_parameters / tp, kept=True)
    yield WeightPart("encoder", model.encoder_parameters / tp)
    yield _rest(model, tp)


def _rest(model: ModelSpec, tp: int) -> WeightPart:
    """What the stated number of weights has beyond the counted ones: norms and biases, or unknown layers."""
    rest = (model.stated_parameters or model.counted_parameters) - model.counted_parameters
    small = abs(rest) <= _SMALL_SHARE * model.counted_parameters
    return WeightPart("other", rest if small and rest > 0 else rest / tp, kept=small)


def _copied_heads(model: ModelSpec, tp: int) -> float:
    """Weights of K and V that one rank of one layer holds beyond its share."""
    if model.is_mla or model.compress_ratios:
        return 0
    copies = max(1, model.num_key_value_heads // tp) - model.num_key_value_heads / tp
    return model.hidden_size * copies * (model.head_dim + model.v_head_dim)
