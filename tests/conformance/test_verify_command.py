"""`kvsim verify`: what it prints and how it ends, for good, differing and broken traces."""

import copy
import gzip
import json
import re
import shutil
from pathlib import Path

import pytest

from kvsim.cli.main import main
from kvsim.verify.compare import first_difference, read_trace

HERE = Path(__file__).parent
NAME = "a1_design_doc"


@pytest.fixture
def verify(capsys):
    """Run the command; (exit code, lines on stdout, lines on stderr)."""

    def run(*paths):
        with pytest.raises(SystemExit) as end:
            main(["verify", *map(str, paths)])
        captured = capsys.readouterr()
        errors = [line for line in captured.err.splitlines() if not line.startswith("compiling once")]
        return end.value.code, captured.out.splitlines(), errors

    return run


@pytest.fixture
def copied(tmp_path):
    """One trace with its scenario in a folder of its own; the trace's path."""
    for folder, suffix in (("scenarios", ".json"), ("golden", ".jsonl.gz")):
        (tmp_path / folder).mkdir()
        shutil.copy(HERE / folder / f"{NAME}{suffix}", tmp_path / folder)
    return tmp_path / "golden" / f"{NAME}.jsonl.gz"


def rewrite(path, edit):
    """Let `edit` change the list of a trace's records."""
    with gzip.open(path, "rt") as file:
        records = [json.loads(line) for line in file]
    edit(records)
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def step(records, t):
    return next(record for record in records if record.get("t") == t)


def test_identical_traces_end_with_the_count(verify):
    paths = [HERE / folder / f"{NAME}.jsonl.gz" for folder in ("golden", "golden-0.16")]
    assert verify(*paths) == (0, ["2 traces, 2 identical"], [])


def test_a_folder_means_all_traces_in_it(verify, copied):
    shutil.copy(copied, copied.with_name("same_again.jsonl.gz"))
    assert verify(copied.parent) == (0, ["2 traces, 2 identical"], [])


def test_a_plain_text_trace_is_read_too(verify, copied):
    plain = copied.with_suffix("")
    plain.write_bytes(gzip.decompress(copied.read_bytes()))
    assert verify(plain) == (0, ["1 traces, 1 identical"], [])


def swap_queue(records):
    queue = step(records, 2)["sched"]["queue"]
    queue[0], queue[1] = queue[1], queue[0]


def grow_hit(records):
    step(records, 4)["sched"]["reqs"][-1]["hit"] += 4


def forget_evictions(records):
    records[-1]["evict"] += 1


def extra_field(records):
    step(records, 1)["sched"]["surprise"] = 1


def drop_last_step(records):
    del records[-2]


def block_size(records):
    records[0]["scheduler_block_size"] = 5


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        (swap_queue, r"step 2, sched\.queue\[0\]: ours \d+, theirs \d+"),
        (grow_hit, r"step 4, sched\.reqs\[\d\]\.hit: ours 8, theirs 12"),
        (forget_evictions, r"end, evict: ours 1, theirs 2|end, evict: ours 0, theirs 1"),
        (extra_field, r"step 1, sched\.surprise: ours nothing, theirs 1"),
        (drop_last_step, r"end, \w+: ours .*, theirs .*"),
        (block_size, r"header, scheduler_block_size: ours 4, theirs 5"),
    ],
)
def test_the_first_difference_is_named(verify, copied, edit, place):
    rewrite(copied, edit)
    code, out, err = verify(copied, HERE / "golden" / "a2_design_doc_nocache.jsonl.gz")
    assert code == 1
    assert out[0].startswith(f"{copied}: ")
    assert re.fullmatch(place, out[0].removeprefix(f"{copied}: "))
    assert out[1:] == ["2 traces, 1 identical"]
    assert err == []


def leaves(record, path=()):
    """Paths of all values that are compared."""
    items = record.items() if isinstance(record, dict) else enumerate(record)
    for key, value in items:
        if key == "ops":
            continue
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from leaves(value, (*path, key))


def named(path):
    parts = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return "".join(parts).lstrip(".")


