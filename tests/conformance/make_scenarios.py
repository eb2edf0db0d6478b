"""Write the public scenario files (hand-made cases and fuzz mixes).

python make_scenarios.py scenarios/
"""

import json
import os
import random
import sys

ALL = []


def add(name, doc, config, requests, **extra):
    ALL.append({"name": name, "doc": doc, "config": config, "requests": requests, **extra})


def rnd(n, seed):
    return {"rand": n, "seed": seed}


def R(i, prompt, arrive=1, max_tokens=4, **kw):  # noqa: N802
    return {
        "id": i if isinstance(i, str) else f"r{i}",
        "arrive": arrive,
        "prompt": prompt if isinstance(prompt, list) else [prompt],
        "max_tokens": max_tokens,
        **kw,
    }


def img(ident, offset, length):
    return {"id": ident, "offset": offset, "length": length}


IMG = 151655  # any id: every placeholder position carries the same one


def design_doc():
    add(
        "a1_design_doc",
        "The prefix-caching design document's walk-through: block size 4, ten "
        "usable blocks (the pool has 11, id 0 is the null block).",
        {
            "block_size": 4,
            "num_gpu_blocks": 11,
            "max_model_len": 64,
            "max_num_batched_tokens": 256,
            "max_num_seqs": 8,
        },
        [
            R(0, {"range": [100, 115]}, 1, 4),
            R(1, [{"range": [100, 110]}, {"range": [210, 214]}], 4, 2),
            R(2, [{"range": [100, 112]}, {"range": [300, 317]}], 7, 2),
        ],
    )
    add(
        "a2_design_doc_nocache",
        "The same three requests, prefix caching off.",
        {
            "block_size": 4,
            "num_gpu_blocks": 16,
            "max_model_len": 64,
            "max_num_batched_tokens": 256,
            "max_num_seqs": 8,
            "enable_prefix_caching": False,
        },
        [
            R(0, {"range": [100, 115]}, 1, 4),
            R(1, [{"range": [100, 110]}, {"range": [210, 214]}], 4, 2),
            R(2, [{"range": [100, 112]}, {"range": [300, 317]}], 7, 2),
        ],
    )


def images():
    cfg = {"block_size": 16, "num_gpu_blocks": 200, "max_model_len": 4096}
    p1 = [rnd(4, 11), {"repeat": IMG, "n": 972}, rnd(21, 12)]
    p2 = [rnd(4, 11), {"repeat": IMG, "n": 972}, rnd(25, 13)]
    m1, m2 = [img("imghash-cat", 4, 972)], [img("imghash-dog", 4, 972)]
    add(
        "b1_image_identical_after_finish",
        "997-token prompt with one image; an identical request after the first "
        "has finished: 992 tokens hit, 5 computed.",
        cfg,
        [R(0, p1, 1, 4, mm=m1), R(1, p1, 7, 4, mm=m1)],
    )
    add(
        "b2_image_identical_while_running",
        "As b1, but the first request is still decoding.",
        cfg,
        [R(0, p1, 1, 8, mm=m1), R(1, p1, 3, 4, mm=m1)],
    )
    add(
        "b3_image_different_while_running",
        "Second request (1001 tokens, another image, same placeholder ids) "
        "arrives while the first decodes: no block is shared.",
        cfg,
        [R(0, p1, 1, 8, mm=m1), R(1, p2, 2, 4, mm=m2)],
    )
    add(
        "b4_text_same_image_absent",
        "Same token ids with the image and without image metadata, and the "
        "image recorded at a shifted offset: all three hash apart.",
        cfg,
        [R(0, p1, 1, 2, mm=m1), R(1, p1, 4, 2), R(2, p1, 7, 2, mm=[img("imghash-cat", 5, 972)])],
    )
    add(
        "b5_multi_image",
        "Several images per prompt, a gap between them, shared first image, "
        "different second; boundary in the middle of a block.",
        {"block_size": 8, "num_gpu_blocks": 80, "max_model_len": 512},
        [
            R(
                0,
                [rnd(3, 1), {"repeat": IMG, "n": 30}, rnd(5, 2), {"repeat": IMG, "n": 21}, rnd(6, 3)],
                1,
                3,
                mm=[img("pic-one", 3, 30), img("pic-two", 38, 21)],
            ),
            R(
                1,
                [rnd(3, 1), {"repeat": IMG, "n": 30}, rnd(5, 2), {"repeat": IMG, "n": 21}, rnd(6, 3)],
                2,
                3,
                mm=[img("pic-one", 3, 30), img("pic-three", 38, 21)],
            ),
            R(
                2,
                [rnd(3, 1), {"repeat": IMG, "n": 30}, rnd(5, 2), {"repeat": IMG, "n": 21}, rnd(6, 3)],
                5,
                3,
                mm=[img("pic-one", 3, 30), img("pic-two", 38, 21)],
            ),
            R(
                3,
                [rnd(3, 1), {"repeat": IMG, "n": 2}, {"repeat": IMG, "n": 2}, rnd(40, 9)],
                6,
                3,
                mm=[img("pic-a", 3, 2), img("pic-b", 5, 2)],
            ),
            R(
                4,
                [rnd(3, 1), {"repeat": IMG, "n": 2}, {"repeat": IMG, "n": 2}, rnd(40, 9)],
                9,
                3,
                mm=[img("pic-b", 3, 2), img("pic-a", 5, 2)],
            ),
        ],
    )
    add(
        "b6_same_image_twice_in_block",
        "One block holds the same image twice (cbor hashing, so the digest "
        "does not depend on string object identity).",
        {"block_size": 16, "num_gpu_blocks": 32, "max_model_len": 256, "hash_algo": "sha256_cbor"},
        [
            R(
                0,
                [rnd(2, 1), {"repeat": IMG, "n": 4}, rnd(2, 2), {"repeat": IMG, "n": 4}, rnd(30, 3)],
                1,
                3,
                mm=[img("pic-same", 2, 4), img("pic-same", 8, 4)],
            ),
            R(
                1,
                [rnd(2, 1), {"repeat": IMG, "n": 4}, rnd(2, 2), {"repeat": IMG, "n": 4}, rnd(30, 3)],
                3,
                3,
                mm=[img("pic-same", 2, 4), img("pic-same", 8, 4)],
            ),
        ],
    )
    add(
        "b7_encoder_budget",
        "Token budget and encoder budget both smaller than the prompt: chunks "
        "stop before an image whose encoder input does not fit in the step.",
        {
            "block_size": 16,
            "num_gpu_blocks": 64,
            "max_model_len": 1024,
            "max_num_batched_tokens": 128,
            "encoder_compute_budget": 100,
            "encoder_cache_size": 220,
        },
        [
            R(
                0,
                [rnd(10, 1), {"repeat": IMG, "n": 90}, rnd(10, 2), {"repeat": IMG, "n": 90}, rnd(20, 3)],
                1,
                3,
                mm=[img("e-one", 10, 90), img("e-two", 110, 90)],
            ),
            R(1, [rnd(10, 4), {"repeat": IMG, "n": 90}, rnd(33, 5)], 1, 3, mm=[img("e-three", 10, 90)]),
            R(2, [rnd(10, 1), {"repeat": IMG, "n": 90}, rnd(44, 6)], 4, 3, mm=[img("e-one", 10, 90)]),
        ],
    )
    add(
        "b8_no_chunked_mm",
        "disable_chunked_mm_input: an image is never split over two steps.",
        {
            "block_size": 16,
            "num_gpu_blocks": 64,
            "max_model_len": 1024,
            "max_num_batched_tokens": 96,
            "disable_chunked_mm_input": True,
        },
        [
            R(0, [rnd(30, 1), {"repeat": IMG, "n": 80}, rnd(10, 2)], 1, 3, mm=[img("n-one", 30, 80)]),
            R(1, [rnd(20, 3), {"repeat": IMG, "n": 60}, rnd(50, 4)], 1, 3, mm=[img("n-two", 20, 60)]),
        ],
    )


