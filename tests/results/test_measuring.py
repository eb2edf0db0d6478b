"""What a run is measured by: limits, the warm-up cut, waiting and preemption; as figures, text and HTML."""

import re
import tracemalloc
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from test_results import HEAD, STATS, finished_rows

import kvsim
from kvsim.results import (
    COLUMNS,
    EVENT_COLUMNS,
    STEP_COLUMNS,
    WAITING_REASONS,
    MemorySink,
    RequestLog,
    RunResult,
    Tables,
    glance,
    summarize,
)
from kvsim.results.columns import EVENT_KINDS, REQUEST_ID_OF_EVENT, with_session

PAGE = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
COSTS = {
    "scheduled_tokens": 10_000,
    "num_preemptions": 4,
    "num_preempted_blocks": 30,
    "num_lost_tokens": 470,
    "num_recomputed_tokens": 125,
    "waiting_steps_no_room": 300,
    "waiting_steps_queue_head": 900,
}


def ten_requests() -> MemorySink:
    """One arrives each second, 0 to 9; TTFT 0.1 to 1 s; TPOT 0.1 s, but the last has a single token."""
    sink = MemorySink()
    log = RequestLog(sink, chunk_rows=4)
    arrival = np.arange(10.0)
    for number in range(10):
        log.arrive([f"r{number}"], arrival[[number]], np.array([50]))
    first = arrival + np.arange(1, 11) / 10
    tokens = [11] * 9 + [1]
    finish = first + np.array([1.0] * 9 + [0.0])
    rows = finished_rows(list(arrival), list(first), list(finish), tokens)
    rows["num_preemptions"][3:5] = 2
    log.end(np.arange(10), rows)
    log.close()
    return sink


def metrics(stats: dict | None = None, **options) -> dict:
    return summarize(HEAD | {"simulated_seconds": 20.0}, STATS | (stats or {}), ten_requests(), **options)


def shown(figures: dict) -> str:
    return repr(RunResult("", figures, Tables(MemorySink())))


def test_without_limits_there_is_no_goodput() -> None:
    figures = metrics()
    assert (figures["request_goodput"], figures["slo"]) == (None, {})
    assert "Goodput" not in shown(figures)


def test_goodput_counts_requests_that_keep_every_limit() -> None:
    figures = metrics(slo={"ttft": 0.8, "tpot": 0.05, "e2e": 1.75})
    shares = {name: limit["share"] for name, limit in figures["slo"].items()}
    # Eight have a TTFT of 0.8 s or less, the limit included; only the single token keeps the TPOT.
    assert shares == {"ttft": 0.8, "tpot": 0.1, "e2e": 0.8, "all": 0.0}
    assert figures["request_goodput"] == 0.0
    figures = metrics(slo={"ttft": 0.8, "tpot": 0.2})
    assert figures["request_goodput"] == 8 / 20
    assert figures["slo"]["ttft"]["limit"] == 0.8
    line = "0.40 requests per second, 80.0% of finished (TTFT <= 800 ms: 80.0%; TPOT <= 200 ms: 100.0%)"
    assert f"Goodput               {line}" in shown(figures)


def test_the_warm_up_cut_leaves_out_requests_that_arrived_before() -> None:
    figures = metrics(slo={"ttft": 0.8}, warm_up=4.0)
    assert figures["warm_up"] == {"seconds": 4.0, "requests_left_out": 4}
    assert figures["vllm:time_to_first_token_seconds"]["count"] == 6
    assert figures["vllm:time_to_first_token_seconds"]["p50"] == pytest.approx(0.75)
    assert figures["requests_per_second"] == 6 / 16
    assert figures["generation_tokens_per_second"] == (5 * 11 + 1) / 16
    assert figures["request_goodput"] == 4 / 16
    assert figures["requests"]["finished"] == 10  # totals stay
    assert figures["vllm:generation_tokens"] == STATS["generation_tokens"]
    assert "first 4 s cut: 4 of 10 requests left out of latencies, rates and goodput" in shown(figures)
    assert "Warm-up" not in shown(metrics())


def test_a_warm_up_longer_than_the_run_leaves_nothing() -> None:
    figures = metrics(slo={"ttft": 1}, warm_up=30.0)
    assert figures["requests_per_second"] is None
    assert figures["slo"]["all"]["share"] is None
    assert figures["vllm:e2e_request_latency_seconds"] == {
        "count": 0,
        **dict.fromkeys(("mean", "p50", "p90", "p95", "p99")),
    }
    assert "10 of 10 requests left out" in shown(figures)


def test_the_recompute_tax_is_a_share_of_all_tokens_computed() -> None:
    figures = metrics(COSTS)
    assert figures["recompute_tax"] == 0.0125
    assert figures["num_preempted_requests"] == 2
    line = (
        "4, of 2 requests; 30 blocks with 470 computed tokens lost, 125 computed again "
        "(recompute tax 1.25% of all tokens computed)"
    )
    assert f"Preemptions           {line}" in shown(figures)


