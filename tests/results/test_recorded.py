"""Steps and events, recorded on request."""

import shutil
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recorded_rows import LOG_DTYPE, STEP_DTYPE, events, steps

from kvsim.cache import state
from kvsim.engine.config import EngineConfig
from kvsim.engine.core import EngineCore
from kvsim.errors import KvsimError
from kvsim.results import (
    EVENT_COLUMNS,
    STEP_COLUMNS,
    EventLog,
    ManyRowsWarning,
    MemorySink,
    RunResult,
    Sinks,
    StepLog,
    event_log,
)
from kvsim.results.columns import EVENT_KINDS
from kvsim.tokens import segments
from kvsim.workload import Request


def of(name: str) -> int:
    return int(getattr(state, f"LOG_{name}"))


def table(rows: np.ndarray, **options) -> pd.DataFrame:
    sink = MemorySink()
    log = EventLog(sink, **options)
    log.write(0, rows)
    log.close()
    return sink.read().to_pandas()


STORED = {"kind": of("STORED"), "request": 3, "group_id": 1, "first": 2, "last": 77, "hash_lo": 0x0102}
EVICTED = {"kind": of("EVICTED"), "first": 9}
REMOVED = {"kind": of("REMOVED"), "group_id": 1, "hash_lo": 5, "hash_hi": 6}


def test_steps_have_every_column_and_what_follows_from_them() -> None:
    sink = MemorySink()
    log = StepLog(sink, num_gpu_blocks=11)
    log.write(2, steps(3, first=4))
    log.close()
    frame = sink.read().to_pandas()
    assert list(frame.columns) == [column.name for column in STEP_COLUMNS]
    assert list(frame.instance) == [2, 2, 2]
    assert list(frame.step) == [4, 5, 6]
    assert list(frame.duration) == [0.25] * 3
    assert list(frame.kv_cache_usage_perc) == [0.4, 0.5, 0.6]  # of 10: the null block is nobody's
    assert list(frame.waiting_queue_head) == [3, 3, 3]


def test_step_rows_are_those_of_the_engine() -> None:
    derived = {"instance", "duration", "kv_cache_usage_perc"}
    assert {column.name for column in STEP_COLUMNS} == derived | set(STEP_DTYPE.names or ())


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_chunks_have_one_size_whatever_the_pieces(tmp_path: Path, kind: str) -> None:
    written = []
    for pieces in ([1] * 23, [23], [5, 9, 9]):
        folder = tmp_path / str(len(pieces))
        folder.mkdir()
        sinks = Sinks.in_memory(steps=True) if kind == "memory" else Sinks.in_folder(folder, steps=True)
        assert sinks.steps is not None
        log = StepLog(sinks.steps, 11, chunk_rows=7)
        done = 0
        for count in pieces:
            rows = steps(count, first=done)
            log.write(0, rows)
            rows["step"] = -1  # the engine uses its buffer again
            done += count
        log.close()
        sinks.close()
        assert [chunk.num_rows for chunk in sinks.steps.chunks()] == [7, 7, 7, 2]
        assert sinks.steps.read(["step"])["step"].to_pylist() == list(range(23))
        written.append((folder / "steps.parquet").read_bytes() if kind == "folder" else b"")
    assert written == written[:1] * 3


def test_nothing_to_record_gives_an_empty_table(tmp_path: Path) -> None:
    sinks = Sinks.in_folder(tmp_path, steps=True, events=True)
    assert sinks.steps is not None
    assert sinks.events is not None
    StepLog(sinks.steps, 11).close()
    EventLog(sinks.events).close()
    sinks.close()
    assert pq.read_table(tmp_path / "steps.parquet").schema.names == [c.name for c in STEP_COLUMNS]
    assert pq.read_table(tmp_path / "events.parquet").num_rows == 0


def test_a_stored_block() -> None:
    run = {"kind": of("STORED_RUN"), "request": 3, "group_id": 1, "first": 2, "last": 3}
    frame = table(events(STORED | {"hash_hi": 1 << 63, "step": 8, "time": 1.5}, run))
    assert list(frame.columns) == [column.name for column in EVENT_COLUMNS]
    (row,) = frame.to_dict("records")
    known = {name: value for name, value in row.items() if not pd.isna(value)}
    assert known == {
        "instance": 0,
        "step": 8,
        "time": 1.5,
        "kind": "stored",
        "request": 2,  # rows count from 0
        "group_id": 1,
        "block_id": 77,
        "block_index": 2,
        "block_hash": "0201000000000000" + "0000000000000080",
    }


