"""Trace rows, files and replay."""

import gzip
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import KvsimError
from kvsim.tokens import expand, stream_key
from kvsim.workload.checks import FieldError
from kvsim.workload.trace import TraceWorkload, rows_to_requests
from kvsim.workload.trace_lines import fingerprint
from kvsim.workload.trace_rows import check_row, check_rows


def row(time=0, num_input=700, num_output=3, ids=(0, 1), **more):
    lengths = {"input_length": num_input, "output_length": num_output}
    return {"timestamp": time, **lengths, "hash_ids": list(ids), **more}


def write(path, rows, packed=False):
    text = "".join(json.dumps(each) + "\n" for each in rows).encode()
    path.write_bytes(gzip.compress(text) if packed else text)
    return str(path)


def common_prefix(one, other):
    length = min(len(one), len(other))
    differs = np.flatnonzero(one[:length] != other[:length])
    return int(differs[0]) if len(differs) else length


def test_ids_are_fixed_streams_of_tokens():
    first, second = rows_to_requests(check_rows([row(), row(1000, 1100, ids=(0, 1, 2))]))
    assert first.prompt.tolist() == [[stream_key("mooncake", 0), 0, 512], [stream_key("mooncake", 1), 0, 188]]
    assert common_prefix(expand(first.prompt), expand(second.prompt)) == 700


some_ids = st.lists(st.integers(0, 5), min_size=1, max_size=6)


@given(some_ids, some_ids)
def test_prompts_share_what_their_ids_share(one, other):
    rows = [row(0, 16 * len(one) - 3, ids=one), row(0, 16 * len(other), ids=other)]
    prompts = [expand(request.prompt) for request in rows_to_requests(check_rows(rows, 16))]
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    assert common_prefix(*prompts) == min(16 * same, *map(len, prompts))


def test_outputs_are_their_own():
    requests = list(rows_to_requests(check_rows([row(), row(num_output=0)])))
    assert [(r.max_tokens, r.num_output_tokens) for r in requests] == [(3, 3), (1, 1)]
    assert requests[0].output[0, 0] != requests[1].output[0, 0]


def test_bailian_rows_have_seconds_sixteen_tokens_and_sessions():
    chat = [
        row(1.5, 20, ids=(1, 2), chat_id=7, parent_chat_id=-1, turn=1, type="text"),
        row(2.5, 40, ids=(1, 2, 3), chat_id=8, parent_chat_id=7, turn=2, type="text"),
        row(2.5, 40, ids=(1, 2, 3), chat_id=9, parent_chat_id=8, turn=3, type="text"),
        row(2.5, 4, ids=(5,), chat_id=10, parent_chat_id=-1, turn=1, type="text"),
    ]
    requests = list(rows_to_requests(check_rows(chat)))
    assert [request.arrival_time for request in requests] == [1.5, 2.5, 2.5, 2.5]
    assert [request.session for request in requests] == ["7", "7", "7", "10"]
    assert requests[1].prompt[:, 2].tolist() == [16, 16, 8]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (row(num_input=20), r"field hash_ids: 20 tokens need 1 id of 512, row has 2$"),
        (row(num_input=2358, ids=range(148)), r".* row has 148 \(as for trace_block_size: 16\)"),
        (row(ids=()), r"field hash_ids: 700 tokens need 2 ids of 512, row has 0"),
        (row(ids=(0, -1)), r"field hash_ids: -1 is not a whole number"),
        (row(ids=(0, 1.0)), r"field hash_ids: 1.0 is not a whole number"),
        (row(ids=(0, True)), r"field hash_ids: true is not a whole number"),
        ({**row(), "hash_ids": "01"}, r"field hash_ids: '01' is not a list"),
        (row(time=-1), r"field timestamp: -1 is out of range"),
        (row(time="0"), r"field timestamp: '0' is not a number"),
        (row(time=math.nan), r"field timestamp: NaN is not a number"),
        (row(time=math.inf), r"field timestamp: inf is out of range"),
        (row(num_input=0), r"field input_length: 0 is out of range; give at least 1"),
        (row(num_input=-5), r"field input_length: -5 is out of range"),
        (row(num_input=700.0), r"field input_length: 700.0 is not a whole number"),
        (row(num_output=-1), r"field output_length: -1 is out of range"),
        (row(num_output=10**30), r"field output_length: 1000000000000000000000000000000 is out of range"),
        (row(num_output=None), r"field output_length: null is not a whole number"),
        ({"timestamp": 0, "input_length": 5, "output_length": 1}, r"field hash_ids: missing; the row has"),
        ({"input_length": 5}, r"field timestamp: missing; the row has 'input_length'"),
        ([1, 2], r"field row: \[1, 2\] is not an object"),
        (None, r"field row: null is not an object"),
    ],
)
def test_bad_rows(bad, says, tmp_path):
    with pytest.raises(KvsimError, match=r"^row 2: " + says) as caught:
        check_rows([row(), bad])
    assert "\n" not in str(caught.value)
    path = write(tmp_path / "trace.jsonl", [row(), bad])
    with pytest.raises(KvsimError, match="line 2: " + says):
        list(TraceWorkload(path=path).requests(0))


def test_rows_must_be_in_order_of_time():
    with pytest.raises(KvsimError, match=r"row 2: field timestamp: 0.5 s lies before the row above, 1 s"):
        check_rows([row(1000), row(500)])


