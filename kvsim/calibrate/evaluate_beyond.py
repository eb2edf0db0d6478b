"""How the model carries beyond what it was fitted on: fit the small half of a table, score the large end."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kvsim.calibrate.choice import as_run, one_kernel
from kvsim.calibrate.fit import fit_gpu
from kvsim.calibrate.predict import predict
from kvsim.errors import KvsimError
from kvsim.gpu.cost.attention import LARGEST_HEAD
from kvsim.gpu.cost.calibration import completed

FEWEST = 50  # rows on either side, for a line that says something
LARGE_QUANTILE = 0.85

BEYOND = "beyond range"


def beyond_range(rows: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Rows above the 85th percentile of work, modelled by a fit on rows with less than half of that.

    So all scored rows are at least twice outside. bf16, whole attention, heads up to 256; columns as
    `scored` gives them. Work: flops, for decode bytes of KV.
    """
    parts = list(_parts(rows))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _parts(rows: dict[str, pd.DataFrame]) -> Iterator[pd.DataFrame]:
    attention = rows.get("attention")
    if attention is not None:
        plain = attention[
            (attention["dtype"] == "bfloat16")
            & (attention.window == 0)
            & (attention.head_dim <= LARGEST_HEAD)
            & (attention.form == "attention")
        ]
        yield from _scored("attention", "prefill", plain[plain.many > 0])
        yield from _scored("attention", "decode", plain[plain.many == 0])
    gemm = rows.get("gemm")
    if gemm is not None:
        told = gemm[(gemm["dtype"] == "bfloat16") & (gemm.form == "gemm")]
        yield from _scored("gemm", "linear", told)


def _scored(operation: str, line: str, rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
    for name, whole in rows.groupby("gpu"):
        frame = as_run(one_kernel(whole))
        work = _work(line, frame)
        large = np.quantile(work, LARGE_QUANTILE)
        small, far = frame[work < 0.5 * large], frame[work > large]
        if len(small) < FEWEST or len(far) < FEWEST:
            continue
        try:
            known = completed(fit_gpu(str(name), {operation: small}))
        except KvsimError:
            continue
        modelled, _ = predict(operation, far, known)
        us = far.us.to_numpy(float)
        yield pd.DataFrame(
            {
                "line": f"{line}, {BEYOND}",
                "gpu": str(name),
                "which": BEYOND,
                "source": far.form.to_numpy(),
                "us": us,
                "modelled": modelled,
                "error": 100 * (modelled / us - 1),
            }
        )


def _work(line: str, r: pd.DataFrame) -> NDArray[np.float64]:
    if line == "linear":
        return (2.0 * r.m * r.n * r.k).to_numpy(float)
    if line == "decode":
        return (4.0 * r.singles * (r.single_context + 1.0) * r.n_kv * r.head_dim).to_numpy(float)
    new = r.new.to_numpy(float)
    pairs = r.many * new * (r.context + 0.5 * new)
    return (4.0 * pairs * r.n_q * r.head_dim).to_numpy(float)
