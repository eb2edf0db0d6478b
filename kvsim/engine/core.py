"""One vLLM engine that is told the time: requests in, batches decided, records out.

The compiled modules beside this one decide everything; the class owns their arrays and gives
them names that people know.
"""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.block_hasher import BlockHasher, Hashes, make_block_hasher
from kvsim.cache.block_pool import reset_prefix_cache
from kvsim.cache.groups import make_kv_state
from kvsim.cache.hashing import BlockContent
from kvsim.cache.kv_cache_manager import usage
from kvsim.cache.lookup import hash_index
from kvsim.cache.state import FREE_SLOT, NONE, REQUEST_DTYPE, RUNNING, WAITING, KVState
from kvsim.engine.arena import Arena
from kvsim.engine.config import EngineConfig
from kvsim.engine.encoder_cache import init_encoder_cache
from kvsim.engine.output import abort_request, update_from_output
from kvsim.engine.queues import add_waiting
from kvsim.engine.scheduler import has_requests, preempt_running_requests, schedule
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
from kvsim.engine.step import IDLE, step
from kvsim.errors import KvsimError
from kvsim.gpu.cost import COST_DTYPE, StepCost
from kvsim.tokens import Segments, num_tokens, stream_key

__all__ = ["IDLE", "EngineCore"]


class FeatureLike(Protocol):
    identifier: str
    offset: int
    length: int


class LoRALike(Protocol):
    name: str
    int_id: int
    path: str


class RequestLike(Protocol):
    """What the engine reads of a request; `output` is known to the simulation, not to the scheduler."""

    @property
    def request_id(self) -> str: ...
    @property
    def arrival_time(self) -> float: ...
    @property
    def prompt(self) -> Segments: ...
    @property
    def output(self) -> Segments: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def features(self) -> Sequence[Any]: ...
    @property
    def lora(self) -> Any: ...
    @property
    def cache_salt(self) -> str | None: ...
    @property
    def priority(self) -> int: ...


