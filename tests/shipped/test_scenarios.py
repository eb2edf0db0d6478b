"""Each scenario in scenarios/ asks one question, and gives the answer that is kept beside it."""

import importlib.util
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import kvsim
from kvsim.sweep import SweepResult

ROOT = Path(__file__).parents[2]
SCENARIOS = ROOT / "scenarios"
SHARED = Path(os.environ.get("KVSIM_SHARED", ROOT.parent / "shared"))
TRACE = SHARED / "traces" / "mooncake_conversation_trace.jsonl.gz"

spec = importlib.util.spec_from_file_location("expected", SCENARIOS / "expected.py")
assert spec is not None
assert spec.loader is not None
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)

FILES = sorted(path.stem for path in SCENARIOS.glob("*.yaml"))
TTFT, TPOT = "vllm:time_to_first_token_seconds", "vllm:request_time_per_output_token_seconds"
TOKENS, HIT_RATE = "capacity.kv_cache_size_tokens", "prefix_cache_hit_rate"
IMBALANCE = "imbalance.requests.max_over_mean"


def kept(name: str) -> dict[str, Any]:
    return json.loads((script.EXPECTED / f"{name}.json").read_text(encoding="utf-8"))


def column(name: str, figure: str, **where: Any) -> list[Any]:
    """A figure of the points whose keys (last parts) have these values."""
    rows = kept(name)["sweep"]
    short = [{key.split(".")[-1]: value for key, value in row.items()} for row in rows]
    return [row[figure] for row, keys in zip(rows, short, strict=True) if where.items() <= keys.items()]


