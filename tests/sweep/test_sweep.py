"""Sweeps in Python: tables, errors as rows, searches, the folder, workers."""

import errno
import io
import json
import os
import re
from pathlib import Path

import pandas as pd
import pytest
from sweeps import contents, scenario

import kvsim
from kvsim.errors import KvsimError
from kvsim.sweep import SweepResult, pools, store, work
from kvsim.sweep import version as versions

GRID = {"engine.block_size": [16, 32], "engine.num_gpu_blocks_override": [20, 60, 400]}


@pytest.fixture
def tiny(tmp_path):
    return scenario(tmp_path)


def sweep(tiny, *args, **words) -> SweepResult:
    return tiny.sweep(*args, **{"workers": 1, "progress": False} | words)


@pytest.fixture
def runs(monkeypatch) -> list[str]:
    """Hashes of the scenarios that are run from now on."""
    run, seen = work.run_point, []

    def noted(scenario):
        seen.append(scenario.scenario_hash)
        return run(scenario)

    monkeypatch.setattr("kvsim.sweep.run.run_point", noted)
    return seen


# ---- tables ----


def test_a_point_has_the_figures_of_its_run(tiny):
    result = sweep(tiny, GRID)
    assert result.axes == tuple(GRID)
    frame = result.frame
    assert list(frame.columns[:2]) == list(GRID)
    assert frame.columns[-1] == "error"
    assert len(frame) == 6
    row = frame.iloc[5]
    metrics = (
        kvsim.load_scenario(
            tiny.folder / "tiny.yaml", ["engine.block_size=32", "engine.num_gpu_blocks_override=400"]
        )
        .run()
        .metrics
    )
    assert row["vllm:time_to_first_token_seconds.p99"] == metrics["vllm:time_to_first_token_seconds"]["p99"]
    assert row["vllm:prefix_cache_hits"] == metrics["vllm:prefix_cache_hits"]
    assert row["requests.finished"] == 60
    assert row["finished_share"] == 1
    assert pd.isna(row["error"])


def test_a_point_that_fails_is_a_row(tiny):
    result = sweep(tiny, {"engine.num_gpu_blocks_override": [3, 400], "engine.max_num_seqs": [32, 4096]})
    errors = result.frame["error"].tolist()
    assert "all 60 requests were refused" in errors[0]
    assert "is above max_num_batched_tokens" in errors[1]
    assert pd.isna(errors[2])
    assert result.num_failed == 3
    assert result.frame["vllm:prefix_cache_hits"].dtype == "Int64"
    assert repr(result) == (
        "tiny: 4 points over engine.num_gpu_blocks_override, engine.max_num_seqs, 3 failed"
    )
    assert "<table" in result._repr_html_()


def test_a_bug_in_one_point_is_its_error(tiny, monkeypatch):
    def fail(scenario):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("kvsim.sim.run.run_scenario", fail)
    assert sweep(tiny, {"seed": [1]}).frame["error"].tolist() == ["ZeroDivisionError: oh"]


def test_equal_scenarios_run_once(tiny, runs):
    result = sweep(tiny, {"engine.max_num_seqs": [None, 256], "seed": [1, 2]})
    assert len(result.frame) == 4
    assert len(runs) == len(set(runs)) == 2
    assert result.frame["engine.max_num_seqs"].tolist() == [pd.NA, pd.NA, 256, 256]


def test_odd_values_become_text_in_the_table(tiny, tmp_path):
    lengths = [40, {"distribution": "uniform", "min": 1, "max": 50}]
    values = {
        "engine.max_model_len": ["auto", 2048],
        "workload.suffix_len": lengths,
        "workload.rate": ["inf", 3],
    }
    result = sweep(tiny, values, out=tmp_path / "out")
    assert set(result.frame["engine.max_model_len"]) == {"auto", "2048"}
    assert result.frame["workload.suffix_len"][2] == json.dumps(lengths[1])
    assert set(result.frame["workload.rate"]) == {"inf", "3"}


def test_saved_and_loaded_it_is_the_same(tiny, tmp_path):
    result = sweep(tiny, GRID | {"engine.max_num_seqs": [32, 4096]})
    loaded = SweepResult.load(result.save(tmp_path / "saved"))
    pd.testing.assert_frame_equal(result.frame, loaded.frame)
    assert (loaded.name, loaded.axes, loaded.asked) == (result.name, result.axes, result.asked)
    csv = pd.read_csv(tmp_path / "saved" / "table.csv")
    assert csv.columns.tolist() == loaded.frame.columns.tolist()
    assert len(csv) == 12


