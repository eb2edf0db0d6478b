"""Tables of measured runs: what is read, what is refused, and which scenario a row becomes."""

import pytest
from measured import CLOSED, FAILED, FP4, MOE, OPEN, write

from kvsim.errors import KvsimError
from kvsim.validate.rows import DENSE, FAILING, read_rows
from kvsim.validate.rows import FP4 as FOUR_BITS
from kvsim.validate.rows import MOE as EXPERTS
from kvsim.validate.scenarios import row_scenario, rules_of


def rows(tmp_path, *values):
    return read_rows(write(tmp_path / "serving.csv", list(values)))


def test_rows_fall_into_classes(tmp_path) -> None:
    kinds = [row.kind for row in rows(tmp_path, CLOSED, OPEN, FP4, MOE, FAILED)]
    assert kinds == [DENSE, DENSE, FOUR_BITS, EXPERTS, FAILING]


def test_names_of_models_gpus_and_formats_are_the_catalogs(tmp_path) -> None:
    closed, opened, four, moe = rows(tmp_path, CLOSED, OPEN, FP4, MOE)
    assert [row.gpu for row in (closed, opened, four, moe)] == ["H100 SXM", "H100 SXM", "B200", "H200"]
    assert [row.spec.quantization for row in (closed, opened, four, moe)] == [None, "fp8", "nvfp4", "mxfp4"]
    assert opened.measured == {"ttft": 21.0, "tpot": 6.0, "e2e": 90.0, "requests": 39.0}
    assert opened.source == "made/up"


def test_a_stated_tpot_goes_before_a_derived_one(tmp_path) -> None:
    (row,) = rows(tmp_path, OPEN | {"tpot_mean_ms": 5.0})
    assert row.measured["tpot"] == 5.0


@pytest.mark.parametrize(
    ("version", "rules"),
    [
        (None, "0.16"),
        ("", "0.16"),
        ("not stated", "0.16"),
        ("0.15.1", "0.16"),
        ("0.24.0", "0.16"),
        ("0.25.0", "0.33"),
        ("v0.33.1", "0.33"),
        ("1.0", "0.33"),
    ],
)
def test_rules_by_version(version, rules) -> None:
    assert rules_of(version) == rules


def test_a_closed_loop_runs_ten_requests_a_place_with_spread_lengths(tmp_path) -> None:
    made = row_scenario(rows(tmp_path, CLOSED)[0])
    load = made.scenario.workload
    assert (load.max_concurrency, load.num_requests, load.rate) == (3, 30, float("inf"))
    assert load.suffix_len == {"distribution": "uniform", "min": 76, "max": 96}
    assert load.output_len == {"distribution": "uniform", "min": 9, "max": 12}
    assert made.first_wave == 3
    assert made.filled == {
        "max_num_seqs": 1024,
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.9,
        "async_scheduling": True,
    }


def test_an_open_loop_keeps_its_rate_its_flags_and_its_prompts(tmp_path) -> None:
    made = row_scenario(rows(tmp_path, OPEN)[0])
    load, engine = made.scenario.workload, made.scenario.engine
    assert (load.rate, load.num_requests, load.arrival, load.max_concurrency) == (40.0, 50, "constant", None)
    assert (load.num_prefixes, load.prefix_len, load.suffix_len) == (6, 96, 0)
    assert (engine.num_gpu_blocks_override, engine.max_num_batched_tokens) == (900, 2048)
    assert "max_num_batched_tokens" not in made.filled
    assert made.first_wave == 0


def test_block_counts_of_mixed_layers_are_of_all_layers(tmp_path) -> None:
    made = row_scenario(rows(tmp_path, MOE | {"num_gpu_blocks": 5000})[0])
    assert made.scenario.engine.disable_hybrid_kv_cache_manager is True
    assert made.filled["disable_hybrid_kv_cache_manager"] is True


BAD = [
    ({"mean_input_len": "many"}, "row 1: mean_input_len is 'many', not a number"),
    ({"mean_input_len": "nan"}, "row 1: mean_input_len is 'nan', not a number"),
    ({"ttft_mean_ms": -3.0}, "row 1: ttft_mean_ms is -3.0, must be above 0"),
    ({"tp": 1.5}, "row 1: tp is 1.5, must be a whole number"),
    ({"concurrency": ""}, "row 1: neither request_rate_rps nor concurrency is given"),
    ({"ttft_mean_ms": "", "tpot_mean_ms": ""}, "row 1: nothing measured; one of ttft_mean_ms"),
    ({"engine": "sglang"}, "row 1: engine is sglang, kvsim models vllm"),
    ({"gpu": "H900"}, "row 1: gpu: 'H900' is not in the catalog"),
    ({"model": "Lama 9"}, "row 1: model: 'Lama 9' is not in the catalog"),
    ({"dtype": "fp5"}, "row 1: dtype is 'fp5'; one of fp8"),
    ({"model": ""}, "row 1: model is empty"),
    ({"prefix_caching": "maybe"}, "row 1: prefix_caching is 'maybe', must be True or False"),
]


@pytest.mark.parametrize(("change", "said"), BAD, ids=lambda value: str(value)[:40])
def test_bad_rows_say_what_is_wrong(tmp_path, change, said) -> None:
    with pytest.raises(KvsimError) as error:
        rows(tmp_path, CLOSED | {"prefix_caching": True} | change)
    assert f"serving.csv: {said}" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ({"gpu"}, "column gpu is missing"),
        ({"concurrency"}, "column request_rate_rps or concurrency is missing"),
        ({"ttft_mean_ms", "tpot_mean_ms"}, "nothing measured; one of ttft_mean_ms"),
    ],
)
def test_missing_columns_are_named(tmp_path, lost, said) -> None:
    with pytest.raises(KvsimError, match=said):
        rows(tmp_path, {key: value for key, value in CLOSED.items() if key not in lost})


def test_a_column_in_another_unit_is_seen(tmp_path) -> None:
    seconds = {key: value for key, value in CLOSED.items() if not key.endswith("_ms")}
    with pytest.raises(KvsimError, match="ttft_mean_s is there, give it as ttft_mean_ms"):
        rows(tmp_path, seconds | {"ttft_mean_s": 0.02})


def test_impossible_settings_name_their_row(tmp_path) -> None:
    with pytest.raises(KvsimError, match=r"row 1: engine\.tensor_parallel_size: "):
        row_scenario(rows(tmp_path, CLOSED | {"tp": 7})[0])
