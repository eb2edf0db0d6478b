"""The compiled price of one step: a few sums over its requests, then look-ups in the model's grids.

Per request only sums are taken; every table is looked up once per step.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.compiled import compiled, compiled_inline, compiled_part
from kvsim.gpu.cost.curves import BODY, CONTEXT, EXACT_TOKENS, SEQUENCES, TOKENS
from kvsim.gpu.cost.forms import padded_score_inline, prefill_body_inline, window_score_inline

LONGEST = np.int64(1) << np.int64(40)  # more keys than any request has
FULL, WINDOW = 0, 1  # attention of layers that see everything, and of those with a window

ATTENTION_DTYPE = np.dtype(
    [
        ("layers", np.float64),  # 0: the model has none of this kind
        ("window", np.float64),  # tokens, 0 for all
        ("pad", np.float64),  # query rows added to a sequence
        ("tile", np.float64),  # query rows that earlier context is computed for at least
        ("pair", np.float64),  # us per padded (query, key) pair
        ("new", np.float64),  # us per new token
        ("key", np.float64),  # us per key of a sequence with several new tokens
        ("single_key", np.float64),  # us per key of a sequence with one new token beside such
        ("single_walk", np.float64),  # whether the critical path counts those too
        ("walk", np.float64),  # us per key of the longest sequence
        ("norm", np.float64),
        ("decode", np.float64, (len(SEQUENCES), len(CONTEXT))),  # ln us of a layer
        ("prefill", np.float64, (len(SEQUENCES), len(BODY))),
    ]
)

COST_DTYPE = np.dtype(
    [
        ("graph_tokens", np.float64),  # batches up to here are padded to a captured CUDA graph
        ("tokens", np.float64, (len(TOKENS),)),  # s of all that depends on the number of tokens alone
        ("requests", np.float64, (len(TOKENS),)),  # s of LM head and sampler
        ("images", np.float64, (len(TOKENS),)),  # s of the vision encoder, by image tokens
        ("attention", ATTENTION_DTYPE, (2,)),
    ]
)
"""Parameters of `step_time`: one record, shape (1,)."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """What one step computes.

    num_scheduled_tokens, num_computed_tokens: int32 (requests,): request i computes that many new tokens
        on that many tokens of context.
    num_encoder_tokens: image tokens whose embeddings are computed in this step.
    """

    num_scheduled_tokens: NDArray[np.int32]
    num_computed_tokens: NDArray[np.int32]
    num_encoder_tokens: int = 0


@compiled_inline
def graph_size(tokens):  # type: ignore[no-untyped-def]
    """The captured batch size that vLLM pads to: 1, 2, 4, then steps of 8, from 256 on of 16."""
    if tokens <= 2.0:
        return tokens
    if tokens <= 4.0:
        return 4.0
    if tokens <= 256.0:
        return np.ceil(tokens / 8.0) * 8.0
    return np.ceil(tokens / 16.0) * 16.0


@compiled_inline
def _curve(curve, count):  # type: ignore[no-untyped-def]
    """At a whole number of TOKENS; linear in log2 between its knots, in proportion beyond the last."""
    if count < EXACT_TOKENS:
        return curve[max(int(count), 1) - 1]
    at, last = 8.0 * np.log2(count / EXACT_TOKENS), len(curve) - EXACT_TOKENS
    if at >= last:
        return curve[len(curve) - 1] * count / (EXACT_TOKENS * 2.0 ** (last / 8.0))
    i = int(at)
    low = curve[EXACT_TOKENS - 1 + i]
    return low + (at - i) * (curve[EXACT_TOKENS + i] - low)


@compiled_inline
def _grid(grid, rows, columns, first_column):  # type: ignore[no-untyped-def]
    """us at log2 `rows` and log2 `columns` of a grid of ln us; in proportion beyond the last column."""
    last_row, last_column = grid.shape[0] - 1, grid.shape[1] - 1
    x = min(max(2.0 * rows, 0.0), last_row - 1e-9)
    y = min(max(2.0 * (columns - first_column), 0.0), last_column - 1e-9)
    i, j = int(x), int(y)
    a, b = x - i, y - j
    low = grid[i, j] + b * (grid[i, j + 1] - grid[i, j])
    high = grid[i + 1, j] + b * (grid[i + 1, j + 1] - grid[i + 1, j])
    us = np.exp(low + a * (high - low))
    over_rows, over = rows - 0.5 * last_row, columns - first_column - 0.5 * last_column
    if over_rows > 0.0:
        us *= 2.0**over_rows
    if over > 0.0:
        us *= 2.0**over
    return us


@compiled_part
def attention_time(a, scheduled, computed, n, most_new):  # type: ignore[no-untyped-def]
    """Seconds of attention in all layers of one kind, see `step_time`; most_new: of any request.

    One new token each: the decode kernel at the mean context. Otherwise one kernel takes all, sequences
    with one new token among them, and never less time than a decode step on the same contexts, so that
    more tokens never make a step shorter.
    """
    window = a["window"]
    reach = np.int64(window) if window > 0.0 else LONGEST
    keys = np.int64(0)  # whole numbers, so that the compiler may sum several at once
    for i in range(n):
        keys += min(np.int64(computed[i]) + 1, reach)
    sequences = np.log2(float(n))
    decode = _grid(a["decode"], sequences, np.log2(max(float(keys) / n, 1.0)), 0.0)
    if most_new <= 1:
        return 1e-6 * a["layers"] * decode
    pad, tile = a["pad"], a["tile"]
    singles, single_seen, longest_single = np.int64(0), np.int64(0), np.int64(0)
    score = tokens = many = longest = 0.0
    for i in range(n):
        if scheduled[i] == 1:
            seen = min(np.int64(computed[i]), reach)
            singles += 1
            single_seen += seen
            longest_single = max(longest_single, seen)
            continue
        new, context = float(scheduled[i]), float(computed[i])
        tokens += new
        if window > 0.0:
            score += window_score_inline(new, context, pad, tile, window)
            many += min(context, window) + new
            longest = max(longest, min(context + new, window + tile))
        else:
            score += padded_score_inline(new, context, pad, tile)
            many += context + new
            longest = max(longest, context + new)
    score += max(1.0 + pad, tile) * float(single_seen) + singles * 0.5 * (1.0 + pad) ** 2
    key_us = a["key"] * many + a["single_key"] * float(single_seen + singles)
    walk = max(longest, a["single_walk"] * float(longest_single + 1))
    body = prefill_body_inline(
        score, tokens + singles, key_us, walk, a["pair"], a["new"], 1.0, a["walk"], a["norm"]
    )
    return 1e-6 * a["layers"] * max(decode, _grid(a["prefill"], sequences, np.log2(body), -4.0))


@compiled_part
def step_time(  # type: ignore[no-untyped-def]
    parameters, num_scheduled_tokens, num_computed_tokens, num_reqs, num_encoder_tokens
):
    """Seconds of one step: > 0, finite, and never less for more tokens or longer contexts.

    parameters: COST_DTYPE (1,). num_scheduled_tokens, num_computed_tokens: int32, read up to num_reqs.
    Allocates nothing; compiled code alone may call it (`StepCost.seconds` is the way from Python).
    """
    p = parameters[0]
    total, most = np.int64(0), np.int64(0)
    for i in range(num_reqs):
        new = np.int64(num_scheduled_tokens[i])
        total += new
        most = max(most, new)
    tokens = float(total)
    if tokens <= p["graph_tokens"]:
        tokens = graph_size(tokens)
    seconds = _curve(p["tokens"], tokens)
    if num_reqs > 0:
        seconds += _curve(p["requests"], float(num_reqs))
        for kind in range(2):
            attention = p["attention"][kind]
            if attention["layers"] > 0.0:
                seconds += attention_time(
                    attention, num_scheduled_tokens, num_computed_tokens, num_reqs, most
                )
    if num_encoder_tokens > 0:
        seconds += _curve(p["images"], float(num_encoder_tokens))
    return seconds


@compiled
def price(  # type: ignore[no-untyped-def]
    parameters, num_scheduled_tokens, num_computed_tokens, num_reqs, num_encoder_tokens
):
    """`step_time`, to be called from Python."""
    return step_time(parameters, num_scheduled_tokens, num_computed_tokens, num_reqs, num_encoder_tokens)


@compiled
def attention_rows(a, many, new, context, singles, single_context, scheduled, computed, out):  # type: ignore[no-untyped-def]
    """us of one layer for batches of `many` equal sequences beside `singles` with one new token each.

    a: ATTENTION_DTYPE (1,). many .. single_context: int64 (rows,). scheduled, computed: int32, room for
    the largest batch. out: float64 (rows,).
    """
    for row in range(len(out)):
        n = many[row] + singles[row]
        for i in range(n):
            scheduled[i] = new[row] if i < many[row] else 1
            computed[i] = context[row] if i < many[row] else single_context[row]
        most = new[row] if many[row] > 0 else 1
        out[row] = 1e6 / a[0]["layers"] * attention_time(a[0], scheduled, computed, n, most)
