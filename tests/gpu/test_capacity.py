"""`kvsim.plan_capacity`: lines, refusals with ways out, hybrids, sweeps, evaluation of log collections."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvsim
from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.evaluation import evaluate
from kvsim.gpu.layout import cache_layout
from kvsim.gpu.memory import KVCacheOptions, KVCacheTooSmallError, plan_for_model
from kvsim.gpu.releases import release
from kvsim.gpu.serve_flags import read_command
from kvsim.gpu.sweep import swept
from kvsim.report.capacity import bridge, rounded_to_sum
from kvsim.sweep.axes import flag_axes

GIB = 1 << 30

# ---- what vLLM prints, from published bytes ----


@pytest.mark.parametrize(
    ("model", "version", "gib", "length", "flags", "blocks", "tokens", "most"),
    [
        ("Qwen3.6-35B-A3B", "0.24", 6.01, 131_072, {"kv_cache_dtype": "fp8"}, 300, 569_878, 4.35),
        ("Qwen3.6-27B", "0.20", 6.67, 32_768, {"kv_cache_dtype": "fp8"}, 139, 53_312, 5.15),
        (
            "DeepSeek-R1",
            "0.12",
            41.60,
            8192,
            {"tensor_parallel_size": 8, "block_size": 64},
            None,
            635_648,
            77.59,
        ),
    ],
)
def test_published_lines_to_the_token(model, version, gib, length, flags, blocks, tokens, most):
    near = [
        kvsim.plan_capacity(
            model,
            available_kv_cache_bytes=int((gib + part * 0.0001) * GIB),
            max_model_len=length,
            vllm_version=version,
            **flags,
        )
        for part in range(-50, 51)
    ]
    assert (tokens, most) in {(p.kv_cache_size_tokens, round(p.max_concurrency, 2)) for p in near}
    assert blocks is None or blocks in {p.num_gpu_blocks for p in near}


@pytest.mark.parametrize("name", ["Qwen3-8B", "gemma-3-1b-it", "gpt-oss-20b", "DeepSeek-R1", "GLM-5"])
@pytest.mark.parametrize("version", ["0.16", "0.33"])
def test_the_layout_agrees_with_the_full_planner(name, version):
    model = catalog.model(name)
    options = KVCacheOptions(max_model_len=8192)
    layout = cache_layout(model, options, release(version))
    plan = plan_for_model(model, 20 * GIB, options, version)
    assert layout.blocks(20 * GIB) == plan.num_gpu_blocks
    assert layout.printed_tokens(plan.num_gpu_blocks, 8192) == plan.kv_cache_size_tokens
    assert layout.concurrency(plan.num_gpu_blocks, 8192) == plan.max_concurrency


@pytest.mark.parametrize("name", ["Qwen3-8B", "gemma-3-1b-it", "gpt-oss-20b"])
@pytest.mark.parametrize("version", ["0.16", "0.33"])
def test_the_check_counts_what_the_full_planner_counts(name, version):
    model = catalog.model(name)
    options = KVCacheOptions(max_model_len=model.max_position_embeddings)
    room = 8 << 20
    with pytest.raises(KVCacheTooSmallError) as refusal:
        plan_for_model(model, room, options, version)
    plan = kvsim.plan_capacity(
        model, available_kv_cache_bytes=room, vllm_version=version, max_num_batched_tokens=2048
    )
    assert plan.refusal == refusal.value.vllm_message
    assert plan.longest == refusal.value.estimated_max_model_len


# ---- refusals ----


def test_refusal_has_need_have_longest_and_three_ways_out():
    plan = kvsim.plan_capacity("Llama-3.1-8B", "RTX 4090", max_model_len=131_072)
    assert "(16.0 GiB KV cache is needed, which is larger than" in plan.refusal
    assert f"estimated maximum model length is {plan.longest}" in plan.refusal
    assert plan.needed == 16 * GIB
    assert [way.name for way in plan.ways_out] == ["utilization", "fp8 KV cache", "tensor parallel"]
    assert plan.ways_out[2].fits
    assert plan.lines == ()
    assert not kvsim.plan_capacity("Llama-3.1-8B", "RTX 4090", max_model_len=plan.longest).refusal
    assert kvsim.plan_capacity("Llama-3.1-8B", "RTX 4090", max_model_len=plan.longest + 1).refusal


def test_the_utilization_of_the_way_out_is_enough():
    question = {"model": "Llama-3.1-8B", "gpu": "RTX 4090", "max_model_len": 55_000}
    way = kvsim.plan_capacity(**question).ways_out[0]
    assert way.fits
    value = float(way.flags.split()[1])
    assert not kvsim.plan_capacity(**question, gpu_memory_utilization=value).refusal
    assert kvsim.plan_capacity(**question, gpu_memory_utilization=value - 0.01).refusal


def test_nothing_left_and_memory_of_others():
    assert "No available memory" in kvsim.plan_capacity("Llama-3.1-70B", "4090", max_model_len=8192).refusal
    plan = kvsim.plan_capacity("Qwen3-8B", "H100", max_model_len=8192, used_by_others_gib=10)
    assert plan.refusal.startswith(
        "Free memory on device cuda:0 (69.19/79.19 GiB) on startup is less than desired"
    )


def test_automatic_length():
    plan = kvsim.plan_capacity("Llama-3.1-8B", "RTX 4090", max_model_len=-1)
    assert plan.refusal is None
    assert 40_000 < plan.max_model_len < 131_072


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"block_size": 8}, "block_size: 8 is not a multiple of 16"),
        ({"gpu": None}, "gpu: missing"),
        ({"gpu": "RTX 9999"}, "'RTX 9999' is not in the catalog"),
        ({"gpu_memory_gib": -1}, "gpu_memory_gib: -1 is not above 0"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization: 1.5"),
        ({"max_num_seqs": 0}, "max_num_seqs: 0 is not a whole number above 0"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens: 0 is not a whole number above 0"),
        ({"engine": "V2"}, "engine: 'V2' is not known"),
        ({"cpu_offload_gb": -1}, "cpu_offload_gb: -1"),
        ({"max_lora_rank": 0}, "max_lora_rank: 0"),
        ({"mamba_cache_mode": "x"}, "mamba_cache_mode: 'x' is not known"),
        ({"hf_overrides": {"max_position_embeddings": 0}}, "hf_overrides: max_position_embeddings"),
        ({"tensor_parallel_sise": 2}, "nearest: tensor_parallel_size"),
        ({"tensor_parallel_size": 3}, "tensor_parallel_size: 3 does not divide"),
        ({"no_such_flag": 1}, "no_such_flag: not a flag"),
        ({"vllm_version": "0.99"}, "vllm_version: '0.99' is not known"),
        ({"speculative_config": {"num_speculative_tokens": "x"}}, "speculative_config"),
        ({"mm_processor_kwargs": {"max_pixels": "x"}}, "mm_processor_kwargs: max_pixels"),
    ],
)
def test_wrong_flags_are_named(flags, says):
    with pytest.raises(KvsimError) as refusal:
        kvsim.plan_capacity(**({"model": "Qwen3-8B", "gpu": "H100", "max_model_len": 8192} | flags))
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_pipeline_parallel_takes_the_poorest_stage():
    plan = kvsim.plan_capacity("Llama-3.1-70B", "H100", max_model_len=8192, pipeline_parallel_size=4)
    assert plan.refusal is None
    assert plan.num_gpu_blocks > 0


def test_the_range_holds_the_figure_and_json_is_plain():
    plan = kvsim.plan_capacity("Qwen3-8B", "H100", max_model_len=8192)
    assert plan.tokens_low < plan.kv_cache_size_tokens < plan.tokens_high
    assert json.loads(json.dumps(plan.to_dict()))["prediction"]["available"] == plan.available


# ---- vllm serve command lines ----


def test_a_command_line_as_it_is():
    words = (
        "vllm serve Qwen/Qwen3-8B -tp 2 --max_model_len=32k --port 8000 --enforce-eager --trust-remote-code "
        "--kv-cache-dtype fp8 --no-enable-prefix-caching --limit-mm-per-prompt image=2,video=0 --api-key=x"
    )
    read = read_command(words.split())
    assert read.model == "Qwen/Qwen3-8B"
    assert read.values == {
        "tensor_parallel_size": 2,
        "max_model_len": 32_000,
        "enforce_eager": True,
        "kv_cache_dtype": "fp8",
        "enable_prefix_caching": False,
        "limit_mm_per_prompt": {"image": 2, "video": 0},
    }
    assert read.ignored == ("--port 8000", "--trust-remote-code", "--api-key=x")


@pytest.mark.parametrize(
    "words",
    [
        "CUDA_VISIBLE_DEVICES=0,1 vllm serve --model Qwen/Qwen3-8B",
        "python3 -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-8B",
        "/opt/venv/bin/vllm serve --trust-remote-code Qwen/Qwen3-8B",
    ],
)
def test_every_way_to_name_the_model(words):
    assert read_command(words.split()).model == "Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    "words",
    ["m --max-model-len", "m --max-model-len x", "m --gpu-memory-utilization 2", "m --mm-processor-kwargs {"],
)
def test_a_wrong_value_names_the_flag(words):
    with pytest.raises(KvsimError, match="--"):
        read_command(words.split())


# ---- sweeps ----


def test_a_sweep_is_every_combination():
    axes = flag_axes(["gpu_memory_utilization=0.5:0.95:0.05", "block-size=8,16"], most=2000)
    assert axes["gpu_memory_utilization"][-1] == 0.95
    rows = swept("Qwen3-8B", {"gpu": "H100", "max_model_len": 8192}, axes)
    assert len(rows) == 20
    assert "block_size: 8" in rows[0][1]
    tokens = [plan.kv_cache_size_tokens for values, plan in rows if values[1] == 16]
    assert tokens == sorted(tokens)


@pytest.mark.parametrize("text", ["", "x", "a=", "a=1:2:0", "a=3:1:1", "a=nan:2:1", "a=1:1e9:0.001"])
def test_a_broken_sweep_is_one_line(text):
    with pytest.raises(KvsimError, match="--sweep"):
        flag_axes([text], most=2000)


# ---- collections of logs ----

HEADER = (
    "id,engine,version,arch_class,model,quant,kv_dtype,gpu,total_gib,tp,gpu_memory_utilization,"
    "max_model_len,max_num_seqs,max_num_batched_tokens,enforce_eager,block_size,available_kv_gib,"
    "num_gpu_blocks,kv_tokens,max_concurrency,needed_gib,est_max_len,status\n"
)
EXACT = (
    "a,v1,0.19.0,dense-gqa,meta-llama/Llama-3.1-8B,,,RTX 4090,23.516,,0.9,32768,256,2048,,16,"
    "5.05,2588,41408,1.26,,,ok\n"
)
WRONG = EXACT.replace("a,", "b,", 1).replace("41408", "41424")
FAILED = "c,v1,0.10.2,moe,Qwen/Qwen3-30B-A3B-FP8,,fp8,,,,,221000,,,,16,5.59,,,,10.12,122080,failed\n"


def test_evaluation_counts_exact_misses_and_scores(tmp_path):
    path = tmp_path / "logs.csv"
    path.write_text(HEADER + EXACT + WRONG + FAILED + "d,v1,0.20,,Nobody/Knows,,,,,,,,,,,,,,,,,,ok\n")
    found = evaluate(path)
    assert (found.exact, len(found.checkable)) == (2, 3)
    assert [row["id"] for row, _ in found.misses] == ["b"]
    assert found.scored[0][1].token_error == pytest.approx(0, abs=0.02)
    assert {row["id"]: why for row, why in found.unscored}["c"] == "vLLM refused to start"
    assert found.total_line().startswith(
        "total: arithmetic 2 of 3 exact; 2 rows predicted; single GPU median"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no column 'id'"),
        ("id,model\n1,2\n", "no column 'status'"),
        (HEADER + EXACT.replace("23.516", "lots"), "line 2: total_gib is 'lots', wanted a number"),
        (HEADER, "no row under the header"),
        (
            HEADER + EXACT.replace(",0.9,", ",-7,"),
            "line 2: gpu_memory_utilization is '-7', wanted a number above 0 and at most 1",
        ),
        (HEADER + EXACT.replace("2588", "-1"), "line 2: num_gpu_blocks is '-1', wanted a number from 0"),
        (HEADER + EXACT.replace("32768", "0"), "line 2: max_model_len is '0', wanted a number above 0"),
        (HEADER + EXACT + WRONG + EXACT, "line 4: id 'a' is that of line 2; give each its own"),
        (HEADER + EXACT.replace("ok", "ok,1,2"), "line 2: 2 cells more than the header has columns"),
        (HEADER + EXACT.replace(",ok", ""), "line 2: ends before column 'status'"),
        (HEADER + EXACT.replace("a,", ",", 1), "line 2: id is blank"),
        (HEADER.replace("version", "engine") + EXACT, "column 'engine' stands in the header more than once"),
    ],
)
def test_a_broken_collection_is_one_line(tmp_path, text, says):
    path = tmp_path / "logs.csv"
    path.write_text(text)
    with pytest.raises(KvsimError) as refusal:
        evaluate(path)
    assert says in str(refusal.value)


def test_a_version_that_is_none_is_told(tmp_path):
    path = tmp_path / "logs.csv"
    path.write_text(HEADER + EXACT + WRONG.replace("0.19.0", "banana"), encoding="utf-8-sig")
    assert [row["id"] for row in evaluate(path).without_release] == ["b"]


def test_a_built_in_draft_layer_keeps_a_cache_of_its_own():
    drafts = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}}
    plain, drafting = (
        kvsim.plan_capacity(
            "Qwen3.5-27B-FP8",
            "H200",
            vllm_version="0.26",
            max_model_len=184_320,
            tensor_parallel_size=2,
            available_kv_cache_bytes=int(110.59 * GIB),
            **flags,
        )
        for flags in ({}, drafts)
    )
    assert (drafting.block_size, drafting.num_gpu_blocks, drafting.blocks_per_request) == (800, 4263, 243)
    assert round(drafting.max_concurrency, 2) == 17.54
    assert drafting.num_gpu_blocks < plain.num_gpu_blocks


def test_the_engine_of_releases_that_have_two():
    engines = {
        (version, engine): kvsim.plan_capacity(
            "Qwen3-8B", "H100", max_model_len=8192, vllm_version=version, engine=engine
        ).engine
        for version in ("0.7", "0.9", "0.11")
        for engine in ("", "V0", "V1")
    }
    assert [engines["0.7", engine] for engine in ("", "V0", "V1")] == ["V0", "V0", "V1"]
    assert [engines["0.9", engine] for engine in ("", "V0", "V1")] == ["V1", "V0", "V1"]
    assert {engines["0.11", engine] for engine in ("", "V0", "V1")} == {"V1"}


def test_offline_use_has_larger_batches():
    server, offline = (
        kvsim.plan_capacity("Qwen3-8B", "H100", max_model_len=8192, offline=offline)
        for offline in (False, True)
    )
    assert (server.max_num_batched_tokens, offline.max_num_batched_tokens) == (8192, 16_384)


# ---- the picture of the sum ----


@settings(max_examples=200)
@given(st.lists(st.integers(-(40 * GIB), 80 * GIB), min_size=1, max_size=8), st.integers(GIB, 300 * GIB))
def test_the_bridge_adds_up_as_shown(sizes, requested):
    available = requested - sum(sizes)
    shown = rounded_to_sum(sizes, requested, available)
    assert round(round(requested / GIB, 2) - sum(shown), 2) == round(available / GIB, 2)
    assert all(abs(gib - size / GIB) <= 0.0151 for gib, size in zip(shown, sizes, strict=True))


def test_what_others_hold_is_a_line_where_the_release_counts_it():
    plan = kvsim.plan_capacity("Qwen3-8B", "H100 SXM", vllm_version="0.8", engine="V1", used_by_others_gib=3)
    assert ("- other processes", "3.00 GiB") in [row[:2] for row in bridge(plan)]
    plan = kvsim.plan_capacity("Qwen3-8B", "H100 SXM", used_by_others_gib=3)
    assert "- other processes" not in [row[0] for row in bridge(plan)]


@pytest.mark.parametrize(
    ("model", "version", "says"),
    [
        ("gemma-3-27b-it", "0.33", "move with that length, the blocks do not"),
        ("gemma-3-27b-it", "0.16", "as vLLM prints them"),
        ("Qwen3-8B", "0.33", "as vLLM prints them"),
        ("Qwen3-8B", "0.6.6", "this release prints blocks alone"),
    ],
)
def test_what_the_printed_tokens_are(model, version, says):
    plan = kvsim.plan_capacity(model, "H200", vllm_version=version, max_model_len=8192)
    assert next(row for row in bridge(plan) if row[0] == "tokens")[2].endswith(says)


def test_v0_prints_the_blocks_of_its_swap_space():
    question = {"model": "Llama-3.1-8B", "gpu": "A10G", "vllm_version": "0.6.6", "max_model_len": 8192}
    assert ", # CPU blocks: 2048" in kvsim.plan_capacity(**question).lines[1]  # 4 GiB by 2 MiB
    assert ", # CPU blocks: 8192" in kvsim.plan_capacity(**question, swap_space=16).lines[1]
    assert ", # CPU blocks: 0" in kvsim.plan_capacity(**question, swap_space=0).lines[1]
    assert kvsim.plan_capacity("Qwen3-8B", "L4", max_model_len=8192, swap_space=8).ignored == (
        "--swap-space 8",
    )
    with pytest.raises(KvsimError, match="swap_space: -1 is not a number from 0"):
        kvsim.plan_capacity(**question, swap_space=-1)
