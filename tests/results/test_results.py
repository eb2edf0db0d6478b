"""Rows, summary and the results folder."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from made_results import HEAD, STATS, fill, finished_rows

from kvsim.results import (
    COLUMNS,
    MemorySink,
    ParquetSink,
    RequestLog,
    ResultsError,
    RunResult,
    Sinks,
    Tables,
    folder_name,
    replacing,
    summarize,
)
from kvsim.results.columns import ROW
from kvsim.results.store import IN_SUMMARY, abandon_all, read_texts
from kvsim.results.summary import VLLM_COUNTERS
from kvsim.results.tally import refusal_kind


def result() -> RunResult:
    sinks = Sinks.in_memory()
    fill(sinks.requests)
    return RunResult("name: tiny\n", summarize(HEAD, STATS, sinks.requests), sinks)


def test_every_request_has_one_row_in_order_of_arrival() -> None:
    frame = result().requests
    assert list(frame.columns) == [column.name for column in COLUMNS]
    assert list(frame.request_id) == [f"r{i}" for i in range(7)]
    assert list(frame.status) == ["finished"] * 5 + ["refused", "unfinished"]
    assert frame.reason[0] == "length"
    assert "4096" in frame.reason[5]
    assert list(frame.ttft[:5]) == [1.0] * 5
    assert list(frame.tpot[1:5]) == [1.0] * 4
    assert frame.tpot.isna()[0]  # a single token has no time per further token
    assert frame.loc[5:, ["first_scheduled_time", "ttft", "e2e"]].isna().all(axis=None)


def test_chunks_leave_memory_as_soon_as_all_before_them_have_ended() -> None:
    written: list[int] = []

    class Counting(MemorySink):
        def write(self, table) -> None:
            written.append(table.num_rows)
            super().write(table)

    log = RequestLog(Counting(), chunk_rows=2)
    for i in range(5):
        log.arrive([f"r{i}"], np.array([float(i)]), np.array([1]))
    rows = finished_rows([0.0] * 2, [1.0] * 2, [1.0] * 2, [1] * 2)
    log.end(np.array([2, 3]), rows)
    assert written == []
    log.end(np.array([1, 0]), rows)
    assert written == [2, 2]
    log.close()
    assert written == [2, 2, 1]


def test_no_request_gives_an_empty_table_and_no_figures() -> None:
    sink = MemorySink()
    RequestLog(sink).close()
    metrics = summarize(HEAD, STATS | {"prefix_cache_queries": 0}, sink)
    assert metrics["requests"]["total"] == 0
    assert metrics["prefix_cache_hit_rate"] is None
    assert metrics["vllm:time_to_first_token_seconds"]["p99"] is None
    assert "-" in repr(RunResult("", metrics, Tables(sink)))


def test_summary_counts_and_names_as_vllm_does() -> None:
    metrics = result().metrics
    assert metrics["requests"] == {"total": 7, "finished": 5, "refused": 1, "unfinished": 1, "aborted": 0}
    assert metrics["refusals"] == {"prompt of N tokens is longer than max_model_len N": 1}
    assert metrics["vllm:prefix_cache_hits"] == 50
    assert metrics["prefix_cache_hit_rate"] == 0.25
    assert metrics["generation_tokens_per_second"] == (4 * 4 + 1) / 8
    assert metrics["blocks_evicted"] == 7
    assert metrics["vllm:e2e_request_latency_seconds"]["mean"] == pytest.approx((4 + 4 + 4 + 4 + 1) / 5)
    json.dumps(metrics, allow_nan=False)


# Of those in vLLM 0.33.0 (v1/metrics/loggers.py, v1/spec_decode/metrics.py), the ones that kvsim uses.
VLLM_METRICS = {
    "e2e_request_latency_seconds",
    "generation_tokens",
    "kv_cache_usage_perc",
    "num_preemptions",
    "num_requests_running",
    "num_requests_waiting",
    "prefix_cache_hits",
    "prefix_cache_queries",
    "prompt_tokens",
    "prompt_tokens_cached",
    "request_generation_tokens",
    "request_num_preemptions",
    "request_prompt_tokens",
    "request_queue_time_seconds",
    "request_success",
    "request_time_per_output_token_seconds",
    "spec_decode_num_accepted_tokens",
    "spec_decode_num_draft_tokens",
    "time_to_first_token_seconds",
}


def test_what_is_called_vllms_is_a_metric_of_vllm() -> None:
    named = {name for name in result().metrics if name.startswith("vllm:")}
    named |= {f"vllm:{name}" for name in VLLM_COUNTERS}
    assert named == {f"vllm:{name}" for name in VLLM_METRICS}


def test_refusals_that_differ_in_numbers_only_are_one_kind() -> None:
    assert refusal_kind("needs 1,201 blocks, pool has 99.") == "needs N blocks, pool has N."


def test_what_people_see() -> None:
    text = repr(result())
    assert "GPU KV cache size: 1,584 tokens" in text
    assert "25.0% of tokens (50 of 200)" in text
    assert "3.00 GiB" in text
    assert "1,000.0" in text  # milliseconds


def test_summary_frame_has_counters_and_distributions() -> None:
    frame = result().summary
    assert frame.loc["vllm:prefix_cache_hits", "value"] == 50
    assert frame.loc["requests.finished", "value"] == 5
    assert frame.loc["vllm:time_to_first_token_seconds", "p50"] == 1.0


def test_saved_results_are_read_back_equal(tmp_path: Path) -> None:
    original = result()
    loaded = RunResult.load(original.save(tmp_path / "deep" / "here"))
    assert loaded.scenario == original.scenario
    assert loaded.metrics == original.metrics
    assert loaded.requests.equals(original.requests)
    assert loaded.save(tmp_path / "deep" / "here").is_dir()  # onto itself
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["here"]


def test_parquet_bytes_are_the_same_every_time_and_carry_no_environment(tmp_path: Path) -> None:
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path in paths:
        sink = ParquetSink(path)
        fill(sink)
        sink.close()
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert b"pandas" not in pq.read_metadata(paths[0]).metadata.get(b"ARROW:schema", b"")


def test_a_results_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "run-01234567"
    with replacing(target) as folder:
        (folder / "summary.json").write_text("1")
    with pytest.raises(KeyboardInterrupt):
        _interrupted(target)
    assert [path.name for path in target.iterdir()] == ["summary.json"]
    with replacing(target) as folder:
        (folder / "scenario.yaml").write_text("3")
    assert [path.name for path in target.iterdir()] == ["scenario.yaml"]
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def _interrupted(target: Path) -> None:
    with replacing(target) as folder:
        (folder / "half").write_text("2")
        raise KeyboardInterrupt


def test_folders_made_for_results_that_did_not_come_go_again(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(KeyboardInterrupt):
        _interrupted(tmp_path / "there" / "made" / "for" / "it")
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]


def test_a_folder_that_another_run_uses_meanwhile_stays(tmp_path: Path) -> None:
    with pytest.raises(ResultsError), replacing(tmp_path / "made" / "it") as folder:
        (folder.parent / "it").write_text("another's")
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["it"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_is_followed(tmp_path: Path, exists: bool) -> None:
    target, elsewhere = tmp_path / "results" / "run-01234567", tmp_path / "elsewhere"
    target.parent.mkdir()
    target.symlink_to("../elsewhere")
    if exists:
        elsewhere.mkdir()
    for content in "12":
        with replacing(target) as folder:
            (folder / "summary.json").write_text(content)
    assert target.is_symlink()
    assert (elsewhere / "summary.json").read_text() == "2"
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "elsewhere",
        "results",
        "run-01234567",
        "summary.json",
    ]


@pytest.mark.parametrize("before", [True, False])
def test_files_that_no_run_wrote_are_not_thrown_away(tmp_path: Path, before: bool) -> None:
    """Neither those there at the start nor those put there meanwhile."""
    target = tmp_path / "run-01234567"
    target.mkdir()
    if before:
        (target / "mine.txt").write_text("")
    with pytest.raises(ResultsError, match=r"run-01234567: the folder holds mine.txt"), replacing(target):
        (target / "mine.txt").write_text("")
    assert [path.name for path in tmp_path.rglob("*")] == [target.name, "mine.txt"]


@pytest.mark.parametrize(("moved", "left"), [("nothing", "1"), ("old", "1"), ("old and new", "2")])
def test_ending_at_once_in_mid_swap_loses_nothing(tmp_path: Path, moved: str, left: str) -> None:
    target = tmp_path / "run-01234567"
    with replacing(target) as folder:
        (folder / "summary.json").write_text("1")
    with pytest.raises(KeyboardInterrupt):
        _abandoned(target, moved)
    assert (target / "summary.json").read_text() == left
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def _abandoned(target: Path, moved: str) -> None:
    with replacing(target) as folder:
        (folder / "summary.json").write_text("2")
        if "old" in moved:
            target.rename(folder.with_suffix(".old"))
        if "new" in moved:
            folder.rename(target)
        abandon_all()
        raise KeyboardInterrupt


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ResultsError, match=r"cannot write results to .*file"), replacing(target):
            pass


def test_a_folder_without_results_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="is not a results folder"):
        RunResult.load(tmp_path)


def test_replicas_that_are_none_are_named(tmp_path: Path) -> None:
    summary = dict.fromkeys(IN_SUMMARY) | {"replicas": [5]}
    (tmp_path / "scenario.yaml").write_text("name: tiny\n", encoding="utf-8")
    (tmp_path / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    with pytest.raises(ResultsError, match=r"summary\.json: replicas is no list of replicas"):
        read_texts(tmp_path)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("quickstart", "quickstart"),
        ("../../etc", "etc"),
        ("a b/c", "a-b-c"),
        ("...", "run"),
        ("ü" * 3, "run"),
    ],
)
def test_folder_names_stay_inside_the_results_folder(name: str, folder: str) -> None:
    assert folder_name(name, "0123456789abcdef") == f"{folder}-01234567"


def test_every_column_is_documented_with_its_unit() -> None:
    page = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
    for column in COLUMNS:
        assert f"| `{column.name}` | {column.unit} | {column.meaning} |" in page


def test_prompt_tokens_count_from_the_first_output_token_on() -> None:
    assert result().metrics["vllm:prompt_tokens"] == 5 * 50


def test_rows_know_their_columns() -> None:
    names = {column.name for column in COLUMNS}
    assert set(ROW.names or ()) <= names


@pytest.mark.parametrize("in_file", [False, True])
def test_sessions_have_a_column_where_there_are_any(tmp_path: Path, in_file: bool) -> None:
    sink = ParquetSink(tmp_path / "requests.parquet") if in_file else MemorySink()
    log = RequestLog(sink, chunk_rows=2, has_sessions=True)
    ids = [f"r{i}" for i in range(5)]
    log.arrive(ids[:3], np.arange(3.0), np.full(3, 50), ["a", None, "b"])
    log.arrive(ids[3:], np.arange(2.0), np.full(2, 50))
    log.take_back(4)
    log.close()
    frame = sink.read().to_pandas()
    assert list(frame.columns) == ["request_id", "session", *(column.name for column in COLUMNS[1:])]
    assert sink.read()["session"].to_pylist() == ["a", None, "b", None]
    if in_file:
        assert Tables.of_folder(tmp_path).requests.read(["session"]).num_rows == 4


def test_a_table_of_sessions_without_rows(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "requests.parquet")
    RequestLog(sink, has_sessions=True).close()
    assert sink.read().schema.names[:2] == ["request_id", "session"]
