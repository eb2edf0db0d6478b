"""One vLLM engine that is told the time: requests in, batches decided, records out.

The compiled modules beside this one decide everything; the class owns their arrays and gives
them names that people know.
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kvsim.addresses import address_of, words_of
from kvsim.cache.block_hasher import BlockHasher, Hashes
from kvsim.cache.events import KVCacheEvent
from kvsim.cache.hashing import BlockContent, Feature
from kvsim.cache.manager import KVCacheManager, PromptLike, content_of, new_requests
from kvsim.cache.request_table import moved_together
from kvsim.cache.state import FREE_SLOT, NONE, REASONS, REQUEST_DTYPE, RUNNING, KVState
from kvsim.compiled import compiled
from kvsim.engine.config import EngineConfig
from kvsim.engine.encoder_cache import init_encoder_cache
from kvsim.engine.handle import arrays_of
from kvsim.engine.output import abort_request, update_from_output
from kvsim.engine.scheduler import preempt_running_requests, schedule
from kvsim.engine.state import (
    BATCH_DTYPE,
    ENCODER_ENTRY_DTYPE,
    ENGINE_DTYPE,
    FCFS,
    FEATURE_DTYPE,
    PLACE_DTYPE,
    PRIORITY,
    SCHEDULED_DTYPE,
    SEAT_DTYPE,
    STEP_DTYPE,
    EngineState,
)
from kvsim.engine.step import (
    IDLE,
    NO_ROOM,
    PAUSED,
    REACHED,
    WAITING_FOR_REQUESTS,
    add_request,
    advance,
    collect,
    launch,
    take_finished,
)
from kvsim.gpu.cost import COST_DTYPE, StepCost
from kvsim.tokens import Segments, first_tokens, num_tokens, stream_key

__all__ = [
    "IDLE",
    "NO_ARRIVALS",
    "PAUSED",
    "REACHED",
    "WAITING_FOR_REQUESTS",
    "Arrivals",
    "EngineCore",
    "Scheduler",
]

MOST_STEPS = 1 << 14  # of one call: a fraction of a second


class RequestsLike(Protocol):
    """What the engine reads of many requests at once (`kvsim.workload.RequestBlock`)."""

    @property
    def segments(self) -> Segments: ...
    @property
    def bounds(self) -> NDArray[np.int64]: ...
    @property
    def arrival_times(self) -> NDArray[np.float64]: ...
    @property
    def num_prompt_tokens(self) -> NDArray[np.int64]: ...
    @property
    def num_output_tokens(self) -> NDArray[np.int64]: ...
    @property
    def max_tokens(self) -> NDArray[np.int64]: ...
    @property
    def priorities(self) -> NDArray[np.int64]: ...
    def lora_ids(self) -> list[int]: ...
    @property
    def features(self) -> Sequence[Any] | None: ...
    @property
    def loras(self) -> Sequence[Any] | None: ...
    @property
    def cache_salts(self) -> Sequence[str | None] | None: ...
    def __iter__(self) -> Iterator[PromptLike]: ...


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
        steps=np.zeros(config.step_capacity, STEP_DTYPE),
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
    s["full_sequence_must_fit"] = config.full_sequence_must_fit
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


@compiled
def _add_request(eng, new, i, hashes, features):
    return add_request(eng, new, i, hashes, features)


_image_key = lru_cache(maxsize=1 << 16)(stream_key)


def _feature_rows(requests: Sequence[tuple[Sequence[Feature], Sequence[int]]]) -> NDArray[np.void]:
    """FEATURE_DTYPE rows: images of a request, then its acceptance pattern, request by request."""
    rows = np.zeros(sum(len(images) + len(accept) for images, accept in requests), FEATURE_DTYPE)
    n = 0
    for images, accept in requests:
        for identifier, offset, length in images:
            rows["identifier"][n] = _image_key(identifier)
            rows["offset"][n], rows["length"][n] = offset, length
            n += 1
        rows["accepted"][n : n + len(accept)] = accept
        n += len(accept)
    return rows


class Arrivals(NamedTuple):
    """Requests ready to enter an engine, in order of arrival.

    rows: REQUEST_DTYPE (n,), whose offsets count in hashes (t, 2) and features (FEATURE_DTYPE).
    """

    rows: NDArray[np.void]
    hashes: Hashes
    features: NDArray[np.void]

    def followed_by(self, others: "Arrivals") -> "Arrivals":
        """These and then others."""
        if not len(self.rows):
            return others
        rows = np.concatenate([self.rows, others.rows])
        rows["hash_offset"][len(self.rows) :] += len(self.hashes)
        rows["feature_offset"][len(self.rows) :] += len(self.features)
        hashes, features = zip(self[1:], others[1:], strict=True)
        return Arrivals(rows, np.concatenate(hashes), np.concatenate(features))

    def take(self, picked: NDArray[np.int64]) -> "Arrivals":
        """Those at these places, in ascending order, with what belongs to them."""
        rows = self.rows[picked]
        hashes, rows["hash_offset"] = _ranges(self.hashes, rows["hash_offset"], rows["num_hashes"])
        counts = rows["num_features"] + rows["accept_len"]
        features, rows["feature_offset"] = _ranges(self.features, rows["feature_offset"], counts)
        return Arrivals(rows, hashes, features)


def _ranges(
    array: NDArray[Any], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Ranges of an array one after the other, and where each then begins."""
    new_starts = np.cumsum(lengths) - lengths
    return array[np.repeat(starts - new_starts, lengths) + np.arange(lengths.sum())], new_starts


