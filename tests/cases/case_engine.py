"""Runs the requests of a case on kvsim's engine, synchronously, and notes all that a case may expect."""

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from case_prompts import Prompts

from kvsim.cache.hashing import BlockContent
from kvsim.cache.state import LOG_PREEMPTED, NONE
from kvsim.engine.config import EngineConfig
from kvsim.engine.core import EngineCore
from kvsim.engine.state import NEW, RESUMED
from kvsim.gpu.cases import observe_capacity
from kvsim.results import CachingMetrics

Case = dict[str, Any]

DEFAULTS = {
    "block_size": 16,
    "max_model_len": 8192,
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 128,
    "num_gpu_blocks": 10_000,
    "prefix_caching_hash_algo": "sha256",
}
WITHOUT_EFFECT = {"kv_cache_dtype", "gpu_memory_utilization", "tensor_parallel_size", "dtype", "seed"}
DRAFT_HEADS = ("eagle", "eagle3", "mtp")
REQUEST_KEYS = {"id", "prompt", "max_tokens", "cache_salt", "lora", "priority", "prompt_logprobs"}
STUCK = 8  # steps in a row that schedule nothing: it will never go on


@dataclass
class CaseRequest:
    id: str
    tokens: list[int]
    num_prompt_tokens: int
    features: tuple[tuple[str, int, int], ...] = ()
    cache_salt: str | None = None
    lora: dict[str, Any] | None = None
    priority: int = 0
    prompt_logprobs: int | None = None

    @property
    def content(self) -> BlockContent:
        lora = (str(self.lora["name"]), str(self.lora["path"])) if self.lora else None
        return BlockContent(self.num_prompt_tokens, self.features, lora, self.cache_salt)


def read_request(entry: Case, prompts: Prompts) -> CaseRequest:
    unknown = entry.keys() - REQUEST_KEYS
    assert not unknown, f"request {entry.get('id')}: unknown {sorted(unknown)}"
    tokens, features = prompts.prompt(entry["prompt"])
    output = prompts.output(str(entry["id"]), entry.get("max_tokens", 1))
    rest = {key: entry[key] for key in ("cache_salt", "lora", "priority", "prompt_logprobs") if key in entry}
    return CaseRequest(str(entry["id"]), tokens + output, len(tokens), features, **rest)


def engine_config(case: Case, requests: list[CaseRequest]) -> EngineConfig:
    """The engine of a case: its flags over the defaults; AssertionError for one that is not known."""
    flags = {key: value for key, value in case.get("engine", {}).items() if key not in WITHOUT_EFFECT}
    override = flags.pop("num_gpu_blocks_override", None)
    if override:
        flags["num_gpu_blocks"] = override
    elif "available_kv_cache_bytes" in case:
        flags["num_gpu_blocks"] = observe_capacity(case)["num_gpu_blocks"]
    flags |= _speculative(flags.pop("speculative", None))
    assert not flags.get("async_scheduling"), "engine cases run with synchronous scheduling"
    known = {f.name for f in fields(EngineConfig)}
    unknown = flags.keys() - known
    assert not unknown, f"engine: unknown flags {sorted(unknown)}"
    # No encoder budget: it moves chunk borders and would hide what the case is about.
    images = sum(length for request in requests for _, _, length in request.features)
    flags = {
        **DEFAULTS,
        "encoder_compute_budget": images + 1,
        "encoder_cache_size": images + 1,
        "vllm_version": str(case.get("vllm_version", "0.33")),
        **flags,
    }
    return EngineConfig(**{**flags, "async_scheduling": False, "log_capacity": 1 << 17})


def _speculative(entry: Case | None) -> Case:
    if not entry:
        return {}
    unknown = entry.keys() - {"method", "num_speculative_tokens", "lookahead_block_hashes"}
    assert not unknown, f"speculative: unknown {sorted(unknown)}"
    method = "eagle" if entry["method"] in DRAFT_HEADS else entry["method"]
    return {
        "spec_method": method,
        "num_speculative_tokens": entry["num_speculative_tokens"],
        "disable_lookahead_block_hashes": not entry.get("lookahead_block_hashes", True),
    }


