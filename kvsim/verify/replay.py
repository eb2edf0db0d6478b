"""Replay a conformance scenario through kvsim's core and describe every step as the recorder does."""

import hashlib
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from kvsim.cache.block_hasher import VllmBlockHasher
from kvsim.cache.block_map import oldest_entries
from kvsim.cache.events import AllBlocksCleared, BlockRemoved, KVCacheEvent
from kvsim.cache.free_queue import free_queue
from kvsim.cache.hashing import BlockContent, make_block_hash_with_group_id
from kvsim.cache.state import (
    LOG_EVICTED,
    LOG_FINISHED,
    LOG_LOOKUP,
    LOG_PREEMPTED,
    NONE,
    RUNNING,
    STATUS_NAMES,
)
from kvsim.engine.config import EngineConfig
from kvsim.engine.core import Scheduler
from kvsim.engine.state import CONTINUED, NEW, RESUMED
from kvsim.verify.scenario import Scenario, num_accepted, output_token

Record = dict[str, Any]

MAX_STEPS = 20_000
IDLE_LIMIT = 8
_ORIGINS: dict[int, str] = {int(NEW): "new", int(RESUMED): "resumed", int(CONTINUED): "running"}
_STATS = ("requests", "queries", "hits", "preempted_requests", "preempted_queries", "preempted_hits")


