"""Record golden traces from the real vLLM v1 scheduler and KV cache manager.

    PYTHONHASHSEED=0 python record.py scenarios/*.json          # write golden/
    PYTHONHASHSEED=0 python record.py --check scenarios/*.json  # compare only
    PYTHONHASHSEED=0 python record.py --hash-vectors hash_vectors.json

Works with vLLM 0.33 (golden/) and 0.16 (golden-0.16/); the installed version
decides. Needs an environment in which vllm imports (no GPU, no hub access);
see README.md. The model never runs: sampled tokens come from
scenario.output_token. Everything recorded is read from vLLM's own objects;
the only instrumentation wraps bound methods of the block pool to log calls.
"""

import argparse
import collections
import gzip
import hashlib
import io
import json
import os
import sys
import tempfile

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import scenario as scn
import vllm

V016 = vllm.__version__.startswith("0.16.")  # else 0.33
# Scenario fields that 0.16 has no counterpart for: ignored there, except that
# a scenario which turns one of SKIP_016 on is not recorded.
ABSENT_016 = (
    "scheduler_reserve_full_isl",
    "watermark",
    "retention_interval",
    "disable_lookahead_block_hashes",
)
SKIP_016 = ("watermark", "retention_interval")

MAX_STEPS = 20000
IDLE_LIMIT = 8


def tiny_model_dir():
    """A directory with just enough config.json for ModelConfig."""
    d = os.path.join(tempfile.gettempdir(), "kvsim-oracle-model")
    os.makedirs(d, exist_ok=True)
    cfg = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": scn.VOCAB,
        "max_position_embeddings": 1 << 20,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    with open(os.path.join(d, "config.json"), "w") as f:
        json.dump(cfg, f)
    return d


def eagle_dir():
    d = os.path.join(tempfile.gettempdir(), "kvsim-oracle-eagle")
    os.makedirs(d, exist_ok=True)
    with open(os.path.join(tiny_model_dir(), "config.json")) as f:
        cfg = json.load(f)
    cfg["architectures"] = ["LlamaForCausalLM"]
    cfg["num_hidden_layers"] = 1
    with open(os.path.join(d, "config.json"), "w") as f:
        json.dump(cfg, f)
    return d