def test_reasons_to_wait_are_named_the_largest_first() -> None:
    figures = metrics(COSTS)
    assert list(figures["waiting_steps"]) == list(WAITING_REASONS)
    assert figures["waiting_steps"]["queue_head"] == 900
    assert not any(name.startswith("waiting_steps_") for name in figures)
    line = (
        "1,200 request-steps: 75.0% behind a request that cannot be admitted, 25.0% no room in the KV cache"
    )
    assert f"Waiting               {line}" in shown(figures)
    assert "no request had to wait" in shown(metrics())


def test_every_reason_has_words() -> None:
    assert list(glance.WAITING_WORDS) == list(WAITING_REASONS)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells.append(data)


def test_a_notebook_shows_what_the_terminal_shows() -> None:
    figures = metrics(COSTS, slo={"ttft": 0.8}, warm_up=1.0) | {"name": "<script>"}
    page = _Page()
    html = RunResult("", figures, Tables(MemorySink()))._repr_html_()
    page.feed(html)
    assert page.open == []
    wanted = [cell for row in [*glance.facts(figures), *glance.latency_table(figures)] for cell in row]
    assert page.cells == wanted
    assert "&lt;script&gt;: " in html
    assert "<script>" not in html


def test_the_summary_of_more_requests_takes_no_more_memory() -> None:
    chunk = pa.concat_tables([ten_requests().read()] * 2_000).combine_chunks()

    class Long(MemorySink):
        """`repeats` chunks of 20,000 requests."""

        repeats = 0

        def chunks(self, columns=None):
            for _ in range(self.repeats):
                yield from chunk.select(columns).to_batches()

    def peak(repeats: int) -> int:
        rows = Long()
        rows.repeats = repeats
        tracemalloc.start()
        summarize(HEAD, STATS, rows)
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    assert peak(16) < 1.1 * peak(4)


def documented(heading: str) -> list[tuple[str, str, str]]:
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    table = section.split("| column | unit | meaning |\n|---|---|---|\n")[1].split("\n\n")[0]
    cells = [re.fullmatch(r"\| `(\w+)` \| (.*) \| (.*) \|", line) for line in table.strip().splitlines()]
    return [(cell[1], cell[2], cell[3]) for cell in cells if cell]


@pytest.mark.parametrize(
    ("heading", "columns"),
    [
        ("requests.parquet", with_session(COLUMNS)),
        ("steps.parquet", STEP_COLUMNS),
        ("events.parquet", EVENT_COLUMNS),
    ],
)
def test_the_page_lists_the_columns_as_the_code_has_them(heading: str, columns) -> None:
    assert documented(heading) == [(column.name, column.unit, column.meaning) for column in columns]


def test_the_page_lists_the_kinds_of_events() -> None:
    table = PAGE.split("| kind | what happened | cells |\n")[1].split("\n\n")[0]
    assert tuple(re.findall(r"(?m)^\| `(\w+)` \| ", table)) == EVENT_KINDS


def test_every_metric_is_on_the_page() -> None:
    named = set(re.findall(r"`([\w:]+)`", PAGE.split("## summary.json")[1]))
    assert {name for name in metrics(COSTS) if name not in HEAD} <= named


def test_columns_are_described_in_python() -> None:
    frame = RunResult.describe_columns()
    for table, columns in {"requests": COLUMNS, "steps": STEP_COLUMNS, "events": EVENT_COLUMNS}.items():
        for column in columns:
            row = frame.loc[(table, column.name)]
            assert (row.unit, row.meaning) == (column.unit, column.meaning)
    assert ("events", REQUEST_ID_OF_EVENT.name) in frame.index


SCENARIO = """\
model: Qwen/Qwen3-VL-2B-Instruct
gpu: rtx-4090
engine: {available_kv_cache_bytes: 2000000000, max_model_len: 4096}
workload: {type: shared_prefix, rate: 20, num_requests: 40, output_len: 8}
"""


def load(tmp_path: Path, *overrides: str) -> kvsim.Scenario:
    path = tmp_path / "tiny.yaml"
    path.write_text(SCENARIO)
    return kvsim.load_scenario(path, overrides)


def test_tokens_of_the_rows_are_those_that_the_engine_counts(tmp_path: Path) -> None:
    figures = load(tmp_path, "horizon=1.03").run().metrics
    assert figures["requests"]["unfinished"]
    rate = figures["generation_tokens_per_second"]
    assert rate == figures["vllm:generation_tokens"] / figures["simulated_seconds"]


def test_recording_changes_no_other_result(tmp_path: Path) -> None:
    plain, recorded = load(tmp_path), load(tmp_path, "record.steps=true", "record.events=true")
    assert plain.scenario_hash == recorded.scenario_hash
    plain.run().save(tmp_path / "plain")
    recorded.run().save(tmp_path / "recorded")
    for name in ("requests.parquet", "summary.json"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "recorded" / name).read_bytes()


def test_limits_and_warm_up_count_for_the_hash(tmp_path: Path) -> None:
    hashes = {load(tmp_path, *each).scenario_hash for each in ([], ["slo.ttft=1"], ["warm_up=1"])}
    assert len(hashes) == 3