def test_a_change_of_any_value_is_a_difference():
    """Every phase of every step: one value changed at a time, each is found and named."""
    _, *records = read_trace(HERE / "golden" / f"{NAME}.jsonl.gz")
    paths = [(i, path) for i, record in enumerate(records) for path in leaves(record)]
    assert {path[0] for _, path in paths} >= {"pre", "sched", "upd"}
    for i, path in paths:
        changed = copy.deepcopy(records[i])
        owner = changed
        for key in path[:-1]:
            owner = owner[key]
        owner[path[-1]] = "changed"
        assert first_difference(records[i], changed).startswith(f"{named(path)}: ours ")


def test_a_missing_value_is_a_difference():
    assert first_difference({"a": 1}, {"a": 1, "b": None}) == "b: ours nothing, theirs None"
    assert first_difference([1], [1, 2]) == "[1]: ours nothing, theirs 2"


def test_only_the_first_difference_of_a_trace_is_printed(verify, copied):
    def edit(records):
        forget_evictions(records)
        swap_queue(records)

    rewrite(copied, edit)
    _, out, _ = verify(copied)
    assert len(out) == 2
    assert "step 2" in out[0]


def test_the_order_of_pool_calls_is_not_compared(verify, copied):
    def edit(records):
        for record in records[1:-1]:
            for phase in ("pre", "sched", "upd"):
                record.get(phase, {}).pop("ops", None)

    rewrite(copied, edit)
    assert verify(copied)[0] == 0


def write(content):
    return lambda trace: trace.write_bytes(content)


def without_scenario(trace):
    (trace.parent.parent / "scenarios" / f"{NAME}.json").unlink()


def broken_scenario(trace):
    (trace.parent.parent / "scenarios" / f"{NAME}.json").write_text("{")


def header(**fields):
    return lambda trace: rewrite(trace, lambda records: records[0].update(fields))


def no_header(trace):
    rewrite(trace, lambda records: records.pop(0))


def cut_short(trace):
    trace.write_bytes(trace.read_bytes()[:-200])


def lines(text):
    return write(gzip.compress(text.encode()))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (write(b"not gzip at all"), "not a readable trace"),
        (write(b""), "not a"),
        (lines('{"type": "header"}\n{]\n'), "line 2: not JSON"),
        (lines("[" * 100_000 + "\n"), "line 1: not a trace: nested too deeply"),
        (lines("[1]\n[2]\n"), "not a conformance trace"),
        (lines("3\n4\n"), "not a conformance trace"),
        (write(gzip.compress(b"\xff\xfe\x00")), "not a readable trace"),
        (cut_short, "not a readable trace"),
        (no_header, "not a conformance trace"),
        (header(vllm="0.99.0"), "0.99.0"),
        (header(vllm=None), "vllm"),
        (header(config={"block_size": 4}), "kv_groups"),
        (header(config=None), "header"),
        (header(scenario="absent"), "absent.json"),
        (header(config={"block_size": 4, "kv_groups": [{"kind": "full"}], "max_num_seqs": True}), "missing"),
        (header(none_hash="xyz"), "hexadecimal"),
        (without_scenario, f"{NAME}.json"),
        (broken_scenario, f"{NAME}.json"),
    ],
)
def test_unreadable_input_is_one_line(verify, copied, damage, says):
    damage(copied)
    code, out, err = verify(copied)
    assert code == 2
    assert out == []
    assert len(err) == 1
    assert says in err[0]
    assert NAME in err[0]


def test_a_path_that_is_not_there(verify, tmp_path):
    code, out, err = verify(tmp_path / "nowhere")
    assert (code, out, len(err)) == (2, [], 1)
    assert "nowhere: no such file or folder" in err[0]


def test_a_folder_without_traces(verify, tmp_path):
    code, out, err = verify(tmp_path)
    assert (code, out, len(err)) == (2, [], 1)
    assert "no trace" in err[0]


def test_no_path_at_all(verify):
    code, _, err = verify()
    assert (code, len(err)) == (2, 1)
