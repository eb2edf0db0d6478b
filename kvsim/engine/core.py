"""One vLLM engine that is told the time: requests in, batches decided, records out.

The compiled modules beside this one decide everything; the class owns their arrays and gives
them names that people know.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.arena import Arena
from kvsim.cache.block_hasher import BlockHasher, Hashes
from kvsim.cache.events import KVCacheEvent
from kvsim.cache.hashing import BlockContent, Feature
from kvsim.cache.manager import KVCacheManager, PromptLike, content_of
from kvsim.cache.state import NONE, RUNNING, KVState
from kvsim.compiled import compiled
from kvsim.engine.config import EngineConfig
from kvsim.engine.encoder_cache import init_encoder_cache
from kvsim.engine.output import abort_request, update_from_output
from kvsim.engine.queues import add_waiting
from kvsim.engine.scheduler import preempt_running_requests, schedule
from kvsim.engine.state import (
    BATCH_DTYPE,
    ENCODER_ENTRY_DTYPE,
    ENGINE_DTYPE,
    FCFS,
    FEATURE_DTYPE,
    PRIORITY,
    SCHEDULED_DTYPE,
    SEAT_DTYPE,
    EngineState,
)
from kvsim.engine.step import IDLE, collect, launch, step
from kvsim.gpu.cost import COST_DTYPE, StepCost
from kvsim.tokens import Segments, first_tokens, num_tokens, stream_key

__all__ = ["IDLE", "EngineCore", "Scheduler"]


class RequestLike(PromptLike, Protocol):
    """What the engine reads of a request; `output` is known to the simulation, not to the scheduler."""

    @property
    def request_id(self) -> str: ...
    @property
    def arrival_time(self) -> float: ...
    @property
    def output(self) -> Segments: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def priority(self) -> int: ...


def _make_state(config: EngineConfig, kv: KVState) -> EngineState:
    n, depth = config.max_num_seqs, config.queue_depth
    cache_size = config.encoder_cache_size or config.max_num_batched_tokens
    eng = EngineState(
        kv=kv,
        scalars=_scalars(config),
        seats=np.zeros(n + 1, SEAT_DTYPE),
        batches=np.zeros(depth, BATCH_DTYPE),
        scheduled=np.zeros((depth, n), SCHEDULED_DTYPE),
        features=np.zeros(64, FEATURE_DTYPE),
        encoder_cache=np.zeros(cache_size, ENCODER_ENTRY_DTYPE),
    )
    init_encoder_cache(eng, cache_size)
    return eng


def _scalars(config: EngineConfig) -> NDArray[np.void]:
    rules = config.rules
    s = np.zeros(1, ENGINE_DTYPE)
    for name in (
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_model_len",
        "enable_chunked_prefill",
        "long_prefill_token_threshold",
        "disable_chunked_mm_input",
        "async_scheduling",
        "queue_depth",
        "num_lookahead_tokens",
        "acceptance_rate",
    ):
        s[name] = getattr(config, name)
    s["policy"] = PRIORITY if config.scheduling_policy == "priority" else FCFS
    s["full_sequence_must_fit"] = config.scheduler_reserve_full_isl and rules.full_sequence_gate
    s["max_loras"] = config.max_loras or 0
    s["num_spec_tokens"] = config.num_speculative_tokens
    s["encoder_shift"] = 1 if config.spec_method == "eagle" else 0
    s["encoder_compute_budget"] = config.encoder_budget
    s["acceptance_stream"] = stream_key("accepted drafts")
    for field, rule in (
        ("lone_request_ignores_threshold", rules.lone_request_ignores_prefill_threshold),
        ("self_preemption_continues", rules.self_preemption_continues),
        ("loras_of_all_running", rules.loras_of_all_running),
        ("blocked_encoder_input_is_skipped", rules.blocked_encoder_input_is_skipped),
        ("pads_drafts_at_admission", rules.pads_drafts_at_admission),
        ("stale_output_accounting", rules.stale_output_accounting),
        ("encoder_released_after_output", rules.encoder_released_after_output),
        ("encoder_reference_per_input", rules.encoder_reference_per_input),
        ("empty_batches_wait", rules.empty_batches_wait),
        ("stats_at_admission", rules.stats_at_admission),
        ("lookahead_slots_at_admission", rules.lookahead_slots_at_admission),
    ):
        s[field] = rule
    for field in ("waiting_head", "waiting_tail", "first_finished", "last_finished"):
        s[field] = NONE
    return s


# Entries from Python, compiled only where they are used.


@compiled
def _schedule(eng, now):
    return schedule(eng, now)


@compiled
def _update_from_output(eng, now):
    update_from_output(eng, now)


@compiled
def _launch(eng, cost, now):
    return launch(eng, cost, now)


@compiled
def _collect(eng, now, scheduled):
    return collect(eng, now, scheduled)


class Scheduler:
    """Queues, batches in flight and their KV cache manager: vLLM's `Scheduler`, told the time.

    Times are seconds.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.kv_cache_manager = KVCacheManager(config.kv_cache_config(), config.prefix_caching_hash_algo)
        self.state = _make_state(config, self.kv_cache_manager.state)
        self._features = Arena()

    @property
    def kv(self) -> KVState:
        return self.state.kv

    @property
    def requests(self) -> NDArray[np.void]:
        """Rows (REQUEST_DTYPE) of live requests, by slot."""
        return self.state.kv.requests

    @property
    def hasher(self) -> BlockHasher:
        return self.kv_cache_manager.hasher

    # ------------------------------------------------------------ requests

    def add_request(self, request: RequestLike, now: float | None = None) -> None:
        """Queue a request; its blocks are hashed here. Raises KvsimError for an id in use."""
        content = content_of(request)
        # No request grows beyond max_model_len, whatever its client and its model would say.
        whole = np.concatenate([request.prompt, request.output])
        segments = first_tokens(whole, max(self.config.max_model_len, content.num_prompt_tokens))
        num_outputs = num_tokens(request.output)
        self.add_hashed_request(
            request.request_id,
            content,
            block_hashes=self.kv_cache_manager.hash_content(segments, content),
            tokens=segments,
            max_tokens=request.max_tokens,
            stop_at=num_outputs if num_outputs < request.max_tokens else 0,
            arrival_time=request.arrival_time if now is None else now,
            lora=request.lora.int_id if request.lora else 0,
            priority=request.priority,
        )

    def add_hashed_request(
        self,
        request_id: str,
        content: BlockContent,
        *,
        block_hashes: Hashes,
        tokens: Segments | list[int],
        max_tokens: int,
        arrival_time: float,
        stop_at: int = 0,
        lora: int = 0,
        priority: int = 0,
        skip_reading_prefix_cache: bool = False,
        accept: Sequence[int] = (),
    ) -> None:
        """Queue a request whose block hashes (prompt, then output; shape (n, 2)) are known.

        stop_at: the output (1-based) that is a stop token, 0 for none. accept: accepted drafts by
        output index, cycled.
        """
        slot = self.kv_cache_manager.enter(request_id, content, block_hashes, tokens)
        self.state = self.state._replace(kv=self.kv_cache_manager.state)
        q = self.requests
        q["arrival_time"][slot], q["priority"][slot] = arrival_time, priority
        q["max_tokens"][slot], q["stop_at"][slot], q["lora"][slot] = max_tokens, stop_at, lora
        q["skip_reading_prefix_cache"][slot] = skip_reading_prefix_cache
        q["num_features"][slot], q["accept_len"][slot] = len(content.features), len(accept)
        self._store_features(slot, content.features, accept)
        add_waiting(self.state, slot)
        self.state.scalars["prompt_tokens"] += content.num_prompt_tokens

    def _store_features(self, slot: int, features: Sequence[Feature], accept: Sequence[int]) -> None:
        """Images of a request, then its acceptance pattern."""
        n = len(features) + len(accept)
        array, at = self._features.place(self.state.features, slot, n, self.requests["feature_offset"])
        if array is not self.state.features:
            self.state = self.state._replace(features=array)
        array[at : at + n] = 0
        for i, (identifier, offset, length) in enumerate(features, at):
            array["identifier"][i] = stream_key(identifier)
            array["offset"][i], array["length"][i] = offset, length
        array["accepted"][at + len(features) : at + n] = accept

    def abort_request(self, request_id: str, now: float) -> None:
        """End a request at once; unknown ids are ignored, as in vLLM."""
        slot = self.slot_of(request_id)
        if slot is not None and self.requests["status"][slot] <= RUNNING:
            abort_request(self.state, slot, now)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached blocks; refused (false) while blocks are in use, unless their owners
        are preempted first."""
        if reset_running_requests:
            preempt_running_requests(self.state)
        return self.kv_cache_manager.reset_prefix_cache()

    # ------------------------------------------------------------ steps

    def has_unscheduled_work(self) -> bool:
        """Whether the next iteration schedules: unfinished requests, or ends still to report."""
        s = self.state.scalars[0]
        return bool(s["num_running"] + s["num_waiting"] + s["finished_to_flush"])

    def has_requests(self) -> bool:
        """Whether an iteration has anything to do: requests, ends to report, output to process."""
        return self.has_unscheduled_work() or self.state.scalars["num_batches"][0] > 0

    def schedule(self, now: float = 0.0) -> int:
        """Decide the next batch; its number of tokens."""
        return int(_schedule(self.state, now))

    def update_from_output(self, now: float = 0.0) -> None:
        """Process the oldest batch in flight."""
        _update_from_output(self.state, now)

    # ------------------------------------------------------------ views

    def slot_of(self, request_id: str) -> int | None:
        """Row of a request in `requests` until its end has been collected."""
        return self.kv_cache_manager.slot_of(request_id)

    def take_finished(self) -> tuple[list[str], NDArray[np.void]]:
        """Ids and rows (REQUEST_DTYPE) of the requests that ended since the last call."""
        slots: list[int] = []
        slot = int(self.state.scalars["first_finished"][0])
        while slot != NONE:
            slots.append(slot)
            slot = int(self.requests["next_waiting"][slot])
        rows = self.requests[slots]
        self.state.scalars["first_finished"] = NONE
        for slot in slots:
            self._features.free(slot)
        return [self.kv_cache_manager.release(slot) for slot in slots], rows

    def live_requests(self) -> tuple[list[str], NDArray[np.void]]:
        """Ids and rows of the requests that have not ended, in the order of their addition."""
        slots = list(self.kv_cache_manager.live_slots())
        return [self.kv_cache_manager.name_of(slot) for slot in slots], self.requests[slots]

    def latest_batch(self) -> NDArray[np.void]:
        """Rows (SCHEDULED_DTYPE) of the batch scheduled last, in batch order."""
        s = self.state.scalars[0]
        b = (int(s["first_batch"]) + int(s["num_batches"]) - 1) % len(self.state.batches)
        return self.state.scheduled[b, : int(self.state.batches["num_reqs"][b])]

    def images_encoded_now(self, slot: int) -> list[int]:
        """Indices of a request's images that the latest step encodes."""
        first, n = int(self.requests["feature_offset"][slot]), int(self.requests["num_features"][slot])
        steps = self.state.features["scheduled_step"][first : first + n]
        return np.flatnonzero(steps == self.state.scalars["current_step"][0]).tolist()

    def take_log(self) -> NDArray[np.void]:
        """Block and request events (LOG_DTYPE) since the last call; needs `log_capacity`."""
        return self.kv_cache_manager.take_log()

    def take_events(self) -> list[KVCacheEvent]:
        """KV events since the last call; none without `log_capacity`."""
        return self.kv_cache_manager.take_events()

    def stats(self) -> dict[str, float]:
        """Totals so far, under vLLM's metric names where it has them. Tokens, blocks, seconds."""
        s, kv = self.state.scalars[0], self.kv.pool.scalars[0]
        busy = float(s["busy_time"])
        return {
            "prefix_cache_requests": int(kv["requests"]),
            "prefix_cache_queries": int(kv["queries"]),
            "prefix_cache_hits": int(kv["hits"]),
            "preempted_requests": int(kv["preempted_requests"]),
            "preempted_queries": int(kv["preempted_queries"]),
            "preempted_hits": int(kv["preempted_hits"]),
            "num_preemptions": int(s["num_preemptions"]),
            "num_recomputed_tokens": int(s["num_recomputed_tokens"]),
            "prompt_tokens": int(s["prompt_tokens"]),
            "generation_tokens": int(s["generation_tokens"]),
            "scheduled_tokens": int(s["scheduled_tokens"]),
            "encoder_tokens": int(s["encoder_tokens"]),
            "spec_decode_num_draft_tokens": int(s["num_draft_tokens"]),
            "spec_decode_num_accepted_tokens": int(s["num_accepted_tokens"]),
            "num_steps": int(s["num_steps"]),
            "busy_time": busy,
            "blocks_allocated": int(kv["num_allocated"]),
            "blocks_evicted": int(kv["num_evicted"]),
            "blocks_cached": int(kv["num_cached"]),
            "kv_cache_usage_perc": self.kv_cache_manager.usage,
            "kv_cache_usage_perc_peak": float(s["peak_usage"]),
            "kv_cache_usage_perc_mean": float(s["usage_time"]) / busy if busy else 0.0,
            "num_requests_running": int(s["num_running"]),
            "num_requests_running_peak": int(s["peak_running"]),
            "num_requests_running_mean": float(s["running_time"]) / busy if busy else 0.0,
            "num_requests_waiting": int(s["num_waiting"]),
            "num_requests_waiting_peak": int(s["peak_waiting"]),
            "num_requests_waiting_mean": float(s["waiting_time"]) / busy if busy else 0.0,
        }


class EngineCore(Scheduler):
    """A scheduler with a clock: each step is priced, and two may be in flight."""

    def __init__(self, config: EngineConfig, cost: StepCost | None = None) -> None:
        super().__init__(config)
        self._cost = np.zeros(1, COST_DTYPE) if cost is None else cost.parameters

    def step(self, now: float) -> float:
        """One iteration of the engine loop begun at `now`; when the next may begin, or IDLE (inf)."""
        return float(step(self.state, self._cost, now))

    def launch(self, now: float) -> tuple[int, bool]:
        """First half of `step`, for those who want to see a batch before its output is processed.

        (tokens of the batch, whether the next iteration begins at once: then `collect` is left out).
        """
        scheduled, goes_on = _launch(self.state, self._cost, now)
        return int(scheduled), bool(goes_on)

    def collect(self, now: float, scheduled: int) -> float:
        """Second half of `step`, after `launch` returned `scheduled`; when the next may begin, or IDLE."""
        return float(_collect(self.state, now, np.int64(scheduled)))
