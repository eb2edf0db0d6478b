"""Shapes to measure, from models of the catalog or from head shapes alone."""

from functools import cache

from kvsim.calibrate.measure.request import EncoderShape, HeadShape, LinearShape, Shapes
from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.model import ModelSpec

# Where only head shapes are given: an MLP and a vocabulary as of the Llama 3 family.
_MLP_PER_HIDDEN = 3.5
_VOCABULARY = 128256
_MIXED_TENSOR_PARALLEL = (1, 2, 4, 8)
_FAMILIAR = ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B")


def of_heads(heads: HeadShape) -> Shapes:
    """That attention, and linear layers of a dense model around it."""
    hidden = heads.n_q * heads.head_dim
    mlp = round(_MLP_PER_HIDDEN * hidden / 256) * 256
    return Shapes((heads,), _linears(heads, hidden, mlp, _VOCABULARY, tp=1))


def of_model(name: str, tensor_parallel: int, operations: tuple[str, ...]) -> Shapes:
    """The model's shapes on one of that many GPUs. Raises KvsimError if it cannot be split so.

    Routed experts are not among them, and latent attention (MLA) has no kernel here.
    """
    model = catalog.model(name)
    if model.is_mla and {"prefill", "cached", "decode", "mixed"} & set(operations):
        raise KvsimError(
            f"--model {name}: latent attention is not measured; --operation gemm times its linear layers"
        )
    for what, count in (("query heads", model.num_attention_heads), ("vocabulary", model.vocab_size)):
        if count % tensor_parallel:
            raise KvsimError(
                f"--tp {tensor_parallel}: {model.name} has {count} {what}, which that does not divide"
            )
    heads = HeadShape(
        model.num_attention_heads // tensor_parallel,
        max(model.num_key_value_heads // tensor_parallel, 1),
        model.head_dim,
    )
    mlp = model.shared_intermediate_size if model.num_moe_layers else model.intermediate_size
    linears = _linears(heads, model.hidden_size, mlp, model.vocab_size, tensor_parallel)
    encoders = _encoders(model, tensor_parallel)
    if model.is_mla:  # its projections are of other shapes
        return Shapes((), linears[2:], encoders)
    return Shapes((heads,), linears, encoders)


def _linears(heads: HeadShape, hidden: int, mlp: int, vocabulary: int, tp: int) -> tuple[LinearShape, ...]:
    """qkv, o, gate and up, down, output head on one GPU; no MLP where there is none."""
    width = heads.n_q * heads.head_dim
    shapes = [LinearShape(width + 2 * heads.n_kv * heads.head_dim, hidden), LinearShape(hidden, width)]
    if mlp >= tp:
        shapes += [LinearShape(2 * mlp // tp, hidden), LinearShape(hidden, mlp // tp)]
    return (*shapes, LinearShape(vocabulary // tp, hidden))


def _encoders(model: ModelSpec, tp: int) -> tuple[EncoderShape, ...]:
    vision = model.vision
    if vision is None or vision.num_heads % tp:
        return ()
    return (EncoderShape(vision.num_heads // tp, vision.hidden_size // vision.num_heads),)


@cache
def model_of_heads(heads: HeadShape) -> tuple[str, int] | None:
    """A model of the catalog and a tensor-parallel size with those heads on one GPU; None if there is none.

    The table of mixed steps names shapes by model. The fewest GPUs win, then the best known model.
    """
    names = [*_FAMILIAR, *sorted(catalog.model_names())]
    for tp in _MIXED_TENSOR_PARALLEL:
        for name in names:
            if _has_heads(name, tp, heads):
                return name, tp
    return None


def _has_heads(name: str, tp: int, heads: HeadShape) -> bool:
    try:
        model = catalog.model(name)
    except KvsimError:
        return False
    return (
        not model.is_mla
        and model.sliding_window is None
        and model.num_attention_heads == heads.n_q * tp
        and max(model.num_key_value_heads, tp) == heads.n_kv * tp
        and model.head_dim == heads.head_dim
    )
