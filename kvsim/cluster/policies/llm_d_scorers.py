"""The scorers of llm-d's endpoint picker, each from 0 to 1, added up by weight over the candidates.

Followed: llm-d/llm-d-router `pkg/epp/framework/plugins/scheduling/scorer` (Aug 2026). `kept` marks the
candidates: what stands in relation to the others does so among them.
"""

import numpy as np

from kvsim.compiled import compiled_inline, compiled_part

PARAMETERS = np.dtype(
    [
        # weights
        ("queue", "f8"),
        ("kv_cache_utilization", "f8"),
        ("prefix_cache", "f8"),
        ("running_requests_size", "f8"),
        ("load_aware", "f8"),
        ("active_request", "f8"),
        ("token_load", "f8"),
        ("no_hit_lru", "f8"),
        # of single scorers (`SCORERS` are those above)
        ("prefix_length_weight", "f8"),
        ("max_model_len", "f8"),
        ("queue_threshold", "f8"),
        ("idle_threshold", "i8"),
        ("max_busy_score", "f8"),
        ("queue_threshold_tokens", "f8"),
        # prefix-cache-affinity-filter
        ("filters", "i8"),
        ("affinity_threshold", "f8"),
        ("exploration_probability", "f8"),
        ("max_ttft_penalty_ms", "f8"),
        ("peak_prefill_throughput", "f8"),
        # prefix data and picker
        ("block_size", "i8"),
        ("lru_capacity", "i8"),  # 0: as many blocks as the target has
        ("speculative_ttl", "f8"),
        ("draws_by_weight", "i8"),
        ("last_cold", "i8"),  # cold requests so far
    ]
)

SCORERS = (PARAMETERS.names or ())[:8]


@compiled_inline
def _add_relative(score, kept, values, weight):
    """Fewest 1, most 0, linear between; 1 for all if they are equal."""
    low, high, first = 0.0, 0.0, True
    for t in range(kept.shape[0]):
        if kept[t]:
            low = values[t] if first else min(low, values[t])
            high = values[t] if first else max(high, values[t])
            first = False
    for t in range(kept.shape[0]):
        if kept[t]:
            score[t] += weight * ((high - values[t]) / (high - low) if high > low else 1.0)


@compiled_inline
def _prefix_score(matched, total, parameters):
    if total == 0:
        return 0.0
    by_length = parameters["prefix_length_weight"][0]
    part = min(1.0, matched * parameters["block_size"][0] / parameters["max_model_len"][0])
    return by_length * part * part + (1.0 - by_length) * (matched / total)


@compiled_inline
def _add_active_request(score, kept, counts, parameters):
    most = np.int64(0)
    for t in range(kept.shape[0]):
        if kept[t]:
            most = max(most, counts[t])
    for t in range(kept.shape[0]):
        value = 1.0
        if counts[t] > parameters["idle_threshold"][0]:
            value = (most - counts[t]) / most * parameters["max_busy_score"][0]
        score[t] += parameters["active_request"][0] * value


@compiled_inline
def uncached_tokens(num_tokens, matched, total, block_size):
    """What a target must compute, in the blocks of the prefix data; tokens behind the last one all count."""
    return max(0, total - matched) * block_size + max(0, num_tokens - total * block_size)


@compiled_inline
def is_cold(matched, kept):
    """Whether no candidate has anything of the prompt."""
    most = np.int64(0)
    for t in range(kept.shape[0]):
        if kept[t]:
            most = max(most, matched[t])
    return most == 0


@compiled_part
def _add_no_hit_lru(score, kept, matched, cold_order, weight):
    """Cold requests go to who has served none or the earliest one; else all are equal.

    cold_order (n,): number of the latest cold request of each target, 0 for none.
    """
    candidates, never = np.int64(0), np.int64(0)
    for t in range(kept.shape[0]):
        candidates += kept[t]
        never += kept[t] and cold_order[t] == 0
    cold, rank_of_never = is_cold(matched, kept), np.int64(0)
    for t in range(kept.shape[0]):
        if not kept[t]:
            continue
        value = 0.5
        if cold and candidates == 1:
            value = 1.0
        elif cold:
            rank = never
            if cold_order[t] == 0:
                rank = rank_of_never
                rank_of_never += 1
            else:
                for other in range(kept.shape[0]):
                    rank += 0 < cold_order[other] < cold_order[t]
            value = max(0.0, 1.0 - rank / (candidates - 1))
        score[t] += weight * value


@compiled_part
def add_scores(targets, kept, matched, cold_order, num_tokens, total, parameters):
    """Fill targets.score: the weighted scores of all candidates, for a prompt of `total` blocks."""
    score, weights = targets["score"], parameters
    score[:] = 0.0
    if weights["queue"][0] != 0.0:
        _add_relative(score, kept, targets["num_waiting"], weights["queue"][0])
    if weights["running_requests_size"][0] != 0.0:
        _add_relative(score, kept, targets["num_running"], weights["running_requests_size"][0])
    if weights["active_request"][0] != 0.0:
        _add_active_request(score, kept, targets["in_flight"], parameters)
    if weights["no_hit_lru"][0] != 0.0:
        _add_no_hit_lru(score, kept, matched, cold_order, weights["no_hit_lru"][0])
    for t in range(kept.shape[0]):
        score[t] += weights["kv_cache_utilization"][0] * (1.0 - targets["kv_cache_usage"][t])
        score[t] += weights["prefix_cache"][0] * _prefix_score(matched[t], total, parameters)
        waiting, most = targets["num_waiting"][t], parameters["queue_threshold"][0]
        score[t] += weights["load_aware"][0] * 0.5 * (1.0 - min(waiting, most) / most)
        tokens, most = targets["prefill_tokens"][t], parameters["queue_threshold_tokens"][0]
        tokens += uncached_tokens(num_tokens, matched[t], total, parameters["block_size"][0])
        score[t] += weights["token_load"][0] * (1.0 - min(tokens, most) / most)