def build(cfg, events=True):
    import torch
    from vllm.config import (
        CacheConfig,
        DeviceConfig,
        ModelConfig,
        ParallelConfig,
        SchedulerConfig,
        VllmConfig,
    )
    from vllm.config.kv_events import KVEventsConfig
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.kv_cache_interface import (
        ChunkedLocalAttentionSpec,
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        SlidingWindowSpec,
    )
    from vllm.v1.structured_output import StructuredOutputManager

    new = (
        {}
        if V016
        else {"scheduler_reserve_full_isl": cfg["scheduler_reserve_full_isl"], "watermark": cfg["watermark"]}
    )
    sched_cfg = SchedulerConfig(
        max_num_seqs=cfg["max_num_seqs"],
        max_num_batched_tokens=cfg["max_num_batched_tokens"],
        max_model_len=cfg["max_model_len"],
        is_encoder_decoder=False,
        enable_chunked_prefill=cfg["enable_chunked_prefill"],
        long_prefill_token_threshold=cfg["long_prefill_token_threshold"],
        disable_chunked_mm_input=cfg["disable_chunked_mm_input"],
        policy=cfg["policy"],
        async_scheduling=cfg["async_scheduling"],
        **new,
    )
    model_cfg = ModelConfig(
        model=tiny_model_dir(),
        dtype="float16",
        seed=0,
        max_model_len=cfg["max_model_len"],
        skip_tokenizer_init=True,
    )
    cache_cfg = CacheConfig(
        block_size=cfg["block_size"],
        cache_dtype="auto",
        enable_prefix_caching=cfg["enable_prefix_caching"],
        prefix_caching_hash_algo=cfg["hash_algo"],
    )
    parallel_cfg = ParallelConfig()
    spec_cfg = None
    if cfg["spec_method"]:
        from vllm.config import SpeculativeConfig

        kw = {
            "method": cfg["spec_method"],
            "num_speculative_tokens": cfg["num_speculative_tokens"],
            "target_model_config": model_cfg,
            "target_parallel_config": parallel_cfg,
        }
        if cfg["spec_method"] == "ngram":
            kw.update(prompt_lookup_max=3)
        else:
            kw.update(model=eagle_dir())
            if not V016:
                kw.update(disable_lookahead_block_hashes=cfg["disable_lookahead_block_hashes"])
        spec_cfg = SpeculativeConfig(**kw)
    kw = {}
    if cfg["max_loras"]:
        from vllm.config import LoRAConfig

        kw["lora_config"] = LoRAConfig(max_loras=cfg["max_loras"], max_lora_rank=16)
    vcfg = VllmConfig(
        scheduler_config=sched_cfg,
        model_config=model_cfg,
        cache_config=cache_cfg,
        parallel_config=parallel_cfg,
        device_config=DeviceConfig("cpu"),
        speculative_config=spec_cfg,
        kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null") if events else None,
        **kw,
    )
    # The platform default on a machine without a GPU may differ from CUDA's.
    vcfg.scheduler_config.async_scheduling = cfg["async_scheduling"]

    groups = []
    for i, g in enumerate(cfg["kv_groups"]):
        common = {
            "block_size": g.get("block_size", cfg["block_size"]),
            "num_kv_heads": 1,
            "head_size": 16,
            "dtype": torch.float16,
        }
        if g["kind"] == "full":
            spec = FullAttentionSpec(**common)
        elif g["kind"] == "sliding_window":
            spec = SlidingWindowSpec(sliding_window=g["window"], **common)
        elif g["kind"] == "chunked_local":
            spec = ChunkedLocalAttentionSpec(attention_chunk_size=g["chunk"], **common)
        else:
            raise ValueError(g)
        groups.append(KVCacheGroupSpec([f"layer{i}"], spec))
    new = {} if V016 else {"prefix_cache_retention_interval": cfg["retention_interval"]}
    kv_cfg = KVCacheConfig(
        num_blocks=cfg["num_gpu_blocks"], kv_cache_tensors=[], kv_cache_groups=groups, **new
    )
    cache_cfg.num_gpu_blocks = cfg["num_gpu_blocks"]
    cache_cfg.block_size = min(g.kv_cache_spec.block_size for g in groups)
    if V016:  # one size for both: cache_config.block_size
        sched_bs = hash_bs = cache_cfg.block_size
    else:
        from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

        sched_bs, hash_bs = resolve_kv_cache_block_sizes(kv_cfg, vcfg)

    hash_fn = get_hash_fn_by_name(cfg["hash_algo"])
    init_none_hash(hash_fn)
    hasher = None
    if cfg["enable_prefix_caching"]:
        more = () if V016 else (vcfg.num_hash_lookahead_tokens,)
        hasher = get_request_block_hasher(hash_bs, hash_fn, *more)
    cls = vcfg.scheduler_config.get_scheduler_cls()
    new = {} if V016 else {"hash_block_size": hash_bs}
    sched = cls(
        vllm_config=vcfg,
        kv_cache_config=kv_cfg,
        structured_output_manager=StructuredOutputManager(vcfg),
        block_size=sched_bs,
        log_stats=True,
        **new,
    )
    # A text-only config has no encoder budget; give it the one a multimodal
    # model would get (the budget is max(max_num_batched_tokens, largest item)).
    budget = cfg["encoder_compute_budget"] or cfg["max_num_batched_tokens"]
    ecache = cfg["encoder_cache_size"] or cfg["max_num_batched_tokens"]
    sched.max_num_encoder_input_tokens = budget
    sched.encoder_cache_manager = EncoderCacheManager(cache_size=ecache)
    return sched, hasher, vcfg, sched_bs, hash_bs