def core_cases():
    add(
        "c01_preempt_fcfs",
        "Memory pressure: the youngest running request is preempted, requeued "
        "at the front and recomputed with prefix hits.",
        {"block_size": 4, "num_gpu_blocks": 17, "max_model_len": 128, "max_num_batched_tokens": 64},
        [R(i, rnd(13 + i, 20 + i), 1 + i, 18) for i in range(4)],
    )
    add(
        "c02_preempt_nocache",
        "As c01 with prefix caching off.",
        {
            "block_size": 4,
            "num_gpu_blocks": 17,
            "max_model_len": 128,
            "max_num_batched_tokens": 64,
            "enable_prefix_caching": False,
        },
        [R(i, rnd(13 + i, 20 + i), 1 + i, 18) for i in range(4)],
    )
    add(
        "c03_chunked_prefill",
        "Prompts larger than the token budget are split; decodes ride along.",
        {"block_size": 16, "num_gpu_blocks": 64, "max_model_len": 1024, "max_num_batched_tokens": 48},
        [R(0, rnd(200, 1), 1, 5), R(1, rnd(70, 2), 1, 5), R(2, [rnd(200, 1)], 3, 5), R(3, rnd(9, 4), 4, 9)],
    )
    add(
        "c04_full_prompt_hit",
        "A block-aligned prompt sent again: the last block is recomputed.",
        {"block_size": 16, "num_gpu_blocks": 32, "max_model_len": 512},
        [
            R(0, rnd(64, 1), 1, 3),
            R(1, rnd(64, 1), 6, 3),
            R(2, rnd(65, 1), 11, 3),
            R(3, rnd(63, 1), 16, 3),
            R(4, rnd(16, 1), 21, 3),
            R(5, rnd(17, 1), 26, 3),
        ],
    )
    add(
        "c05_same_batch_sharing",
        "Three requests with a common prefix admitted in one step: the later "
        "ones hit blocks the first one has only just been given.",
        {"block_size": 8, "num_gpu_blocks": 40, "max_model_len": 512},
        [
            R(0, [rnd(40, 1), rnd(7, 2)], 1, 4),
            R(1, [rnd(40, 1), rnd(9, 3)], 1, 4),
            R(2, [rnd(40, 1), rnd(7, 2)], 1, 4),
        ],
    )
    add(
        "c06_duplicate_blocks",
        "Two blocks with one hash: identical decodes in parallel, then a hit "
        "takes the block cached first; eviction of one keeps the other.",
        {"block_size": 4, "num_gpu_blocks": 24, "max_model_len": 128},
        [
            R(0, rnd(8, 1), 1, 14, out_seed=5),
            R(1, rnd(8, 1), 1, 14, out_seed=5),
            R(2, [rnd(8, 1), {"output_of": "r0", "n": 12}], 17, 6, out_seed=9),
            R(3, rnd(50, 4), 25, 3),
            R(4, rnd(8, 1), 30, 5, out_seed=5),
        ],
    )
    add(
        "c07_lru_order",
        "Free order (tail first), LRU across requests, hits moving blocks back.",
        {"block_size": 4, "num_gpu_blocks": 21, "max_model_len": 128},
        [
            R(0, rnd(20, 1), 1, 1),
            R(1, rnd(20, 2), 3, 1),
            R(2, rnd(20, 3), 5, 1),
            R(3, rnd(20, 1), 7, 1),
            R(4, rnd(30, 4), 9, 1),
            R(5, rnd(20, 2), 11, 1),
            R(6, rnd(20, 3), 13, 1),
            R(7, rnd(20, 1), 15, 1),
        ],
    )
    add(
        "c08_cache_salt",
        "cache_salt enters only the first block's extra keys yet isolates all.",
        {"block_size": 8, "num_gpu_blocks": 64, "max_model_len": 256},
        [
            R(0, rnd(40, 1), 1, 2),
            R(1, rnd(40, 1), 3, 2, salt="tenant-a"),
            R(2, rnd(40, 1), 5, 2, salt="tenant-b"),
            R(3, rnd(40, 1), 7, 2, salt="tenant-a"),
            R(4, rnd(40, 1), 9, 2),
        ],
    )
    la = {"name": "adapter-a", "id": 1, "path": "/adapters/a"}
    lb = {"name": "adapter-b", "id": 2, "path": "/adapters/b"}
    la2 = {"name": "adapter-a", "id": 1, "path": "/adapters/a-v2"}
    add(
        "c09_lora",
        "LoRA name and path are extra keys of every block.",
        {"block_size": 8, "num_gpu_blocks": 64, "max_model_len": 256},
        [
            R(0, rnd(40, 1), 1, 2, lora=la),
            R(1, rnd(40, 1), 3, 2, lora=lb),
            R(2, rnd(40, 1), 5, 2, lora=la),
            R(3, rnd(40, 1), 7, 2, lora=la2),
            R(4, rnd(40, 1), 9, 2),
            R(
                5,
                [rnd(4, 9), {"repeat": IMG, "n": 12}, rnd(20, 8)],
                11,
                2,
                lora=la,
                salt="tenant-a",
                mm=[img("lora-pic", 4, 12)],
            ),
            R(
                6,
                [rnd(4, 9), {"repeat": IMG, "n": 12}, rnd(20, 8)],
                13,
                2,
                lora=la,
                salt="tenant-a",
                mm=[img("lora-pic", 4, 12)],
            ),
        ],
    )
    add(
        "c10_max_loras",
        "max_loras 1: a waiting request with another adapter is skipped, not "
        "blocking, and goes back to the front of the queue.",
        {"block_size": 8, "num_gpu_blocks": 64, "max_model_len": 256, "max_loras": 1},
        [
            R(0, rnd(20, 1), 1, 6, lora=la),
            R(1, rnd(20, 2), 1, 3, lora=lb),
            R(2, rnd(20, 3), 1, 3),
            R(3, rnd(20, 4), 2, 3, lora=lb),
            R(4, rnd(20, 5), 2, 3, lora=la),
        ],
    )
    add(
        "c11_abort",
        "Abort of a running, a waiting and a half-prefilled request.",
        {
            "block_size": 8,
            "num_gpu_blocks": 32,
            "max_model_len": 256,
            "max_num_seqs": 2,
            "max_num_batched_tokens": 40,
        },
        [
            R(0, rnd(30, 1), 1, 20, abort_at=5),
            R(1, rnd(90, 2), 1, 20, abort_at=3),
            R(2, rnd(30, 3), 1, 20, abort_at=2),
            R(3, rnd(30, 1), 6, 4),
            R(4, rnd(33, 5), 6, 4),
        ],
    )
    add(
        "c12_priority",
        "Priority policy: admission by (priority, arrival), and preemption of "
        "the worst running request even if already scheduled this step.",
        {
            "block_size": 4,
            "num_gpu_blocks": 17,
            "max_model_len": 128,
            "max_num_batched_tokens": 64,
            "policy": "priority",
        },
        [
            R(0, rnd(14, 20), 1, 18, priority=5),
            R(1, rnd(14, 21), 1, 18, priority=1),
            R(2, rnd(14, 22), 2, 18, priority=9),
            R(3, rnd(14, 23), 4, 18, priority=0),
            R(4, rnd(14, 24), 6, 18, priority=5),
        ],
    )
    for bs, nb in ((1, 120), (8, 30), (16, 24), (32, 16), (64, 12), (128, 10)):
        add(
            f"c13_block_size_{bs}",
            f"A small mixed load at block size {bs}.",
            {"block_size": bs, "num_gpu_blocks": nb, "max_model_len": 1024, "max_num_batched_tokens": 64},
            [
                R(i, [rnd(2 * bs + 3, 1), rnd(5 + bs * (i % 3) // 2, 30 + i)], 1 + 2 * i, 4 + i)
                for i in range(6)
            ],
            trace={"hash_hex": 16},
        )
    add(
        "c14_no_prefix_cache",
        "Prefix caching off, repeated prompts.",
        {"block_size": 16, "num_gpu_blocks": 32, "max_model_len": 512, "enable_prefix_caching": False},
        [R(i, rnd(50, 1), 1 + 2 * i, 5) for i in range(5)],
    )
    add(
        "c15_max_num_seqs",
        "At most two running requests.",
        {"block_size": 16, "num_gpu_blocks": 64, "max_model_len": 512, "max_num_seqs": 2},
        [R(i, rnd(20 + i, i), 1, 3 + i) for i in range(6)],
    )
    add(
        "c16_long_decode",
        "600 decode tokens crossing many blocks, then a second turn that reuses the decoded blocks.",
        {"block_size": 16, "num_gpu_blocks": 96, "max_model_len": 2048},
        [R(0, rnd(37, 1), 1, 600), R(1, [rnd(37, 1), {"output_of": "r0", "n": 600}, rnd(20, 2)], 605, 40)],
        trace={"tables": False, "queue": False, "free_queue": False, "hash_hex": 16},
    )
    add(
        "c17_reset_prefix_cache",
        "reset_prefix_cache refused while blocks are in use, accepted when "
        "idle, and forced with the running requests preempted.",
        {"block_size": 8, "num_gpu_blocks": 32, "max_model_len": 256},
        [
            R(0, rnd(30, 1), 1, 4),
            R(1, rnd(30, 1), 8, 2),
            R(2, rnd(30, 1), 13, 12),
            R(3, rnd(35, 3), 13, 12),
            R(4, rnd(30, 1), 20, 2),
        ],
        actions=[
            {"step": 3, "op": "reset_prefix_cache"},
            {"step": 11, "op": "reset_prefix_cache"},
            {"step": 16, "op": "reset_prefix_cache", "running": True},
        ],
    )
    add(
        "c18_spec_ngram",
        "Three draft tokens per step, some rejected: over-allocated blocks "
        "stay, only verified tokens are cached.",
        {
            "block_size": 4,
            "num_gpu_blocks": 40,
            "max_model_len": 128,
            "spec_method": "ngram",
            "num_speculative_tokens": 3,
        },
        [
            R(0, rnd(14, 1), 1, 20, accept=[3, 0, 1, 2]),
            R(1, rnd(9, 2), 1, 20, accept=[0, 0, 3]),
            R(2, rnd(14, 1), 4, 12, accept=[1]),
        ],
    )
    for tag, off in (("", False), ("_legacy", True)):
        add(
            f"c19_spec_eagle{tag}",
            "Draft-head speculation with lookahead slots"
            + (" and the last-block drop." if off else "; block hashes cover one token past the block."),
            {
                "block_size": 4,
                "num_gpu_blocks": 40,
                "max_model_len": 128,
                "spec_method": "eagle",
                "num_speculative_tokens": 2,
                "disable_lookahead_block_hashes": off,
            },
            [
                R(0, rnd(18, 1), 1, 12, accept=[2, 0, 1]),
                R(1, rnd(18, 1), 6, 12, accept=[1, 0]),
                R(2, rnd(20, 1), 12, 6, accept=[0]),
            ],
        )
    add(
        "c20_long_prefill_threshold",
        "long_prefill_token_threshold caps a long prompt's chunk only while another request is eligible.",
        {
            "block_size": 16,
            "num_gpu_blocks": 128,
            "max_model_len": 1024,
            "max_num_batched_tokens": 256,
            "long_prefill_token_threshold": 32,
        },
        [R(0, rnd(300, 1), 1, 4), R(1, rnd(90, 2), 2, 4), R(2, rnd(20, 3), 2, 4)],
    )
    add(
        "c21_watermark",
        "watermark 0.2: admissions (but not running requests) keep a reserve, unless nothing is running.",
        {
            "block_size": 4,
            "num_gpu_blocks": 26,
            "max_model_len": 128,
            "max_num_batched_tokens": 64,
            "watermark": 0.2,
        },
        [R(i, rnd(17 + i, 40 + i), 1, 12) for i in range(5)],
    )
    add(
        "c21_watermark_alone",
        "A prompt too large to leave the watermark free is admitted when nothing is running, and only then.",
        {
            "block_size": 4,
            "num_gpu_blocks": 26,
            "max_model_len": 128,
            "max_num_batched_tokens": 128,
            "watermark": 0.2,
        },
        [R(0, rnd(8, 1), 1, 5), R(1, rnd(85, 2), 2, 3), R(2, rnd(85, 3), 15, 3)],
    )
    add(
        "c22_no_full_isl",
        "scheduler_reserve_full_isl off: the first chunk alone decides.",
        {
            "block_size": 4,
            "num_gpu_blocks": 26,
            "max_model_len": 128,
            "max_num_batched_tokens": 24,
            "scheduler_reserve_full_isl": False,
        },
        [R(i, rnd(50, 40 + i), 1, 8) for i in range(3)],
    )
    add(
        "c23_full_isl",
        "The same load with the full-sequence gate on.",
        {"block_size": 4, "num_gpu_blocks": 26, "max_model_len": 128, "max_num_batched_tokens": 24},
        [R(i, rnd(50, 40 + i), 1, 8) for i in range(3)],
    )
    add(
        "c24_no_chunked_prefill",
        "Chunked prefill off: a prompt that does not fit the rest of the budget ends the admission scan.",
        {
            "block_size": 16,
            "num_gpu_blocks": 64,
            "max_model_len": 128,
            "max_num_batched_tokens": 128,
            "enable_chunked_prefill": False,
        },
        [R(0, rnd(70, 1), 1, 4), R(1, rnd(100, 2), 1, 4), R(2, rnd(20, 3), 1, 4)],
    )
    add(
        "c25_multi_turn",
        "Three-turn chats: prompt = previous prompt + its outputs + new text.",
        {"block_size": 16, "num_gpu_blocks": 64, "max_model_len": 1024},
        [
            R("a1", [rnd(48, 1), rnd(20, 2)], 1, 21),
            R("b1", [rnd(48, 1), rnd(15, 3)], 2, 30),
            R("a2", [{"prompt_of": "a1"}, {"output_of": "a1", "n": 21}, rnd(18, 4)], 30, 19),
            R("b2", [{"prompt_of": "b1"}, {"output_of": "b1", "n": 30}, rnd(9, 5)], 40, 17),
            R("a3", [{"prompt_of": "a2"}, {"output_of": "a2", "n": 19}, rnd(5, 6)], 60, 6),
        ],
    )
    add(
        "c26_stop_and_model_len",
        "Stop token before max_tokens, and the max_model_len cap.",
        {"block_size": 16, "num_gpu_blocks": 32, "max_model_len": 64},
        [R(0, rnd(30, 1), 1, 30, stop_at=7), R(1, rnd(50, 2), 1, 100), R(2, rnd(16, 3), 1, 17, stop_at=17)],
    )
    add(
        "c27_skip_reading",
        "skip_reading_prefix_cache: no lookup, no stats, blocks still cached and therefore duplicated.",
        {"block_size": 8, "num_gpu_blocks": 40, "max_model_len": 256},
        [
            R(0, rnd(40, 1), 1, 2),
            R(1, rnd(40, 1), 4, 2, skip_reading_prefix_cache=True),
            R(2, rnd(40, 1), 7, 2),
        ],
    )
    for algo in ("sha256_cbor", "xxhash", "xxhash_cbor"):
        add(
            f"c28_hash_{algo}",
            f"Text, image, LoRA and salt under {algo}.",
            {"block_size": 8, "num_gpu_blocks": 64, "max_model_len": 256, "hash_algo": algo},
            [
                R(0, rnd(40, 1), 1, 3),
                R(1, rnd(40, 1), 3, 3),
                R(
                    2,
                    [rnd(4, 9), {"repeat": IMG, "n": 12}, rnd(20, 8)],
                    5,
                    2,
                    lora=la,
                    salt="tenant-a",
                    mm=[img("algo-pic", 4, 12)],
                ),
                R(
                    3,
                    [rnd(4, 9), {"repeat": IMG, "n": 12}, rnd(20, 8)],
                    7,
                    2,
                    lora=la,
                    salt="tenant-a",
                    mm=[img("algo-pic", 4, 12)],
                ),
            ],
        )


def hybrid_cases():
    sw = lambda w, n=1: [{"kind": "sliding_window", "window": w}] * n  # noqa: E731
    mix = [
        R(0, [rnd(64, 1), rnd(50, 2)], 1, 40),
        R(1, [rnd(64, 1), rnd(30, 3)], 5, 20),
        R(2, [rnd(64, 1), rnd(50, 2), {"output_of": "r0", "n": 40}, rnd(9, 5)], 60, 12),
        R(3, rnd(150, 6), 62, 5),
        R(4, [rnd(64, 1), rnd(50, 2)], 80, 3),
    ]
    add(
        "d1_sliding_window_only",
        "One sliding-window group.",
        {
            "block_size": 8,
            "num_gpu_blocks": 48,
            "max_model_len": 512,
            "max_num_batched_tokens": 64,
            "kv_groups": sw(32),
        },
        mix,
    )
    add(
        "d2_hybrid_full_swa",
        "Full attention plus one sliding-window group.",
        {
            "block_size": 8,
            "num_gpu_blocks": 96,
            "max_model_len": 512,
            "max_num_batched_tokens": 64,
            "kv_groups": [{"kind": "full"}, *sw(32)],
        },
        mix,
    )
    add(
        "d3_hybrid_gemma_like",
        "One full-attention group and five sliding-window groups, as a 1:5 model is grouped.",
        {
            "block_size": 16,
            "num_gpu_blocks": 240,
            "max_model_len": 512,
            "max_num_batched_tokens": 128,
            "kv_groups": [{"kind": "full"}, *sw(64, 5)],
        },
        mix,
        trace={"hash_hex": 16},
    )
    add(
        "d8_hybrid_window_first",
        "Group order as a model whose first layers use the window gets it: two "
        "sliding-window groups, then full attention.",
        {
            "block_size": 8,
            "num_gpu_blocks": 120,
            "max_model_len": 512,
            "max_num_batched_tokens": 64,
            "kv_groups": [*sw(32, 2), {"kind": "full"}],
        },
        mix,
    )
    add(
        "d4_hybrid_mixed_block_sizes",
        "Full attention at block size 16, sliding window at 8: hashes at 8, hits at multiples of 16.",
        {
            "block_size": 8,
            "num_gpu_blocks": 96,
            "max_model_len": 512,
            "max_num_batched_tokens": 96,
            "kv_groups": [
                {"kind": "full", "block_size": 16},
                {"kind": "sliding_window", "window": 24, "block_size": 8},
            ],
        },
        mix,
    )
    for tag, iv in (("dense", None), ("interval_32", 32)):
        add(
            f"d6_hybrid_retention_{tag}",
            "d2 with prefix_cache_retention_interval " + str(iv) + " instead of the default 0.",
            {
                "block_size": 8,
                "num_gpu_blocks": 96,
                "max_model_len": 512,
                "max_num_batched_tokens": 64,
                "retention_interval": iv,
                "kv_groups": [{"kind": "full"}, *sw(32)],
            },
            mix,
        )
    share = [rnd(96, 1)]
    add(
        "d7_hybrid_junction",
        "Sparse retention and a shared prefix: the second request finds the "
        "full-attention prefix but no window state, pins the junction, and the "
        "third hits it.",
        {
            "block_size": 8,
            "num_gpu_blocks": 160,
            "max_model_len": 512,
            "max_num_batched_tokens": 256,
            "kv_groups": [{"kind": "full"}, *sw(24)],
        },
        [R(i, [*share, rnd(40 + 8 * i, 60 + i)], 1 + 4 * i, 3) for i in range(4)],
    )
    add(
        "d5_hybrid_pressure",
        "Hybrid groups with preemption and eviction of either group's blocks.",
        {
            "block_size": 4,
            "num_gpu_blocks": 44,
            "max_model_len": 256,
            "max_num_batched_tokens": 48,
            "kv_groups": [{"kind": "full"}, *sw(12)],
        },
        [R(i, [rnd(16, 1), rnd(14 + 3 * i, 50 + i)], 1 + i, 25) for i in range(5)]
        + [R("s", [rnd(16, 1), rnd(14, 50), {"output_of": "r0", "n": 25}, rnd(4, 9)], 70, 8)],
    )


def async_cases():
    add(
        "e1_async_basic",
        "Asynchronous scheduling (the default on GPU): step t+1 is scheduled "
        "before step t's output is processed.",
        {
            "block_size": 4,
            "num_gpu_blocks": 40,
            "max_model_len": 128,
            "max_num_batched_tokens": 32,
            "async_scheduling": True,
        },
        [R(0, rnd(15, 1), 1, 6), R(1, rnd(50, 2), 2, 5), R(2, rnd(15, 1), 6, 4), R(3, rnd(15, 1), 15, 4)],
    )
    add(
        "e2_async_preempt",
        "Asynchronous scheduling under memory pressure.",
        {
            "block_size": 4,
            "num_gpu_blocks": 17,
            "max_model_len": 128,
            "max_num_batched_tokens": 64,
            "async_scheduling": True,
        },
        [R(i, rnd(13 + i, 20 + i), 1 + i, 18) for i in range(4)],
    )
    add(
        "e3_async_design_doc",
        "a1 under asynchronous scheduling.",
        {
            "block_size": 4,
            "num_gpu_blocks": 11,
            "max_model_len": 64,
            "max_num_batched_tokens": 256,
            "max_num_seqs": 8,
            "async_scheduling": True,
        },
        [
            R(0, {"range": [100, 115]}, 1, 4),
            R(1, [{"range": [100, 110]}, {"range": [210, 214]}], 4, 2),
            R(2, [{"range": [100, 112]}, {"range": [300, 317]}], 9, 2),
        ],
    )
    add(
        "e4_async_stop_abort",
        "Stop tokens and aborts with a step in flight: one surplus token is computed and thrown away.",
        {
            "block_size": 4,
            "num_gpu_blocks": 30,
            "max_model_len": 128,
            "max_num_batched_tokens": 64,
            "async_scheduling": True,
        },
        [
            R(0, rnd(15, 1), 1, 20, stop_at=5),
            R(1, rnd(15, 2), 1, 20, abort_at=4),
            R(2, rnd(15, 3), 2, 9, stop_at=2),
            R(3, rnd(15, 1), 9, 4),
        ],
    )
    add(
        "e6_async_reset",
        "reset_prefix_cache with running requests while a step is in flight: "
        "its output is dropped and the tokens are sampled again.",
        {
            "block_size": 4,
            "num_gpu_blocks": 40,
            "max_model_len": 128,
            "max_num_batched_tokens": 64,
            "async_scheduling": True,
        },
        [R(0, rnd(15, 1), 1, 14), R(1, rnd(22, 2), 2, 14), R(2, rnd(15, 1), 9, 4)],
        actions=[{"step": 6, "op": "reset_prefix_cache", "running": True}],
    )
    add(
        "e5_async_hybrid",
        "Asynchronous scheduling with hybrid groups.",
        {
            "block_size": 4,
            "num_gpu_blocks": 60,
            "max_model_len": 256,
            "max_num_batched_tokens": 48,
            "async_scheduling": True,
            "kv_groups": [{"kind": "full"}, {"kind": "sliding_window", "window": 12}],
        },
        [R(i, [rnd(16, 1), rnd(14 + 3 * i, 50 + i)], 1 + i, 25) for i in range(4)],
    )


def fuzz(name, seed, n, doc="", **over):
    """A random mix. `over` may set config fields and the knobs below."""
    rng = random.Random(seed)
    knobs = {
        "p_share": 0.6,
        "p_turn": 0.2,
        "p_img": 0.0,
        "p_salt": 0.0,
        "p_lora": 0.0,
        "p_abort": 0.03,
        "p_stop": 0.1,
        "prio": 1,
        "gap": 2.0,
        "plen": 60,
        "out": 24,
    }
    cfg = {
        "block_size": 8,
        "num_gpu_blocks": 80,
        "max_model_len": 512,
        "max_num_seqs": 12,
        "max_num_batched_tokens": 96,
    }
    for k, v in over.items():
        (knobs if k in knobs else cfg)[k] = v
    k = knobs
    bs = cfg["block_size"]
    roots = [(rng.randrange(1, 5 * bs), rng.randrange(1 << 30)) for _ in range(5)]
    reqs, t = [], 1
    for i in range(n):
        if rng.random() < 0.7:
            t += int(rng.expovariate(1 / k["gap"]))
        r = {
            "id": f"q{i}",
            "arrive": t,
            "out_seed": rng.randrange(1 << 30),
            "max_tokens": 1 + min(int(rng.expovariate(1 / k["out"])), 120),
        }
        prompt, length, mm = [], 0, []
        x = rng.random()
        old = rng.choice(reqs) if reqs else None
        if old is not None and x < k["p_turn"] and old["_len"] < 250:
            prompt.append({"prompt_of": old["id"]})
            length = old["_plen"]
            mm = [dict(m) for m in old.get("mm", [])]
            kk = rng.randrange(0, old["max_tokens"] + 1)
            if kk:
                prompt.append({"output_of": old["id"], "n": kk})
                length += kk
            for f in ("salt", "lora"):
                if f in old and rng.random() < 0.8:
                    r[f] = old[f]
        elif old is not None and x < k["p_turn"] + k["p_share"] / 3:
            kk = rng.randrange(1, old["_plen"] + 1)
            prompt.append({"prompt_of": old["id"], "n": kk})
            length = kk
            mm = [dict(m) for m in old.get("mm", []) if m["offset"] + m["length"] <= kk]
        elif x < k["p_turn"] + k["p_share"]:
            m, s = rng.choice(roots)
            prompt.append(rnd(m, s))
            length = m
        while rng.random() < k["p_img"] and length < 300:
            gap, ln = rng.randrange(0, 6), rng.randrange(3, 4 * bs + 3)
            if gap:
                prompt.append(rnd(gap, rng.randrange(4)))
            prompt.append({"repeat": IMG, "n": ln})
            mm.append(img(f"picture-{rng.randrange(6)}-{ln}", length + gap, ln))
            length += gap + ln
        tail = 1 + min(int(rng.expovariate(1 / k["plen"])), 200)
        prompt.append(rnd(tail, rng.randrange(1 << 30)))
        length += tail
        r.update(prompt=prompt, _plen=length, _len=length + r["max_tokens"])
        if mm:
            r["mm"] = mm
        if "salt" not in r and rng.random() < k["p_salt"]:
            r["salt"] = f"tenant-{rng.randrange(2)}"
        if "lora" not in r and rng.random() < k["p_lora"]:
            a = rng.randrange(1, 4)
            r["lora"] = {"name": f"ad-{a}", "id": a, "path": f"/ad/{a}"}
        if k["prio"] > 1:
            r["priority"] = rng.randrange(k["prio"])
        if rng.random() < k["p_abort"]:
            r["abort_at"] = t + rng.randrange(1, 25)
        if rng.random() < k["p_stop"]:
            r["stop_at"] = rng.randrange(1, r["max_tokens"] + 1)
        if cfg.get("spec_method"):
            r["accept"] = [rng.randrange(0, 4) for _ in range(7)]
        reqs.append(r)
    for r in reqs:
        del r["_plen"], r["_len"]
    add(
        name,
        doc or f"Random mix, seed {seed}, {n} requests.",
        cfg,
        reqs,
        trace={"hash_hex": 16, "tables": False},
    )


def public_fuzz():
    fuzz("f1_fuzz_text", 101, 250, num_gpu_blocks=260)
    fuzz("f2_fuzz_tight", 102, 200, num_gpu_blocks=75, out=40, gap=1.5)
    fuzz("f3_fuzz_priority", 103, 200, policy="priority", prio=4, num_gpu_blocks=75, out=30)
    fuzz(
        "f4_fuzz_images",
        104,
        150,
        p_img=0.5,
        p_salt=0.1,
        p_lora=0.15,
        max_num_batched_tokens=160,
        hash_algo="sha256_cbor",
        gap=4.0,
        num_gpu_blocks=240,
        max_model_len=1024,
    )
    fuzz("f5_fuzz_async", 105, 250, async_scheduling=True, num_gpu_blocks=110)
    fuzz(
        "f6_fuzz_hybrid",
        106,
        150,
        num_gpu_blocks=260,
        kv_groups=[{"kind": "full"}, {"kind": "sliding_window", "window": 32}],
    )
    fuzz(
        "f6_fuzz_hybrid_dense",
        116,
        120,
        num_gpu_blocks=200,
        retention_interval=None,
        kv_groups=[{"kind": "full"}, {"kind": "sliding_window", "window": 32}],
    )
    fuzz(
        "f7_fuzz_big_blocks",
        107,
        150,
        block_size=32,
        num_gpu_blocks=60,
        plen=120,
        out=60,
        max_model_len=1024,
        max_num_batched_tokens=256,
    )
    fuzz("f8_fuzz_spec", 108, 120, spec_method="ngram", num_speculative_tokens=3, num_gpu_blocks=90)
    fuzz("f9_fuzz_nocache", 109, 150, enable_prefix_caching=False, num_gpu_blocks=75)


def version_cases():
    """Small cases whose traces differ between vLLM 0.16 and 0.33."""
    add(
        "g01_image_keys_of_generated_blocks",
        "Blocks completed by output tokens after an image prompt, then the next "
        "turn. 0.16 keys such a block with the last image only, and also when "
        "that image ends exactly where the block starts, so the turn misses.",
        {"block_size": 16, "num_gpu_blocks": 64, "max_model_len": 512},
        [
            R(
                0,
                [rnd(20, 1), {"repeat": IMG, "n": 6}, {"repeat": IMG, "n": 4}],
                1,
                8,
                mm=[img("tail-a", 20, 6), img("tail-b", 26, 4)],
            ),
            R(1, [rnd(4, 2), {"repeat": IMG, "n": 28}], 1, 24, mm=[img("edge", 4, 28)]),
            R(
                2,
                [{"prompt_of": "r0"}, {"output_of": "r0", "n": 8}, rnd(10, 3)],
                12,
                2,
                mm=[img("tail-a", 20, 6), img("tail-b", 26, 4)],
            ),
            R(
                3,
                [{"prompt_of": "r1"}, {"output_of": "r1", "n": 24}, rnd(10, 4)],
                28,
                2,
                mm=[img("edge", 4, 28)],
            ),
        ],
    )
    add(
        "g02_no_chunked_mm_at_start",
        "disable_chunked_mm_input and a chunk that starts exactly at an image "
        "but cannot cover it: 0.16 splits the image, 0.33 waits.",
        {
            "block_size": 16,
            "num_gpu_blocks": 64,
            "max_model_len": 512,
            "max_num_batched_tokens": 64,
            "disable_chunked_mm_input": True,
        },
        [
            R(0, rnd(20, 1), 1, 9),
            R(1, [{"repeat": IMG, "n": 64}, rnd(10, 2)], 2, 3, mm=[img("whole", 0, 64)]),
        ],
    )
    add(
        "g03_encoder_blocks_queue",
        "The head of the queue gets no encoder budget in this step: 0.16 ends "
        "the admission scan, 0.33 sets it aside and admits the text behind it.",
        {
            "block_size": 16,
            "num_gpu_blocks": 64,
            "max_model_len": 512,
            "max_num_batched_tokens": 256,
            "encoder_compute_budget": 100,
        },
        [
            R(0, [{"repeat": IMG, "n": 90}, rnd(10, 1)], 1, 4, mm=[img("p", 0, 90)]),
            R(1, [{"repeat": IMG, "n": 90}, rnd(12, 2)], 1, 4, mm=[img("q", 0, 90)]),
            R(2, rnd(40, 3), 1, 4),
        ],
    )
    add(
        "g04_eagle_images",
        "Draft-head speculation with images at chunk edges: the drafter reads one token ahead.",
        {
            "block_size": 16,
            "num_gpu_blocks": 64,
            "max_model_len": 512,
            "max_num_batched_tokens": 48,
            "encoder_compute_budget": 24,
            "encoder_cache_size": 60,
            "spec_method": "eagle",
            "num_speculative_tokens": 2,
        },
        [
            R(
                0,
                [rnd(48, 1), {"repeat": IMG, "n": 20}, rnd(15, 2)],
                1,
                8,
                mm=[img("far", 48, 20)],
                accept=[1, 2, 0],
            ),
            R(
                1,
                [rnd(24, 3), {"repeat": IMG, "n": 20}, rnd(9, 4)],
                2,
                8,
                mm=[img("near", 24, 20)],
                accept=[0, 1],
            ),
            R(
                2,
                [rnd(12, 5), {"repeat": IMG, "n": 20}, {"repeat": IMG, "n": 18}, rnd(9, 6)],
                3,
                4,
                mm=[img("one", 12, 20), img("two", 32, 18)],
            ),
        ],
    )
    add(
        "g05_lora_of_idle_running",
        "A running request in its last in-flight step is not scheduled: 0.16 "
        "does not count its LoRA against max_loras in that step, 0.33 does.",
        {
            "block_size": 16,
            "num_gpu_blocks": 64,
            "max_model_len": 512,
            "async_scheduling": True,
            "max_loras": 1,
        },
        [
            R(0, rnd(20, 1), 1, 3, lora={"name": "A", "id": 1, "path": "/a"}),
            R(1, rnd(20, 2), 2, 3, lora={"name": "B", "id": 2, "path": "/b"}),
        ],
    )
    add(
        "g06_priority_self_preempt",
        "The worst request stands first in the running list and needs a block: "
        "it preempts itself. 0.16 ends the scan there, 0.33 goes on.",
        {
            "block_size": 4,
            "num_gpu_blocks": 8,
            "max_model_len": 64,
            "max_num_batched_tokens": 64,
            "policy": "priority",
        },
        [R(0, rnd(15, 1), 1, 8, priority=5), R(1, rnd(10, 2), 2, 6, priority=0)],
    )
    add(
        "g07_priority_victim_not_scheduled",
        "The victim stands before the current request but was not scheduled in "
        "this step (its last output is in flight): 0.16 then passes over one "
        "request. The victim finishes while it is preempted.",
        {
            "block_size": 4,
            "num_gpu_blocks": 9,
            "max_model_len": 64,
            "max_num_batched_tokens": 64,
            "policy": "priority",
            "async_scheduling": True,
        },
        [
            R(0, rnd(5, 1), 1, 4, priority=9),
            R(1, rnd(10, 2), 2, 7, priority=0),
            R(2, rnd(9, 3), 2, 7, priority=1),
        ],
    )
    add(
        "g08_spec_one_token_left",
        "Speculation and an admission with one token to compute: 0.33 pads it "
        "with draft placeholders, 0.16 does not.",
        {
            "block_size": 4,
            "num_gpu_blocks": 40,
            "max_model_len": 128,
            "spec_method": "ngram",
            "num_speculative_tokens": 3,
        },
        [R(0, rnd(9, 1), 1, 12, accept=[1, 2]), R(1, rnd(9, 1), 3, 8, accept=[0, 3])],
    )
    add(
        "g09_image_twice_across_chunks",
        "One image twice in a prompt, a chunk ends inside the second copy: in "
        "0.16 the first copy's end releases the encoder entry, another "
        "request's image evicts it, and it is encoded again.",
        {
            "block_size": 16,
            "num_gpu_blocks": 64,
            "max_model_len": 512,
            "max_num_batched_tokens": 100,
            "long_prefill_token_threshold": 60,
            "encoder_compute_budget": 30,
            "encoder_cache_size": 30,
        },
        [
            R(0, [rnd(70, 1), {"repeat": IMG, "n": 25}, rnd(5, 2)], 1, 4, mm=[img("other", 70, 25)]),
            R(
                1,
                [rnd(5, 3), {"repeat": IMG, "n": 20}, rnd(5, 4), {"repeat": IMG, "n": 20}, rnd(9, 5)],
                1,
                4,
                mm=[img("twin", 5, 20), img("twin", 30, 20)],
            ),
        ],
    )
    add(
        "g10_async_encoder_release",
        "Two images that do not fit in the encoder cache together: 0.16 "
        "releases an entry when its step is scheduled, 0.33 when it is done.",
        {
            "block_size": 16,
            "num_gpu_blocks": 64,
            "max_model_len": 512,
            "max_num_batched_tokens": 64,
            "encoder_cache_size": 30,
            "async_scheduling": True,
        },
        [
            R(0, [{"repeat": IMG, "n": 20}, rnd(10, 1)], 1, 4, mm=[img("x", 0, 20)]),
            R(1, [{"repeat": IMG, "n": 20}, rnd(12, 2)], 2, 4, mm=[img("y", 0, 20)]),
        ],
    )
    add(
        "g11_async_reset_in_prefill",
        "A forced reset during a chunked prefill: 0.16 drops the next sampled "
        "token although none was in flight.",
        {
            "block_size": 8,
            "num_gpu_blocks": 40,
            "max_model_len": 256,
            "max_num_batched_tokens": 16,
            "async_scheduling": True,
        },
        [R(0, rnd(40, 1), 1, 5), R(1, rnd(12, 2), 9, 4)],
        actions=[{"step": 3, "op": "reset_prefix_cache", "running": True}],
    )
    p1 = [rnd(4, 11), {"repeat": IMG, "n": 972}, rnd(21, 12)]
    p2 = [rnd(4, 11), {"repeat": IMG, "n": 972}, rnd(25, 13)]
    m1, m2 = [img("imghash-cat", 4, 972)], [img("imghash-dog", 4, 972)]
    add(
        "g12_image_again_after_another",
        "The founding document's cached run: a 997-token image prompt, then "
        "another picture, then the first prompt again. 0.16 gives blocks 1..62 "
        "and 127 (slots 2032..2036), 0.33 takes a freed partial block.",
        {"block_size": 16, "num_gpu_blocks": 200, "max_model_len": 4096},
        [R(0, p1, 1, 8, mm=m1), R(1, p2, 2, 4, mm=m2), R(2, p1, 12, 4, mm=m1)],
    )


def write(outdir):
    os.makedirs(outdir, exist_ok=True)
    for sc in ALL:
        head = {k: v for k, v in sc.items() if k != "requests"}
        body = json.dumps(head, indent=1)[:-2]
        reqs = ",\n  ".join(json.dumps(r, separators=(",", ":")) for r in sc["requests"])
        with open(os.path.join(outdir, sc["name"] + ".json"), "w") as f:
            f.write(body + ',\n "requests": [\n  ' + reqs + "\n ]\n}\n")


if __name__ == "__main__":
    design_doc()
    images()
    core_cases()
    hybrid_cases()
    async_cases()
    public_fuzz()
    version_cases()
    write(sys.argv[1])
    print(len(ALL), "scenarios")