def test_rounding_is_not_disorder():
    requests = list(rows_to_requests(check_rows([row(1000.4), row(1000.1), row(1002)])))
    assert [request.arrival_time for request in requests] == pytest.approx([1.0004, 1.0004, 1.002])


@pytest.mark.parametrize("packed", [False, True])
def test_file_plain_or_gzip(tmp_path, packed):
    rows = [row(), row(2500, 1100, ids=(0, 1, 2))]
    path = write(tmp_path / "trace", rows, packed)
    requests = list(TraceWorkload(path=path).requests(0))
    assert [request.arrival_time for request in requests] == [0.0, 2.5]
    assert fingerprint(path) == fingerprint(write(tmp_path / "plain", rows))
    assert fingerprint(path)[1] == 2


def test_blank_lines_are_skipped_but_counted(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(row()) + "\n\n\n" + json.dumps(row(num_input=5)) + "\n")
    with pytest.raises(KvsimError, match=r"trace.jsonl line 4: field hash_ids: 5 tokens need 1 id"):
        list(TraceWorkload(path=str(path)).requests(0))


def test_reading_is_lazy(tmp_path):
    path = write(tmp_path / "trace.jsonl", [row(), row(num_input=-1)])
    requests = TraceWorkload(path=path).requests(0)
    assert next(requests).num_prompt_tokens == 700
    with pytest.raises(KvsimError, match="line 2: field input_length"):
        next(requests)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{not json}\n", r"line 1: not JSON at column 2"),
        (b'{"timestamp": 0', r"line 1: not JSON"),
        (b'{"timestamp": "\xff"}\n', r"line 1: not UTF-8"),
        (b"\x1f\x8bnonsense", r"cannot be read"),
        (gzip.compress(b"x" * 10_000)[:-20], r"cannot be read"),
        (b"[" * 100_000 + b"\n", r"line 1: not a row"),
    ],
)
def test_broken_files(tmp_path, content, says):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content)
    with pytest.raises(KvsimError, match=says) as caught:
        list(TraceWorkload(path=str(path)).requests(0))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file(tmp_path):
    with pytest.raises(KvsimError, match=r"no\.jsonl: cannot be read: No such file"):
        list(TraceWorkload(path=str(tmp_path / "no.jsonl")).requests(0))


def replayed(tmp_path, **options):
    path = write(tmp_path / "trace.jsonl", [row(1000 * second) for second in range(11)])
    return [request.arrival_time for request in TraceWorkload(path=path, **options).requests(0)]


def test_a_start_after_the_last_row(tmp_path):
    with pytest.raises(KvsimError, match="no row at or after start, 99 s"):
        replayed(tmp_path, start=99)


def test_replay_options(tmp_path):
    assert replayed(tmp_path) == list(range(11))
    assert replayed(tmp_path, num_requests=3) == [0, 1, 2]
    assert replayed(tmp_path, start=8) == [0, 1, 2]
    assert replayed(tmp_path, time_scale=0.5) == [second / 2 for second in range(11)]
    assert replayed(tmp_path, rate=4) == pytest.approx([second / 4 for second in range(11)])
    assert replayed(tmp_path, rate=4, start=5, num_requests=3) == pytest.approx([0, 0.25, 0.5])
    assert replayed(tmp_path, rate=math.inf) == [0] * 11
    assert replayed(tmp_path, rate=4, num_requests=1) == [0]


def test_no_rate_can_be_made_of_rows_at_one_time(tmp_path):
    trace = TraceWorkload(path=write(tmp_path / "trace.jsonl", [row(3000), row(3000)]), rate=2.0)
    with pytest.raises(
        KvsimError, match=r"trace.jsonl: all 2 rows are at 3 s, so no rate can be made of them; "
    ):
        next(trace.requests(0))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"path": 3}, "path"),
        ({"trace_block_size": 0}, "trace_block_size"),
        ({"num_requests": 0}, "num_requests"),
        ({"start": -1}, "start"),
        ({"time_scale": 0}, "time_scale"),
        ({"time_scale": math.inf}, "time_scale"),
        ({"rate": -1}, "rate"),
        ({"rate": 3, "time_scale": 2}, "rate"),
        ({"sha256": "abc"}, "sha256"),
    ],
)
def test_bad_options(options, field):
    with pytest.raises(FieldError) as caught:
        TraceWorkload(**{"path": "trace.jsonl", **options})
    assert caught.value.field == field


def test_engine_block_size_does_not_matter_to_a_row():
    assert check_row(row(num_input=20, ids=(0, 1)), 16).hash_ids == (0, 1)


def test_a_number_without_end_is_told_by_its_field(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(
        '{"timestamp": 0, "input_length": %s, "output_length": 1, "hash_ids": [1]}\n' % ("9" * 5000)
    )
    with pytest.raises(
        KvsimError, match=r"line 1: field input_length: '9{50,60}\.\.\. is not a whole number$"
    ):
        list(TraceWorkload(path=str(path)).rows())


@pytest.mark.parametrize("value", [[], {}, 1.5, True])
@pytest.mark.parametrize("field", ["chat_id", "parent_chat_id", "session_id"])
def test_a_conversation_has_a_number_or_a_name(field: str, value: object) -> None:
    row = {"timestamp": 0, "input_length": 20, "output_length": 1, "hash_ids": [1, 2], "chat_id": 1}
    with pytest.raises(KvsimError, match=f"row 1: field {field}: .* is neither a whole number nor a name"):
        check_rows([row | {field: value}])
