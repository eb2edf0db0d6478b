"""Rows of any table as operations of the cost model, in one set of columns per operation."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from kvsim.calibrate.tables import Table, fingerprint
from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.model import ModelSpec

# Every operation's rows carry these: GPU of the catalog, dtype of the value set, form and kernel of the
# table, measured us, digest of the keys, and whose rows they are.
COMMON = ("gpu", "dtype", "form", "kernel", "us", "digest", "table")

OPERATIONS = {
    # columns beside COMMON
    "attention": (
        *("n_q", "n_kv", "head_dim", "window"),
        *("many", "new", "context", "singles", "single_context"),
        "hot",  # timed over and over without a flush, so that what fits in L2 comes from there
    ),
    "attention_encoder": ("batch", "length", "heads", "head_dim"),
    "gemm": ("m", "n", "k"),
    "small": ("bytes",),
    "sampler": ("bytes",),
    "moe": ("pairs", "active", "weights"),
    "all_reduce_custom": ("ranks", "size"),
    "all_reduce_eager": ("ranks", "size"),
    "all_reduce_nccl": ("ranks", "size"),
    "send": ("size",),
    "unequal": ("mean_us",),
}

Rows = dict[str, pd.DataFrame]  # operation -> rows


def operations(tables: Iterable[Table], gpu: str | None = None) -> Rows:
    """All tables' rows by operation. gpu: only rows of that GPU.

    Raises KvsimError for unknown GPUs, models and dtypes.
    """
    parts: dict[str, list[pd.DataFrame]] = {}
    for table in tables:
        for operation, frame in _rows(table).items():
            if len(frame):
                parts.setdefault(operation, []).append(frame)
    whole = {operation: pd.concat(frames, ignore_index=True) for operation, frames in parts.items()}
    if gpu is None:
        return whole
    name = catalog.gpu(gpu).name
    kept = {operation: frame[frame.gpu == name] for operation, frame in whole.items()}
    return {operation: frame for operation, frame in kept.items() if len(frame)}


def _rows(table: Table) -> Rows:
    return _CONVERTERS[table.form.name](table, _common(table))


def _common(table: Table) -> pd.DataFrame:
    column = table.frame["node" if table.form.name == "vidur_network" else "gpu"].astype(str)
    nodes = table.form.name == "vidur_network"
    names = {name: _gpu_name(table, name.split("_")[0] if nodes else name) for name in column.unique()}
    frame = pd.DataFrame(
        {
            "gpu": column.map(names),
            "dtype": "bfloat16",
            "form": table.form.name,
            "kernel": table.frame["kernel"].astype(str) if "kernel" in table.frame else "",
            "us": table.us,
            "digest": table.digest,
        }
    )
    # A table is told apart GPU by GPU, so that a part of it is still the table that was fitted.
    frame["table"] = frame.groupby("gpu").digest.transform(lambda d: fingerprint(d.to_numpy()))
    return frame


# Bare names of profilers whose pages say which card it was.
_MEANT = {"a100": "A100-80GB-SXM", "h100": "H100-SXM"}


def _gpu_name(table: Table, name: str) -> str:
    """The catalog's name; tables add how a card is mounted ("A100-SXM-80GB", "b200_sxm", "h100_dgx")."""
    words = re.split(r"[-_ ]", _MEANT.get(name.lower(), name))
    for count in range(len(words), 0, -1):
        try:
            return catalog.gpu("-".join(words[:count])).name
        except KvsimError:
            continue
    raise KvsimError(f"{table.path}: {_reason(name)}")


def _reason(name: str) -> str:
    try:
        catalog.gpu(name)
    except KvsimError as error:
        return str(error)
    return ""


def _models(table: Table) -> dict[str, ModelSpec]:
    return {str(name): _model(table, str(name)) for name in table.frame["model"].unique()}


def _model(table: Table, name: str) -> ModelSpec:
    try:
        return catalog.model(name)
    except KvsimError as error:
        raise KvsimError(f"{table.path}: {error}") from None


def _fact(table: Table, fact: Callable[[ModelSpec], float], split: bool = False) -> pd.Series:
    """A fact of each row's model, divided by its tensor-parallel ranks if `split`."""
    known = {name: fact(model) for name, model in _models(table).items()}
    values = table.frame["model"].astype(str).map(known)
    return values / table.frame["tp"] if split else values


def _attention_rows(common: pd.DataFrame, **columns: Any) -> pd.DataFrame:
    whole = {
        "window": 0,
        "many": 0,
        "new": 1,
        "context": 0,
        "singles": 0,
        "single_context": 0,
        "head_dim": 128,
        "hot": False,
    } | columns
    return common.assign(**{name: whole[name] for name in OPERATIONS["attention"]})


def _attention(table: Table, common: pd.DataFrame) -> Rows:
    """One new token each is a decode step, whatever table it is in."""
    f = table.frame
    short = f[f.kv_len < f.q_len]
    if len(short):
        raise KvsimError(
            f"{table.path}: row {short.index[0] + 1}: kv_len is less than q_len, which it includes"
        )
    single = f.q_len == 1
    rows = _attention_rows(
        common,
        n_q=f.n_q,
        n_kv=f.n_kv,
        head_dim=f.head_dim,
        window=f.window,
        many=f.batch.where(~single, 0),
        new=f.q_len,
        context=f.kv_len - f.q_len,
        singles=f.batch.where(single, 0),
        single_context=(f.kv_len - 1).where(single, 0),
        hot=_hot(table),
    )
    rows["dtype"] = _dtypes(table, "kv_dtype")
    return {"attention": rows}