def test_pictures_are_those_of_kvsim_plots(tiny):
    plots = pytest.importorskip("kvsim.plots")
    assert isinstance(sweep(tiny, {"seed": [1, 2]}).plot, plots.SweepPlots)
    search = sweep(tiny, find="max:workload.rate", subject_to="ttft_p99<=200ms")
    assert search.plot.lines(y="ttft_p99") is not None  # of the values that it tried


def test_the_block_of_the_file_is_swept_and_left_alone_by_a_run(tmp_path):
    block = "sweep:\n  set: {engine.block-size: [16, 32], seed: '0:2:1'}\n"
    tiny = scenario(tmp_path, block)
    plain = scenario(tmp_path)
    assert tiny.scenario_hash == plain.scenario_hash
    assert tiny.run().metrics == plain.run().metrics
    result = sweep(tiny)
    assert result.axes == ("engine.block_size", "seed")
    assert len(sweep(tiny, {"seed": [5]}).frame) == 2


def test_the_block_can_be_left_out(tmp_path):
    tiny = scenario(tmp_path, "sweep:\n  set: {engine.block_size: [16, 32]}\n")
    result = sweep(tiny, {"seed": [1, 2]}, ignore_block=True)
    assert (result.axes, len(result.frame)) == (("seed",), 2)
    with pytest.raises(KvsimError, match="nothing to sweep"):
        sweep(tiny, ignore_block=True)


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ("sweep: {sett: {}}", "line 14: sweep.sett: unknown key; did you mean set?"),
        ("sweep: 3", "line 14: sweep: 3 is not a mapping"),
        ("sweep: {sample: 3}", "sweep.sample: 3 is not text"),
        ("sweep: {points: {a: 1}}", "line 14: sweep.points: {a: 1} is not a list"),
        ("sweep: {subject_to: 5}", "line 14: sweep.subject_to: 5 is not a list"),
        ("sweep: {sample: latin}", "sweep.sample: 'latin' is of another form; write random:N or latin:N"),
        ("sweep: {find: up:workload.rate}", "is of another form; write max:KEY or min:KEY"),
        ("sweep: {set: {engine.block_size: []}}", "engine.block_size: no values"),
    ],
)
def test_a_broken_block_is_one_line(tmp_path, block, says):
    with pytest.raises(KvsimError) as error:
        scenario(tmp_path, block)
    assert says in str(error.value)


# ---- searches ----


def test_a_search_names_the_best_value_and_what_binds(tiny):
    result = sweep(
        tiny,
        {"engine.max_num_seqs": [2, 8]},
        find="max:workload.rate",
        subject_to=["ttft_p99<=200ms", "tpot_p99<=50ms"],
    )
    assert result.searched == "workload.rate"
    for _, row in result.frame.iterrows():
        assert row["vllm:time_to_first_token_seconds.p99"] <= 0.2
        assert row["workload.rate"] < row["find.beyond"] <= row["workload.rate"] * 1.0101
        assert row["find.binding"].startswith("ttft_p99<=200ms: ")
    assert result.frame["workload.rate"].is_monotonic_increasing
    probes = result.probes
    assert len(probes) == result.frame["find.probes"].sum()
    assert (probes["find.meets"] == (probes["vllm:time_to_first_token_seconds.p99"] <= 0.2)).all()


def test_the_lowest_whole_number(tiny):
    path, more = tiny.folder / "tiny.yaml", ["engine.max_model_len=576", "workload.rate=inf"]
    tiny = kvsim.load_scenario(path, more)
    result = sweep(tiny, find="min:engine.num_gpu_blocks_override", subject_to="preemptions<=0")
    blocks = int(result.frame["engine.num_gpu_blocks_override"][0])
    for count, is_good in ((blocks, True), (blocks - 1, False)):
        run = kvsim.load_scenario(path, [*more, f"engine.num_gpu_blocks_override={count}"]).run()
        assert (run.metrics["vllm:num_preemptions"] == 0) is is_good


