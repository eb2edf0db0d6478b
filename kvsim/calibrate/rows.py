"""Rows of any table as operations of the cost model, in one set of columns per operation."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd

from kvsim.calibrate.row_layers import fact, layer_rows, moe_rows, vidur_rows
from kvsim.calibrate.tables import OWN_MEASUREMENT, Table, fingerprint
from kvsim.errors import KvsimError
from kvsim.gpu import catalog

# Every operation's rows carry these: GPU of the catalog, dtype of the value set, form and kernel of the
# table, measured us, digest of the keys, and whose rows they are.
# With what they were taken: package, version, licence, setup; measured: by `kvsim calibrate measure` or a
# program like it, which names the package of each row. cold: L2 was emptied before each call.
COMMON = (
    *("gpu", "dtype", "form", "kernel", "us", "digest", "table"),
    *("package", "version", "licence", "setup", "measured", "cold"),
)

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


def operations(tables: Iterable[Table]) -> Rows:
    """All tables' rows by operation. Raises KvsimError for unknown GPUs, models and dtypes."""
    parts: dict[str, list[pd.DataFrame]] = {}
    for table in tables:
        for operation, frame in _rows(table).items():
            if len(frame):
                parts.setdefault(operation, []).append(frame)
    return {operation: pd.concat(frames, ignore_index=True) for operation, frames in parts.items()}


def of_gpu(rows: Rows, gpu: str) -> Rows:
    """Those of one GPU; raises KvsimError for one that is not in the catalog."""
    name = catalog.gpu(gpu).name
    kept = {operation: frame[frame.gpu == name] for operation, frame in rows.items()}
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
    frame = frame.assign(**_origin(table), cold=~_hot(table))
    # A table is told apart GPU by GPU, so that a part of it is still the table that was fitted; where a
    # fit takes one of several kernels, or cold rows only, also by these.
    by = ["gpu", "kernel", "cold"] if table.says_with_what else ["gpu"]
    frame["table"] = frame.groupby(by).digest.transform(lambda d: fingerprint(d.to_numpy()))
    frame["table"] += frame.cold.map({True: "-cold", False: ""})
    return frame


def _origin(table: Table) -> dict[str, Any]:
    """package, version, licence, setup, measured: from the table itself, else who publishes its form."""
    f, form = table.frame, table.form
    if not table.says_with_what:
        known = {"package": form.package, "version": form.version, "licence": form.licence}
        return {**known, "setup": "", "measured": False}
    setup = pd.Series("", index=f.index, dtype=object)
    for column, word in (("card", ""), ("torch", "torch "), ("cuda", "CUDA "), ("driver", "driver ")):
        if column in f:
            said = f[column].fillna("").astype(str)
            setup += (word + said + ", ").where(said != "", "")
    return {
        "package": f["package"].fillna("").astype(str),
        "version": f["version"].fillna("").astype(str),
        "licence": f["licence"].astype(str) if "licence" in f else table.licence or OWN_MEASUREMENT,
        "setup": setup.str.removesuffix(", "),
        "measured": True,
    }


# Bare names of profilers whose pages say which card it was.
_MEANT = {"a100": "A100-80GB-SXM", "h100": "H100-SXM"}


def _gpu_name(table: Table, name: str) -> str:
    """The catalog's name; tables add how a card is mounted ("A100-SXM-80GB", "b200_sxm", "h100_dgx")."""
    if name == "cpu":
        raise KvsimError(
            f"{table.path}: times of a CPU, which only try calibrate measure out; a calibration is of a GPU"
        )
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


_L2_HOT = {"hot": True, "cold": False, "flushed": False}


def _hot(table: Table) -> pd.Series:
    """Whether L2 was warm: unless a column l2 says "cold", as `kvsim calibrate measure` does."""
    if "l2" not in table.frame:
        return pd.Series(True, index=table.frame.index)
    said = table.frame["l2"].astype(str)
    unknown = said[~said.isin(_L2_HOT)]
    if len(unknown):
        row, word = int(unknown.index[0]) + 1, unknown.iloc[0]
        raise KvsimError(f"{table.path}: row {row}: l2 is {word!r}; one of {', '.join(_L2_HOT)}")
    return said.map(_L2_HOT).astype(bool)


def _step_attention(table: Table, common: pd.DataFrame) -> Rows:
    f = table.frame
    return {
        "attention": _attention_rows(
            common,
            n_q=fact(table, lambda m: m.num_attention_heads, split=True),
            n_kv=fact(table, lambda m: m.num_key_value_heads, split=True).clip(lower=1),
            head_dim=fact(table, lambda m: m.head_dim),
            many=(f.prefill_chunk > 0).astype(int),
            new=f.prefill_chunk.clip(lower=1),
            context=f.kv_prefill,
            singles=f.n_decode,
            single_context=f.kv_decode,
            hot=_hot(table) if "l2" in f else False,
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


_CONVERTERS: dict[str, Callable[[Table, pd.DataFrame], Rows]] = {
    "attention": _attention,
    "attention_encoder": _encoder,
    "gemm": _gemm,
    "collectives": _collectives,
    "step_attention": _step_attention,
    "step_attention_skew": _skew,
    "step_dense": layer_rows,
    "step_per_sequence": layer_rows,
    "step_moe": moe_rows,
    "layers_v0": layer_rows,
    "chunked_attention_v0": _chunked,
    "vidur_linear": vidur_rows,
    "vidur_network": _network,
    "copies": lambda table, common: {},
}
