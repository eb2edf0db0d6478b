"""Rows of layer-by-layer profiles: matrix products, small kernels, the sampler, experts."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from kvsim.calibrate.tables import Table
from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.model import ModelSpec

Rows = dict[str, pd.DataFrame]  # operation -> rows


def _models(table: Table) -> dict[str, ModelSpec]:
    return {str(name): _model(table, str(name)) for name in table.frame["model"].unique()}


def _model(table: Table, name: str) -> ModelSpec:
    try:
        return catalog.model(name)
    except KvsimError as error:
        raise KvsimError(f"{table.path}: {error}") from None


def fact(table: Table, of: Callable[[ModelSpec], float], split: bool = False) -> pd.Series:
    """A fact of each row's model, divided by its tensor-parallel ranks if `split`."""
    known = {name: of(model) for name, model in _models(table).items()}
    values = table.frame["model"].astype(str).map(known)
    if not split:
        return values
    heads = {name: model.num_attention_heads for name, model in _models(table).items()}
    uneven = table.frame["model"].astype(str).map(heads) % table.frame["tp"] != 0
    if uneven.any():
        row = table.frame[uneven].iloc[0]
        raise KvsimError(
            f"{table.path}: row {int(np.argmax(uneven)) + 1}: tp {row.tp}: {row.model} has "
            f"{heads[str(row.model)]} query heads, which so many GPUs cannot share equally"
        )
    return values / table.frame["tp"]


# Layer names of the three profilers -> (columns of the product, inner size) of a model on one rank.
Shape = Callable[[ModelSpec], tuple[float, float]]
_GEMMS: dict[str, tuple[Shape, str]] = {
    # name: shape on one rank, and which of the two sizes the ranks divide
    "qkv_proj": (
        lambda m: ((m.num_attention_heads + 2 * m.num_key_value_heads) * m.head_dim, m.hidden_size),
        "columns",
    ),
    "q_proj": (lambda m: (m.num_attention_heads * m.head_dim, m.hidden_size), "columns"),
    "k_proj": (lambda m: (m.num_key_value_heads * m.head_dim, m.hidden_size), "columns"),
    "v_proj": (lambda m: (m.num_key_value_heads * m.head_dim, m.hidden_size), "columns"),
    "o_proj": (lambda m: (m.hidden_size, m.num_attention_heads * m.head_dim), "inner"),
    "gate_up_proj": (lambda m: (2 * m.intermediate_size, m.hidden_size), "columns"),
    "gate_proj": (lambda m: (m.intermediate_size, m.hidden_size), "columns"),
    "up_proj": (lambda m: (m.intermediate_size, m.hidden_size), "columns"),
    "down_proj": (lambda m: (m.hidden_size, m.intermediate_size), "inner"),
    "lm_head": (lambda m: (m.vocab_size, m.hidden_size), "columns"),
}

# Bytes a token moves in 16 bit, and whether the ranks divide them.
_SMALL: dict[str, tuple[Callable[[ModelSpec], float], bool]] = {
    "layernorm": (lambda m: 8 * m.hidden_size, False),
    "final_layernorm": (lambda m: 8 * m.hidden_size, False),
    "qk_norm": (lambda m: 4 * (m.num_attention_heads + m.num_key_value_heads) * m.head_dim, True),
    "rotary_emb": (lambda m: 4 * (m.num_attention_heads + m.num_key_value_heads) * m.head_dim, True),
    "act_fn": (lambda m: 6 * m.intermediate_size, True),
    "embedding": (lambda m: 4 * m.hidden_size, False),
}


def layer_rows(table: Table, common: pd.DataFrame) -> Rows:
    """Layers by tokens or sequences: matrix products, small kernels and the sampler."""
    f = table.frame
    count = f["tokens" if "tokens" in f else "sequences"]
    common = common.assign(kernel=f.layer.astype(str))
    # layers_v0 times Hugging Face's layers one by one: its norms and rotary are several eager kernels.
    small = {} if table.form.name == "layers_v0" else _SMALL
    rows: dict[str, list[pd.DataFrame]] = {"gemm": [], "small": [], "sampler": []}
    for layer in f.layer.unique():
        here = f.layer == layer
        if layer in _GEMMS:
            rows["gemm"].append(_layer_gemm(table, common, here, count, layer))
        elif layer in small:
            bytes_of, split = small[layer]
            moved = fact(table, bytes_of, split) * count
            rows["small"].append(common.assign(bytes=moved)[here])
        elif layer == "sampler":
            moved = 4.0 * fact(table, lambda m: m.vocab_size) * count
            rows["sampler"].append(common.assign(bytes=moved)[here])
    return {name: pd.concat(parts) for name, parts in rows.items() if parts}


def _layer_gemm(table: Table, common: pd.DataFrame, here: Any, count: Any, layer: str) -> pd.DataFrame:
    shape, divided = _GEMMS[layer]
    columns = fact(table, lambda m: shape(m)[0], split=divided == "columns")
    inner = fact(table, lambda m: shape(m)[1], split=divided == "inner")
    return common.assign(m=count, n=columns, k=inner)[here]


def moe_rows(table: Table, common: pd.DataFrame) -> Rows:
    f = table.frame
    return {
        "moe": common.assign(
            pairs=f.tokens * fact(table, lambda m: m.num_experts_per_tok),
            active=f.activated_experts,
            weights=fact(table, lambda m: m.expert_parameters, split=True),
        )
    }


def vidur_rows(table: Table, common: pd.DataFrame) -> Rows:
    """Its own columns give the shape; mlp_up_proj holds the gate where the model has one."""
    f = table.frame
    head = f.n_embd / f.n_head
    gate = np.where(f.use_gated_mlp, 2, 1) if "use_gated_mlp" in f else 2
    shapes = {
        "attn_pre_proj": ((f.n_head + 2 * f.n_kv_head) * head / f.tp, f.n_embd),
        "attn_post_proj": (f.n_embd, f.n_embd / f.tp),
        "mlp_up_proj": (gate * f.n_expanded_embd / f.tp, f.n_embd),
        "mlp_down_proj": (f.n_embd, f.n_expanded_embd / f.tp),
    }
    norm = 4 * f.n_embd
    moved = {
        "input_layernorm": norm,
        "post_attention_layernorm": norm,
        "add": 6 * f.n_embd,
        "attn_rope": 4 * (f.n_head + f.n_kv_head) * head / f.tp,
        "mlp_act": 2 * (gate + 1) * f.n_expanded_embd / f.tp,
        "emb": 4 * f.n_embd,
    }
    common = common.assign(kernel=f.op.astype(str))
    gemms = [
        common.assign(m=f.num_tokens, n=columns, k=inner)[f.op == op]
        for op, (columns, inner) in shapes.items()
    ]
    small = [common.assign(bytes=each * f.num_tokens)[f.op == op] for op, each in moved.items()]
    return {"gemm": pd.concat(gemms), "small": pd.concat(small)}
