"""Kernel times laid out for one model: log-log grids that never fall, for the compiled step.

A closed form times an interpolated residual can dip where measurements do, so that more work would cost
less time. Each grid is therefore replaced by the middle between the smallest grid above it that never
falls and the largest one below it that never falls.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.gpu.cost.forms import (
    AttentionShape,
    Device,
    Parameters,
    decode_time,
    least_rows,
    padded_score,
    prefill_body,
    prefill_coefficients,
    window_score,
)
from kvsim.gpu.cost.residual import ResidualTable

Grid = NDArray[np.float64]

WIDEST_WINDOW = 2048  # residuals of window layers were measured at 128 and 1024 tokens
# Half octaves: decode over sequences and mean context, prefill over sequences and the form's time in us.
SEQUENCES = 2.0 ** np.arange(0, 12.1, 0.5)
CONTEXT = 2.0 ** np.arange(0, 22.1, 0.5)
BODY = 2.0 ** np.arange(-4, 30.1, 0.5)
_LENGTHS = 2.0 ** np.arange(0, 20.1, 0.25)

# One dimension: whole numbers as far as batches are padded and tiles matter, then eight knots an octave.
EXACT_TOKENS = 1024
TOKENS = np.concatenate([np.arange(1.0, EXACT_TOKENS), EXACT_TOKENS * 2.0 ** np.arange(0, 11.01, 0.125)])


def rising(curve: Grid) -> Grid:
    """A curve near this one that never falls.

    Where it falls later, it is first cut to a tenth above its lowest later value: single points of a table
    may be twice too high. Then the closest that never falls, in least squares of ln over log2 of TOKENS:
    neighbours that fall are pooled to their mean until none does (pool adjacent violators).
    """
    lowest_later = np.minimum.accumulate(curve[::-1])[::-1]
    curve = np.minimum(curve, 1.1 * lowest_later)
    weights = np.diff(np.log(TOKENS), append=np.log(TOKENS[-1] * 2**0.125))
    level: list[float] = []
    weight: list[float] = []
    count: list[int] = []
    for value, w in zip(np.log(curve).tolist(), weights.tolist(), strict=True):
        n = 1
        while level and level[-1] > value:
            before = weight.pop()
            value = (level.pop() * before + value * w) / (before + w)
            w, n = w + before, n + count.pop()
        level.append(value)
        weight.append(w)
        count.append(n)
    return np.exp(np.repeat(level, count))


def never_falling(grid: Grid, axes: tuple[int, ...] | None = None) -> Grid:
    """The middle of the closest grids above and below that never fall along any axis, or along `axes`."""
    above, below = grid, grid
    for axis in axes or range(grid.ndim):
        above = np.maximum.accumulate(above, axis)
        below = np.flip(np.minimum.accumulate(np.flip(below, axis), axis), axis)
    return 0.5 * (above + below)


def attention_residual(
    table: ResidualTable | None, shape: AttentionShape, sequences: Grid, length: Grid
) -> Grid:
    """ln of the correction at numbers of sequences and lengths of each; 0 without a table for the head."""
    if table is None or not covers_head(table, shape.head_dim) or shape.window > WIDEST_WINDOW:
        return np.zeros(np.broadcast(sequences, length).shape)
    flat = [array.ravel() for array in np.broadcast_arrays(sequences, length)]
    found = table.at(head_dim=shape.head_dim, ratio=shape.ratio, streams=flat[0] * shape.n_kv, length=flat[1])
    return found.reshape(np.broadcast(sequences, length).shape)


def covers_head(table: ResidualTable, head_dim: float) -> bool:
    """Whether a head size is measured, or lies between or next to measured ones (within half an octave)."""
    nodes = table.axes["head_dim"]
    return min(nodes) / 2**0.5 <= head_dim <= max(nodes) * 2**0.5


def decode_grid(
    p: Parameters, table: ResidualTable | None, shape: AttentionShape, device: Device, hot: bool = False
) -> Grid:
    """ln us of one layer, (SEQUENCES, CONTEXT): equal sequences."""
    sequences, context = SEQUENCES[:, None], CONTEXT[None, :]
    modelled = decode_time(p, shape, device, sequences, context, hot)
    return never_falling(np.log(modelled) + attention_residual(table, shape, sequences, context))


def prefill_grid(p: Parameters, table: ResidualTable | None, shape: AttentionShape, device: Device) -> Grid:
    """ln us of one layer, (SEQUENCES, BODY): launch and a body of that many us.

    Measured are equal sequences without a cached prefix. Any other batch takes the residual of the
    equal one with as many sequences for which the form computes the same time.
    """
    sequences = SEQUENCES[:, None]
    fixed = p["launch"] + sequences * prefill_coefficients(p, shape, device)["row"]
    body = batch_body(p, shape, device, sequences, _LENGTHS[None, :])
    residual = attention_residual(table, shape, sequences, _LENGTHS[None, :])
    measured = never_falling(np.log(fixed + body) + residual)
    residual = measured - np.log(fixed + body)
    at_body = [np.interp(np.log(BODY), np.log(b), r) for b, r in zip(body, residual, strict=True)]
    return never_falling(np.log(fixed + BODY) + np.array(at_body), axes=(1,))


def prefill_us(
    p: Parameters,
    shape: Any,
    device: Device,
    many: Any,
    new: Any,
    context: Any = 0.0,
    singles: Any = 0.0,
    single_context: Any = 0.0,
) -> Grid:
    """The form's time, us, for `many` equal sequences of `new` tokens on `context` earlier ones, beside
    `singles` with one new token each. shape: AttentionShape, or one of arrays.
    """
    row = prefill_coefficients(p, shape, device)["row"]
    body = batch_body(p, shape, device, many, new, context, singles, single_context)
    return p["launch"] + (many + singles) * row + body


def batch_body(
    p: Parameters,
    shape: Any,
    device: Device,
    many: Any,
    new: Any,
    context: Any = 0.0,
    singles: Any = 0.0,
    single_context: Any = 0.0,
) -> Grid:
    """`prefill_us` less launch and the fixed time of sequences; sums as `attention_time` takes them."""
    c = prefill_coefficients(p, shape, device)
    tile = least_rows(p, shape)
    if np.any(shape.window):
        score = window_score(new, context, p["pad"], tile, shape.window)
        seen, single_seen = np.minimum(context, shape.window), np.minimum(single_context, shape.window)
        longest = np.minimum(context + new, shape.window + tile)
    else:
        score, seen, single_seen = padded_score(new, context, p["pad"], tile), context, single_context
        longest = context + new
    rows = 1.0 + p["pad"]
    score = many * score + singles * (np.maximum(rows, tile) * single_seen + 0.5 * rows * rows)
    key_us = c["key"] * (many * (seen + new) + p["single_key"] * singles * (single_seen + 1.0))
    longest = np.maximum(longest, p["single_walk"] * (singles > 0) * (single_seen + 1.0))
    new_tokens = many * new + singles
    return prefill_body(score, new_tokens, key_us, longest, c["pair"], c["new"], 1.0, p["walk"], p["norm"])