def make_request(r, hasher):
    from vllm.lora.request import LoRARequest
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    mm = [
        MultiModalFeatureSpec(
            data=None,
            modality="image",
            identifier=m["id"],
            mm_position=PlaceholderRange(offset=m["offset"], length=m["length"]),
        )
        for m in r.get("mm", [])
    ]
    lora = None
    if r.get("lora"):
        lo = r["lora"]
        lora = LoRARequest(lora_name=lo["name"], lora_int_id=lo["id"], lora_path=lo["path"])
    sp = SamplingParams(max_tokens=r["max_tokens"], ignore_eos=True, stop_token_ids=[scn.STOP_TOKEN])
    if r.get("skip_reading_prefix_cache"):
        sp.skip_reading_prefix_cache = True
    old = {"eos_token_id": 1} if V016 else {}
    return Request(
        request_id=r["id"],
        prompt_token_ids=list(r["prompt_token_ids"]),
        sampling_params=sp,
        pooling_params=None,
        arrival_time=r["_arrival"],
        mm_features=mm or None,
        lora_request=lora,
        cache_salt=r.get("salt"),
        priority=r["priority"],
        block_hasher=hasher,
        **old,
    )


class PoolLog:
    """Logs the calls that reach the block pool, in order."""

    def __init__(self, pool, hexlen):
        self.ops, self.pool = [], pool
        self.evicted = []
        self.n = collections.Counter()
        h = lambda key: key[:-4].hex()[:hexlen]  # noqa: E731
        get_new, touch, free = pool.get_new_blocks, pool.touch, pool.free_blocks
        if V016:
            cache_full, remove = (pool.cache_full_blocks, pool._maybe_evict_cached_block)
        else:
            insert, remove = (pool._insert_block_hash, pool._remove_cached_block_hashes)
        reset = pool.reset_prefix_cache
        from vllm.v1.core.kv_cache_utils import get_group_id

        def get_new_blocks(num_blocks):
            if num_blocks == 0:
                return get_new(num_blocks)
            # Logged before its evictions: reserve the slot in the log first.
            entry = ["alloc", None]
            self.ops.append(entry)
            blocks = get_new(num_blocks)
            entry[1] = [b.block_id for b in blocks]
            self.n["alloc"] += len(blocks)
            return blocks

        def touch_(blocks):
            ids = [b.block_id for b in blocks if not b.is_null]
            if ids:
                self.ops.append(["touch", ids])
            return touch(blocks)

        def free_blocks(ordered_blocks):
            blocks = list(ordered_blocks)
            ids = [b.block_id for b in blocks if not b.is_null]
            if ids:
                self.ops.append(["free", ids])
            return free(blocks)

        def insert_(key, block, num_tokens):
            before = block.block_hash
            res = insert(key, block, num_tokens)
            if block.block_hash is not before:
                self.ops.append(["cache", block.block_id, get_group_id(key), h(key), num_tokens])
                self.n["cache"] += 1
            return res

        def cache_full_blocks(
            request, blocks, num_cached_blocks, num_full_blocks, block_size, kv_cache_group_id
        ):
            todo = [
                (i, blocks[i])
                for i in range(num_cached_blocks, num_full_blocks)
                if blocks[i].block_hash is None and not blocks[i].is_null
            ]
            res = cache_full(
                request, blocks, num_cached_blocks, num_full_blocks, block_size, kv_cache_group_id
            )
            for i, block in todo:
                self.ops.append(
                    ["cache", block.block_id, kv_cache_group_id, h(block.block_hash), (i + 1) * block_size]
                )
                self.n["cache"] += 1
            return res

        def remove_(block):
            had = block.block_hash
            keys = remove(block)
            if had is not None:
                self.ops.append(["evict", block.block_id])
                self.evicted.append(block.block_id)
                self.n["evict"] += 1
            return keys

        def reset_():
            ok = reset()
            self.ops.append(["reset", bool(ok)])
            return ok

        pool.get_new_blocks, pool.touch, pool.free_blocks = (get_new_blocks, touch_, free_blocks)
        if V016:
            pool.cache_full_blocks = cache_full_blocks
            pool._maybe_evict_cached_block = remove_
        else:
            pool._insert_block_hash = insert_
            pool._remove_cached_block_hashes = remove_
        pool.reset_prefix_cache = reset_

    def take(self):
        ops, self.ops = self.ops, []
        ev, self.evicted = self.evicted, []
        return ops, ev


