"""Write further conformance scenarios: tight pools, rare pairs of features, random configurations.

    python make_more_scenarios.py more/scenarios               # those that the folder holds
    python make_more_scenarios.py /tmp/scenarios --all         # all 249
    python make_more_scenarios.py /tmp/scenarios x02 z1        # by beginning of name

Seeded and deterministic; same format as make_scenarios.py, whose helpers it uses. Every request is
checked to fit the pool alone, so that no run can go on for ever.
"""

import math
import random
import sys
from pathlib import Path

import make_scenarios as ms
import scenario as scn
from make_scenarios import IMG, img, rnd

add = ms.add
FULL = {"kind": "full"}


def sw(window, **kw):
    return {"kind": "sliding_window", "window": window, **kw}


def cl(chunk, **kw):
    return {"kind": "chunked_local", "chunk": chunk, **kw}


def check(name, cfg, reqs):
    """Each request must fit alone: length < max_model_len, blocks <= pool."""
    c = dict(scn.CONFIG_DEFAULTS, **cfg)
    sc = {"config": cfg, "requests": [dict(r) for r in reqs]}
    by = {r["id"]: r for r in sc["requests"]}
    for i, r in enumerate(sc["requests"]):
        r.setdefault("max_tokens", 16)
        r.setdefault("out_seed", i + 1)
    look = c["num_speculative_tokens"] if c["spec_method"] else 0
    for r in sc["requests"]:
        n = len(scn.expand_prompt(r, by))
        assert n < c["max_model_len"], (name, r["id"], n)
        top = min(n + r["max_tokens"] + 2 + 2 * look, c["max_model_len"])
        need = sum(math.ceil(top / g.get("block_size", c["block_size"])) + 1 for g in c["kv_groups"])
        assert need <= c["num_gpu_blocks"] - 1, (name, r["id"], n, r["max_tokens"], need)
        for m in r.get("mm", []):
            assert m["offset"] + m["length"] <= n, (name, r["id"])
            assert m["length"] <= (c["encoder_cache_size"] or c["max_num_batched_tokens"])
            assert m["length"] <= (c["encoder_compute_budget"] or c["max_num_batched_tokens"])
            if c["disable_chunked_mm_input"]:
                assert m["length"] + 1 < c["max_num_batched_tokens"]