def test_a_search_tries_only_values_that_a_scenario_may_have(tiny):
    sizes = sweep(tiny, find="max:engine.block_size", subject_to="kv_usage_peak<=99%")
    assert not sizes.probes["error"].notna().any()
    assert set(sizes.probes["engine.block_size"] % 16) == {0}
    splits = sweep(tiny, find="max:engine.tensor_parallel_size", subject_to="finished>=50%").frame
    assert splits["engine.tensor_parallel_size"].tolist() == [16]
    assert splits["find.beyond"].isna().all()
    assert splits["find.note"][0].startswith("32 is refused: ")
    assert "32 does not divide the 16 attention heads" in splits["find.note"][0]


def test_a_server_that_would_not_start_is_remarked_and_is_no_answer(tiny):
    frame = sweep(tiny, {"engine.num_gpu_blocks_override": [60, 400]}).frame
    assert frame["remark"][0].startswith("vLLM would not start: 2,048 tokens (max_model_len) do not fit")
    assert pd.isna(frame["remark"][1])
    assert frame["error"].isna().all()
    found = sweep(tiny, find="min:engine.num_gpu_blocks_override", subject_to="finished>=50%").frame
    assert found["engine.num_gpu_blocks_override"].tolist() == [129]  # 2,048 tokens and the null block
    assert found["find.binding"][0].startswith("vLLM would not start")


def test_a_search_without_an_answer_is_a_row_with_the_reason(tiny):
    result = sweep(tiny, find="max:workload.rate=1:2", subject_to="ttft_p99<=1us")
    assert "no workload.rate of 1 value, 1, keeps every limit" in result.frame["error"][0]
    assert "ttft_p99<=1us" in result.frame["error"][0]


