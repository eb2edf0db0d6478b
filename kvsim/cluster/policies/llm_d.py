"""llm-d's endpoint picker (the Gateway API inference extension's EPP): filter, weighted scorers, picker.

Followed: llm-d/llm-d-router (Aug 2026), `pkg/epp/config/loader/defaults.go` (weights without a configuration)
and `pkg/epp/framework/plugins/scheduling` with `filter/prefixcacheaffinity` and `picker`. Requests are
served whole (no prefill/decode split); flow control, saturation and session affinity are not modelled.
Metrics are read every 50 ms.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt, Le, Unit

from kvsim.addresses import array_at, words_at
from kvsim.cluster.booking import overlaps
from kvsim.cluster.hash_table import has_room, larger, new_table
from kvsim.cluster.policies.llm_d_prefix import (
    GUESS_DTYPE,
    QUEUE_DTYPE,
    drop_guesses,
    found_blocks,
    guess,
    larger_guesses,
    note_sent,
)
from kvsim.cluster.policies.llm_d_scorers import PARAMETERS, SCORERS, add_scores, is_cold, uncached_tokens
from kvsim.cluster.policies.picking import drawn_among_most, drawn_fraction
from kvsim.cluster.policy import CompiledChooser, Policy
from kvsim.cluster.prompt_hashes import PromptHashing
from kvsim.cluster.recency import Recency, grown, new_recency, recency_at, room_to_remember
from kvsim.cluster.state import FILL_DTYPE, NO_ROOM, NUM_ARRAYS, drawn_below, router_at
from kvsim.cluster.worker_sets import leading_blocks_of_either, num_words
from kvsim.compiled import compiled_entry, compiled_inline, compiled_once, compiled_part
from kvsim.errors import KvsimError

METRICS_INTERVAL = 0.05  # s
DEFAULT_WEIGHTS = {"queue": 2.0, "kv-cache-utilization": 2.0, "prefix-cache": 3.0}
LEAST_BLOCK_SIZE = 64  # tokens, of the approximate data
_MATCHED, _KEPT, _COLD_ORDER, _MORE = (NUM_ARRAYS + 1 + k for k in range(4))
_TINY = 1e-10


@compiled_part
def _keep_affine(scalars, targets, matched, kept, total, parameters):
    """prefix-cache-affinity-filter: only who has most of the prompt, unless that costs too much time."""
    kept[:] = 1
    threshold, n = parameters["affinity_threshold"][0], kept.shape[0]
    if parameters["filters"][0] == 0 or n == 1 or threshold <= 0.0:
        return
    explores = parameters["exploration_probability"][0]
    if explores > 0.0 and drawn_fraction(scalars) < explores:
        return
    sticky, best_sticky, best_other = np.int64(0), np.inf, np.inf
    for t in range(n):
        time = targets["prefill_tokens"][t] / parameters["peak_prefill_throughput"][0] * 1000.0
        if total > 0 and matched[t] / total >= threshold:
            sticky += 1
            best_sticky = min(best_sticky, time)
        else:
            best_other = min(best_other, time)
    penalty = parameters["max_ttft_penalty_ms"][0]
    if sticky == 0 or (penalty > 0.0 and sticky < n and best_sticky - best_other > penalty):
        return
    for t in range(n):
        kept[t] = matched[t] / total >= threshold


@compiled_inline
def _drawn_by_weight(scalars, score, kept):
    """weighted-random-picker: the largest of U ** (1 / score); uniform if all scores are 0."""
    best, largest, count = np.int64(-1), -1.0, np.int64(0)
    for t in range(kept.shape[0]):
        if kept[t] and score[t] > 0.0:
            drawn = max(drawn_fraction(scalars), _TINY)
            key = drawn ** (1.0 / score[t])
            if key > largest:
                best, largest = np.int64(t), key
    if best >= 0:
        return best
    for t in range(kept.shape[0]):
        if kept[t]:
            count += 1
            if drawn_below(scalars, count) == 0:
                best = np.int64(t)
    return best


@compiled_once
def _pick(router, words, i):
    """Filter, score and pick, by what is found of the prompt on each target."""
    parameters = array_at(words, NUM_ARRAYS, PARAMETERS, 1)
    matched, kept = array_at(words, _MATCHED, np.int64, 1), array_at(words, _KEPT, np.int64, 1)
    cold_order = array_at(words, _COLD_ORDER, np.int64, 1)
    scalars, targets = router.scalars, router.targets
    tokens, total = router.routed["num_prompt_tokens"][i], router.routed["num_blocks"][i]
    _keep_affine(scalars, targets, matched, kept, total, parameters)
    add_scores(targets, kept, matched, cold_order, tokens, total, parameters)
    if parameters["draws_by_weight"][0]:
        target = _drawn_by_weight(scalars, targets["score"], kept)
    else:
        target = drawn_among_most(scalars, targets["score"], kept)
    if parameters["no_hit_lru"][0] != 0.0 and is_cold(matched, kept):
        parameters["last_cold"][0] += 1
        cold_order[target] = parameters["last_cold"][0]
    uncached = uncached_tokens(tokens, matched[target], total, parameters["block_size"][0])
    scalars["booked_prefill_tokens"][0] = uncached
    return target


@compiled_entry
def _choose_from_history(address, i, now):
    router, words = router_at(address), words_at(address)
    recency, num_blocks = recency_at(words, _MORE), router.routed["num_blocks"][i]
    if not room_to_remember(router, recency, num_blocks):
        return NO_ROOM
    matched = array_at(words, _MATCHED, np.int64, 1)
    found_blocks(router.holders, router.hashes, router.routed["first_hash"][i], num_blocks, matched)
    target = _pick(router, words, i)
    capacity = array_at(words, NUM_ARRAYS, PARAMETERS, 1)["lru_capacity"][0]
    if capacity == 0:
        capacity = router.targets["num_gpu_blocks"][target]
    note_sent(router, recency, capacity, i, target, now)
    return target


@compiled_entry
def _choose_from_events(address, i, now):
    router, words = router_at(address), words_at(address)
    matched = array_at(words, _MATCHED, np.int64, 1)
    overlaps(router, i)
    for t in range(matched.shape[0]):
        matched[t] = router.targets["overlap"][t]
    return _pick(router, words, i)


@compiled_entry
def _choose_from_events_and_guesses(address, i, now):
    router, words = router_at(address), words_at(address)
    table, fill = array_at(words, _MORE, np.uint64, 2), array_at(words, _MORE + 1, FILL_DTYPE, 1)
    queue, guesses = array_at(words, _MORE + 2, QUEUE_DTYPE, 1), array_at(words, _MORE + 3, GUESS_DTYPE, 1)
    ttl = array_at(words, NUM_ARRAYS, PARAMETERS, 1)["speculative_ttl"][0]
    drop_guesses(table, fill, queue, guesses, now - ttl)
    routed = router.routed
    first, step, num_blocks = routed["first_hash"][i], routed["hash_step"][i], routed["num_blocks"][i]
    if not has_room(table, fill["used"][0], num_blocks):
        fill["lacks"][0] = 1
        return NO_ROOM
    if queue["used"][0] + num_blocks > guesses.shape[0]:
        queue["lacks"][0] = 1
        return NO_ROOM
    matched = array_at(words, _MATCHED, np.int64, 1)
    leading_blocks_of_either(router.holders, table, router.hashes, first, step, num_blocks, matched)
    target = _pick(router, words, i)
    guess(router, table, fill, queue, guesses, i, target, now)
    return target


class _HistoryChooser(CompiledChooser):
    def grow(self) -> None:
        self.arrays[4:] = grown(Recency(*self.arrays[4:]))


class _GuessChooser(CompiledChooser):
    def grow(self) -> None:
        table, fill, queue, guesses = self.arrays[4:]
        if fill["lacks"][0]:
            self.arrays[4], fill["lacks"] = larger(table), 0
        if queue["lacks"][0]:
            self.arrays[7] = larger_guesses(queue, guesses)


@dataclass(frozen=True, kw_only=True)
class LlmD(Policy):
    """The candidate with the largest sum of weighted scores, a random one of equals.

    weights: of the scorers, by their names with or without "-scorer"; those that are not named are not used.
    prefix_data: `approximate`, from its own choices, in blocks of the engine's size but at least 64 tokens,
    the last partial one included, up to `max_prefix_tokens_to_match` tokens, as many blocks for a target as
    it has (`auto_tune`), else `lru_capacity_per_server`; or `precise`, from KV events, with
    `speculative_indexing` also blocks sent within `speculative_ttl` seconds. The other parameters belong to
    the plugins that have them by the same name in camel case; `prefix_cache_affinity_filter` switches that
    filter on.
    """

    names: ClassVar[tuple[str, ...]] = ("llm_d", "llm_d_epp")

    weights: Mapping[str, Annotated[float, Ge(0)]] = field(default_factory=lambda: dict(DEFAULT_WEIGHTS))

    prefix_length_weight: Annotated[float, Ge(0), Le(1)] = 0.0
    max_model_len: Annotated[int, Ge(1)] = 8192
    threshold: Annotated[int, Ge(1)] = 128
    idle_threshold: Annotated[int, Ge(0)] = 0
    max_busy_score: Annotated[float, Ge(0), Le(1)] = 1.0
    queue_threshold_tokens: Annotated[int, Ge(1)] = 4_194_304

    prefix_cache_affinity_filter: bool = False
    affinity_threshold: Annotated[float, Ge(0), Le(1)] = 0.8
    exploration_probability: Annotated[float, Ge(0), Le(1)] = 0.0
    max_ttft_penalty_ms: Annotated[float, Ge(0)] = 18_000.0
    peak_prefill_throughput: Annotated[float, Gt(0), Unit("tokens per second")] = 15_928.0

    prefix_data: Literal["approximate", "precise"] = "approximate"
    auto_tune: bool = True
    block_size_tokens: Annotated[int, Ge(1)] = 16
    lru_capacity_per_server: Annotated[int, Ge(1)] = 31_250
    max_prefix_tokens_to_match: Annotated[int, Ge(0)] = 131_072
    speculative_indexing: bool = False
    speculative_ttl: Annotated[float, Gt(0), Unit("seconds")] = 2.0
    picker: Literal["max-score-picker", "weighted-random-picker"] = "max-score-picker"

    @property
    def reads_events(self) -> bool:
        return self.prefix_data == "precise"

    @property
    def scrapes_every(self) -> float:
        return METRICS_INTERVAL

    def own_hashing(self, block_size: int) -> PromptHashing | None:
        if self.prefix_data == "precise":
            return None
        size = max(block_size if self.auto_tune else self.block_size_tokens, LEAST_BLOCK_SIZE)
        most = self.max_prefix_tokens_to_match // size if self.max_prefix_tokens_to_match else None
        return PromptHashing(size, partial_block=True, max_blocks=most)

    def _weights(self) -> dict[str, float]:
        """By the names of PARAMETERS; raises KvsimError for an unknown scorer."""
        found: dict[str, float] = {}
        known = ", ".join(scorer.replace("_", "-") for scorer in SCORERS)
        if not self.weights:
            raise KvsimError(f"weights: empty; give at least one of {known}")
        for name, weight in self.weights.items():
            scorer = name.replace("-", "_").removesuffix("_scorer")
            if scorer not in SCORERS:
                near = difflib.get_close_matches(scorer, SCORERS, n=1)
                meant = f"did you mean {near[0].replace('_', '-')}? Known" if near else "known"
                raise KvsimError(f"weights.{name}: is no scorer of llm_d; {meant}: {known}")
            if scorer in found:
                raise KvsimError(f"weights.{name}: {scorer.replace('_', '-')} is named twice")
            found[scorer] = weight
        return found

    def __post_init__(self) -> None:
        self._weights()

    def _parameters(self, block_size: int) -> np.ndarray[Any, Any]:
        hashing = self.own_hashing(block_size)
        values = {
            **self._weights(),
            "queue_threshold": self.threshold,
            "filters": self.prefix_cache_affinity_filter,
            "block_size": hashing.block_size if hashing else block_size,
            "lru_capacity": 0 if self.auto_tune else self.lru_capacity_per_server,
            "draws_by_weight": self.picker == "weighted-random-picker",
        }
        row = np.zeros(1, PARAMETERS)
        for name in PARAMETERS.names or ():
            row[name] = values[name] if name in values else getattr(self, name, 0)
        return row

    def start(self, router: Any) -> CompiledChooser:
        n = router.num_targets
        arrays: list[Any] = [self._parameters(router.block_size)]
        arrays += [np.zeros(n, np.int64), np.ones(n, np.int64), np.zeros(n, np.int64)]
        if self.prefix_data == "approximate":
            return _HistoryChooser(_choose_from_history, [*arrays, *new_recency(n)])
        if not self.speculative_indexing:
            return CompiledChooser(_choose_from_events, arrays)
        guesses = [new_table(1024, num_words(n)), np.zeros(1, FILL_DTYPE)]
        queue = [np.zeros(1, QUEUE_DTYPE), np.zeros(1024, GUESS_DTYPE)]
        return _GuessChooser(_choose_from_events_and_guesses, [*arrays, *guesses, *queue])