def _make_state(config: EngineConfig) -> EngineState:
    n, depth = config.max_num_seqs, config.queue_depth
    cache_size = config.encoder_cache_size or config.max_num_batched_tokens
    eng = EngineState(
        kv=make_kv_state(config.kv_cache_config()),
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
        ("caches_accepted_in_update", rules.caches_accepted_tokens_in_update),
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


class EngineCore:
    """A scheduler, its KV cache manager and the step clock of one engine.

    `step(now)` runs one iteration of the engine loop; `schedule` and `update_from_output` are its
    halves, for those who want to look in between. Times are seconds.
    """

    def __init__(self, config: EngineConfig, cost: StepCost | None = None) -> None:
        self.config = config
        kv = config.kv_cache_config()
        self.hasher: BlockHasher = make_block_hasher(
            config.prefix_caching_hash_algo,
            kv.hash_block_size,
            config.rules,
            config.num_hash_lookahead_tokens,
            kv.coarse_scales,
        )
        self.state = _make_state(config)
        self._cost = np.zeros(1, COST_DTYPE) if cost is None else cost.parameters
        self._ids: dict[str, int] = {}  # live requests -> slot
        self._names: dict[int, str] = {}  # slot -> request id
        self._free_slots = list(range(len(self.requests) - 1, -1, -1))
        self._next_uid = 1
        self._hashes = Arena("block_hashes")
        self._features = Arena("features")

    @property
    def kv(self) -> KVState:
        return self.state.kv

    @property
    def requests(self) -> NDArray[np.void]:
        return self.state.kv.requests

    # ------------------------------------------------------------ requests

    def add_request(self, request: RequestLike, now: float | None = None) -> None:
        """Queue a request; its blocks are hashed here. Raises KvsimError for an id in use."""
        hashes = np.empty((0, 2), np.uint64)
        if self.config.enable_prefix_caching:
            content = BlockContent(
                num_tokens(request.prompt),
                tuple((f.identifier, f.offset, f.length) for f in request.features),
                (request.lora.name, request.lora.path) if request.lora else None,
                request.cache_salt,
            )
            hashes = self.hasher(np.concatenate([request.prompt, request.output]), content)
        num_outputs = num_tokens(request.output)
        self.add_hashed_request(
            request.request_id,
            num_prompt_tokens=num_tokens(request.prompt),
            max_tokens=request.max_tokens,
            stop_at=num_outputs if num_outputs < request.max_tokens else 0,
            block_hashes=hashes,
            arrival_time=request.arrival_time if now is None else now,
            features=request.features,
            lora=request.lora.int_id if request.lora else 0,
            priority=request.priority,
        )

    def add_hashed_request(
        self,
        request_id: str,
        *,
        num_prompt_tokens: int,
        max_tokens: int,
        block_hashes: Hashes,
        arrival_time: float,
        stop_at: int = 0,
        features: Sequence[FeatureLike] = (),
        lora: int = 0,
        priority: int = 0,
        skip_reading_prefix_cache: bool = False,
        accept: Sequence[int] = (),
    ) -> None:
        """Queue a request whose block hashes (prompt, then output; shape (n, 2)) are known.

        stop_at: the output (1-based) that is a stop token, 0 for none. accept: accepted drafts by
        output index, cycled.
        """
        if request_id in self._ids:
            raise KvsimError(f"request id {request_id!r} is in use")
        slot = self._take_slot(request_id)
        row = np.zeros((), REQUEST_DTYPE)
        row["uid"] = self._next_uid
        row["arrival_time"] = arrival_time
        row["priority"] = priority
        row["num_hash_blocks"] = self._num_fine(len(block_hashes))
        row["num_features"] = len(features)
        row["accept_len"] = len(accept)
        row["status"] = WAITING
        row["num_prompt_tokens"] = row["num_tokens"] = num_prompt_tokens
        row["max_tokens"] = max_tokens
        row["stop_at"] = stop_at
        row["lora"] = lora
        row["row"] = row["prev_waiting"] = row["next_waiting"] = NONE
        row["skip_reading_prefix_cache"] = skip_reading_prefix_cache
        row["num_cached_tokens"] = NONE
        row["first_scheduled_time"] = row["first_token_time"] = row["finish_time"] = math.nan
        row["last_token_time"] = math.nan
        self.requests[slot] = row
        self._next_uid += 1
        self._store_hashes(slot, block_hashes)
        self._store_features(slot, features, accept)
        add_waiting(self.state, slot)
        self.state.scalars["prompt_tokens"] += num_prompt_tokens

    def _num_fine(self, n: int) -> int:
        """Fine hashes among `n` keys of a request, coarser groups' keys (0.16) set apart."""
        if not self.kv.pool.scalars["concatenated_hashes"][0]:
            return n
        scales = self.config.kv_cache_config().coarse_scales
        fine = n
        while fine + sum(fine // scale for scale in scales) > n:
            fine -= 1
        return fine

    def abort_request(self, request_id: str, now: float) -> None:
        """End a request at once; unknown ids are ignored, as in vLLM."""
        slot = self._ids.get(request_id)
        if slot is not None and self.requests["status"][slot] <= RUNNING:
            abort_request(self.state, slot, now)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached blocks; refused (false) while blocks are in use, unless their owners
        are preempted first."""
        if reset_running_requests:
            preempt_running_requests(self.state)
        return bool(reset_prefix_cache(self.kv.pool))

    # ------------------------------------------------------------ steps

    def has_unscheduled_work(self) -> bool:
        """Whether the next iteration schedules: unfinished requests, or ends still to report."""
        return bool(has_requests(self.state))

    def has_requests(self) -> bool:
        """Whether an iteration has anything to do: requests, ends to report, output to process."""
        return bool(has_requests(self.state)) or self.state.scalars["num_batches"][0] > 0

    def step(self, now: float) -> float:
        """One engine iteration begun at `now`; when the next may begin, or IDLE (inf)."""
        return float(step(self.state, self._cost, now))

    def schedule(self, now: float = 0.0) -> int:
        """Decide the next batch; its number of tokens."""
        return int(schedule(self.state, now))

    def update_from_output(self, now: float = 0.0) -> None:
        """Process the oldest batch in flight."""
        update_from_output(self.state, now)

    # ------------------------------------------------------------ records

    def take_finished(self) -> tuple[list[str], NDArray[np.void]]:
        """Ids and rows (REQUEST_DTYPE) of the requests that ended since the last call."""
        slots = []
        slot = int(self.state.scalars["first_finished"][0])
        while slot != NONE:
            slots.append(slot)
            slot = int(self.requests["next_waiting"][slot])
        rows = self.requests[slots]
        names = [self._release(slot) for slot in slots]
        self.state.scalars["first_finished"] = NONE
        return names, rows

    def slot_of(self, request_id: str) -> int | None:
        """Row of a request in `requests` until its end has been collected."""
        return self._ids.get(request_id)

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

    def block_hash(self, slot: int, group_id: int, block_index: int) -> tuple[int, int]:
        """128-bit hash of one of a request's blocks, in the block size of a group."""
        at = int(hash_index(self.kv, slot, group_id, block_index))
        return int(self.kv.block_hashes[at, 0]), int(self.kv.block_hashes[at, 1])

    def take_log(self) -> NDArray[np.void]:
        """Block and request events (LOG_DTYPE) since the last call; needs `log_capacity`."""
        pool = self.kv.pool
        n, lost = int(pool.scalars["log_len"][0]), int(pool.scalars["log_lost"][0])
        if lost:
            raise RuntimeError(f"log_capacity {len(pool.log)} is too small: {lost} events were lost")
        pool.scalars["log_len"] = 0
        return pool.log[:n].copy()

    def live_requests(self) -> tuple[list[str], NDArray[np.void]]:
        """Ids and rows of the requests that have not ended, in the order of their addition."""
        slots = sorted(self._ids.values(), key=lambda slot: self.requests["uid"][slot])
        slots = [slot for slot in slots if self.requests["status"][slot] <= RUNNING]
        return [self._names[slot] for slot in slots], self.requests[slots]

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
            "kv_cache_usage_perc": float(usage(self.kv)),
            "kv_cache_usage_perc_peak": float(s["peak_usage"]),
            "kv_cache_usage_perc_mean": float(s["usage_time"]) / busy if busy else 0.0,
            "num_requests_running": int(s["num_running"]),
            "num_requests_running_peak": int(s["peak_running"]),
            "num_requests_running_mean": float(s["running_time"]) / busy if busy else 0.0,
            "num_requests_waiting": int(s["num_waiting"]),
            "num_requests_waiting_peak": int(s["peak_waiting"]),
            "num_requests_waiting_mean": float(s["waiting_time"]) / busy if busy else 0.0,
        }

    # ------------------------------------------------------------ memory of live requests

    def _take_slot(self, request_id: str) -> int:
        if not self._free_slots:
            self._grow_slots()
        slot = self._free_slots.pop()
        self._ids[request_id] = slot
        self._names[slot] = request_id
        return slot

    def _grow_slots(self) -> None:
        n = len(self.requests)
        requests = np.concatenate([self.requests, np.zeros(n, REQUEST_DTYPE)])
        self.state = self.state._replace(kv=self.kv._replace(requests=requests))
        self._free_slots.extend(range(2 * n - 1, n - 1, -1))

    def _release(self, slot: int) -> str:
        self._hashes.free(slot)
        self._features.free(slot)
        self.requests["status"][slot] = FREE_SLOT
        self._free_slots.append(slot)
        name = self._names.pop(slot)
        self._ids.pop(name, None)
        return name

    def _store_hashes(self, slot: int, block_hashes: Hashes) -> None:
        array, offset = self._hashes.place(
            self.kv.block_hashes, slot, len(block_hashes), self.requests["hash_offset"]
        )
        if array is not self.kv.block_hashes:
            self.state = self.state._replace(kv=self.kv._replace(block_hashes=array))
        array[offset : offset + len(block_hashes)] = block_hashes

    def _store_features(self, slot: int, features: Sequence[FeatureLike], accept: Sequence[int]) -> None:
        """Images of a request, then its acceptance pattern."""
        n = len(features)
        array, offset = self._features.place(
            self.state.features, slot, n + len(accept), self.requests["feature_offset"]
        )
        if array is not self.state.features:
            self.state = self.state._replace(features=array)
        array[offset : offset + n + len(accept)] = 0
        for i, feature in enumerate(features, offset):
            array["identifier"][i] = stream_key(feature.identifier)
            array["offset"][i], array["length"][i] = feature.offset, feature.length
        array["accepted"][offset + n : offset + n + len(accept)] = accept
