"""What `calibrate measure` keeps, repeats, leaves out and refuses."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from measuring import CARD, Pretended, TorchOutOfMemoryError, out_of_memory, pretend

from kvsim.calibrate.measure import session, shapes
from kvsim.calibrate.measure.device import OutOfMemoryError
from kvsim.calibrate.measure.request import HeadShape, Request
from kvsim.calibrate.measure.session import Outcome, Progress, measure
from kvsim.calibrate.measure.tables import FORMS
from kvsim.errors import KvsimError

HEADS = shapes.of_heads(HeadShape(12, 12, 64))
ATTENTION = Request(HEADS, ("prefill", "decode"))
JOURNAL = ".unfinished.jsonl"


@pytest.fixture
def flash(monkeypatch) -> Pretended:
    kernel = Pretended("torch_sdpa_flash", "prefill", "decode")
    pretend(monkeypatch, kernel)
    return kernel


def rows(folder: Path, table: str = "attention_decode") -> list[dict]:
    return pq.read_table(folder / f"{table}.parquet").to_pylist()


def test_tables_have_the_documented_columns_and_hot_and_cold_ones_are_apart(flash, tmp_path: Path) -> None:
    outcome = measure(ATTENTION, tmp_path)
    assert outcome.is_whole
    names = ["gpu", "kernel", "batch", "q_len", "kv_len", "n_q", "n_kv", "head_dim", "kv_dtype", "window"]
    table = pq.read_table(tmp_path / "attention_prefill.parquet")
    assert table.column_names[:12] == [*names, "vllm", "latency_us"]
    assert [str(table.schema.field(name).type) for name in ("gpu", "batch", "latency_us")] == [
        "string",
        "int32",
        "float",
    ]
    for row in rows(tmp_path):
        assert (row["gpu"], row["l2"], row["latency_us"], row["timed"]) == ("H200", "hot", 10.0, "cuda_graph")
        assert (row["card"], row["torch"], row["cuda"], row["driver"]) == (
            "NVIDIA H200",
            "2.13.0",
            "13.0",
            "580.1",
        )
        assert (row["package"], row["version"], row["vllm"]) == ("torch", "2.13.0", "")
    assert {(row["l2"], row["latency_us"]) for row in rows(tmp_path / "cold")} == {("cold", 20.0)}
    facts = json.loads(table.schema.metadata[b"kvsim.calibrate.measure"])
    assert facts["name"] == "NVIDIA H200"
    assert facts["written"]
    assert not (tmp_path / JOURNAL).exists()


def test_forms_are_those_of_the_public_tables() -> None:
    shared = Path(__file__).parents[3] / "shared" / "calibration"
    if not shared.is_dir():
        pytest.skip("needs ../shared/calibration")
    for name, form in FORMS.items():
        path = shared / f"{name}.parquet"
        if path.exists():
            schema = pq.read_schema(path)
            ours = {field.name: field.type for field in form.schema}
            assert {n: str(schema.field(n).type).replace("large_", "") for n in schema.names} == {
                n: str(ours[n]) for n in schema.names
            }


def test_nothing_is_measured_twice(flash, tmp_path: Path) -> None:
    first = measure(ATTENTION, tmp_path)
    count = len(flash.points)
    again = measure(ATTENTION, tmp_path)
    assert len(flash.points) == count == first.progress.measured
    assert (again.progress.found, again.progress.measured) == (count, 0)


def test_a_state_of_the_l2_cache_is_added_to_the_other(flash, tmp_path: Path) -> None:
    measure(replace(ATTENTION, l2=("hot",)), tmp_path)
    assert not (tmp_path / "cold").exists()
    measure(ATTENTION, tmp_path)
    assert len(rows(tmp_path)) == len(rows(tmp_path / "cold"))


def test_a_killed_process_loses_at_most_the_line_it_was_writing(flash, tmp_path: Path) -> None:
    def stop(point) -> None:
        if len(flash.points) == 4:
            journal = (tmp_path / JOURNAL).read_text(encoding="utf-8")
            (tmp_path / "kept").write_text(journal, encoding="utf-8")

    flash.act = stop
    measure(ATTENTION, tmp_path)
    journal = (tmp_path / "kept").read_text(encoding="utf-8")
    assert len(journal.splitlines()) == 6  # three points, hot and cold
    killed = tmp_path / "killed"
    killed.mkdir()
    (killed / JOURNAL).write_text(journal[:-20], encoding="utf-8")
    measured = flash.points[:3]
    flash.points.clear()
    flash.act = lambda point: None
    outcome = measure(ATTENTION, killed)
    assert outcome.is_whole
    assert not set(flash.points) & set(measured[:2])
    assert measured[2] in flash.points  # its cold time was cut off
    assert rows(killed)
    assert not (killed / JOURNAL).exists()


def test_another_cards_folder_is_refused(flash, monkeypatch, tmp_path: Path) -> None:
    measure(ATTENTION, tmp_path)
    before = (tmp_path / "attention_decode.parquet").read_bytes()
    pretend(monkeypatch, flash, card=replace(CARD, name="NVIDIA L40S", gpu="L40S"))
    with pytest.raises(KvsimError, match="holds times of NVIDIA H200, this is NVIDIA L40S"):
        measure(ATTENTION, tmp_path)
    assert (tmp_path / "attention_decode.parquet").read_bytes() == before


def test_tables_of_others_are_not_replaced(flash, tmp_path: Path) -> None:
    (tmp_path / "attention_decode.parquet").write_bytes(b"something else")
    with pytest.raises(KvsimError, match=r"attention_decode\.parquet: cannot be read"):
        measure(ATTENTION, tmp_path)
    table = pq.read_table  # a readable table without this program's mark
    measure(ATTENTION, tmp_path / "ours")
    plain = table(tmp_path / "ours" / "attention_decode.parquet").replace_schema_metadata(None)
    pq.write_table(plain, tmp_path / "attention_decode.parquet")
    with pytest.raises(KvsimError, match="is not a table of calibrate measure"):
        measure(ATTENTION, tmp_path)


@pytest.mark.parametrize("kind", [OutOfMemoryError, TorchOutOfMemoryError, MemoryError])
def test_points_that_do_not_fit_are_counted(flash, tmp_path: Path, kind) -> None:
    flash.act = out_of_memory(kind)
    progress = measure(ATTENTION, tmp_path).progress
    assert progress.out_of_memory == sum(point["batch"] == 2 for point in flash.points) > 0
    assert progress.done == progress.points
    assert {row["batch"] for row in rows(tmp_path)} == {1}


def test_a_kernel_that_fails_is_told_once_and_then_left_alone(flash, monkeypatch, tmp_path: Path) -> None:
    bad = Pretended("flash_attn_2", "prefill", "decode")

    def fail(point) -> None:
        raise TypeError("unexpected keyword\nwith more lines")

    bad.act = fail
    pretend(monkeypatch, flash, bad)
    said: list[str] = []
    outcome = measure(ATTENTION, tmp_path, say=said.append)
    assert said == [
        f"flash_attn_2, {operation}, bfloat16: failed: TypeError: unexpected keyword"
        for operation in sorted(("decode", "prefill"), key=[p.operation for p in bad.points].index)
    ]
    assert len(bad.points) == 6  # three tries of each operation
    assert outcome.progress.failed == outcome.progress.measured  # all of the bad kernel, none of the other
    assert set(outcome.failures) == {f"flash_attn_2, {each}, bfloat16" for each in ("decode", "prefill")}


def test_a_lost_device_ends_it_and_what_was_measured_is_kept(flash, monkeypatch, tmp_path: Path) -> None:
    def lose(point) -> None:
        if len(flash.points) > 2:
            monkeypatch.setattr(session.Device, "is_alive", lambda device: False)
            raise RuntimeError("an illegal memory access was encountered")

    flash.act = lose
    with pytest.raises(KvsimError, match="illegal memory access"):
        measure(ATTENTION, tmp_path)
    assert sum(pq.read_table(path).num_rows for path in tmp_path.glob("*.parquet")) == 2


def test_it_stops_when_it_is_asked_to(flash, tmp_path: Path) -> None:
    outcome = measure(ATTENTION, tmp_path, stopped=lambda: len(flash.points) >= 3)
    assert outcome.stopped
    assert outcome.progress.measured == 3
    measure(ATTENTION, tmp_path)
    assert len(set(flash.points)) == len(flash.points)


def test_it_stops_in_time(flash, tmp_path: Path, monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr(session, "monotonic", lambda: now[0])

    def take(point) -> None:
        now[0] += 2.0

    flash.act = take
    outcome = measure(replace(ATTENTION, budget=10.0), tmp_path, started=100.0)
    assert outcome.progress.measured == 5  # the last begins before the ninth second
    assert not outcome.is_whole
    assert not outcome.stopped


def test_progress_tells_the_time_left(monkeypatch) -> None:
    monkeypatch.setattr(session, "monotonic", lambda: 110.0)
    progress = Progress(points=100, found=50, measured=5, started=100.0)
    assert progress.seconds_left == pytest.approx(90.0)
    assert progress.share == pytest.approx(0.55)
    progress.deadline = 120.0
    assert progress.seconds_left == pytest.approx(10.0)
    assert Progress(points=10, started=100.0).seconds_left is None


def test_kernels_can_be_chosen_by_a_word(flash, monkeypatch, tmp_path: Path) -> None:
    other = Pretended("vllm_flash_attn_fa3", "decode")
    pretend(monkeypatch, flash, other)
    measure(replace(ATTENTION, kernels=("FA3",)), tmp_path)
    assert other.points
    assert not flash.points
    with pytest.raises(KvsimError, match="--kernel triton: no kernel of that name"):
        measure(replace(ATTENTION, kernels=("triton",)), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_request_that_nothing_here_can_do_is_refused(flash, tmp_path: Path) -> None:
    with pytest.raises(KvsimError, match="no installed kernel does decode in fp8"):
        measure(replace(ATTENTION, operations=("decode",), dtypes=("fp8",)), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_two_at_once_do_not_write_into_one_folder(flash, tmp_path: Path) -> None:
    pytest.importorskip("fcntl")

    def begin_another(point) -> None:
        with pytest.raises(KvsimError, match="another calibrate measure writes there"):
            measure(ATTENTION, tmp_path)

    flash.act = begin_another
    assert isinstance(measure(replace(ATTENTION, operations=("decode",)), tmp_path), Outcome)