@dataclass
class Observed:
    """What a run showed, by request and by step (1-based)."""

    prompt_tokens: dict[str, int] = field(default_factory=dict)
    cached_tokens: dict[str, int] = field(default_factory=dict)
    admitted_in_step: dict[str, int] = field(default_factory=dict)
    num_preemptions: Counter[str] = field(default_factory=Counter)
    resumed: dict[str, Case] = field(default_factory=dict)
    queues: list[Case] = field(default_factory=list)  # after each step
    usage: list[float] = field(default_factory=list)
    kv_events: Counter[str] = field(default_factory=Counter)


class EngineRun:
    """All requests of a case, one after the other or together, on one cold engine."""

    def __init__(self, config: EngineConfig, requests: list[CaseRequest], together: bool) -> None:
        self.core = EngineCore(config)
        self.seen = Observed()
        self.recent = CachingMetrics()
        self._names: dict[int, str] = {}
        self._loras: dict[str, int] = {}
        self._finished: list[str] = []
        self._run([requests] if together else [[request] for request in requests])

    def _run(self, groups: list[list[CaseRequest]]) -> None:
        for group in groups:
            for request in group:
                self._add(request)
            idle = 0
            while self.core.live_requests()[0] and idle < STUCK:
                idle = 0 if self._step() else idle + 1

    def _add(self, request: CaseRequest) -> None:
        core, config = self.core, self.core.config
        assert request.num_prompt_tokens < config.max_model_len, f"{request.id}: longer than max_model_len"
        hashes = np.empty((0, 2), np.uint64)
        if config.enable_prefix_caching:
            hashes = core.hasher.hash_tokens(request.tokens, request.content)
        name = request.lora["name"] if request.lora else None
        core.add_hashed_request(
            request.id,
            request.content,
            block_hashes=hashes,
            tokens=request.tokens,
            max_tokens=len(request.tokens) - request.num_prompt_tokens,
            arrival_time=float(len(self._names)),
            lora=self._loras.setdefault(name, len(self._loras) + 1) if name else 0,
            priority=request.priority,
            # vLLM v1/request.py: the logits of all prompt positions are wanted, so none may hit.
            skip_reading_prefix_cache=request.prompt_logprobs is not None,
            accept=[0] if config.spec_method else (),
        )
        self._names[int(core.requests["uid"][core.slot_of(request.id)])] = request.id
        self.seen.prompt_tokens[request.id] = request.num_prompt_tokens
        self.seen.num_preemptions[request.id] = 0

    def _step(self) -> int:
        before = self.core.stats()
        tokens = self.core.schedule()
        for entry in self.core.latest_batch():
            self._note_admission(entry)
        self._note_lookups(before)
        self.core.update_from_output()
        self._note_log()
        self._finished += self.core.take_finished()[0]
        self._note_state()
        return tokens

    def _note_admission(self, entry: np.void) -> None:
        name, hit = self._names[int(entry["uid"])], int(entry["num_computed_tokens"])
        if entry["origin"] == NEW:
            self.seen.cached_tokens[name] = hit
            self.seen.admitted_in_step[name] = len(self.seen.usage) + 1
        elif entry["origin"] == RESUMED:
            length = int(self.core.requests["num_tokens"][entry["request"]])
            self.seen.resumed[name] = {"num_tokens": length, "cached_tokens": hit}

    def _note_lookups(self, before: dict[str, float]) -> None:
        after = self.core.stats()
        names = ("prefix_cache_requests", "prefix_cache_queries", "prefix_cache_hits")
        self.recent.observe(*(int(after[name] - before[name]) for name in names))

    def _note_log(self) -> None:
        log = self.core.take_log()
        for entry in log[log["kind"] == LOG_PREEMPTED]:
            self.seen.num_preemptions[self._names[int(entry["request"])]] += 1
        reader = self.core.kv_cache_manager.reader
        assert reader is not None
        self.seen.kv_events.update(type(event).__name__ for event in reader.read(log))

    def _note_state(self) -> None:
        state = self.core.state
        running = state.seats["running"][: state.scalars["num_running"][0]]
        waiting, slot = [], state.scalars["waiting_head"][0]
        while slot != NONE:
            waiting.append(slot)
            slot = self.core.requests["next_waiting"][slot]
        name_of = self.core.kv_cache_manager.name_of
        queues = {
            "running": [name_of(int(r)) for r in running],
            "waiting": [name_of(int(r)) for r in waiting],
        }
        self.seen.queues.append({**queues, "finished": list(self._finished)})
        self.seen.usage.append(self.core.stats()["kv_cache_usage_perc"])

    def observed(self) -> Case:
        """Every figure that a case may expect, by the names of the case format."""
        pool, stats, seen = self.core.kv.pool, self.core.stats(), self.seen
        requests = seen.prompt_tokens
        queries, hits = int(stats["prefix_cache_queries"]), int(stats["prefix_cache_hits"])
        blocks = pool.blocks[: self.core.config.num_gpu_blocks]
        return {
            "prompt_tokens": requests,
            "cached_tokens": {name: seen.cached_tokens.get(name) for name in requests},
            "admitted_in_step": {name: seen.admitted_in_step.get(name) for name in requests},
            "num_preemptions": dict(seen.num_preemptions),
            "resumed": seen.resumed,
            "prefix_cache_queries": queries,
            "prefix_cache_hits": hits,
            "hit_rate_cumulative": hits / queries if queries else 0.0,
            "hit_rate_last_1000_requests": self.recent.hit_rate,
            "steps": len(seen.usage),
            "queues": seen.queues,
            "usage": seen.usage,
            "kv_cache_usage_at_end": stats["kv_cache_usage_perc"],
            "kv_events": {"BlockStored": 0, "BlockRemoved": 0, "AllBlocksCleared": 0, **seen.kv_events},
            "distinct_hashes": int(pool.scalars["num_cached_keys"][0]),
            "hashed_blocks": int((blocks["hash_num_tokens"] > 0).sum()),
            "num_gpu_blocks": self.core.config.num_gpu_blocks,
        }