def mix(name, seed, n, doc, knobs=None, trace=None, actions=(), **cfg_over):
    """A random mix with more features than make_scenarios.fuzz."""
    rng = random.Random(seed)
    k = {
        "p_share": 0.35,
        "p_turn": 0.25,
        "p_cut": 0.15,
        "p_img": 0.0,
        "pics": (),
        "p_salt": 0.0,
        "p_lora": 0.0,
        "loras": 3,
        "p_abort": 0.05,
        "abort_max": 25,
        "p_stop": 0.1,
        "prio": 1,
        "gap": 2.0,
        "plen": 30,
        "tail_max": 100,
        "out": 16,
        "out_max": 60,
        "p_skip": 0.0,
        "pmax": None,
        "p_twin": 0.0,
        "p_burst": 0.3,
        "resets": 0,
        "hard_resets": 0,
        "acc": 4,
        "roots": 5,
        "root_max": None,
        "over_len": 0.0,
        "p_aligned": 0.0,
        "p_plus1": 0.0,
        "p_exact": 0.0,
    }
    k.update(knobs or {})
    cfg = {
        "block_size": 8,
        "num_gpu_blocks": 60,
        "max_model_len": 512,
        "max_num_seqs": 10,
        "max_num_batched_tokens": 64,
    }
    cfg.update(cfg_over)
    c = dict(scn.CONFIG_DEFAULTS, **cfg)
    bs = cfg["block_size"]
    look = c["num_speculative_tokens"] if c["spec_method"] else 0
    groups = c["kv_groups"]

    def fits(total):
        total = min(total + 2 + 2 * look, c["max_model_len"])
        return sum(math.ceil(total / g.get("block_size", bs)) + 1 for g in groups) <= c["num_gpu_blocks"] - 1

    cap = c["max_model_len"]
    while not fits(cap):
        cap -= 1
    cap -= 1
    pmax = min(k["pmax"] or cap, cap - 1)
    root_max = k["root_max"] or 5 * bs
    roots = [(rng.randrange(1, root_max), rng.randrange(1 << 30)) for _ in range(k["roots"])]
    reqs, t = [], 1
    for i in range(n):
        if rng.random() > k["p_burst"]:
            t += int(rng.expovariate(1 / k["gap"]))
        mt = 1 + min(int(rng.expovariate(1 / k["out"])), k["out_max"])
        r = {"id": f"q{i}", "arrive": t, "out_seed": rng.randrange(1 << 30), "max_tokens": mt}
        prompt, length, mm = [], 0, []
        x = rng.random()
        old = rng.choice(reqs) if reqs else None
        room = pmax - 1
        if old is not None and x < k["p_turn"]:
            kk = rng.randrange(0, old["_mt"] + 1)
            if old["_plen"] + kk < room:
                prompt.append({"prompt_of": old["id"]})
                length = old["_plen"]
                mm = [dict(m) for m in old.get("mm", [])]
                if kk:
                    prompt.append({"output_of": old["id"], "n": kk})
                    length += kk
                for f in ("salt", "lora"):
                    if f in old and rng.random() < 0.8:
                        r[f] = old[f]
        elif old is not None and x < k["p_turn"] + k["p_cut"]:
            kk = rng.randrange(1, min(old["_plen"], room) + 1)
            if rng.random() < 0.3:
                kk = max(1, kk // bs * bs)
            prompt.append({"prompt_of": old["id"], "n": kk})
            length = kk
            mm = [dict(m) for m in old.get("mm", []) if m["offset"] + m["length"] <= kk]
            for f in ("salt", "lora"):
                if f in old and rng.random() < 0.5:
                    r[f] = old[f]
        elif old is not None and x < k["p_turn"] + k["p_cut"] + k["p_twin"]:
            # a resend: same prompt, same outputs
            prompt.append({"prompt_of": old["id"]})
            length = old["_plen"]
            mm = [dict(m) for m in old.get("mm", [])]
            r["out_seed"] = old["out_seed"]
            for f in ("salt", "lora"):
                if f in old:
                    r[f] = old[f]
        elif x < k["p_turn"] + k["p_cut"] + k["p_twin"] + k["p_share"]:
            m, s = rng.choice(roots)
            m = min(m, room)
            prompt.append(rnd(m, s))
            length = m
        exact = False
        if k["p_exact"] and old is not None and rng.random() < k["p_exact"]:
            # an exact resend, with the same outputs half of the time
            exact, prompt, length = True, [{"prompt_of": old["id"]}], old["_plen"]
            mm = [dict(m) for m in old.get("mm", [])]
            for f in ("salt", "lora"):
                r.pop(f, None)
                if f in old:
                    r[f] = old[f]
            if rng.random() < 0.5:
                r["out_seed"] = old["out_seed"]
        while not exact and rng.random() < k["p_img"]:
            gap = rng.randrange(0, 6)
            ident, ln = rng.choice(k["pics"])
            if length + gap + ln >= room:
                break
            if gap:
                prompt.append(rnd(gap, rng.randrange(4)))
            prompt.append({"repeat": IMG, "n": ln})
            mm.append(img(ident, length + gap, ln))
            length += gap + ln
        tail = 1 + min(int(rng.expovariate(1 / k["plen"])), k["tail_max"])
        tail = max(0 if length else 1, min(tail, pmax - length))
        if rng.random() < k["p_aligned"]:
            tail = max(0 if length else bs, (length + tail) // bs * bs - length)
        if k["p_plus1"] and length + tail + 1 < pmax and rng.random() < k["p_plus1"]:
            tail = max(0, (length + tail) // bs * bs + 1 - length)
        if exact:
            tail = 0
        if tail:
            prompt.append(rnd(tail, rng.randrange(1 << 30)))
            length += tail
        # max_tokens beyond max_model_len (the cap ends it), else it must fit
        if rng.random() < k["over_len"]:
            r["max_tokens"] = mt = mt + c["max_model_len"] - length
            assert fits(c["max_model_len"]), name
        else:
            while not fits(length + mt) and mt > 1:
                mt -= 1
            r["max_tokens"] = mt
        out_known = min(mt, c["max_model_len"] - length)
        r.update(prompt=prompt, _plen=length, _mt=out_known)
        if mm:
            r["mm"] = mm
        if not exact and "salt" not in r and rng.random() < k["p_salt"]:
            r["salt"] = f"tenant-{rng.randrange(2)}"
        if not exact and "lora" not in r and rng.random() < k["p_lora"]:
            a = rng.randrange(1, k["loras"] + 1)
            r["lora"] = {"name": f"ad-{a}", "id": a, "path": f"/ad/{a}"}
        if k["prio"] > 1:
            r["priority"] = rng.randrange(k["prio"])
        if rng.random() < k["p_abort"]:
            r["abort_at"] = t + rng.randrange(0, k["abort_max"])
        if rng.random() < k["p_stop"]:
            r["stop_at"] = rng.randrange(1, out_known + 1)
        if rng.random() < k["p_skip"]:
            r["skip_reading_prefix_cache"] = True
        if cfg.get("spec_method"):
            r["accept"] = [rng.randrange(0, k["acc"]) for _ in range(7)]
        reqs.append(r)
    for r in reqs:
        del r["_plen"], r["_mt"]
    acts = list(actions)
    for _ in range(k["resets"]):
        acts.append({"step": rng.randrange(2, t + 30), "op": "reset_prefix_cache"})
    for _ in range(k["hard_resets"]):
        acts.append({"step": rng.randrange(3, t + 20), "op": "reset_prefix_cache", "running": True})
    extra = {"actions": sorted(acts, key=lambda a: a["step"])} if acts else {}
    check(name, cfg, reqs)
    add(name, doc, cfg, reqs, trace=trace or {"hash_hex": 16, "tables": False}, **extra)


def pics(rng_seed, n, lo, hi):
    rng = random.Random(rng_seed)
    return tuple((f"pic-{i}", rng.randrange(lo, hi)) for i in range(n))


# Dropped after recording: z17 asserts in vLLM 0.33 (legacy eagle + chunked local),
# z93 live-locks in it (an image longer than the threshold, never split); x77, x79
# assert in both versions (chunked local with eagle drop / with unequal blocks).
DROPPED = ("z17_random", "z93_random", "x77_two_chunked_local_eagle", "x79_chunked_local_mixed_blocks")


def batch1():
    mix(
        "x01_async_priority_images",
        1001,
        40,
        "Async + priority + images, tight pool, small encoder cache.",
        {"p_img": 0.45, "pics": pics(1, 6, 5, 40), "prio": 4, "p_salt": 0.1, "out": 20},
        async_scheduling=True,
        policy="priority",
        num_gpu_blocks=45,
        encoder_cache_size=70,
        encoder_compute_budget=48,
        hash_algo="sha256_cbor",
    )
    mix(
        "x02_async_eagle_tight",
        1002,
        40,
        "Async + eagle, preemption and stop tokens.",
        {"p_stop": 0.35, "out": 20},
        async_scheduling=True,
        spec_method="eagle",
        num_speculative_tokens=2,
        num_gpu_blocks=36,
    )
    mix(
        "x03_eagle_tight",
        1003,
        40,
        "Sync eagle, lookahead hashes, tight pool.",
        {"p_stop": 0.2, "out": 24},
        spec_method="eagle",
        num_speculative_tokens=3,
        num_gpu_blocks=36,
    )
    mix(
        "x04_eagle_legacy_tight",
        1004,
        40,
        "Sync eagle, legacy hashes, tight pool.",
        {"p_stop": 0.2, "out": 24},
        spec_method="eagle",
        num_speculative_tokens=3,
        num_gpu_blocks=36,
        disable_lookahead_block_hashes=True,
    )
    mix(
        "x05_ngram_tight",
        1005,
        40,
        "n-gram drafts, very tight pool.",
        {"p_stop": 0.2, "out": 24, "acc": 5},
        spec_method="ngram",
        num_speculative_tokens=4,
        num_gpu_blocks=32,
    )
    mix(
        "x06_eagle_hybrid",
        1006,
        40,
        "Eagle + full + window, lookahead hashes.",
        {"out": 20},
        spec_method="eagle",
        num_speculative_tokens=2,
        num_gpu_blocks=80,
        kv_groups=[FULL, sw(24)],
    )
    mix(
        "x07_eagle_hybrid_legacy",
        1007,
        40,
        "Eagle + full + window, legacy hashes.",
        {"out": 20},
        spec_method="eagle",
        num_speculative_tokens=2,
        num_gpu_blocks=80,
        kv_groups=[FULL, sw(24)],
        disable_lookahead_block_hashes=True,
    )
    mix(
        "x08_eagle_images",
        1008,
        35,
        "Eagle + images with tight encoder limits.",
        {"p_img": 0.5, "pics": pics(8, 5, 4, 30)},
        spec_method="eagle",
        num_speculative_tokens=2,
        num_gpu_blocks=50,
        encoder_compute_budget=32,
        encoder_cache_size=60,
        max_num_batched_tokens=48,
    )
    mix(
        "x09_two_full_two_windows",
        1009,
        35,
        "Two full + two windows of different sizes.",
        {"out": 20},
        num_gpu_blocks=130,
        kv_groups=[FULL, sw(16), FULL, sw(40)],
    )
    mix(
        "x10_windows_different",
        1010,
        40,
        "Two windows of different sizes, no full.",
        {"out": 20},
        num_gpu_blocks=70,
        kv_groups=[sw(16), sw(40)],
    )
    mix(
        "x11_mixed_blocks_pressure",
        1011,
        40,
        "Full at 16, window at 8, under pressure.",
        {"out": 24},
        num_gpu_blocks=55,
        kv_groups=[{"kind": "full", "block_size": 16}, sw(24, block_size=8)],
    )
    mix(
        "x12_mixed_blocks_coarse_window",
        1012,
        40,
        "Full at 4, window at 16 (coarser window), under pressure.",
        {"out": 24},
        num_gpu_blocks=90,
        block_size=4,
        kv_groups=[{"kind": "full", "block_size": 4}, sw(24, block_size=16)],
    )
    mix(
        "x13_retention_32_tight",
        1013,
        40,
        "Retention interval 32, tight.",
        {"out": 24},
        num_gpu_blocks=75,
        retention_interval=32,
        kv_groups=[FULL, sw(20)],
    )
    mix(
        "x14_retention_dense_async",
        1014,
        40,
        "Dense retention, async.",
        {"out": 24},
        num_gpu_blocks=75,
        retention_interval=None,
        async_scheduling=True,
        kv_groups=[FULL, sw(20)],
    )
    mix(
        "x15_eagle_mixed_blocks_legacy",
        1015,
        35,
        "Eagle block drop with mixed block sizes.",
        {"out": 20},
        spec_method="eagle",
        num_speculative_tokens=2,
        num_gpu_blocks=70,
        disable_lookahead_block_hashes=True,
        kv_groups=[{"kind": "full", "block_size": 16}, sw(24, block_size=8)],
    )
    mix(
        "x16_chunked_local",
        1016,
        40,
        "Chunked local attention alone.",
        {"out": 24},
        num_gpu_blocks=40,
        kv_groups=[cl(32)],
    )
    mix(
        "x17_chunked_local_full",
        1017,
        40,
        "Full + chunked local.",
        {"out": 24},
        num_gpu_blocks=80,
        kv_groups=[FULL, cl(32)],
    )
    mix(
        "x18_lora_images_salt",
        1018,
        40,
        "LoRA + images + salt, tight.",
        {"p_img": 0.4, "pics": pics(18, 5, 4, 30), "p_lora": 0.4, "p_salt": 0.3},
        num_gpu_blocks=45,
        hash_algo="sha256_cbor",
    )
    mix(
        "x19_max_loras_priority",
        1019,
        40,
        "max_loras 2 + priority, tight.",
        {"p_lora": 0.8, "loras": 4, "prio": 3, "out": 20},
        num_gpu_blocks=40,
        max_loras=2,
        policy="priority",
    )
    mix(
        "x20_encoder_tiny_reuse",
        1020,
        40,
        "Tiny encoder cache, the same few images across requests.",
        {"p_img": 0.7, "pics": pics(20, 4, 6, 20)},
        num_gpu_blocks=60,
        encoder_cache_size=40,
        encoder_compute_budget=24,
    )
    mix(
        "x21_watermark_priority_async",
        1021,
        40,
        "Watermark + priority + async.",
        {"prio": 3, "out": 24},
        num_gpu_blocks=40,
        watermark=0.15,
        policy="priority",
        async_scheduling=True,
    )
    mix(
        "x22_long_prefill_images",
        1022,
        35,
        "long_prefill_token_threshold with images.",
        {"p_img": 0.5, "pics": pics(22, 5, 8, 50), "plen": 60},
        num_gpu_blocks=60,
        long_prefill_token_threshold=24,
        encoder_cache_size=80,
    )
    mix(
        "x23_reset_async",
        1023,
        40,
        "Soft and forced resets mid-run, async.",
        {"resets": 6, "hard_resets": 4, "out": 20},
        num_gpu_blocks=45,
        async_scheduling=True,
    )
    mix(
        "x24_aborts_async",
        1024,
        50,
        "Half the requests aborted, async, tight.",
        {"p_abort": 0.5, "abort_max": 20, "out": 24, "gap": 1.5},
        num_gpu_blocks=36,
        async_scheduling=True,
    )


def batch2():
    eagle = {"spec_method": "eagle", "num_speculative_tokens": 2}
    mix(
        "x25_async_eagle_images_priority",
        1025,
        40,
        "Async + eagle + images + priority, small encoder cache.",
        {"p_img": 0.45, "pics": pics(25, 6, 4, 30), "prio": 3, "p_stop": 0.2, "out": 18},
        async_scheduling=True,
        policy="priority",
        num_gpu_blocks=40,
        encoder_cache_size=64,
        encoder_compute_budget=40,
        **eagle,
    )
    mix(
        "x26_async_eagle_hybrid",
        1026,
        40,
        "Async + eagle + full + window.",
        {"p_stop": 0.2, "out": 20},
        async_scheduling=True,
        num_gpu_blocks=75,
        kv_groups=[FULL, sw(24)],
        **eagle,
    )
    mix(
        "x27_async_eagle_hybrid_legacy",
        1027,
        40,
        "Async + eagle + full + window, legacy hashes.",
        {"p_stop": 0.2, "out": 20},
        async_scheduling=True,
        num_gpu_blocks=75,
        kv_groups=[FULL, sw(24)],
        disable_lookahead_block_hashes=True,
        **eagle,
    )
    mix(
        "x28_no_chunked_mm_eagle",
        1028,
        40,
        "disable_chunked_mm_input + eagle, images at chunk edges.",
        {"p_img": 0.6, "pics": pics(28, 5, 6, 40)},
        num_gpu_blocks=60,
        disable_chunked_mm_input=True,
        max_num_batched_tokens=48,
        encoder_cache_size=60,
        encoder_compute_budget=48,
        **eagle,
    )
    mix(
        "x29_no_chunked_mm_async_threshold",
        1029,
        40,
        "disable_chunked_mm_input + async + long_prefill threshold.",
        {"p_img": 0.6, "pics": pics(29, 5, 4, 22)},
        num_gpu_blocks=60,
        disable_chunked_mm_input=True,
        max_num_batched_tokens=64,
        long_prefill_token_threshold=24,
        encoder_cache_size=40,
        async_scheduling=True,
    )
    mix(
        "x30_no_chunked_prefill_images",
        1030,
        40,
        "Chunked prefill off, images, tight pool.",
        {"p_img": 0.4, "pics": pics(30, 5, 4, 40), "plen": 40, "out": 20},
        max_model_len=160,
        max_num_batched_tokens=160,
        num_gpu_blocks=34,
        enable_chunked_prefill=False,
        encoder_cache_size=80,
        encoder_compute_budget=60,
    )
    mix(
        "x31_no_chunked_prefill_ngram",
        1031,
        40,
        "Chunked prefill off + n-gram drafts, tight pool.",
        {"plen": 40, "out": 20},
        max_model_len=128,
        max_num_batched_tokens=128,
        num_gpu_blocks=30,
        enable_chunked_prefill=False,
        spec_method="ngram",
        num_speculative_tokens=3,
    )
    mix(
        "x32_reset_eagle_hybrid",
        1032,
        40,
        "Resets (soft, forced) with eagle and hybrid groups, sync.",
        {"resets": 5, "hard_resets": 4, "out": 20},
        num_gpu_blocks=80,
        kv_groups=[FULL, sw(24)],
        **eagle,
    )
    mix(
        "x33_reset_async_eagle",
        1033,
        40,
        "Resets (soft, forced) with eagle, async.",
        {"resets": 4, "hard_resets": 6, "out": 20, "p_stop": 0.2},
        num_gpu_blocks=45,
        async_scheduling=True,
        **eagle,
    )
    mix(
        "x34_aborts_priority_images",
        1034,
        50,
        "Half the requests aborted, priority, images, sync.",
        {"p_abort": 0.5, "abort_max": 16, "prio": 3, "p_img": 0.4, "pics": pics(34, 5, 4, 40), "gap": 1.5},
        num_gpu_blocks=40,
        policy="priority",
        encoder_cache_size=60,
        max_num_batched_tokens=40,
    )
    mix(
        "x35_max_len_ngram",
        1035,
        40,
        "max_model_len reached mid-decode, n-gram.",
        {"over_len": 0.6, "plen": 20, "p_stop": 0.05, "acc": 5},
        max_model_len=72,
        num_gpu_blocks=34,
        spec_method="ngram",
        num_speculative_tokens=4,
    )
    mix(
        "x36_max_len_async_eagle",
        1036,
        40,
        "max_model_len reached mid-decode, async + eagle.",
        {"over_len": 0.6, "plen": 20, "p_stop": 0.05},
        max_model_len=75,
        num_gpu_blocks=34,
        async_scheduling=True,
        **eagle,
    )
    mix(
        "x37_max_len_async",
        1037,
        40,
        "max_model_len reached mid-decode, async.",
        {"over_len": 0.6, "plen": 20, "p_stop": 0.05},
        max_model_len=64,
        num_gpu_blocks=28,
        async_scheduling=True,
    )
    mix(
        "x38_block_1_async",
        1038,
        30,
        "Block size 1, async, tight.",
        {"plen": 12, "out": 12, "root_max": 20},
        block_size=1,
        num_gpu_blocks=130,
        max_model_len=128,
        max_num_batched_tokens=32,
        async_scheduling=True,
    )
    mix(
        "x39_block_32_eagle",
        1039,
        35,
        "Block size 32, eagle, tight.",
        {"plen": 50, "out": 40},
        block_size=32,
        num_gpu_blocks=16,
        max_model_len=384,
        max_num_batched_tokens=96,
        **eagle,
    )
    mix(
        "x40_no_cache_hybrid",
        1040,
        40,
        "Prefix caching off, hybrid, tight.",
        {"out": 24},
        enable_prefix_caching=False,
        num_gpu_blocks=70,
        kv_groups=[FULL, sw(24)],
    )
    mix(
        "x41_no_cache_async_eagle",
        1041,
        40,
        "Prefix caching off, async + eagle.",
        {"out": 24, "p_stop": 0.2},
        enable_prefix_caching=False,
        num_gpu_blocks=34,
        async_scheduling=True,
        **eagle,
    )
    mix(
        "x42_skip_reading_preempt",
        1042,
        40,
        "skip_reading_prefix_cache on half the requests, preemption.",
        {"p_skip": 0.5, "out": 24},
        num_gpu_blocks=36,
    )
    mix(
        "x43_xxhash_lora_images",
        1043,
        30,
        "xxhash, LoRA, images, salt.",
        {"p_img": 0.5, "pics": pics(43, 5, 3, 20), "p_lora": 0.4, "p_salt": 0.3},
        num_gpu_blocks=50,
        hash_algo="xxhash",
    )
    mix(
        "x44_xxhash_cbor_eagle",
        1044,
        30,
        "xxhash_cbor, eagle lookahead hashes.",
        {"p_img": 0.4, "pics": pics(44, 5, 3, 20), "p_lora": 0.3, "p_salt": 0.3},
        num_gpu_blocks=50,
        hash_algo="xxhash_cbor",
        **eagle,
    )
    mix(
        "x45_cbor_eagle_lora_salt",
        1045,
        30,
        "sha256_cbor, eagle lookahead hashes with LoRA, images, salt.",
        {"p_img": 0.4, "pics": pics(45, 5, 3, 20), "p_lora": 0.3, "p_salt": 0.3},
        num_gpu_blocks=50,
        hash_algo="sha256_cbor",
        max_loras=2,
        **eagle,
    )
    mix(
        "x46_gemma_like_async",
        1046,
        35,
        "1 full + 5 windows, async, tight.",
        {"out": 20},
        num_gpu_blocks=210,
        async_scheduling=True,
        kv_groups=[FULL] + [sw(32)] * 5,
    )
    mix(
        "x47_no_full_isl_async",
        1047,
        40,
        "scheduler_reserve_full_isl off, long prompts, async, tight.",
        {"plen": 60, "out": 16},
        num_gpu_blocks=40,
        max_num_batched_tokens=32,
        scheduler_reserve_full_isl=False,
        async_scheduling=True,
    )
    mix(
        "x48_no_full_isl_watermark_images",
        1048,
        40,
        "No full-ISL gate, watermark, images.",
        {"p_img": 0.4, "pics": pics(48, 5, 4, 30), "out": 16},
        num_gpu_blocks=45,
        max_num_batched_tokens=40,
        scheduler_reserve_full_isl=False,
        watermark=0.1,
        encoder_cache_size=50,
    )
    mix(
        "x49_threshold_async_priority",
        1049,
        40,
        "long_prefill threshold + async + priority, tight.",
        {"plen": 60, "prio": 3, "out": 16},
        num_gpu_blocks=40,
        long_prefill_token_threshold=16,
        policy="priority",
        async_scheduling=True,
    )
    mix(
        "x50_twins_async",
        1050,
        40,
        "Resends with identical outputs side by side (duplicate blocks), async.",
        {"p_twin": 0.5, "p_share": 0.1, "p_turn": 0.2, "out": 20, "p_burst": 0.5},
        num_gpu_blocks=45,
        async_scheduling=True,
    )
    mix(
        "x51_mixed_blocks_async_retention",
        1051,
        40,
        "Full 16 + window 8, retention interval 32, async.",
        {"out": 24},
        num_gpu_blocks=60,
        async_scheduling=True,
        retention_interval=32,
        kv_groups=[{"kind": "full", "block_size": 16}, sw(24, block_size=8)],
    )
    mix(
        "x52_three_block_sizes",
        1052,
        40,
        "Full 16, window at 8, window at 32.",
        {"out": 24},
        num_gpu_blocks=70,
        kv_groups=[{"kind": "full", "block_size": 16}, sw(24, block_size=8), sw(40, block_size=32)],
    )
    mix(
        "x53_mixed_window_first_dense",
        1053,
        40,
        "Window at 4 first, then full at 8, dense retention.",
        {"out": 24},
        block_size=4,
        num_gpu_blocks=90,
        retention_interval=None,
        kv_groups=[sw(10, block_size=4), {"kind": "full", "block_size": 8}],
    )
    mix(
        "x54_local_window_full",
        1054,
        40,
        "Chunked local + window + full.",
        {"out": 24},
        num_gpu_blocks=110,
        kv_groups=[cl(32), sw(24), FULL],
    )
    mix(
        "x55_local_full_async",
        1055,
        40,
        "Full + chunked local, async, tight.",
        {"out": 24},
        num_gpu_blocks=70,
        async_scheduling=True,
        kv_groups=[FULL, cl(24)],
    )
    mix(
        "x56_retention_64_mixed_eagle_legacy",
        1056,
        40,
        "Retention 64, mixed blocks, eagle block drop.",
        {"out": 20},
        num_gpu_blocks=70,
        retention_interval=64,
        disable_lookahead_block_hashes=True,
        kv_groups=[{"kind": "full", "block_size": 16}, sw(24, block_size=8)],
        **eagle,
    )
    mix(
        "x57_dense_mixed_eagle",
        1057,
        40,
        "Dense retention, mixed blocks, eagle lookahead hashes.",
        {"out": 20},
        num_gpu_blocks=70,
        retention_interval=None,
        kv_groups=[{"kind": "full", "block_size": 16}, sw(24, block_size=8)],
        **eagle,
    )
    mix(
        "x58_embed_mismatch",
        1058,
        30,
        "One identifier with two lengths: 0.33 fails the second (FINISHED_ERROR).",
        {"p_img": 0.5, "pics": (("same", 8), ("same", 12), ("b", 9), ("c", 14)), "gap": 3.0},
        num_gpu_blocks=60,
        encoder_cache_size=40,
        encoder_compute_budget=30,
    )
    mix(
        "x59_embed_mismatch_async",
        1160,
        30,
        "As x58, async, eagle shift.",
        {
            "p_img": 0.4,
            "pics": (("same", 8), ("same", 12), ("b", 9), ("c", 14)),
            "gap": 6.0,
            "p_turn": 0.1,
            "p_cut": 0.1,
        },
        num_gpu_blocks=60,
        encoder_cache_size=40,
        encoder_compute_budget=30,
        async_scheduling=True,
        **eagle,
    )
    mix(
        "x60_two_seqs_priority_async",
        1060,
        40,
        "max_num_seqs 2, priority, async.",
        {"prio": 4, "gap": 1.5},
        max_num_seqs=2,
        num_gpu_blocks=34,
        policy="priority",
        async_scheduling=True,
    )
    mix(
        "x61_max_loras_1_async_priority",
        1061,
        40,
        "max_loras 1, async, priority, aborts.",
        {"p_lora": 0.7, "loras": 3, "prio": 3, "p_abort": 0.2},
        max_loras=1,
        num_gpu_blocks=36,
        policy="priority",
        async_scheduling=True,
    )
    mix(
        "x62_max_loras_images_salt",
        1062,
        40,
        "max_loras 2, images, salt, async.",
        {"p_lora": 0.7, "loras": 4, "p_img": 0.4, "pics": pics(62, 5, 4, 30), "p_salt": 0.2},
        max_loras=2,
        num_gpu_blocks=45,
        async_scheduling=True,
        encoder_cache_size=50,
    )
    mix(
        "x63_ngram_small_budget",
        1063,
        40,
        "n-gram drafts, budget smaller than seqs x (1 + drafts): cut drafts.",
        {"out": 24, "acc": 6, "gap": 1.0, "plen": 15},
        spec_method="ngram",
        num_speculative_tokens=5,
        max_num_batched_tokens=20,
        num_gpu_blocks=50,
    )
    mix(
        "x64_eagle_small_budget_async",
        1064,
        40,
        "Eagle, budget smaller than seqs x (1 + drafts), async.",
        {"out": 24, "acc": 4, "gap": 1.0, "plen": 15},
        spec_method="eagle",
        num_speculative_tokens=3,
        max_num_batched_tokens=16,
        num_gpu_blocks=50,
        async_scheduling=True,
    )
    mix(
        "x65_odd_windows",
        1065,
        40,
        "Windows of 1 token, block + 1 and longer than the model.",
        {"out": 20},
        num_gpu_blocks=130,
        kv_groups=[FULL, sw(1), sw(9), sw(1000)],
    )
    mix(
        "x66_priority_eagle",
        1066,
        40,
        "Priority + eagle, sync, tight.",
        {"prio": 4, "out": 24},
        policy="priority",
        num_gpu_blocks=34,
        **eagle,
    )
    mix(
        "x67_priority_hybrid_images_async",
        1067,
        40,
        "Priority + hybrid + images, async.",
        {"prio": 4, "out": 20, "p_img": 0.4, "pics": pics(67, 5, 4, 40)},
        policy="priority",
        num_gpu_blocks=75,
        async_scheduling=True,
        kv_groups=[FULL, sw(24)],
        encoder_cache_size=60,
    )
    mix(
        "x68_tiny_budget",
        1068,
        40,
        "12 tokens a step, 10 sequences.",
        {"gap": 1.0, "plen": 15, "out": 20},
        max_num_batched_tokens=12,
        num_gpu_blocks=36,
    )
    mix(
        "x69_stop_surplus_async",
        1069,
        50,
        "Async, block size 2, most requests end by a stop token, minimal pool.",
        {"p_stop": 0.8, "plen": 10, "out": 10, "root_max": 12, "gap": 1.0},
        block_size=2,
        num_gpu_blocks=50,
        max_model_len=90,
        async_scheduling=True,
    )
    mix(
        "x70_twice_in_block_pickle",
        1070,
        30,
        "The same small image several times in one block, pickle hashing.",
        {"p_img": 0.7, "pics": (("tiny", 3), ("mini", 4), ("dot", 1))},
        block_size=16,
        num_gpu_blocks=40,
    )
    mix(
        "x71_images_twice_chunks_tiny_cache",
        1071,
        35,
        "The same images repeated within prompts, small chunks, tiny cache.",
        {"p_img": 0.8, "pics": (("a", 12), ("b", 18), ("c", 7))},
        num_gpu_blocks=60,
        max_num_batched_tokens=24,
        encoder_cache_size=20,
        encoder_compute_budget=20,
        async_scheduling=True,
    )
    mix(
        "x72_ngram_hybrid",
        1072,
        40,
        "n-gram + hybrid, tight.",
        {"out": 24, "acc": 4},
        spec_method="ngram",
        num_speculative_tokens=3,
        num_gpu_blocks=70,
        kv_groups=[FULL, sw(24)],
    )
    mix(
        "x73_window_only_async_tight",
        1073,
        40,
        "One window group, async, tight.",
        {"out": 30, "plen": 40},
        num_gpu_blocks=34,
        async_scheduling=True,
        kv_groups=[sw(20)],
    )
    mix(
        "x74_big_everything",
        1074,
        150,
        "Async, priority, images, LoRA, salt, aborts, stops, resets.",
        {
            "prio": 4,
            "p_img": 0.3,
            "pics": pics(74, 8, 4, 40),
            "p_lora": 0.3,
            "loras": 4,
            "p_salt": 0.2,
            "p_abort": 0.15,
            "p_stop": 0.2,
            "resets": 4,
            "hard_resets": 3,
            "p_skip": 0.1,
            "p_twin": 0.1,
        },
        policy="priority",
        num_gpu_blocks=60,
        max_loras=2,
        async_scheduling=True,
        encoder_cache_size=80,
        encoder_compute_budget=50,
    )
    mix(
        "x75_big_hybrid_async_eagle",
        1075,
        150,
        "Async, eagle, hybrid, aborts, stops, resets.",
        {"p_abort": 0.15, "p_stop": 0.2, "resets": 4, "hard_resets": 3, "p_twin": 0.1},
        num_gpu_blocks=110,
        async_scheduling=True,
        kv_groups=[FULL, sw(24), sw(24)],
        **eagle,
    )

    mix(
        "x76_chunked_local_async_tight",
        1076,
        40,
        "One chunked-local group, async, very tight, long outputs.",
        {"out": 30, "plen": 40, "p_stop": 0.2},
        num_gpu_blocks=26,
        max_model_len=180,
        async_scheduling=True,
        kv_groups=[cl(24)],
    )
    mix(
        "x77_two_chunked_local_eagle",
        1077,
        40,
        "Chunked local alone with eagle, legacy hashes.",
        {"out": 24},
        num_gpu_blocks=34,
        kv_groups=[cl(32)],
        disable_lookahead_block_hashes=True,
        **eagle,
    )
    mix(
        "x78_chunked_local_eagle_lookahead",
        1078,
        40,
        "Chunked local + full with eagle, lookahead hashes.",
        {"out": 24},
        num_gpu_blocks=75,
        kv_groups=[FULL, cl(32)],
        **eagle,
    )
    mix(
        "x79_chunked_local_mixed_blocks",
        1079,
        40,
        "Full at 16, chunked local at 8.",
        {"out": 24},
        num_gpu_blocks=60,
        kv_groups=[{"kind": "full", "block_size": 16}, cl(24, block_size=8)],
    )
    mix(
        "x80_async_ngram",
        1080,
        40,
        "Async + n-gram (if vLLM takes it).",
        {"out": 24, "p_stop": 0.2},
        num_gpu_blocks=34,
        async_scheduling=True,
        spec_method="ngram",
        num_speculative_tokens=3,
    )
    mix(
        "x81_retention_48_eagle_lookahead_async",
        1081,
        40,
        "Retention 48, eagle lookahead hashes, two windows, async.",
        {"out": 20},
        num_gpu_blocks=110,
        retention_interval=48,
        async_scheduling=True,
        kv_groups=[sw(20), FULL, sw(36)],
        **eagle,
    )
    mix(
        "x82_window_eagle_alone",
        1082,
        40,
        "One window group, eagle legacy, tight.",
        {"out": 24},
        num_gpu_blocks=32,
        kv_groups=[sw(24)],
        disable_lookahead_block_hashes=True,
        **eagle,
    )
    mix(
        "x83_max_len_hybrid_eagle_legacy",
        1083,
        35,
        "max_model_len reached, hybrid, eagle legacy, async.",
        {"over_len": 0.5, "plen": 20},
        max_model_len=76,
        num_gpu_blocks=50,
        async_scheduling=True,
        kv_groups=[FULL, sw(16)],
        disable_lookahead_block_hashes=True,
        **eagle,
    )
    mix(
        "x84_ngram_one_left_max_len",
        1084,
        50,
        "Resent prompts with one token left near max_model_len (padding refused).",
        {"p_twin": 0.4, "p_aligned": 0.4, "over_len": 0.5, "plen": 30, "gap": 4.0, "acc": 4},
        block_size=4,
        max_model_len=48,
        num_gpu_blocks=60,
        spec_method="ngram",
        num_speculative_tokens=3,
    )
    mix(
        "x85_block_1_spec",
        1085,
        30,
        "Block size 1: hits leave one token, padded admissions, n-gram.",
        {"p_twin": 0.4, "plen": 12, "out": 12, "root_max": 20},
        block_size=1,
        num_gpu_blocks=120,
        max_model_len=100,
        max_num_batched_tokens=24,
        spec_method="ngram",
        num_speculative_tokens=3,
    )
    mix(
        "x86_block_1_eagle_async",
        1086,
        30,
        "Block size 1, eagle, async, tight.",
        {"p_twin": 0.3, "plen": 12, "out": 12, "root_max": 20},
        block_size=1,
        num_gpu_blocks=110,
        max_model_len=90,
        max_num_batched_tokens=24,
        async_scheduling=True,
        **eagle,
    )

    hot = {"p_abort": 0.6, "abort_max": 45, "out": 40, "gap": 1.0, "plen": 25, "p_stop": 0.0}
    mix(
        "x87_abort_preempted",
        1087,
        60,
        "Aborts of preempted requests, sync.",
        hot,
        num_gpu_blocks=34,
        max_model_len=160,
    )
    mix(
        "x88_abort_preempted_async_priority",
        1088,
        60,
        "Aborts of preempted requests, async, priority.",
        dict(hot, prio=4),
        num_gpu_blocks=34,
        max_model_len=160,
        policy="priority",
        async_scheduling=True,
    )
    one = {
        "p_exact": 0.6,
        "p_share": 0.3,
        "p_turn": 0.2,
        "p_cut": 0.1,
        "p_plus1": 0.9,
        "plen": 14,
        "out": 16,
        "gap": 2.5,
        "acc": 4,
        "p_stop": 0.2,
    }
    mix(
        "x89_padded_ngram",
        1089,
        50,
        "Resent prompts of k x block + 1 tokens: padded admissions, n-gram.",
        one,
        block_size=4,
        num_gpu_blocks=60,
        max_num_batched_tokens=14,
        max_model_len=100,
        spec_method="ngram",
        num_speculative_tokens=3,
    )
    mix(
        "x90_padded_eagle_async",
        1090,
        50,
        "Padded admissions, eagle lookahead hashes, async.",
        one,
        block_size=4,
        num_gpu_blocks=60,
        max_num_batched_tokens=14,
        max_model_len=100,
        async_scheduling=True,
        **eagle,
    )
    mix(
        "x91_padded_max_len",
        1091,
        50,
        "Padded admissions that max_model_len refuses, n-gram.",
        dict(one, plen=30, over_len=0.4),
        block_size=4,
        num_gpu_blocks=40,
        max_model_len=40,
        spec_method="ngram",
        num_speculative_tokens=4,
    )
    mix(
        "x92_padded_hybrid_priority",
        1092,
        50,
        "Padded admissions, hybrid, priority, tight.",
        dict(one, prio=3, out=24),
        block_size=4,
        num_gpu_blocks=60,
        max_num_batched_tokens=20,
        max_model_len=90,
        policy="priority",
        kv_groups=[FULL, sw(10)],
        spec_method="ngram",
        num_speculative_tokens=3,
    )
    mix(
        "x93_padded_async_ngram_tight",
        1093,
        50,
        "Padded admissions, async n-gram, tight, resets.",
        dict(one, out=30, resets=3, hard_resets=3),
        block_size=4,
        num_gpu_blocks=34,
        max_model_len=100,
        async_scheduling=True,
        spec_method="ngram",
        num_speculative_tokens=2,
    )
    same = {"p_exact": 0.5, "p_share": 0.2, "p_burst": 0.6, "out": 20, "p_stop": 0.2}
    mix(
        "x94_exact_resends",
        1094,
        50,
        "Exact resends side by side, duplicate blocks, sync, tight.",
        same,
        num_gpu_blocks=40,
    )
    mix(
        "x95_exact_resends_async_eagle",
        1095,
        50,
        "Exact resends, async + eagle, tight.",
        same,
        num_gpu_blocks=40,
        async_scheduling=True,
        **eagle,
    )
    mix(
        "x96_exact_resends_hybrid_legacy",
        1096,
        50,
        "Exact resends of block-aligned prompts, hybrid, eagle block drop.",
        dict(same, p_aligned=0.6),
        num_gpu_blocks=80,
        kv_groups=[FULL, sw(20)],
        disable_lookahead_block_hashes=True,
        **eagle,
    )
    mix(
        "x97_exact_resends_mixed_images",
        1097,
        50,
        "Exact resends, images, mixed block sizes, async.",
        dict(same, p_img=0.4, pics=pics(97, 5, 4, 30)),
        num_gpu_blocks=70,
        async_scheduling=True,
        encoder_cache_size=50,
        kv_groups=[{"kind": "full", "block_size": 16}, sw(24, block_size=8)],
    )
    mix(
        "x98_exact_resends_interval",
        1098,
        50,
        "Exact resends, retention interval 32, two windows.",
        same,
        num_gpu_blocks=110,
        retention_interval=32,
        kv_groups=[FULL, sw(12), sw(30)],
    )
    mix(
        "x99_padded_alone",
        1099,
        60,
        "Padded admissions, long gaps, big budget, eagle lookahead, images.",
        dict(one, gap=8.0, p_img=0.2, pics=pics(99, 4, 3, 12)),
        block_size=4,
        num_gpu_blocks=80,
        max_model_len=120,
        **eagle,
    )


def one_of(rng, *pairs):
    """one_of(rng, (weight, value), ...)"""
    return rng.choices([v for _, v in pairs], [w for w, _ in pairs])[0]


def any_window(rng, bs):
    return rng.choice([bs, 2 * bs + 1, 3 * bs, 5 * bs + 2])


def batch3():
    """Random configurations."""
    for i in range(1, 141):
        rng = random.Random(7000 + i)
        bs = one_of(rng, (2, 4), (4, 8), (2, 16), (1, 1), (1, 32))
        k, c = {}, {"block_size": bs}
        c["async_scheduling"] = rng.random() < 0.5
        c["max_model_len"] = rng.choice([100, 160, 256])
        c["max_num_seqs"] = rng.choice([2, 5, 10, 16])
        c["max_num_batched_tokens"] = rng.choice([20, 33, 64, 128])
        if rng.random() < 0.4:
            c["policy"] = "priority"
            k["prio"] = rng.choice([2, 5])
        x = rng.random()
        if x < 0.3:
            c.update(spec_method="eagle", num_speculative_tokens=rng.randrange(1, 5))
            if rng.random() < 0.4:
                c["disable_lookahead_block_hashes"] = True
        elif x < 0.45 and not c["async_scheduling"]:
            c.update(spec_method="ngram", num_speculative_tokens=rng.randrange(1, 6))
        k["acc"] = 1 + c.get("num_speculative_tokens", 0)
        if rng.random() < 0.4:
            ln = max(6, min(c["max_num_batched_tokens"] - 2, 40))
            k.update(p_img=rng.choice([0.3, 0.6]), pics=pics(i, rng.randrange(2, 8), 1, ln))
            c["encoder_cache_size"] = ln + rng.randrange(0, 40)
            c["encoder_compute_budget"] = ln + rng.randrange(0, 20)
            if rng.random() < 0.3:
                c["disable_chunked_mm_input"] = True
        if rng.random() < 0.3:
            k.update(p_lora=rng.choice([0.3, 0.8]), loras=rng.randrange(2, 5))
            if rng.random() < 0.6:
                c["max_loras"] = rng.randrange(1, 3)
        if rng.random() < 0.25:
            k["p_salt"] = 0.4
        if rng.random() < 0.2:
            c["enable_prefix_caching"] = False
        c["hash_algo"] = one_of(rng, (4, "sha256"), (1, "sha256_cbor"), (1, "xxhash"), (1, "xxhash_cbor"))
        if rng.random() < 0.25:
            c["long_prefill_token_threshold"] = rng.choice([8, 16, 30])
        if rng.random() < 0.2:
            c["scheduler_reserve_full_isl"] = False
        if rng.random() < 0.1:
            c["watermark"] = rng.choice([0.05, 0.2])
        if rng.random() < 0.12:
            c["enable_chunked_prefill"] = False
            c["max_num_batched_tokens"] = c["max_model_len"]
        y = rng.random()
        if y < 0.45:
            pass
        elif y < 0.6:
            c["kv_groups"] = [FULL, sw(any_window(rng, bs))]
        elif y < 0.68:
            c["kv_groups"] = [sw(any_window(rng, bs)), FULL, sw(any_window(rng, bs))]
        elif y < 0.74:
            c["kv_groups"] = [sw(any_window(rng, bs))]
        elif y < 0.80:
            c["kv_groups"] = [FULL, cl(rng.choice([2, 3, 4]) * bs)]
        elif y < 0.90:
            c["kv_groups"] = [{"kind": "full", "block_size": 2 * bs}, sw(any_window(rng, bs), block_size=bs)]
        else:
            c["kv_groups"] = [{"kind": "full", "block_size": bs}, sw(any_window(rng, bs), block_size=2 * bs)]
        if y >= 0.45:
            c["retention_interval"] = one_of(rng, (5, 0), (2, None), (2, 4 * bs))
            if (c["retention_interval"] or 0) > 0 and not any(
                g["kind"] == "sliding_window" for g in c["kv_groups"]
            ):
                c["retention_interval"] = None  # vLLM refuses an interval here
        if c.get("retention_interval") == 0:
            del c["retention_interval"]
        groups = c.get("kv_groups", [FULL])
        per = sum(math.ceil((c["max_model_len"] + 12) / g.get("block_size", bs)) + 1 for g in groups)
        c["num_gpu_blocks"] = 2 + int(per * rng.choice([0.8, 1.0, 1.3, 1.8]))
        k["p_abort"] = rng.choice([0.0, 0.1, 0.4])
        k["p_stop"] = rng.choice([0.0, 0.15, 0.5])
        k["p_skip"] = rng.choice([0.0, 0.0, 0.3])
        k["p_twin"] = rng.choice([0.0, 0.1, 0.3])
        k["p_aligned"] = rng.choice([0.0, 0.0, 0.5])
        k["gap"] = rng.choice([1.0, 2.0, 4.0])
        k["plen"] = rng.choice([10, 25, 50])
        k["out"] = rng.choice([6, 16, 30])
        k["root_max"] = rng.choice([20, 60])
        if rng.random() < 0.3:
            k.update(resets=rng.randrange(0, 4), hard_resets=rng.randrange(0, 4))
        if c["num_gpu_blocks"] - 1 >= per and rng.random() < 0.3:
            k["over_len"] = 0.3
        n = rng.choice([12, 20, 30])
        trace = {"hash_hex": 16} if n == 12 else None
        bits = [
            ("async" if c["async_scheduling"] else "sync"),
            c.get("spec_method"),
            c.get("policy"),
            "images" if "p_img" in k else None,
            "lora" if "p_lora" in k else None,
            "+".join(g["kind"] for g in groups) if len(groups) > 1 or y >= 0.45 else None,
            None if c.get("enable_prefix_caching", True) else "no cache",
        ]
        mix(
            f"z{i:02d}_random",
            8000 + i,
            n,
            "Random configuration: " + ", ".join(b for b in bits if b) + ".",
            k,
            trace=trace,
            **c,
        )


def batch4():
    """The public fuzz function with other seeds and combinations."""
    f = ms.fuzz
    hyb = [FULL, sw(32)]
    eagle = {"spec_method": "eagle", "num_speculative_tokens": 3}
    f(
        "y01_fuzz_async_priority",
        501,
        150,
        async_scheduling=True,
        policy="priority",
        prio=4,
        num_gpu_blocks=75,
        out=30,
    )
    f(
        "y02_fuzz_async_images",
        502,
        120,
        async_scheduling=True,
        p_img=0.5,
        p_salt=0.1,
        p_lora=0.15,
        max_num_batched_tokens=160,
        hash_algo="sha256_cbor",
        gap=4.0,
        num_gpu_blocks=140,
        max_model_len=1024,
        encoder_cache_size=90,
        encoder_compute_budget=60,
    )
    f("y03_fuzz_async_hybrid", 503, 120, async_scheduling=True, num_gpu_blocks=150, kv_groups=hyb)
    f("y04_fuzz_eagle", 504, 120, num_gpu_blocks=80, **eagle)
    f(
        "y05_fuzz_eagle_legacy_async",
        505,
        120,
        num_gpu_blocks=80,
        async_scheduling=True,
        disable_lookahead_block_hashes=True,
        **eagle,
    )
    f("y06_fuzz_eagle_hybrid", 506, 120, num_gpu_blocks=150, kv_groups=hyb, **eagle)
    f("y07_fuzz_block_4_tight", 507, 150, block_size=4, num_gpu_blocks=135, out=40, gap=1.5)
    f("y08_fuzz_watermark", 508, 150, num_gpu_blocks=80, watermark=0.1, out=30)
    f(
        "y09_fuzz_two_windows_interval",
        509,
        120,
        num_gpu_blocks=210,
        retention_interval=64,
        kv_groups=[sw(20), FULL, sw(48)],
    )
    f(
        "y10_fuzz_mixed_blocks",
        510,
        120,
        num_gpu_blocks=130,
        kv_groups=[{"kind": "full", "block_size": 16}, sw(32, block_size=8)],
    )
    f(
        "y11_fuzz_no_full_isl_async",
        511,
        150,
        num_gpu_blocks=75,
        plen=90,
        scheduler_reserve_full_isl=False,
        async_scheduling=True,
    )
    f("y12_fuzz_max_loras", 512, 150, num_gpu_blocks=80, p_lora=0.7, max_loras=2, policy="priority", prio=3)
    f("y13_fuzz_chunked_local", 513, 120, num_gpu_blocks=140, kv_groups=[FULL, cl(32)])
    f(
        "y14_fuzz_images_xxhash",
        514,
        120,
        p_img=0.5,
        hash_algo="xxhash",
        max_model_len=1024,
        num_gpu_blocks=120,
        encoder_cache_size=50,
        encoder_compute_budget=40,
        long_prefill_token_threshold=48,
    )


def main():
    for batch in (batch1, batch2, batch3, batch4):
        batch()
    outdir, *prefixes = sys.argv[1:]
    if prefixes == ["--all"]:
        prefixes = [""]
    elif not prefixes:
        prefixes = [path.stem for path in Path(outdir).glob("*.json")]
    ms.ALL[:] = [s for s in ms.ALL if s["name"] not in DROPPED and s["name"].startswith(tuple(prefixes))]
    ms.write(outdir)
    print(len(ms.ALL), "scenarios")


if __name__ == "__main__":
    main()