def test_an_evicted_block_has_its_key_and_further_keys_have_their_block() -> None:
    frame = table(events(EVICTED, REMOVED, REMOVED | {"hash_lo": 7}, STORED, EVICTED | {"first": 4}, REMOVED))
    assert list(frame.kind) == ["evicted", "key_removed", "stored", "evicted"]
    assert list(frame.block_id) == [9, 9, 77, 4]
    assert [text[:2] for text in frame.block_hash] == ["05", "07", "02", "05"]
    assert list(frame.group_id) == [1, 1, 1, 1]
    assert pd.isna(frame.request[0])


@pytest.mark.parametrize("chunk_rows", [2, 3, 4, 5])
@pytest.mark.parametrize("pieces", [1, 4, 8])
def test_a_block_and_its_key_are_never_parted(chunk_rows: int, pieces: int) -> None:
    rows = events(*[STORED, EVICTED, REMOVED, STORED] * 8)
    sink = MemorySink()
    log = EventLog(sink, chunk_rows=chunk_rows)
    for part in np.split(rows, pieces):
        log.write(0, part)
    log.close()
    frame = sink.read().to_pandas()
    assert list(frame.kind) == ["stored", "evicted", "stored"] * 8
    assert frame.block_hash.notna().all()


def test_events_of_requests() -> None:
    rows = events(
        {"kind": of("LOOKUP"), "request": 1, "first": 48},
        {"kind": of("PREEMPTED"), "request": 1, "first": 6, "last": 90},
        {"kind": of("FINISHED"), "request": 1, "first": 0, "last": int(state.FINISHED_LENGTH_CAPPED)},
        {"kind": of("STORED_PARTIAL"), "request": 1, "first": 24, "last": 5, "hash_lo": 1},
        {"kind": of("CLEARED")},
    )
    frame = table(rows)
    assert list(frame.kind) == ["lookup", "preempted", "finished", "stored_partial", "cleared"]
    assert list(frame.num_tokens[[0, 1, 3]]) == [48, 90, 24]
    assert frame.num_blocks[1] == 6
    assert frame.reason[2] == "length"
    assert frame.block_id[3] == 5
    assert frame.loc[4, "request":].isna().all()


def test_kinds_and_ends_are_numbered_as_in_the_engine() -> None:
    for name in ("EVICTED", "REMOVED", "STORED_RUN", "STORED", "STORED_PARTIAL", "CLEARED", "LOOKUP"):
        assert getattr(event_log, name) == of(name)
    assert (of("PREEMPTED"), of("FINISHED")) == (event_log.PREEMPTED, event_log.FINISHED)
    assert set(event_log.NAMES.values()) == set(EVENT_KINDS)
    ends = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_ABORTED", "FINISHED_ERROR")
    assert [event_log.REASONS[int(getattr(state, end))] for end in ends] == [
        "stop",
        "length",
        "abort",
        "error",
    ]


def test_more_than_a_million_rows_are_told_once() -> None:
    log = StepLog(MemorySink(), 11, chunk_rows=10, many_rows=25)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for first in range(0, 60, 6):
            log.write(0, steps(6, first))
    (warning,) = told
    assert warning.category is ManyRowsWarning
    text = str(warning.message)
    assert text.startswith("30 rows of steps so far, 0 MB, and more to come; ")
    assert "record.steps: true (or --record steps)" in text


def recorded_result(sinks: Sinks) -> RunResult:
    from test_results import HEAD, STATS, fill

    from kvsim.results import summarize

    fill(sinks.requests)
    if sinks.steps is not None and sinks.events is not None:
        step_log, event_log = StepLog(sinks.steps, 11), EventLog(sinks.events)
        step_log.write(0, steps(5))
        event_log.write(0, events(STORED, EVICTED, REMOVED))
        step_log.close()
        event_log.close()
    return RunResult("name: tiny\n", summarize(HEAD, STATS, sinks.requests), sinks)