@pytest.mark.parametrize("name", FILES)
def test_the_first_line_is_a_question(name: str) -> None:
    lines = (SCENARIOS / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    assert re.fullmatch(r"# [A-Z].*\?", lines[0])
    assert lines[1] == "#"


def test_each_has_an_answer() -> None:
    assert sorted(path.stem for path in script.EXPECTED.glob("*.json")) == script.names()
    assert set(FILES) - set(script.names()) == script.NEEDS_A_TRACE
    assert len(FILES) >= 12


@pytest.mark.parametrize("name", script.names())
def test_every_server_in_it_would_start(name: str) -> None:
    rows = kept(name).get("sweep") or [kept(name)["run"]]
    assert not [row for row in rows if "remark" in row or "error" in row]


@pytest.mark.parametrize("name", script.names())
def test_it_gives_the_answer_that_is_kept(name: str) -> None:
    start = time.monotonic()
    found = json.loads(json.dumps(script.chief_figures(name)))
    assert found == kept(name), f"run python scenarios/expected.py {name}"
    assert time.monotonic() - start < 60


def test_the_list_of_questions_is_up_to_date() -> None:
    assert script.README.read_text(encoding="utf-8") == script.page(), "run python scenarios/expected.py"


def test_sizing_as_the_founding_study_concludes() -> None:
    """Model and utilization dominate; batched tokens matter a little, length and sequences not at all."""
    of = {"model": "Qwen/Qwen3-VL-2B-Instruct", "gpu_memory_utilization": 0.9}
    tokens, longer, more, batched = column("qwen3vl_sizing", TOKENS, **of)
    assert tokens == pytest.approx(157_952, rel=0.02)  # the study's server
    assert tokens == longer == more
    assert tokens - batched == pytest.approx(157_952 - 155_296, rel=0.1)
    less, *_ = column("qwen3vl_sizing", TOKENS, **of | {"gpu_memory_utilization": 0.8})
    larger, *_ = column("qwen3vl_sizing", TOKENS, **of | {"model": "Qwen/Qwen3-VL-4B-Instruct"})
    assert tokens - batched < 0.02 * tokens < 0.1 * tokens < tokens - less < tokens - larger


def test_the_hit_rate_falls_to_small_pools_and_coarse_blocks() -> None:
    by_memory = column("block_size", HIT_RATE, block_size=16)
    assert by_memory == sorted(by_memory)
    assert by_memory[0] < 0.5 * by_memory[-1]
    by_block = column("block_size", HIT_RATE, gpu_memory_utilization=0.9)
    assert by_block[-1] == 0 < by_block[-2] < 0.6 * by_block[0]


def test_hit_rate_grows_with_the_pool() -> None:
    for name in ("shared_prefix", "mooncake_small"):
        rates = column(name, HIT_RATE)
        assert rates == sorted(rates)
        assert rates[0] < 0.4 * rates[-1]


def test_pictures_hit_less_the_more_there_are_and_behind_the_question() -> None:
    before = column("image", HIT_RATE, image_position="before_instruction")
    after = column("image", HIT_RATE, image_position="after_instruction")
    assert before == sorted(before, reverse=True)
    assert all(first > second for first, second in zip(before, after, strict=True))


def test_preemption_begins_where_the_pool_is_full() -> None:
    preemptions = column("preemption", "vllm:num_preemptions")
    assert preemptions[0] == 0 < preemptions[-1]
    assert column("preemption", "vllm:kv_cache_usage_perc.peak")[-1] > 0.99


def test_small_steps_are_good_for_running_requests_and_bad_for_new_ones() -> None:
    tpot, ttft = column("chunked_prefill", f"{TPOT}.p99"), column("chunked_prefill", f"{TTFT}.p50")
    assert tpot[0] < 0.9 * tpot[5]
    assert ttft[0] > 1.1 * ttft[5]


def test_windows_make_room() -> None:
    hybrid = column("sliding_window", TOKENS, disable_hybrid_kv_cache_manager=False)
    full = column("sliding_window", TOKENS, disable_hybrid_kv_cache_manager=True)
    assert all(some > 2 * all_ for some, all_ in zip(hybrid, full, strict=True))


def test_latent_attention_makes_room() -> None:
    mla, gqa, mha = column("mla", TOKENS)
    assert mla > 4 * gqa > 16 * mha * 0.99


def test_fp8_makes_room() -> None:
    plain, fp8_cache, fp8_weights, both, *_ = column("quantized", TOKENS)
    assert fp8_cache == pytest.approx(2 * plain, rel=0.01)
    assert both == pytest.approx(2 * fp8_weights, rel=0.01)
    assert fp8_weights > 2 * plain


def test_tenants_cost_hits() -> None:
    rates = column("tenants", HIT_RATE)
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.2 * rates[0]


def test_adapters_wait_for_a_place() -> None:
    waited = column("lora", "waiting_steps.lora_limit", num_loras=16)
    assert waited == sorted(waited, reverse=True)
    assert waited[-1] == 0 < waited[0]


def test_the_prefix_cache_raises_the_load_that_keeps_the_limits() -> None:
    cached, plain = column("slo_goodput", "workload.rate")
    assert cached > 1.1 * plain


def test_a_long_pause_costs_a_chat_its_cache() -> None:
    rates = column("chat", HIT_RATE)
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 0.85
    assert rates[-1] < 0.25


def test_kept_reasoning_is_found_while_it_fits_and_fills_the_pool_sooner() -> None:
    dropped, kept_ones = (column("reasoning", HIT_RATE, keep_reasoning=value) for value in (False, True))
    assert kept_ones[0] > 0.95 > 0.8 > dropped[0]
    assert kept_ones[-1] < 0.6 * dropped[-1]


def test_who_knows_where_a_chat_lies_finds_it_again_and_answers_sooner() -> None:
    round_robin, *_, dynamo, _ = column("routers", HIT_RATE)
    assert round_robin < 0.5 * dynamo
    p99 = column("routers", f"{TTFT}.p99")
    assert min(p99) == p99[4] < 0.1 * p99[0]
    assert column("routers", IMBALANCE)[0] < 1.02  # which round robin is best at, and does not help


def replayed_routers() -> pd.DataFrame:
    frame = SweepResult.load(ROOT / "results" / "reference" / "mooncake_routers").frame
    return frame.set_index("cluster.router")


def test_of_long_prompts_that_seldom_come_back_who_finds_most_does_not_answer_soonest() -> None:
    found, tail = (replayed_routers()[figure] for figure in (HIT_RATE, f"{TTFT}.p99"))
    assert found["sglang_cache_aware"] > found["mooncake_conductor"] > found["dynamo_kv"]
    assert tail["mooncake_conductor"] < 0.7 * tail["sglang_cache_aware"]
    assert tail["dynamo_kv"] < 0.7 * tail["sglang_cache_aware"]
    assert found["dynamo_kv"] > 1.5 * found["round_robin"]


@pytest.mark.skipif(not TRACE.exists(), reason=f"{TRACE.name} is not in {TRACE.parent} (KVSIM_SHARED)")
def test_the_replay_gives_the_answer_that_is_kept() -> None:
    result = kvsim.load_scenario(SCENARIOS / "mooncake_routers.yaml", trace=TRACE).sweep(progress=False)
    found, reference = result.frame.set_index("cluster.router"), replayed_routers()
    for figure in (HIT_RATE, f"{TTFT}.p99", IMBALANCE, "num_steps"):
        assert found[figure].to_dict() == pytest.approx(reference[figure].to_dict(), rel=1e-5)


def test_following_one_hot_prefix_alone_loses() -> None:
    longest, *others = column("hot_prefix", f"{TTFT}.p99")
    assert longest > 1000 * min(others)
    assert column("hot_prefix", IMBALANCE)[0] == 8.0  # one of eight has everything
    assert max(column("hot_prefix", HIT_RATE)) == column("hot_prefix", HIT_RATE)[0]


def test_late_events_matter_as_soon_as_they_are_later_than_the_next_question() -> None:
    rates, first_tokens = column("stale_events", HIT_RATE), column("stale_events", f"{TTFT}.p50")
    assert len(set(rates[:5])) == 1
    assert rates[-1] < 0.95 * rates[0]
    assert first_tokens[-1] > 3 * first_tokens[0]


def test_late_events_do_not_matter_for_prefixes_that_stay_hot() -> None:
    rates = column("hot_late_events", HIT_RATE)
    assert max(rates) < 1.01 * min(rates)


def test_some_weight_of_the_prefix_is_best_and_none_is_worst() -> None:
    rates, p99 = column("prefix_weight", HIT_RATE), column("prefix_weight", f"{TTFT}.p99")
    assert rates[0] == min(rates) < 0.95 * max(rates)
    assert p99[0] == max(p99)
    assert 0 < p99.index(min(p99)) < len(p99) - 1


def test_two_cells_compute_hot_prompts_twice_and_cannot_help_each_other() -> None:
    assert column("cells", HIT_RATE)[0] < 0.97 * column("hot_late_events", HIT_RATE)[0]
    p99 = column("cells", f"{TTFT}.p99")
    assert p99 == sorted(p99)
    assert p99[-1] > 4 * p99[0]


def test_small_cards_help_the_middle_more_than_the_tail() -> None:
    p50, p99 = (column("two_groups", f"{TTFT}.{which}") for which in ("p50", "p99"))
    assert p50 == sorted(p50, reverse=True)
    assert p99[2] == min(p99) < 0.5 * p99[3]
