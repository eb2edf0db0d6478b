"""What may stand behind --set KEY=."""

import pytest

from kvsim.errors import KvsimError
from kvsim.sweep.axes import axis_of, flag_axes, read_axes, read_axis

MOST = 1000


def values(text: str) -> list:
    return list(read_axis(f"engine.block_size={text}", most=MOST).values)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("16,32, 64", [16, 32, 64]),
        ("0.9", [0.9]),
        ("auto,4096,null,true", ["auto", 4096, None, True]),
        ("Qwen/Qwen3-8B,'a,b'", ["Qwen/Qwen3-8B", "a,b"]),
        ("[1152,864],[576,432]", [[1152, 864], [576, 432]]),
        ("{distribution: uniform, min: 1, max: 5}", [{"distribution": "uniform", "min": 1, "max": 5}]),
        ("1:10:3", [1, 4, 7, 10]),
        ("1:9:3", [1, 4, 7]),
        ("10:1:-3", [10, 7, 4, 1]),
        ("5:5:1", [5]),
        ("8:128:*2", [8, 16, 32, 64, 128]),
        ("1:100:log3", [1, 10, 100]),
        ("1.0:100:log3", [1.0, 10.0, 100]),
        ("inf,1", ["inf", 1]),
    ],
)
def test_forms(text, expected):
    assert values(text) == expected
    assert [type(value) for value in values(text)] == [type(value) for value in expected]


def test_decimal_steps_end_where_they_are_typed():
    assert values("0.5:0.95:0.05") == [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95]


def test_dashes_are_underscores():
    assert read_axis("engine.block-size=16", most=MOST).key == "engine.block_size"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("engine.block_size", "write KEY=A,B,C or KEY=FROM:TO:STEP"),
        ("=1", "write KEY="),
        ("engine..x=1", "write KEY="),
        ("a=", "no values"),
        ("a= ", "no values"),
        ("a=1:10:0", "a step of 0 leads nowhere"),
        ("a=1:10:-1", "empty range, a step of -1 does not lead from 1 to 10"),
        ("a=10:1:1", "empty range"),
        ("a=10:1", "empty range, 1 is not above 10"),
        ("a=0:1:log", "begins above 0"),
        ("a=1:10:", "nothing is not a step"),
        ("a=1:10:x", "x is not a step"),
        ("a=1:10:*1", "a factor"),
        ("a=8:1:*2", "empty range"),
        ("a=1:10:log", None),
        ("a=1:10:log1", "2 or more"),
        ("a=nan:10:1", "no range"),
        ("a=1:inf:1", "no range"),
        ("a=1:2:3:4", "3:4 is not a step"),
        ("a=1:1e9:0.001", "999,999,999,001 values are more than 1,000"),
        ("a=1:1000000000:1", "1,000,000,000 values are more than 1,000"),
        ("a=1,2,1", "1 is given twice"),
        ("a=[1", "broken YAML"),
    ],
)
def test_what_is_wrong_is_one_line_with_the_option(text, says):
    if says is None:
        assert read_axis(text, most=MOST).bounds is not None
        return
    with pytest.raises(KvsimError) as error:
        read_axis(text, most=MOST)
    assert str(error.value).startswith(f"--set {text}")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_key_comes_once():
    with pytest.raises(KvsimError, match="a is set twice"):
        read_axes(["a=1", "a=2"], most=MOST)


def test_capacity_reads_the_same_axes_with_its_own_option():
    assert flag_axes(["--block-size=8,16"], most=MOST) == {"block_size": (8, 16)}
    with pytest.raises(KvsimError, match="--sweep a=1:2: a range needs a step"):
        flag_axes(["a=1:2"], most=MOST)
    with pytest.raises(KvsimError, match="1,200 combinations are more than 1,000"):
        flag_axes(["a=1:60:1", "b=1:20:1"], most=MOST)


def test_a_block_has_lists_or_text():
    assert axis_of("a", [1, 2], "sweep.set.a", most=MOST).values == (1, 2)
    assert axis_of("a", 7, "sweep.set.a", most=MOST).values == (7,)
    assert axis_of("a", "1:3:1", "sweep.set.a", most=MOST).values == (1, 2, 3)
