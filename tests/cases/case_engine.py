"""Runs the requests of a case on kvsim's engine, synchronously, and notes all that a case may expect."""

from collections import Counter
from dataclasses import dataclass, field, fields

import numpy as np
from case_forms import DEFAULTS, STUCK, WITHOUT_EFFECT, Case, CaseRequest, is_together

from kvsim.cache.hashing import BlockContent
from kvsim.cache.state import LOG_PREEMPTED, NONE
from kvsim.engine.config import EngineConfig
from kvsim.engine.core import EngineCore
from kvsim.engine.state import NEW, RESUMED
from kvsim.gpu.cases import observe_capacity
from kvsim.results import CachingMetrics

# Drafters with KV of their own look ahead, the others find their drafts in the text.
DRAFTERS = {**dict.fromkeys(("eagle", "eagle3", "mtp"), "eagle"), "ngram": "ngram", "suffix": "ngram"}


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
    unknown = flags.keys() - {f.name for f in fields(EngineConfig)}
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
    return {
        "spec_method": DRAFTERS[entry["method"]],
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
        for group in [requests] if together else [[request] for request in requests]:
            for request in group:
                self._add(request)
            self._run_to_end()

    def _run_to_end(self) -> None:
        idle = 0
        while self.core.live_requests()[0] and idle < STUCK:
            idle = 0 if self._step() else idle + 1

    def _add(self, request: CaseRequest) -> None:
        core, config, lora = self.core, self.core.config, request.lora
        assert request.num_prompt_tokens < config.max_model_len, f"{request.id}: longer than max_model_len"
        adapter = (str(lora["name"]), str(lora["path"])) if lora else None
        content = BlockContent(request.num_prompt_tokens, request.features, adapter, request.cache_salt)
        hashes = np.empty((0, 2), np.uint64)
        if config.enable_prefix_caching:
            hashes = core.hasher.hash_tokens(request.tokens, content)
        core.add_hashed_request(
            request.id,
            content,
            block_hashes=hashes,
            tokens=request.tokens,
            max_tokens=request.max_tokens,
            arrival_time=float(len(self._names)),
            lora=self._loras.setdefault(adapter[0], len(self._loras) + 1) if adapter else 0,
            priority=request.priority,
            # vLLM v1/request.py: logprobs of all prompt positions are wanted, so none may hit.
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
        queues = {"running": self._named(running), "waiting": self._named(waiting)}
        self.seen.queues.append({**queues, "finished": list(self._finished)})
        self.seen.usage.append(self.core.stats()["kv_cache_usage_perc"])

    def _named(self, slots: list[int]) -> list[str]:
        return [self.core.kv_cache_manager.name_of(int(slot)) for slot in slots]

    def observed(self) -> Case:
        """Every figure that a case may expect, by the names of the case format."""
        pool, stats, seen = self.core.kv.pool, self.core.stats(), self.seen
        requests = seen.prompt_tokens
        queries, hits = int(stats["prefix_cache_queries"]), int(stats["prefix_cache_hits"])
        entries = pool.entries[: self.core.config.num_gpu_blocks]
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
            "hashed_blocks": int((entries["hash_num_tokens"] > 0).sum()),
            "num_gpu_blocks": self.core.config.num_gpu_blocks,
        }


def run_requests(case: Case, requests: list[CaseRequest]) -> Case:
    return EngineRun(engine_config(case, requests), requests, is_together(case)).observed()