def cache_digest(pool):
    """(number of keys, digest) of the hash -> blocks map, insertion order kept
    among the blocks that share one key."""
    from vllm.v1.core.kv_cache_utils import KVCacheBlock

    lines = []
    for key, val in pool.cached_block_hash_to_block._cache.items():
        ids = [val.block_id] if isinstance(val, KVCacheBlock) else [b.block_id for b in val.values()]
        lines.append(f"{key.hex()}={','.join(map(str, ids))}")
    lines.sort()
    return len(lines), hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def event_json(ev, hexlen):
    from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored

    # By default vLLM publishes only the low 64 bits of a block hash, as an int.
    def hx(b):
        if b is None:
            return b
        return f"{b:016x}" if isinstance(b, int) else b.hex()[:hexlen]

    group = {} if V016 else {"group": getattr(ev, "group_idx", None)}
    if isinstance(ev, BlockStored):
        toks = ",".join(map(str, ev.token_ids))
        extra = {} if V016 else {"extra": ev.extra_keys}
        return {
            "stored": [hx(b) for b in ev.block_hashes],
            "parent": hx(ev.parent_block_hash),
            **group,
            "block_size": ev.block_size,
            "n_tokens": len(ev.token_ids),
            "tokens_sha": hashlib.sha256(toks.encode()).hexdigest()[:16],
            **extra,
            "lora": ev.lora_name,
        }
    if isinstance(ev, BlockRemoved):
        return {"removed": [hx(b) for b in ev.block_hashes], **group}
    assert isinstance(ev, AllBlocksCleared)
    return {"cleared": True}