@pytest.mark.parametrize(
    ("find", "limit", "says"),
    [
        ("max:workload.rat", "ttft_p99<=1s", "workload.rat: unknown key; did you mean rate?"),
        ("max:gpu", "ttft_p99<=1s", "not a number"),
        ("max:workload.rate", "slo_share>=99%", "slo_share>=99%: slo_share counts requests within latency"),
        ("max:workload.rate", "goodput>=1", "the scenario has none; give it an slo: section"),
        ("max:workload.rate", "tftt_p99<=1s", "unknown figure tftt_p99; did you mean ttft_p99?"),
    ],
)
def test_a_wrong_search_fails_before_it_begins(tiny, tmp_path, find, limit, says):
    with pytest.raises(KvsimError, match=says):
        sweep(tiny, find=find, subject_to=limit, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_long_table_is_cut_on_the_screen(tiny):
    from rich.console import Console

    from kvsim.report.sweep import MOST_ROWS, print_sweep_result

    result = sweep(tiny, {"engine.max_num_seqs": range(1, MOST_ROWS + 6)}, find=None)
    out = Console(width=200, record=True, file=io.StringIO())
    print_sweep_result(result, out)
    text = out.export_text()
    assert "... 5 more rows in the table" in text
    assert re.search(rf"^ +{MOST_ROWS} ", text, re.M)
    assert not re.search(rf"^ +{MOST_ROWS + 1} ", text, re.M)


def test_a_notebook_without_widgets_has_no_bar_and_no_complaint(tiny, monkeypatch, recwarn):
    from kvsim.sweep import progress
    from kvsim.sweep.run import do_nothing

    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr(progress, "_has_widgets", lambda: False)
    with progress.progress_bar(progress.POINTS) as (_, show):
        assert show is do_nothing
    assert not recwarn.list


# ---- the folder ----


def test_a_sweep_goes_on_where_it_ended_and_repeats_nothing(tiny, tmp_path, runs):
    whole, out = tmp_path / "whole", tmp_path / "out"
    sweep(tiny, GRID, out=whole)
    sweep(tiny, GRID | {"engine.block_size": [16]}, out=out)
    runs.clear()
    (out / "points" / ".half.json.tmp").write_text("{")
    (out / ".table.csv.tmp").write_text("half")
    sweep(tiny, GRID, out=out)
    assert len(runs) == 3
    assert contents(out) == contents(whole)
    sweep(tiny, GRID, out=out)
    assert len(runs) == 3


def test_errors_are_kept_as_well(tiny, tmp_path, runs):
    for _ in range(2):
        result = sweep(tiny, {"engine.num_gpu_blocks_override": [3, 5]}, out=tmp_path / "out")
    assert len(runs) == 2
    assert result.num_failed == 2


def test_searches_keep_their_probes(tiny, tmp_path, runs):
    words = {"find": "max:workload.rate", "subject_to": "ttft_p99<=200ms", "out": tmp_path / "out"}
    first = sweep(tiny, **words)
    num_runs = len(runs)
    loaded = SweepResult.load(tmp_path / "out")
    pd.testing.assert_frame_equal(first.probes, loaded.probes)
    before = contents(tmp_path / "out")
    sweep(tiny, **words)
    assert len(runs) == num_runs == len(first.probes)
    assert contents(tmp_path / "out") == before


def test_points_of_another_kvsim_are_refused_until_they_may_go(tiny, tmp_path, runs, monkeypatch):
    out = tmp_path / "out"
    sweep(tiny, GRID, out=out)
    other = versions.kvsim_version().partition("+")[0] + "+0123456789ab"
    monkeypatch.setattr(store, "kvsim_version", lambda: other)
    before = contents(out)
    with pytest.raises(KvsimError, match=r"holds points of kvsim .*; give another --out, or --fresh"):
        sweep(tiny, GRID, out=out)
    assert contents(out) == before
    runs.clear()
    sweep(tiny, GRID, out=out, fresh=True)
    assert len(runs) == 6


def test_the_version_follows_the_sources():
    release, _, digest = versions.kvsim_version().partition("+")
    assert (release, len(digest)) != ("", 12)
    assert versions.kvsim_version() == versions.kvsim_version()


@pytest.mark.parametrize("content", ["[]", None], ids=["damaged", "missing"])
def test_a_folder_without_its_head_can_be_made_anew(tiny, tmp_path, content):
    out = tmp_path / "out"
    sweep(tiny, GRID, out=out)
    whole = contents(out)
    (out / "sweep.json").unlink() if content is None else (out / "sweep.json").write_text(content)
    with pytest.raises(KvsimError, match=r"--fresh"):
        sweep(tiny, GRID, out=out)
    sweep(tiny, GRID, out=out, fresh=True)
    assert contents(out) == whole


def test_fresh_spares_files_that_no_sweep_wrote(tiny, tmp_path):
    out = tmp_path / "out"
    sweep(tiny, GRID, out=out)
    foreign_point(out)
    with pytest.raises(KvsimError, match=r"notes.txt: no point of a sweep"):
        sweep(tiny, GRID, out=out, fresh=True)


def damaged(text: str):
    def damage(out: Path) -> str:
        path = sorted((out / "points").iterdir())[0]
        path.write_text(text)
        return path.name

    return damage


def edited(out: Path) -> str:
    """Text where a number belongs."""
    path = sorted((out / "points").iterdir())[0]
    text = path.read_text()
    assert '"finished": 60' in text
    path.write_text(text.replace('"finished": 60', '"finished": "many"'))
    return f"{path.name}: damaged, its figures are not those that were written; delete it"


def exchanged(out: Path) -> str:
    first, second = sorted((out / "points").iterdir())[:2]
    first.write_bytes(second.read_bytes())
    return first.name


def foreign_point(out: Path) -> str:
    (out / "points" / "notes.txt").write_text("mine")
    return "notes.txt"


def foreign_file(out: Path) -> str:
    (out / "thesis.tex").write_text("mine")
    return "thesis.tex"


def broken_head(out: Path) -> str:
    (out / "sweep.json").write_text("[]")
    return "sweep.json"


def no_head(out: Path) -> str:
    (out / "sweep.json").unlink()
    return "no folder of a sweep, sweep.json is missing"


@pytest.mark.parametrize(
    "damage",
    [
        damaged(""),
        damaged("{"),
        damaged("{}"),
        damaged("[1]"),
        edited,
        exchanged,
        foreign_point,
        foreign_file,
        broken_head,
        no_head,
    ],
)
def test_damaged_and_foreign_files_are_named(tiny, tmp_path, damage):
    out = tmp_path / "out"
    sweep(tiny, GRID, out=out)
    says = damage(out)
    before = contents(out)
    with pytest.raises(KvsimError) as error:
        sweep(tiny, GRID, out=out)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert contents(out) == before


def test_places_that_cannot_be_a_sweep(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(KvsimError, match="cannot write results to"):
        sweep(tiny, GRID, out=tmp_path / "file")
    with pytest.raises(KvsimError, match="cannot write results to"):
        sweep(tiny, GRID, out="/proc/nothing")
    with pytest.raises(KvsimError, match="is not the folder of a sweep"):
        SweepResult.load(tmp_path)


def test_an_unfinished_sweep_says_so_when_it_is_loaded(tiny, tmp_path):
    out = tmp_path / "out"
    sweep(tiny, GRID, out=out)
    (out / "table.parquet").unlink()
    with pytest.raises(KvsimError, match="the sweep has not ended, run it again"):
        SweepResult.load(out)


def test_two_sweeps_do_not_write_to_one_folder(tiny, tmp_path):
    head = {"name": "tiny", "axes": [], "asked": {}}
    with (
        store.Folder(tmp_path / "out", head),
        pytest.raises(KvsimError, match="another sweep is writing there"),
    ):
        sweep(tiny, GRID, out=tmp_path / "out")
    sweep(tiny, GRID, out=tmp_path / "out")


@pytest.mark.parametrize("full_after", [0, 1, 3])
def test_a_full_disk_is_one_line_and_finished_points_stay(tiny, tmp_path, monkeypatch, full_after):
    out, write, written = tmp_path / "out", Path.write_text, []

    def write_text(path, *args, **options):
        if len(written) > full_after:  # the first is sweep.json
            write(path, "half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(path)
        return write(path, *args, **options)

    monkeypatch.setattr(Path, "write_text", write_text)
    with pytest.raises(KvsimError) as error:
        sweep(tiny, GRID, out=out)
    assert "No space left on device; finished points are kept" in str(error.value)
    assert len(list(out.glob("points/*"))) == full_after
    monkeypatch.undo()
    sweep(tiny, GRID, out=out)
    sweep(tiny, GRID, out=tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")


# ---- workers ----


def test_worker_processes_give_the_same_bytes(tiny, tmp_path):
    axes = {"engine.num_gpu_blocks_override": [3, 40, 60, 400], "seed": "0:3:1"}
    for name, workers in (("one", 1), ("two", 2)):
        sweep(tiny, axes, workers=workers, out=tmp_path / name)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_searches_give_the_same_bytes(tiny, tmp_path):
    words = {"find": "max:workload.rate", "subject_to": "ttft_p99<=200ms"}
    for name, workers in (("one", 1), ("two", 2)):
        sweep(tiny, {"engine.max_num_seqs": [2, 4, 8]}, workers=workers, out=tmp_path / name, **words)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_workers_start_by_themselves_only_where_they_pay(tiny, monkeypatch):
    started = []
    local = pools.local_pool
    monkeypatch.setattr("kvsim.sweep.sweep.local_pool", lambda n: started.append(n) or local(1))
    monkeypatch.setattr("kvsim.sweep.sweep.num_cores", lambda: 2)
    for seconds in (0.1, 60.0):
        monkeypatch.setattr("kvsim.sweep.pools.seconds_of", lambda _, seconds=seconds: seconds)
        sweep(tiny, {"seed": [1, 2, 3]}, workers=None)
    assert started == [1, 2]


def test_the_length_of_a_point_is_estimated_from_a_few_requests(tiny, monkeypatch):
    run, seen = work.run_point, []
    monkeypatch.setattr(work, "run_point", lambda scenario: seen.append(scenario) or run(scenario))
    assert 0 < work.seconds_of(tiny) < 60
    assert seen[0].workload.num_requests == 60
    path = tiny.folder / "tiny.yaml"
    work.seconds_of(kvsim.load_scenario(path, ["workload.num_requests=5000"]))
    assert seen[1].workload.num_requests == 100
    work.seconds_of(kvsim.load_scenario(path, ["workload.num_requests=null", "horizon=2"]))
    assert seen[2].workload.num_requests == 40  # at 20 requests a second


def test_a_worker_that_dies_is_one_line(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("kvsim.sweep.run.run_point", die)
    with pytest.raises(KvsimError, match="a worker process died, perhaps for lack of memory"):
        sweep(tiny, GRID, workers=2, out=tmp_path / "out")


def die(scenario) -> str:
    os._exit(9)