def run_requests(case: Case, requests: list[CaseRequest]) -> Case:
    send = case.get("send", "sequential")
    assert send in ("sequential", "together"), f"send: {send!r}"
    return EngineRun(engine_config(case, requests), requests, send == "together").observed()


def observe_lookups(lookups: list[Case]) -> Case:
    """The hit-rate metric alone, fed with `count` requests of the same size each."""
    metrics = CachingMetrics()
    queries = hits = 0
    for entry in lookups:
        unknown = entry.keys() - {"count", "query_tokens", "hit_tokens"}
        assert not unknown, f"lookups: unknown {sorted(unknown)}"
        for _ in range(entry.get("count", 1)):
            metrics.observe(1, entry["query_tokens"], entry["hit_tokens"])
            queries, hits = queries + entry["query_tokens"], hits + entry["hit_tokens"]
    return {
        "hit_rate_last_1000_requests": metrics.hit_rate,
        "hit_rate_cumulative": hits / queries if queries else 0.0,
        "prefix_cache_queries": queries,
        "prefix_cache_hits": hits,
    }


def observe_engine(case: Case) -> Case:
    """One variant of kind engine, in whichever of its forms."""
    if "lookups" in case:
        return observe_lookups(case["lookups"])
    if "prompts_sent_twice" in case:
        return {"second_cached_tokens": _second_hits(case)}
    requests = case["requests"]
    if not isinstance(requests, dict):
        prompts = Prompts()
        return run_requests(case, [read_request(entry, prompts) for entry in requests])
    return _rounds(case, requests)


def _rounds(case: Case, form: Case) -> Case:
    """`requests: {repeat, each}`: all prompts in turn, `repeat` rounds."""
    shared = {key: value for key, value in form.items() if key not in ("repeat", "each")}
    each = [entry if isinstance(entry, dict) else {"prompt": entry} for entry in form["each"]]
    prompts = Prompts()
    requests = [
        read_request({**shared, **entry, "id": f"{entry.get('id', i)}.{round_}"}, prompts)
        for round_ in range(1, form["repeat"] + 1)
        for i, entry in enumerate(each)
    ]
    seen = run_requests(case, requests)
    later = list(seen["cached_tokens"].values())[len(each) :]
    return {**seen, "cached_tokens_after_round_1": later}


def _second_hits(case: Case) -> dict[str, int]:
    """By prompt length: what the second sending of a fresh prompt hits, on a cold engine each."""
    hits = {}
    for length in case["prompts_sent_twice"]:
        prompts = Prompts()
        twice = [read_request({"id": name, "prompt": f"P:{length}"}, prompts) for name in ("first", "second")]
        hits[str(length)] = run_requests({**case, "send": "sequential"}, twice)["cached_tokens"]["second"]
    return hits