NO_ARRIVALS = Arrivals(new_requests(0), np.zeros((0, 2), np.uint64), np.zeros(0, FEATURE_DTYPE))


class Window:
    """Arrivals at hand, where compiled code finds them.

    words: of their arrays (`kvsim.engine.handle.window_at`), always in the same place.
    """

    def __init__(self, arrivals: Arrivals = NO_ARRIVALS) -> None:
        self.arrivals = arrivals
        self.words = words_of(arrivals)

    def set(self, arrivals: Arrivals) -> None:
        self.arrivals = arrivals
        words_of(arrivals, self.words)

    @property
    def address(self) -> int:
        return address_of(self.words)


class Scheduler:
    """Queues, batches in flight and their KV cache manager: vLLM's `Scheduler`, told the time.

    Times are seconds.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.kv_cache_manager = KVCacheManager(config.kv_cache_config(), config.prefix_caching_hash_algo)
        self.state = _make_state(config, self.kv_cache_manager.state)

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
        row = self.kv_cache_manager.new_row(request_id, content, block_hashes)
        row["arrival_time"] = row["queued_time"] = arrival_time
        row["priority"], row["lora"] = priority, lora
        row["max_tokens"], row["stop_at"] = max_tokens, stop_at
        row["skip_reading_prefix_cache"] = skip_reading_prefix_cache
        row["num_features"], row["accept_len"] = len(content.features), len(accept)
        features = _feature_rows([(content.features, accept)])
        self.make_room(row)
        slot = int(_add_request(self.state, row, 0, block_hashes, features))
        self.kv_cache_manager.remember(request_id, slot, content, block_hashes, tokens)

    def prepare(self, requests: RequestsLike, longest: int = 0) -> Arrivals:
        """Hash and lay out many requests at once, for `EngineCore.advance`. They have numbers, no names.

        Whoever sends them gives them their `uid` (above 0, ascending, never used before in this engine) and
        `arrival_time`, and adds that to `queued_time`, which so far is what the API server takes, in seconds.
        longest: tokens of which anybody needs hashes, if that is more than this engine's max_model_len.
        """
        plain = requests.features is None and requests.loras is None and requests.cache_salts is None
        contents = None if plain else [content_of(request) for request in requests]
        most = max(self.config.max_model_len, longest)
        sizes = np.minimum(requests.num_prompt_tokens + requests.num_output_tokens, most)
        hashes, counts, fine = self.kv_cache_manager.hash_contents(
            requests.segments, requests.bounds, sizes, contents
        )
        rows = new_requests(len(sizes))
        rows["arrival_time"] = requests.arrival_times
        rows["queued_time"] = self.frontend_seconds(requests.num_prompt_tokens)
        rows["priority"] = requests.priorities
        rows["num_prompt_tokens"] = rows["num_tokens"] = requests.num_prompt_tokens
        rows["max_tokens"] = requests.max_tokens
        rows["stop_at"] = np.where(
            requests.num_output_tokens < requests.max_tokens, requests.num_output_tokens, 0
        )
        rows["num_hashes"], rows["num_hash_blocks"] = counts, fine
        rows["hash_offset"] = np.cumsum(counts) - counts
        if contents is None:
            return Arrivals(rows, hashes, NO_ARRIVALS.features)
        rows["lora"] = requests.lora_ids()
        rows["num_features"] = [len(content.features) for content in contents]
        rows["feature_offset"] = np.cumsum(rows["num_features"]) - rows["num_features"]
        return Arrivals(rows, hashes, _feature_rows([(content.features, ()) for content in contents]))

    def frontend_seconds(self, num_prompt_tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """What the API server takes for each request; none in front of a bare scheduler."""
        return np.zeros(len(num_prompt_tokens))

    def make_room(self, rows: NDArray[np.void]) -> None:
        """See to it that the first of these arrivals can enter, if not all."""
        self.kv_cache_manager.make_room(rows)
        self.state = self.state._replace(kv=self.kv_cache_manager.state)
        s, features = self.state.scalars, self.state.features
        count = int(rows["num_features"].sum() + rows["accept_len"].sum())
        if s["end_of_features"][0] + count > len(features):
            live = np.flatnonzero(self.requests["status"] != FREE_SLOT)
            starts = self.requests["feature_offset"][live]
            lengths = self.requests["num_features"][live] + self.requests["accept_len"][live]
            features, starts = moved_together(features, starts, lengths, count)
            self.requests["feature_offset"][live] = starts
            s["end_of_features"] = lengths.sum()
            self.state = self.state._replace(features=features)

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
        """Names and rows (REQUEST_DTYPE) of the requests that ended since the last call."""
        rows, slots = self._take_finished()
        return [self.kv_cache_manager.forget(slot) for slot in slots.tolist()], rows

    def take_finished_rows(self) -> NDArray[np.void]:
        """The same for requests that came by `EngineCore.advance` and have numbers (`uid`) only."""
        return self._take_finished()[0]

    def _take_finished(self) -> tuple[NDArray[np.void], NDArray[np.int64]]:
        count = int(self.state.scalars["num_finished"][0])
        rows, slots = np.empty(count, REQUEST_DTYPE), np.empty(count, np.int64)
        if count:
            take_finished(self.state, rows, slots)
        return rows, slots

    def live_requests(self) -> tuple[list[str], NDArray[np.void]]:
        """Names and rows of the requests that have not ended, in the order of their addition."""
        slots = list(self.kv_cache_manager.live_slots())
        return [self.kv_cache_manager.name_of(slot) for slot in slots], self.live_rows()

    def live_rows(self) -> NDArray[np.void]:
        """Rows of the requests that have not ended, in the order of their addition."""
        rows = self.requests[list(self.kv_cache_manager.live_slots())]
        rows["waiting_steps"][rows["status"] < RUNNING] += self.state.scalars["waiting_steps"][0]
        return rows

    def latest_batch(self) -> NDArray[np.void]:
        """Rows (SCHEDULED_DTYPE) of the batch scheduled last, in batch order."""
        s = self.state.scalars[0]
        b = (int(s["first_batch"]) + int(s["num_batches"]) - 1) % len(self.state.batches)
        return self.state.scheduled[b, : int(self.state.batches["num_reqs"][b])]

    def waiting_slots(self) -> list[tuple[int, str]]:
        """The waiting queue, head first, with the reason why each was not admitted in the latest step."""
        s, q = self.state.scalars, self.requests
        out, slot, reached = [], int(s["waiting_head"][0]), True
        while slot != NONE:
            reached = reached and slot != s["unreached"][0]
            out.append((slot, REASONS[q["waiting_reason"][slot] if reached else s["unreached_reason"][0]]))
            slot = int(q["next_waiting"][slot])
        return out

    def images_encoded_now(self, slot: int) -> list[int]:
        """Indices of a request's images that the latest step encodes."""
        first, n = int(self.requests["feature_offset"][slot]), int(self.requests["num_features"][slot])
        steps = self.state.features["scheduled_step"][first : first + n]
        return np.flatnonzero(steps == self.state.scalars["current_step"][0]).tolist()

    def take_log(self) -> NDArray[np.void]:
        """Block and request events (LOG_DTYPE) since the last call; needs `log_capacity`."""
        return self.kv_cache_manager.take_log()

    def take_steps(self, in_flight: bool = False) -> NDArray[np.void]:
        """Rows (STEP_DTYPE) of the steps whose output has been processed since the last call.

        Needs `step_capacity`. in_flight: the rest as well.
        """
        s, rows = self.state.scalars, self.state.steps
        n, batches = int(s["num_step_rows"][0]), self.state.batches
        ring = (int(s["first_batch"][0]) + np.arange(int(s["num_batches"][0]))) % len(batches)
        kept = [] if in_flight else [b for b in ring.tolist() if batches["row"][b] != NONE]
        done = rows[: n - len(kept)].copy()
        rows[: len(kept)] = rows[n - len(kept) : n].copy()
        batches["row"][ring] = NONE
        batches["row"][kept] = np.arange(len(kept))
        s["num_step_rows"] = len(kept)
        return done

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
            "num_preempted_blocks": int(s["num_preempted_blocks"]),
            "num_lost_tokens": int(s["num_lost_tokens"]),
            "num_recomputed_tokens": int(s["num_recomputed_tokens"]),
            **{
                f"waiting_steps_{name}": int(count)
                for name, count in zip(REASONS, s["waiting_request_steps"], strict=True)
            },
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
        self._frontend = None if cost is None else cost.frontend_seconds
        self.words = words_of(arrays_of(self.state, self._cost))  # always in the same place
        self.place = np.zeros(1, PLACE_DTYPE)
        self.place["next_row"] = self.place["last_row"] = NONE
        self._window = Window()  # of arrivals that nobody else deals out

    def make_room(self, rows: NDArray[np.void]) -> None:
        super().make_room(rows)
        words_of(arrays_of(self.state, self._cost), self.words)

    def frontend_seconds(self, num_prompt_tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        if self._frontend is None:
            return super().frontend_seconds(num_prompt_tokens)
        return self._frontend(num_prompt_tokens)

    def step(self, now: float) -> float:
        """One iteration of the engine loop begun at `now`; when the next may begin, or IDLE (inf)."""
        self.place["now"] = now
        why = self.advance(math.inf, most_steps=1)
        return IDLE if why == WAITING_FOR_REQUESTS else float(self.place["now"][0])

    def expect(self, arrivals: Arrivals) -> None:
        """Requests with their times, of which the last ones are still to come: the inbox for `advance`."""
        rows = arrivals.rows
        rows["next_waiting"] = np.arange(1, len(rows) + 1)
        rows["next_waiting"][-1:] = NONE
        self._window.set(arrivals)
        self.place["next_row"] = 0 if len(rows) else NONE
        self.place["last_row"] = len(rows) - 1

    def advance(self, until: float, most_steps: int = MOST_STEPS, window: Window | None = None) -> int:
        """Iterate from `place["now"]` until `until` (seconds), letting in the requests of the inbox.

        No other event may reach the engine before `until`. window: where the rows of the inbox are, if not
        `expect` has put them there. Returns why it came back: REACHED, WAITING_FOR_REQUESTS (idle), or PAUSED
        after `most_steps` iterations, or earlier for ended requests, steps or the log to be taken.
        """
        window = window or self._window
        while True:
            address, place = address_of(self.words), address_of(self.place)
            why = int(advance(address, place, window.address, until, most_steps))
            if why != NO_ROOM:
                return why
            self.make_room(window.arrivals.rows[self.place["next_row"][0] :])

    def launch(self, now: float) -> tuple[int, bool]:
        """First half of `step`, for those who want to see a batch before its output is processed.

        (tokens of the batch, whether the next iteration begins at once: then `collect` is left out).
        """
        scheduled, goes_on = _launch(self.state, self._cost, now)
        return int(scheduled), bool(goes_on)

    def collect(self, now: float, scheduled: int) -> float:
        """Second half of `step`, after `launch` returned `scheduled`; when the next may begin, or IDLE."""
        return float(_collect(self.state, now, np.int64(scheduled)))