def test_events_carry_the_names_of_requests_and_all_is_saved(tmp_path: Path) -> None:
    result = recorded_result(Sinks.in_memory(steps=True, events=True))
    assert result.events.request_id[0] == "r2"
    assert result.events.loc[1, ["request", "request_id"]].isna().all()
    assert "77 " in result.events.to_string()
    assert "77.0" not in result.events.to_string()
    loaded = RunResult.load(result.save(tmp_path / "saved"))
    pd.testing.assert_frame_equal(loaded.events, result.events)
    pd.testing.assert_frame_equal(loaded.steps, result.steps)
    pd.testing.assert_frame_equal(loaded.requests, result.requests)
    assert loaded.save(tmp_path / "saved").is_dir()  # onto itself
    names = ["events.parquet", "requests.parquet", "scenario.yaml", "steps.parquet", "summary.json"]
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == names


@pytest.mark.parametrize("name", ["steps", "events"])
def test_asking_for_what_was_not_recorded_says_how_it_is(tmp_path: Path, name: str) -> None:
    result = recorded_result(Sinks.in_memory())
    for each in (result, RunResult.load(result.save(tmp_path / "saved"))):
        with pytest.raises(KvsimError, match=rf"^{name} were not recorded; .*record: .*--record {name}$"):
            getattr(each, name)


def test_no_environment_in_recorded_files(tmp_path: Path) -> None:
    recorded_result(Sinks.in_memory(steps=True, events=True)).save(tmp_path / "saved")
    for name in ("steps.parquet", "events.parquet"):
        assert b"pandas" not in pq.read_metadata(tmp_path / "saved" / name).metadata.get(b"ARROW:schema", b"")


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    result = RunResult.load(recorded_result(Sinks.in_memory(steps=True)).save(tmp_path / "saved"))
    (tmp_path / "saved" / "requests.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(KvsimError, match=r"requests\.parquet cannot be read: "):
        result.requests  # noqa: B018


def test_types_are_plain() -> None:
    kinds = {column.type for column in (*STEP_COLUMNS, *EVENT_COLUMNS)}
    assert kinds == {pa.float64(), pa.int64(), pa.int32(), pa.string()}


def test_the_log_of_an_engine_as_events() -> None:
    """Every block that the engine counts as cached or evicted has a row, with the key of its content."""
    config = EngineConfig(
        block_size=4, num_gpu_blocks=9, max_model_len=24, max_num_seqs=4, log_capacity=10_000
    )
    core, sink = EngineCore(config, None), MemorySink()
    log = EventLog(sink, chunk_rows=16)
    for number in range(12):
        prompt = segments((1, 0, 9), (number, 0, 3))
        core.add_request(Request(f"r{number}", 0.0, prompt, segments((50 + number, 0, 9)), max_tokens=8))
    step = 0
    while core.has_requests():
        core.step(0.0)
        taken = core.take_log()
        rows = np.zeros(len(taken), LOG_DTYPE)
        for field in taken.dtype.names or ():
            rows[field] = taken[field]
        rows["step"] = step = step + 1
        log.write(0, rows)
    log.close()
    frame, stats = sink.read().to_pandas(), core.stats()
    counts = frame.kind.value_counts()
    assert (counts["stored"], counts["evicted"]) == (stats["blocks_cached"], stats["blocks_evicted"])
    assert counts["preempted"] == stats["num_preemptions"] > 0
    assert counts["finished"] == 12
    assert set(frame.reason.dropna()) == {"length"}
    holds: dict[int, str] = {}
    for row in frame[frame.kind.isin(["stored", "evicted"])].itertuples():
        if row.kind == "stored":
            holds[row.block_id] = row.block_hash
        else:
            assert holds.pop(row.block_id) == row.block_hash


def test_a_table_in_the_place_of_another_is_refused(tmp_path: Path) -> None:
    folder = recorded_result(Sinks.in_memory(steps=True)).save(tmp_path / "saved")
    shutil.copy(folder / "requests.parquet", folder / "steps.parquet")
    with pytest.raises(KvsimError, match=r"steps\.parquet has not the columns of steps\.parquet"):
        _ = RunResult.load(folder).steps


@pytest.mark.parametrize("text", ["[]", "{}", '{"name": "x"}'])
def test_a_summary_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    folder = recorded_result(Sinks.in_memory()).save(tmp_path / "saved")
    (folder / "summary.json").write_text(text)
    with pytest.raises(KvsimError, match=r"summary\.json: (name|model) is missing"):
        RunResult.load(folder)
