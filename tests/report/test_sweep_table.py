"""The table of a sweep on a screen: nothing cut, what is the same said once, errors in full."""

import io

from rich.console import Console

from kvsim.report.sweep_table import print_table

MODELS = [f"Qwen/Qwen3-VL-{size}-Instruct" for size in ("2B", "4B", "8B")]
SAME = {"vllm:num_preemptions": 0, "prefix_cache_hit_rate": 0.5}
REMARK = "vLLM would not start: " + "long " * 40 + "end"


def shown(rows, keys, width=120) -> list[str]:
    out = Console(width=width, file=io.StringIO(), highlight=False, markup=False)
    print_table(rows, keys, out, problems=True)
    return out.file.getvalue().splitlines()


def rows() -> list[dict]:
    return [
        {
            "model": model,
            "engine.max_num_batched_tokens": 2048,
            "capacity.kv_cache_size_tokens": 1000 * i,
            **SAME,
        }
        for i, model in enumerate(MODELS, 1)
    ]


def test_names_are_told_apart_and_what_is_the_same_is_said_once():
    lines = shown(rows(), ["model", "engine.max_num_batched_tokens"])
    assert lines[0] == "model: ... stands for Qwen/Qwen3-VL-"
    assert lines[1] == "at every point: max_num_batched_tokens 2048, hit rate 50.0%, preemptions 0"
    assert [line.split() for line in lines[-3:]] == [
        ["...2B-Instruct", "1,000"],
        ["...4B-Instruct", "2,000"],
        ["...8B-Instruct", "3,000"],
    ]


def test_errors_and_remarks_stand_below_in_full():
    two, four, eight = rows()
    lines = shown([two, {**four, "remark": REMARK}, {**eight, "error": "all refused"}], ["model"])
    assert lines[-5].endswith(" ")
    assert lines[-4].endswith("[1]")
    assert lines[-3].endswith("[2]")
    assert lines[-2] == f"[1] remark: {REMARK}"
    assert lines[-1] == "[2] error: all refused"


def test_a_narrow_terminal_loses_figures_and_no_digit():
    wide = [
        {**row, "generation_tokens_per_second": 1234.5 + i, "prefix_cache_hit_rate": i / 10}
        for i, row in enumerate(rows())
    ]
    lines = shown(wide, ["model"], width=30)
    assert "not shown for want of room: hit rate, tokens/s" in lines
    assert any("...2B-Instruct" in line and "1,000" in line for line in lines)
    assert shown(wide, ["model"], width=8)  # keys are never left out


def test_long_headers_break_between_words():
    lines = shown(
        [{"engine.max_num_batched_tokens": count, **SAME} for count in (1, 2)],
        ["engine.max_num_batched_tokens"],
    )
    assert [line.strip() for line in lines[1:4]] == ["max_num_", "batched_", "tokens"]