def sha16(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def ranges(values: list[int]) -> list[list[int]]:
    """Run-length form: [[start, length], ...]."""
    out: list[list[int]] = []
    for value in values:
        if out and value == sum(out[-1]):
            out[-1][1] += 1
        else:
            out.append([value, 1])
    return out


class Replay:
    """One scenario on one engine; iterate to get the trace lines after the header."""

    def __init__(self, scenario: Scenario, config: EngineConfig, none_hash: bytes) -> None:
        self.scenario, self.config = scenario, config
        self.core = Scheduler(config)
        self.kv_config = config.kv_cache_config()
        assert isinstance(self.core.hasher, VllmBlockHasher)
        self.hasher = self.core.hasher
        self.hasher.root = none_hash
        assert self.core.kv_cache_manager.reader is not None
        self.reader = self.core.kv_cache_manager.reader
        self.names: dict[int, str] = {}  # uid -> request id
        self.in_flight: deque[Record] = deque()
        self.totals: Counter[str] = Counter()
        self.last_stats = dict.fromkeys(_STATS, 0)
        self._num_known_blocks: dict[tuple[int, int], int] = {}  # by uid and group
        self.was_reset = False
        self.new_rules = config.rules.events_carry_group

    # ------------------------------------------------------------ requests

    def _content(self, request: Record) -> BlockContent:
        lora = request["lora"]
        return BlockContent(
            len(request["prompt_token_ids"]),
            tuple((m["id"], m["offset"], m["length"]) for m in request["mm"]),
            (lora["name"], lora["path"]) if lora else None,
            request["salt"],
        )

    def add(self, request: Record) -> None:
        outputs = [output_token(request, i) for i in range(request["max_tokens"])]
        tokens = request["prompt_token_ids"] + outputs
        hashes = np.empty((0, 2), np.uint64)
        if self.config.enable_prefix_caching:
            hashes = self.hasher.hash_tokens(tokens, self._content(request))
        self.core.add_hashed_request(
            request["id"],
            self._content(request),
            block_hashes=hashes,
            tokens=tokens,
            max_tokens=request["max_tokens"],
            arrival_time=request["arrival_time"],
            stop_at=request["stop_at"] or 0,
            lora=request["lora"]["id"] if request["lora"] else 0,
            priority=request["priority"],
            skip_reading_prefix_cache=bool(request["skip_reading_prefix_cache"]),
            accept=request["accept"],
        )
        slot = self.core.slot_of(request["id"])
        assert slot is not None
        self.names[int(self.core.requests["uid"][slot])] = request["id"]

    # ------------------------------------------------------------ events and pool

    def _event(self, event: KVCacheEvent) -> Record:
        """An event in the recorder's form."""
        if isinstance(event, AllBlocksCleared):
            return {"cleared": True}
        group = {"group": event.group_idx} if self.new_rules else {}
        hashes = [f"{h:016x}" for h in event.block_hashes]
        if isinstance(event, BlockRemoved):
            return {"removed": hashes, **group}
        parent = event.parent_block_hash
        extras: Any = event.extra_keys and [
            keys and [_listed(key) for key in keys] for keys in event.extra_keys
        ]
        return {
            "stored": hashes,
            "parent": None if parent is None else f"{parent:016x}",
            **group,
            "block_size": event.block_size,
            "n_tokens": len(event.token_ids),
            "tokens_sha": sha16(",".join(map(str, event.token_ids))),
            **({"extra": extras} if self.new_rules else {}),
            "lora": event.lora_name,
        }

    def _cache_digest(self) -> tuple[int, str]:
        pool = self.core.kv.pool
        entries = pool.entries
        lines = []
        for e in oldest_entries(pool):
            digest = self.reader.digest(entries["hash_lo"][e], entries["hash_hi"][e])
            key = make_block_hash_with_group_id(digest, int(entries["group_id"][e]))
            ids, same = [], e
            while same != NONE:
                ids.append(int(entries["block_id"][same]))
                same = int(entries["newer"][same])
            lines.append(f"{key.hex()}={','.join(map(str, ids))}")
        return int(pool.scalars["num_cached_keys"][0]), sha16("\n".join(sorted(lines)))

    def _waiting(self) -> list[str]:
        requests, out = self.core.requests, []
        r = int(self.core.state.scalars["waiting_head"][0])
        while r != NONE:
            out.append(self.names[int(requests["uid"][r])])
            r = int(requests["next_waiting"][r])
        return out

    def _phase(self, log: np.ndarray, *, events: bool = True) -> Record:
        """Pool and queues after a phase, and what the phase did to blocks."""
        pool, state = self.core.kv.pool, self.core.state
        queue = free_queue(pool)
        cached, cache_sha = self._cache_digest()
        running = state.seats["running"][: state.scalars["num_running"][0]]
        record: Record = {
            "free": int(pool.scalars["num_free_blocks"][0]),
            "cached": cached,
            "cache_sha": cache_sha,
            "running": [self.names[int(self.core.requests["uid"][r])] for r in running],
            "waiting": self._waiting(),
            "evicted": [int(e["first"]) for e in log if e["kind"] == LOG_EVICTED],
        }
        if self.scenario.trace.get("free_queue", True):
            record["queue"] = queue
        else:
            record["queue_sha"] = sha16(",".join(map(str, queue)))
        if self.scenario.trace.get("events", True):
            read = self.reader.read(log)
            record["events"] = [self._event(e) for e in read] if events else []
        return record

    def _named(self, log: np.ndarray, kind: np.int64) -> list[str]:
        return [self.names[int(e["request"])] for e in log if e["kind"] == kind]

    def _finished(self, log: np.ndarray) -> list[list[Any]]:
        out = []
        for e in log:
            if e["kind"] == LOG_FINISHED:
                row = self.core.requests[int(e["first"])]
                outputs = int(row["num_tokens"]) - int(row["num_prompt_tokens"])
                out.append(
                    [
                        self.names[int(e["request"])],
                        STATUS_NAMES[int(e["last"])],
                        int(row["num_tokens"]),
                        outputs,
                    ]
                )
        return out

    # ------------------------------------------------------------ phases

    def before(self, t: int, arrivals: list[Record], aborts: list[str], actions: list[Record]) -> Record:
        done: list[list[Any]] = []
        for request in arrivals:
            self.add(request)
            done.append(["add", request["id"]])
        for name in aborts:
            self.core.abort_request(name, float(t))
            done.append(["abort", name])
        for action in actions:
            ok = self.core.reset_prefix_cache(bool(action.get("running")))
            self.was_reset |= ok
            done.append(["reset_prefix_cache", ok])
        log = self.core.take_log()
        record = {
            "actions": done,
            "finished": self._finished(log),
            "preempted": self._named(log, LOG_PREEMPTED),
            **self._phase(log),
        }
        self.core.take_finished()
        return record

    def _take_stats(self) -> Record:
        now = {name: int(self.core.kv.pool.scalars[name][0]) for name in _STATS}
        delta: Record = {name: now[name] - self.last_stats[name] for name in _STATS}
        self.last_stats = now
        delta = {name: value for name, value in delta.items() if value}
        self.totals.update(delta)
        if self.was_reset:
            delta["reset"] = True
            self.was_reset = False
        return delta

    def _scheduled(self, entry: np.void) -> Record:
        kv, slot = self.core.kv, int(entry["request"])
        row = int(kv.requests["row"][slot])
        computed, n = int(entry["num_computed_tokens"]), int(entry["num_scheduled_tokens"])
        sizes = self.kv_config.group_block_sizes
        tables, new_blocks = [], []
        for g in range(len(sizes)):
            key = int(entry["uid"]), g
            tables.append(kv.block_tables[row, g, : kv.rows["num_blocks"][row, g]].tolist())
            known = self._num_known_blocks.get(key, 0) if entry["origin"] == CONTINUED else 0
            new_blocks.append(tables[g][known:])
            self._num_known_blocks[key] = len(tables[g])
        record: Record = {
            "id": self.names[int(entry["uid"])],
            "state": _ORIGINS[int(entry["origin"])],
            "computed": computed,
            "n": n,
            "new_blocks": new_blocks,
            "slots": [
                ranges([t[p // size] * size + p % size for p in range(computed, computed + n)])
                for t, size in zip(tables, sizes, strict=True)
            ],
            "samples": bool(entry["samples"]),
        }
        if entry["origin"] != CONTINUED:
            record["hit"] = computed
            if kv.requests["shared_prefix_boundary"][slot]:
                record["junction"] = int(kv.requests["shared_prefix_boundary"][slot])
        if self.scenario.trace.get("tables", True):
            record["table"] = tables
        if entry["num_spec_tokens"]:
            record["spec"] = int(entry["num_spec_tokens"])
        images = self.core.images_encoded_now(slot)
        if images:
            record["encoder"] = images
        return record

    def schedule(self) -> Record:
        tokens = self.core.schedule()
        batch = self.core.latest_batch()
        log = self.core.take_log()
        record = {
            "reqs": [self._scheduled(entry) for entry in batch],
            "tokens": tokens,
            "preempted": self._named(log, LOG_PREEMPTED),
            "lookups": [
                [self.names[int(e["request"])], int(e["first"])] for e in log if e["kind"] == LOG_LOOKUP
            ],
            "stats": self._take_stats(),
            **self._phase(log),
        }
        self.in_flight.append(record)
        return record

    def update(self) -> Record:
        scheduled = self.in_flight.popleft()
        produced = {}
        for entry in scheduled["reqs"]:
            name, count = entry["id"], 0
            if entry["samples"]:
                request, slot = self.scenario.by_id[name], self.core.slot_of(name)
                index = 0
                if slot is not None and self.core.requests["status"][slot] <= RUNNING:
                    row = self.core.requests[slot]
                    index = int(row["num_tokens"]) - int(row["num_prompt_tokens"])
                drafts = entry.get("spec", 0)
                count = 1 + (num_accepted(request, index, drafts) if drafts else 0)
            produced[name] = count
        self.core.update_from_output()
        log = self.core.take_log()
        record = {
            "produced": produced,
            "finished": self._finished(log),
            **self._phase(log, events=False),
        }
        self.core.take_finished()
        return record

    # ------------------------------------------------------------ the loop of the recorder

    def _iterate(self, line: Record) -> bool:
        """One engine iteration; whether it did anything."""
        did, tried = False, self.core.has_unscheduled_work()
        if tried:
            line["sched"] = self.schedule()
            did = bool(line["sched"]["reqs"])
        waits = did or (self.new_rules and tried and self.core.has_unscheduled_work())
        if tried and waits and len(self.in_flight) < self.config.queue_depth:
            return did
        if self.in_flight:
            did |= bool(self.in_flight[0]["reqs"])
            line["upd"] = self.update()
        return did

    def __iter__(self) -> Iterator[Record]:
        arrivals, aborts, actions = defaultdict(list), defaultdict(list), defaultdict(list)
        for request in self.scenario.requests:
            arrivals[request["arrive"]].append(request)
            if request["abort_at"] is not None:
                aborts[request["abort_at"]].append(request["id"])
        for action in self.scenario.actions:
            actions[action["step"]].append(action)
        last_event = max([*arrivals, *aborts, *actions])
        lines = idle = t = 0
        while t < MAX_STEPS and idle < IDLE_LIMIT:
            t += 1
            line: Record = {"type": "step", "t": t}
            if t in arrivals or t in aborts or t in actions:
                line["pre"] = self.before(t, arrivals.get(t, []), aborts.get(t, []), actions.get(t, []))
            did = self._iterate(line)
            if len(line) > 2:
                lines += 1
                yield line
            if t >= last_event and not self.core.has_requests() and not self.in_flight:
                break
            idle = 0 if did or t < last_event else idle + 1
        yield self._end(lines, t)

    def _end(self, lines: int, t: int) -> Record:
        pool = self.core.kv.pool
        owners = pool.blocks["ref_cnt"][: self.config.num_gpu_blocks]
        return {
            "type": "end",
            "lines": lines,
            "last_t": t,
            "unfinished": sorted(self.core.live_requests()[0]),
            "refs": {str(b): int(owners[b]) for b in np.flatnonzero(owners) if b},
            "stats": dict(self.totals),
            "alloc": int(pool.scalars["num_allocated"][0]),
            "evict": int(pool.scalars["num_evicted"][0]),
            "cached_blocks": int(pool.scalars["num_cached"][0]),
        }


def _listed(key: Any) -> Any:
    return list(key) if isinstance(key, tuple) else key