def record(sc, out):
    import platform

    from vllm.v1.core import kv_cache_utils
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
    from vllm.v1.request import RequestStatus

    cfg, tr = scn.config_of(sc), scn.trace_of(sc)
    sched, hasher, vcfg, sched_bs, hash_bs = build(cfg)
    mgr, pool = sched.kv_cache_manager, sched.kv_cache_manager.block_pool
    log = PoolLog(pool, tr["hash_hex"])
    preempted, lookups, finished = [], [], []

    orig_preempt, orig_free_req = sched._preempt_request, sched._free_request

    def preempt(request, timestamp, **kw):
        preempted.append(request.request_id)
        return orig_preempt(request, timestamp, **kw)

    def free_request(request, **kw):
        finished.append(
            [request.request_id, request.status.name, request.num_tokens, request.num_output_tokens]
        )
        return orig_free_req(request, **kw)

    orig_lookup = mgr.get_computed_blocks

    def lookup(request, *a, **kw):
        res = orig_lookup(request, *a, **kw)
        lookups.append([request.request_id, res[1]])
        return res

    sched._preempt_request, sched._free_request = preempt, free_request
    mgr.get_computed_blocks = lookup
    stats_tot = collections.Counter()

    def emit(obj):
        out.write(json.dumps(obj, separators=(",", ":"), sort_keys=False))
        out.write("\n")

    group_bs = [m.block_size for m in mgr.coordinator.single_type_managers]
    # 0.16 keeps this in the executor: two batches with asynchronous scheduling.
    depth = 1 + cfg["async_scheduling"] if V016 else vcfg.max_concurrent_batches
    emit(
        {
            "type": "header",
            "schema": 1,
            "scenario": sc["name"],
            "vllm": vllm.__version__,
            "python": platform.python_version(),
            "pythonhashseed": os.environ.get("PYTHONHASHSEED"),
            "hash_algo": cfg["hash_algo"],
            "none_hash": kv_cache_utils.NONE_HASH.hex(),
            "config": cfg,
            **({"ignored": list(ABSENT_016)} if V016 else {}),
            "scheduler_block_size": sched_bs,
            "hash_block_size": hash_bs,
            "group_block_sizes": group_bs,
            "watermark_blocks": 0 if V016 else mgr.watermark_blocks,
            "num_lookahead_tokens": sched.num_lookahead_tokens,
            "num_hash_lookahead_tokens": 0 if V016 else sched.num_hash_lookahead_tokens,
            "use_eagle_block_drop": sched.use_eagle if V016 else sched.use_eagle_block_drop,
            "max_in_flight_tokens": None if V016 else vcfg.max_in_flight_tokens,
            "queue_depth": depth,
            "scheduler": type(sched).__name__,
        }
    )

    def pool_state():
        st = {"free": pool.get_num_free_blocks()}
        q = [b.block_id for b in pool.free_block_queue.get_all_free_blocks()]
        assert len(q) == st["free"]
        if tr["free_queue"]:
            st["queue"] = q
        else:
            st["queue_sha"] = hashlib.sha256(",".join(map(str, q)).encode()).hexdigest()[:16]
        st["cached"], st["cache_sha"] = cache_digest(pool)
        st["running"] = [r.request_id for r in sched.running]
        st["waiting"] = [r.request_id for r in sched.waiting]
        ops, ev = log.take()
        st["evicted"] = ev
        if tr["ops"]:
            st["ops"] = ops
        evs = mgr.take_events()
        if tr["events"]:
            st["events"] = [event_json(e, tr["hash_hex"]) for e in evs]
        return st

    def take_stats():
        s = mgr.make_prefix_cache_stats()
        d = {
            k: getattr(s, k)
            for k in (
                "requests",
                "queries",
                "hits",
                "preempted_requests",
                "preempted_queries",
                "preempted_hits",
            )
            if getattr(s, k)
        }
        if s.reset:
            d["reset"] = True
        for k, v in d.items():
            if k != "reset":
                stats_tot[k] += v
        return d

    by_id = {r["id"]: r for r in sc["requests"]}
    arrivals = collections.defaultdict(list)
    aborts = collections.defaultdict(list)
    actions = collections.defaultdict(list)
    for i, r in enumerate(sc["requests"]):
        # Strictly increasing arrival times break priority ties as listed.
        r["_arrival"] = float(r["arrive"]) + i * 1e-6
        arrivals[r["arrive"]].append(r)
        if r.get("abort_at") is not None:
            aborts[r["abort_at"]].append(r["id"])
    for a in sc.get("actions", []):
        actions[a["step"]].append(a)
    last_event = max([*arrivals, *aborts, *actions])

    inflight = collections.deque()
    steps = idle = 0

    def do_schedule():
        o = sched.schedule()
        new_ids = {d.req_id for d in o.scheduled_new_reqs}
        resumed = set(o.scheduled_cached_reqs.resumed_req_ids)
        new_blocks = {d.req_id: d.block_ids for d in o.scheduled_new_reqs}
        for rid, b in zip(
            o.scheduled_cached_reqs.req_ids, o.scheduled_cached_reqs.new_block_ids, strict=False
        ):
            new_blocks[rid] = b
        reqs = []
        for rid, n in o.num_scheduled_tokens.items():
            req = sched.requests[rid]
            computed = req.num_computed_tokens - n
            table = mgr.get_block_ids(rid)
            state = (
                "resumed"
                if rid in resumed or (rid in new_ids and req.num_preemptions)
                else "new"
                if rid in new_ids
                else "running"
            )
            e = {"id": rid, "state": state, "computed": computed, "n": n}
            if state != "running":
                e["hit"] = computed
                if getattr(req, "shared_prefix_boundary", 0):
                    e["junction"] = req.shared_prefix_boundary
            nb = new_blocks.get(rid)
            e["new_blocks"] = [list(g) for g in nb] if nb else [[] for _ in group_bs]
            if tr["tables"]:
                e["table"] = [list(g) for g in table]
            e["slots"] = []
            for bs, ids in zip(group_bs, table, strict=False):
                e["slots"].append(
                    scn.ranges([ids[p // bs] * bs + p % bs for p in range(computed, computed + n)])
                )
            sp = o.scheduled_spec_decode_tokens.get(rid)
            if sp:
                e["spec"] = len(sp)
            enc = o.scheduled_encoder_inputs.get(rid)
            if enc:
                e["encoder"] = list(enc)
            e["samples"] = not req.is_prefill_chunk
            reqs.append(e)
        rec = {
            "reqs": reqs,
            "tokens": o.total_num_scheduled_tokens,
            "preempted": list(preempted),
            "lookups": list(lookups),
            "stats": take_stats(),
            **pool_state(),
        }
        preempted.clear()
        lookups.clear()
        return o, rec

    def do_update(o, sched_rec):
        ids = list(o.num_scheduled_tokens)
        sampled, produced = [], {}
        entry = {e["id"]: e for e in sched_rec["reqs"]}
        for rid in ids:
            req = sched.requests.get(rid)
            r = by_id[rid]
            toks = []
            if entry[rid]["samples"]:
                base = req.num_output_tokens if req is not None else 0
                sp = o.scheduled_spec_decode_tokens.get(rid) or []
                k = scn.num_accepted(r, base, len(sp)) if sp else 0
                toks = [scn.output_token(r, base + j) for j in range(k + 1)]
            sampled.append(toks)
            produced[rid] = len(toks)
        mro = ModelRunnerOutput(
            req_ids=ids, req_id_to_index={x: i for i, x in enumerate(ids)}, sampled_token_ids=sampled
        )
        sched.update_from_output(o, mro)
        if cfg["spec_method"] and o.total_num_scheduled_tokens:
            k = cfg["num_speculative_tokens"]
            sched.update_draft_token_ids(DraftTokenIds(req_ids=ids, draft_token_ids=[[7] * k for _ in ids]))
        rec = {"produced": produced, "finished": list(finished), **pool_state()}
        finished.clear()
        return rec

    t = 0
    while t < MAX_STEPS:
        t += 1
        line = {"type": "step", "t": t}
        pre = []
        for r in arrivals.get(t, []):
            sched.add_request(make_request(r, hasher))
            pre.append(["add", r["id"]])
        for rid in aborts.get(t, []):
            sched.finish_requests(rid, RequestStatus.FINISHED_ABORTED)
            pre.append(["abort", rid])
        for a in actions.get(t, []):
            if a["op"] == "reset_prefix_cache":
                ok = sched.reset_prefix_cache(reset_running_requests=a.get("running", False))
                pre.append(["reset_prefix_cache", ok])
            else:
                raise ValueError(a)
        if pre:
            line["pre"] = {
                "actions": pre,
                "finished": list(finished),
                "preempted": list(preempted),
                **pool_state(),
            }
            finished.clear()
            preempted.clear()
        did = False
        if depth == 1:
            if sched.has_requests():
                o, rec = do_schedule()
                line["sched"] = rec
                line["upd"] = do_update(o, rec)
                did = bool(rec["reqs"])
        else:
            # One iteration of the engine's batch-queue loop.
            executed = None
            if sched.has_requests():
                o, rec = do_schedule()
                line["sched"] = rec
                executed = o.total_num_scheduled_tokens > 0
                inflight.append((o, rec))
                did = executed
            # 0.16 returns early only if it has really scheduled something.
            if (
                executed is not None
                and len(inflight) < depth
                and (executed or (not V016 and sched.has_requests()))
            ):
                pass
            elif inflight:
                o, rec = inflight.popleft()
                line["upd"] = do_update(o, rec)
                did = did or bool(rec["reqs"])
        if len(line) > 2:
            emit(line)
            steps += 1
        if not sched.requests and not inflight and t >= last_event and (not sched.has_requests()):
            break
        idle = 0 if did or t < last_event else idle + 1
        if idle >= IDLE_LIMIT:
            break

    refs = {b.block_id: b.ref_cnt for b in pool.blocks if b.ref_cnt and not b.is_null}
    emit(
        {
            "type": "end",
            "lines": steps,
            "last_t": t,
            "unfinished": sorted(sched.requests),
            "refs": refs,
            "stats": dict(stats_tot),
            "alloc": log.n["alloc"],
            "evict": log.n["evict"],
            "cached_blocks": log.n["cache"],
        }
    )
    sched.shutdown()


def hash_vectors():
    """Serialised bytes and digests for hand-picked block-hash inputs."""
    import pickle

    import cbor2
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils as k

    def key(*tagged):  # 0.16 keeps only the name, identifier or salt
        return tagged[1] if V016 else tagged

    out = []
    for algo in ("sha256", "sha256_cbor", "xxhash", "xxhash_cbor"):
        fn = get_hash_fn_by_name(algo)
        k.init_none_hash(fn)
        ser = (
            (lambda x: cbor2.dumps(x, canonical=True))
            if "cbor" in algo
            else (lambda x: pickle.dumps(x, protocol=pickle.HIGHEST_PROTOCOL))
        )
        seed = os.environ["PYTHONHASHSEED"]
        out.append(
            {
                "algo": algo,
                "what": "NONE_HASH",
                "input": repr(seed),
                "bytes": ser(seed).hex(),
                "digest": k.NONE_HASH.hex(),
            }
        )
        ident = "a" * 8
        same = "".join(["img", "-1"])
        cases = [
            ("first block, no extra keys", None, [1, 2, 3, 4], None),
            (
                "token id sizes 0,255,256,65535,65536,2**31-1",
                None,
                [0, 255, 256, 65535, 65536, 2**31 - 1],
                None,
            ),
            ("one image", None, [9, 9, 9, 9], (key("mm", ident, -3),)),
            (
                "two images, equal identifier, same str object",
                None,
                [9, 9, 9, 9],
                (key("mm", same, 0), key("mm", same, 2)),
            ),
            (
                "two images, equal identifier, distinct str objects",
                None,
                [9, 9, 9, 9],
                (key("mm", "".join(["img", "-1"]), 0), key("mm", "".join(["img", "-1"]), 2)),
            ),
            (
                "lora + image + salt",
                None,
                [5, 6, 7, 8],
                (key("lora", "ad", "/ad"), key("mm", "h", 1), key("cache_salt", "s")),
            ),
        ]
        for what, parent, toks, extra in cases:
            arg = (k.NONE_HASH if parent is None else parent, tuple(toks), extra)
            d = k.hash_block_tokens(fn, parent, toks, extra)
            assert fn(arg) == d
            out.append(
                {
                    "algo": algo,
                    "what": what,
                    "tokens": toks,
                    "extra": extra,
                    "bytes": ser(arg).hex(),
                    "digest": d.hex(),
                }
            )
        first = k.hash_block_tokens(fn, None, [1, 2, 3, 4], None)
        arg = (first, (5, 6, 7, 8), None)
        out.append(
            {
                "algo": algo,
                "what": "second block, parent = first block",
                "tokens": [5, 6, 7, 8],
                "extra": None,
                "bytes": ser(arg).hex(),
                "digest": fn(arg).hex(),
            }
        )
        map_key = k.make_block_hash_with_group_id(first, 1)
        out.append({"algo": algo, "what": "map key of first block, group 1", "bytes": map_key.hex()})
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("scenarios", nargs="*")
    ap.add_argument("--check", action="store_true")
    ap.add_argument("--hash-vectors")
    args = ap.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        sys.exit("set PYTHONHASHSEED=0: it seeds the root block hash")
    if args.hash_vectors:
        with open(args.hash_vectors, "w") as f:
            json.dump(hash_vectors(), f, indent=1)
    bad = 0
    for path in args.scenarios:
        sc = scn.load_scenario(path)
        on = [k for k in SKIP_016 if sc.get("config", {}).get(k)] if V016 else []
        if on:
            print("SKIP", os.path.basename(path), "not in 0.16:", *on)
            continue
        buf = io.StringIO()
        record(sc, buf)
        text = buf.getvalue()
        gp = scn.golden_path(path, "0.16" if V016 else "0.33")
        end = json.loads(text.rstrip("\n").rsplit("\n", 1)[1])
        note = (
            f"steps={end['lines']} stats={end['stats']} "
            f"evict={end['evict']} unfinished={len(end['unfinished'])}"
        )
        if args.check:
            with gzip.open(gp, "rt") as f:
                ok = f.read() == text
            bad += not ok
            print("OK  " if ok else "DIFF", os.path.basename(path), note)
        else:
            os.makedirs(os.path.dirname(gp), exist_ok=True)
            with (
                open(gp, "wb") as f,
                gzip.GzipFile(filename="", mode="wb", fileobj=f, mtime=0, compresslevel=9) as z,
            ):
                z.write(text.encode())
            print(os.path.basename(gp), os.path.getsize(gp), note)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
