"""``kvsim steps``: the founding document's tables, JSON lines, bad input."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kvsim
from kvsim.cli.main import main

ROOT = Path(__file__).parents[2]
ONE_PICTURE = ROOT / "scenarios" / "founding_image.yaml"
TWO_PICTURES = ROOT / "scenarios" / "founding_two_images.yaml"
PAD = "(padding to the CUDA graph size of 8, not image tokens)"
TINY = """\
model: Qwen/Qwen3-VL-2B-Instruct
gpu: rtx-4090
engine: {num_gpu_blocks_override: 60, max_model_len: 512, max_num_seqs: 32}
workload: {type: shared_prefix, rate: inf, num_requests: 24, prefix_len: 20, suffix_len: 9, output_len: 60}
"""


def run(*numbers: tuple[int, int]) -> list[int]:
    """Ids or slots a..b for each pair."""
    return [n for a, b in numbers for n in range(a, b + 1)]


# What the founding document prints. Of each step: num_actual_tokens, max_query_len, query_start_loc,
# max_seq_len, seq_lens, slot_mapping, block_table, and the last two as the terminal shows them.
FIRST_RUN = (997, 997, [0, 997], 997, [997], run((16, 1012)), [run((1, 63))], "16..1012", ["1..63"])
FOUNDING = {
    "first run": (ONE_PICTURE, 1, *FIRST_RUN),
    "cached run right after": (
        ONE_PICTURE, 5, 5, 5, [0, 5], 997, [997], [*run((1024, 1028)), -1, -1, -1], [[*run((1, 62)), 64]],
        f"1024..1028, -1 x3 {PAD}", ["1..62, 64"],
    ),
    "its first decode": (
        ONE_PICTURE, 6, 1, 1, [0, 1], 998, [998], [1029], [[*run((1, 62)), 64]], "1029", ["1..62, 64"],
    ),
    "its second decode": (
        ONE_PICTURE, 7, 1, 1, [0, 1], 999, [999], [1030], [[*run((1, 62)), 64]], "1030", ["1..62, 64"],
    ),
    "its third decode": (
        ONE_PICTURE, 8, 1, 1, [0, 1], 1000, [1000], [1031], [[*run((1, 62)), 64]], "1031", ["1..62, 64"],
    ),
    "first run of the other server": (TWO_PICTURES, 1, *FIRST_RUN),
    "two requests": (
        TWO_PICTURES, 2, 1002, 1001, [0, 1, 1002], 1001, [998, 1001], [1013, *run((1024, 2024))],
        [run((1, 63)), run((64, 126))], "1013, 1024..2024", ["1..63", "64..126"],
    ),
    "cached run after another picture": (
        TWO_PICTURES, 6, 5, 5, [0, 5], 997, [997], [*run((2032, 2036)), -1, -1, -1], [[*run((1, 62)), 127]],
        f"2032..2036, -1 x3 {PAD}", ["1..62, 127"],
    ),
}  # fmt: skip


@pytest.fixture
def steps(capfd, monkeypatch):
    """Runs `kvsim steps`; returns exit code, stdout, stderr."""
    monkeypatch.setenv("COLUMNS", "80")

    def run_steps(*args: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["steps", *map(str, args)])
        out = capfd.readouterr()
        return int(ended.value.code or 0), out.out, out.err

    return run_steps


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


def views(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def labelled(text: str) -> dict[str, list[str]]:
    """Label -> its texts; a line without a label goes on, or is a further request of the block table."""
    found: dict[str, list[str]] = {}
    label = ""
    for line in text.splitlines():
        match = re.fullmatch(r"  (\S+(?: \S+)?)  +(\S.*?) *", line)
        if match:
            label = match[1]
            found.setdefault(label, []).append(match[2])
        elif line.startswith(" " * 10) and label:
            more = line.strip()
            if label == "block_table":
                found[label].append(more)
            else:
                found[label][-1] += f" {more}"
    return found


@pytest.mark.parametrize("case", FOUNDING)
def test_the_tables_of_the_founding_document(steps, case: str) -> None:
    file, step, actual, query, starts, longest, lens, slots, tables, _, _ = FOUNDING[case]
    code, out, err = steps(file, "--from", step, "--count", 1, "--json")
    assert (code, err) == (0, "")
    (view,) = views(out)
    (group,) = view["groups"]
    assert view["step"] == step
    assert (group["kind"], group["block_size"], group["window"]) == ("full", 16, None)
    assert group["attention_metadata"] == {
        "num_reqs": len(lens),
        "num_actual_tokens": actual,
        "max_query_len": query,
        "query_start_loc": starts,
        "max_seq_len": longest,
        "seq_lens": lens,
        "slot_mapping": slots,
        "block_table": tables,
    }


@pytest.mark.parametrize("case", FOUNDING)
def test_the_tables_of_the_founding_document_on_a_terminal(steps, case: str) -> None:
    file, step, actual, query, starts, longest, lens, _, _, slots, tables = FOUNDING[case]
    code, out, _ = steps(file, "--from", step, "--count", 1)
    assert code == 0
    shown = labelled(out)
    assert shown["num_actual_tokens"] == [str(actual)]
    assert shown["max_query_len"] == [str(query)]
    assert shown["query_start_loc"] == [", ".join(map(str, starts))]
    assert shown["max_seq_len"] == [str(longest)]
    assert shown["seq_lens"] == [", ".join(map(str, lens))]
    assert shown["slot_mapping"] == [slots]
    assert [text.partition(": ")[2] for text in shown["block_table"]] == tables
    assert max(map(len, out.splitlines())) <= 80


def test_the_picture_is_encoded_once(steps) -> None:
    seen = views(steps(ONE_PICTURE, "--json")[1])
    assert [request["images"] for view in seen for request in view["requests"]][:2] == [["image-0"], []]
    assert [view["requests"][0]["encoder_inputs"] for view in seen] == [[0]] + 7 * [[]]


def test_what_happens_to_blocks_and_requests(steps) -> None:
    seen = views(steps(TWO_PICTURES, "--json")[1])
    cached = [[block["block_id"] for block in view["blocks_cached"]] for view in seen]
    assert cached == [run((1, 62)), run((64, 125)), *7 * [[]]]
    assert all(re.fullmatch("[0-9a-f]{32}", block["hash"]) for block in seen[0]["blocks_cached"])
    assert [view["finished_req_ids"] for view in seen[3:7]] == [[], ["req-0"], ["req-1"], []]
    assert seen[3]["ended"] == [{"request_id": "req-0", "status": "FINISHED_LENGTH_CAPPED"}]
    assert [view["num_free_blocks"] for view in seen[:6]] == [9808, 9745, 9745, 9745, 9808, 9808]
    assert [len(view["requests"]) for view in seen] == [1, 2, 2, 2, 1, 1, 1, 1, 1]


def test_the_block_map(steps) -> None:
    code, out, _ = steps(TWO_PICTURES, "--from", 6, "--count", 1, "--blocks", "--json")
    assert code == 0
    (view,) = views(out)
    pool = view["block_map"]
    assert (pool["num_gpu_blocks"], pool["null_block"], pool["latest_step"]) == (9872, 0, 6)
    assert [block["block_id"] for block in pool["blocks"]] == [*run((1, 62), (64, 125)), 127]
    assert [block["owners"] for block in pool["blocks"]] == [["req-2"]] * 62 + [[]] * 62 + [["req-2"]]
    assert [block["num_tokens"] for block in pool["blocks"]] == [16] * 124 + [5]
    assert [len(block["hashes"]) for block in pool["blocks"]] == [1] * 124 + [0]
    assert pool["free_queue"] == [*run((128, 9871)), 63, 126, *reversed(run((64, 125)))]


def test_the_block_map_on_a_terminal(steps) -> None:
    out = steps(TWO_PICTURES, "--from", 6, "--count", 1, "--blocks")[1]
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "Block map after step 6" in lines
    assert "0 null block" in lines
    assert any(re.fullmatch(r"1\.\.62 1 16 req-2 [0-9a-f]{8}\.\.[0-9a-f]{8}", line) for line in lines)
    assert any(re.fullmatch(r"64\.\.125 0 16 - [0-9a-f]{8}\.\.[0-9a-f]{8}", line) for line in lines)
    assert "127 1 5 req-2 -" in lines
    after = lines[lines.index("Free queue, the next block first") + 1 :]
    assert after[:3] == [
        "place blocks content",
        "1..9746 128..9871, 63, 126 nothing",
        "9747..9808 125..64 cached, evicted when handed out",
    ]


def test_a_few_blocks_get_a_row_each_with_their_hash(steps, tiny: Path) -> None:
    out = steps(tiny, "--count", 1, "--blocks", "--set", "workload.num_requests=2")[1]
    rows = re.findall(r"^ +(\d+) +(\d) +(\d+)  (\S.*?)  +([0-9a-f]{8}|-) *$", out, re.MULTILINE)
    assert [row[0] for row in rows] == ["1", "2", "3", "4"]
    assert [row[3] for row in rows] == 2 * ["req-0"] + 2 * ["req-1"]
    assert [row[4] == "-" for row in rows] == [False, True, False, True]


def test_with_asynchronous_scheduling_the_map_says_how_far_it_is(steps) -> None:
    out = steps(ONE_PICTURE, "--count", 1, "--blocks", "--set", "engine.async_scheduling=true")[1]
    assert "Block map after step 1; step 2 is already scheduled" in out


def test_a_long_batch_is_shortened_and_json_is_not(steps, tiny: Path) -> None:
    args = tiny, "--from", 2, "--count", 1
    out, view = steps(*args)[1], views(steps(*args, "--json")[1])[0]
    assert len(view["requests"]) == 24
    assert out.count("... 14 more") == 2
    assert len(re.findall(r"^  req-\d+ ", out, re.MULTILINE)) == 10
    shown = labelled(out)
    assert shown["query_start_loc"] == ["0..24"]
    assert shown["seq_lens"] == ["30 x24"]
    assert len(view["groups"][0]["attention_metadata"]["seq_lens"]) == 24
    assert max(map(len, out.splitlines())) <= 80


def test_preemptions_and_the_waiting_queue_are_shown(steps, tiny: Path) -> None:
    seen = views(steps(tiny, "--count", 60, "--json")[1])
    first = next(view for view in seen if view["preempted_req_ids"])
    victims = first["preempted_req_ids"]
    assert [request["request_id"] for request in first["waiting"]][: len(victims)] == victims[::-1]
    out = steps(tiny, "--from", first["step"], "--count", 1)[1]
    shown = labelled(out)
    assert shown["preempted_req_ids"][0].startswith(victims[0])
    assert shown["waiting"][0].startswith(f"{len(first['waiting'])}: {victims[-1]}")


def test_each_cache_group_has_slots_and_tables_of_its_own(steps, tmp_path: Path) -> None:
    path = tmp_path / "hybrid.yaml"
    path.write_text(
        "model: google/gemma-3-1b-it\ngpu: h100\n"
        "engine: {num_gpu_blocks_override: 600, max_model_len: 1024, max_num_seqs: 4}\n"
        "workload: {type: shared_prefix, rate: 1, num_requests: 1, prefix_len: 900,"
        " suffix_len: 9, output_len: 4}\n"
    )
    args = path, "--from", 3, "--count", 1
    (view,) = views(steps(*args, "--json")[1])
    kinds = [(group["kind"], group["window"]) for group in view["groups"]]
    assert kinds == 6 * [("sliding_window", 512)] + [("full", None)]
    tables = [group["attention_metadata"]["block_table"][0] for group in view["groups"]]
    assert all(table[0] == 0 for table in tables[:6])  # the null block
    assert 0 not in tables[6]
    owned = [block for table in tables for block in table if block]
    assert len(set(owned)) == len(owned)
    out = steps(*args, "--blocks")[1]
    assert out.count("slot_mapping") == out.count("block_table") == 7
    assert "sliding window, blocks of 16 tokens, 512 tokens; 0 is the" in out
    assert "group 6            full attention, blocks of 16 tokens" in out


def test_the_end_of_the_run_and_what_comes_next_are_said(steps) -> None:
    assert steps(ONE_PICTURE)[1].endswith("\nThe run ends with step 8.\n")
    assert steps(ONE_PICTURE, "--count", 10**30)[1].endswith("\nThe run ends with step 8.\n")
    out = steps(ONE_PICTURE, "--from", 2, "--count", 3)[1]
    assert out.endswith("\n--from 5 shows the next steps, --json complete lists\n")
    assert re.findall(r"^Step (\d+): ", out, re.MULTILINE) == ["2", "3", "4"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--from", "0"], ["--from", "1"]),
        (["--from", "-3"], ["--from", "1"]),
        (["--count", "0"], ["--count", "1"]),
        (["--count", "many"], ["--count"]),
        (["--from", "9"], ["founding_image.yaml: step 9 is beyond the last one: the run has 8"]),
        (["--from", "9", "--json"], ["step 9 is beyond the last one"]),
        (["--from", "1" + "0" * 30, "--blocks"], ["is beyond the last one"]),
        (["--set", "engine.num_gpu_blocks_override=20"], ["all 2 requests were refused: needs 63 KV blocks"]),
        (["--set", "engine.block_sise=16"], ["block_size"]),
        (["--trace", "x.jsonl"], ["--trace needs type: trace"]),
        (["--blok"], ["--blok"]),
    ],
)
def test_bad_input_is_told_in_one_line(steps, args: list[str], words: list[str]) -> None:
    code, out, err = steps(ONE_PICTURE, *args)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("kvsim: ")
    for word in words:
        assert word in line


def test_a_missing_file_is_told(steps) -> None:
    assert steps("nowhere.yaml") == (
        2,
        "",
        "kvsim: nowhere.yaml: cannot be read: No such file or directory\n",
    )


def test_a_reader_that_goes_away_ends_it_quietly(tiny: Path) -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "kvsim.cli.main", "steps", str(tiny), "--json", "--count", "1000"]
    command += ["--set", "workload.num_requests=2000"]
    process = subprocess.Popen(
        command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tiny.parent
    )
    assert process.stdout
    assert process.stderr
    assert json.loads(process.stdout.readline())["step"] == 1  # before the run is over
    process.stdout.close()
    assert process.stderr.read() == ""
    process.wait(timeout=60)
    assert process.returncode == 1
    assert [path.name for path in tiny.parent.iterdir()] == ["tiny.yaml"]  # nothing is written


def test_the_docs_show_what_comes_out(steps) -> None:
    page = (ROOT / "docs" / "steps.md").read_text(encoding="utf-8")
    shown = re.search(r"```\nkvsim (steps .*)\n\n((?:.|\n)*?)\n```", page)
    assert shown
    _, file, *args = shown[1].split()
    lines = steps(ROOT / file, *args)[1].splitlines()
    assert [line.rstrip() for line in lines] == shown[2].splitlines()


def test_every_json_field_is_described(steps) -> None:
    page = (ROOT / "docs" / "steps.md").read_text(encoding="utf-8")

    def keys(value):
        if isinstance(value, dict):
            yield from value
            for inner in value.values():
                yield from keys(inner)
        for inner in value if isinstance(value, list) else ():
            yield from keys(inner)

    seen = views(steps(TWO_PICTURES, "--blocks", "--json")[1])
    for key in {*keys(seen), "reason"}:
        assert f"`{key}`" in page, key


def test_python_gives_the_same(steps) -> None:
    scenario = kvsim.load_scenario(ONE_PICTURE)
    (view,) = scenario.steps(5, 1)
    (shown,) = views(steps(ONE_PICTURE, "--from", 5, "--count", 1, "--json")[1])
    assert (
        view.groups[0].attention_metadata.slot_mapping
        == (shown["groups"][0]["attention_metadata"]["slot_mapping"])
    )
    assert view.end_time == shown["end_time"]
