"""How the policies pick one of several targets at random."""

import numpy as np

from kvsim.cluster.state import drawn_below, drawn_word
from kvsim.compiled import compiled_inline

_FRACTION_BITS = np.uint64(11)  # of 64 are dropped: a float keeps 53
_STEP = 1.0 / (1 << 53)


@compiled_inline
def drawn_fraction(scalars):
    """A random number from 0 up to, not including, 1 (scalars: ROUTER_DTYPE (1,))."""
    return np.float64(drawn_word(scalars) >> _FRACTION_BITS) * _STEP


@compiled_inline
def drawn_among_least(scalars, values):
    """Number of a least one of some values, each with the same chance; draws only if there are several."""
    least, count = values[0], np.int64(1)
    for t in range(1, values.shape[0]):
        if values[t] < least:
            least, count = values[t], np.int64(1)
        elif values[t] == least:
            count += 1
    skip = drawn_below(scalars, count) if count > 1 else np.int64(0)
    target = np.int64(0)
    while values[target] != least or skip > 0:
        if values[target] == least:
            skip -= 1
        target += 1
    return target


@compiled_inline
def drawn_by_softmax(scalars, costs, temperature):
    """Number drawn with chances exp(-x / temperature), where x is the cost moved and scaled to 0..1.

    Followed: Dynamo 1.6.1 `lib/kv-router/src/scheduling/selector/default.rs`, `softmax_sample_index`.
    """
    low, high = costs[0], costs[0]
    for t in range(1, costs.shape[0]):
        low, high = min(low, costs[t]), max(high, costs[t])
    scale = -1.0 / ((high - low) * temperature) if high > low else 0.0
    total = 0.0
    for t in range(costs.shape[0]):
        total += np.exp((costs[t] - low) * scale)
    sample = drawn_fraction(scalars)
    cumulative = 0.0
    for t in range(costs.shape[0]):
        cumulative += np.exp((costs[t] - low) * scale) / total
        if sample <= cumulative:
            return np.int64(t)
    return np.int64(costs.shape[0] - 1)


@compiled_inline
def drawn_among_most(scalars, values, kept):
    """Number of a largest one of the values that `kept` marks, each with the same chance."""
    best, count = np.int64(-1), np.int64(0)
    for t in range(kept.shape[0]):
        if not kept[t]:
            continue
        if best < 0 or values[t] > values[best]:
            best, count = np.int64(t), np.int64(1)
        elif values[t] == values[best]:
            count += 1
            if drawn_below(scalars, count) == 0:
                best = np.int64(t)
    return best