def _hot(table: Table) -> Any:
    """Whether L2 was warm: unless a column l2 says "flushed", as `kvsim calibrate measure` does."""
    return table.frame["l2"].astype(str) != "flushed" if "l2" in table.frame else True


def _step_attention(table: Table, common: pd.DataFrame) -> Rows:
    f = table.frame
    return {
        "attention": _attention_rows(
            common,
            n_q=_fact(table, lambda m: m.num_attention_heads, split=True),
            n_kv=_fact(table, lambda m: m.num_key_value_heads, split=True).clip(lower=1),
            head_dim=_fact(table, lambda m: m.head_dim),
            many=(f.prefill_chunk > 0).astype(int),
            new=f.prefill_chunk.clip(lower=1),
            context=f.kv_prefill,
            singles=f.n_decode,
            single_context=f.kv_decode,
        )
    }


def _skew(table: Table, common: pd.DataFrame) -> Rows:
    """Decodes of two lengths, against the same number of decodes that all have the mean length."""
    return {"unequal": common.assign(mean_us=table.frame["t_mean_us"].astype(float))}


def _chunked(table: Table, common: pd.DataFrame) -> Rows:
    f = table.frame
    return {
        "attention": _attention_rows(
            common,
            n_q=f.n_q / f.tp,
            n_kv=(f.n_kv / f.tp).clip(lower=1),
            head_dim=f.n_embd / f.n_q,
            many=f.batch,
            new=f.prefill_chunk,
            context=f.kv_cache,
            hot=True,
        )
    }


def _encoder(table: Table, common: pd.DataFrame) -> Rows:
    f = table.frame
    return {
        "attention_encoder": common.assign(
            batch=f.batch, length=f.seq_len, heads=f.n_heads, head_dim=f.head_dim
        )
    }


def _gemm(table: Table, common: pd.DataFrame) -> Rows:
    f = table.frame
    return {"gemm": common.assign(dtype=_dtypes(table, "dtype"), m=f.m, n=f.n, k=f.k)}


def _dtypes(table: Table, column: str) -> pd.Series:
    """bfloat16 (float16 takes as long) or fp8."""
    names = table.frame[column].astype(str).replace("float16", "bfloat16")
    unknown = sorted(set(names) - {"bfloat16", "fp8"})
    if unknown:
        raise KvsimError(
            f"{table.path}: {column} {unknown[0]!r} is not modelled; one of bfloat16, float16, fp8"
        )
    return names


def _collectives(table: Table, common: pd.DataFrame) -> Rows:
    f = table.frame
    rows = common.assign(ranks=f.num_gpus, size=f.bytes)
    kernels = {
        "all_reduce_custom": "vLLM_custom_graph",
        "all_reduce_eager": "vLLM_custom_eager",
        "all_reduce_nccl": "NCCL_all_reduce",
    }
    return {name: rows[common.kernel == kernel] for name, kernel in kernels.items()}


def _network(table: Table, common: pd.DataFrame) -> Rows:
    """Only between GPUs of one node."""
    f = table.frame
    rows = common.assign(kernel=f.node.astype(str), ranks=f.num_workers, size=f["size"])
    inside = (f.num_workers <= f.devices_per_node) & f.node.str.endswith(("dgx", "a40_pairwise_nvlink"))
    return {
        "all_reduce_nccl": rows[inside & (f.collective == "all_reduce")],
        "send": rows[inside & (f.collective == "send_recv")].drop(columns="ranks"),
    }


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


def _layers(table: Table, common: pd.DataFrame) -> Rows:
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
            fact, split = small[layer]
            moved = _fact(table, fact, split) * count
            rows["small"].append(common.assign(bytes=moved)[here])
        elif layer == "sampler":
            moved = 4.0 * _fact(table, lambda m: m.vocab_size) * count
            rows["sampler"].append(common.assign(bytes=moved)[here])
    return {name: pd.concat(parts) for name, parts in rows.items() if parts}


def _layer_gemm(table: Table, common: pd.DataFrame, here: Any, count: Any, layer: str) -> pd.DataFrame:
    shape, divided = _GEMMS[layer]
    columns = _fact(table, lambda m: shape(m)[0], split=divided == "columns")
    inner = _fact(table, lambda m: shape(m)[1], split=divided == "inner")
    return common.assign(m=count, n=columns, k=inner)[here]


def _moe(table: Table, common: pd.DataFrame) -> Rows:
    f = table.frame
    return {
        "moe": common.assign(
            pairs=f.tokens * _fact(table, lambda m: m.num_experts_per_tok),
            active=f.activated_experts,
            weights=_fact(table, lambda m: m.expert_parameters, split=True),
        )
    }


def _vidur(table: Table, common: pd.DataFrame) -> Rows:
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


_CONVERTERS: dict[str, Callable[[Table, pd.DataFrame], Rows]] = {
    "attention": _attention,
    "attention_encoder": _encoder,
    "gemm": _gemm,
    "collectives": _collectives,
    "step_attention": _step_attention,
    "step_attention_skew": _skew,
    "step_dense": _layers,
    "step_per_sequence": _layers,
    "step_moe": _moe,
    "layers_v0": _layers,
    "chunked_attention_v0": _chunked,
    "vidur_linear": _vidur,
    "vidur_network": _network,
}
