"""Which points `calibrate measure` takes, in which order."""

from collections import Counter
from dataclasses import replace

import pytest

from kvsim.calibrate.measure import request, shapes
from kvsim.calibrate.measure.grids import CARD, TINY
from kvsim.calibrate.measure.order import interleaved, most_telling_first
from kvsim.calibrate.measure.points import Kernel, Point, left_out, plan
from kvsim.calibrate.measure.request import HeadShape, LinearShape, Request, Shapes
from kvsim.errors import KvsimError

ATTENTION = Kernel("flash", frozenset({"prefill", "cached", "decode", "mixed", "encoder"}), "torch", "2")
LINEAR = Kernel("linear", frozenset({"gemm"}), "torch", "2")
COPIES = Kernel("copy_", frozenset({"copy"}), "torch", "2")
REDUCE = Kernel("NCCL_all_reduce", frozenset({"all_reduce"}), "nccl", "2.27.5")
EVERY = (ATTENTION, LINEAR, COPIES, REDUCE)


def planned(*heads: str, operations=request.OPERATIONS, gpus: int = 1, **more) -> list[Point]:
    wanted = Shapes()
    for text in heads:
        wanted += shapes.of_heads(request.parse_heads(text))
    return plan(Request(wanted, operations, **more), CARD, EVERY, gpus)


def test_heads_and_budgets_are_read_as_people_write_them() -> None:
    assert request.parse_heads("32/8/128") == HeadShape(32, 8, 128)
    assert [request.parse_budget(text) for text in ("8m", "90s", "1h30m", "1.5m")] == [480, 90, 5400, 90]


@pytest.mark.parametrize(
    "text", ["32", "32/8", "32/8/128/1", "a/b/c", "32/5/128", "8/32/128", "0/0/64", "32/8/100"]
)
def test_bad_heads_are_named(text: str) -> None:
    with pytest.raises(KvsimError, match=f"--heads {text}: "):
        request.parse_heads(text)


@pytest.mark.parametrize("text", ["8", "m", "0s", "-5m", "8 minutes", "5m8", "nan"])
def test_bad_budgets_are_named(text: str) -> None:
    with pytest.raises(KvsimError, match=f"--budget {text}: "):
        request.parse_budget(text)


def test_order_starts_with_the_core_and_then_fills_the_largest_gaps() -> None:
    sizes = [(1 << i,) for i in range(0, 17)]
    order = most_telling_first(sizes, sizes, core=[(256,), (3,)])
    assert order[:3] == [(256,), (65536,), (1,)]  # (3,) is no candidate
    assert sorted(order) == sizes
    assert {abs(order[3][0].bit_length() - 1 - gap) for gap in (4, 12)} & {0}  # the middle of a gap


def test_order_without_a_core_starts_with_smallest_and_largest() -> None:
    sizes = [(a, b) for a in (1, 8, 64) for b in (1, 8, 64)]
    assert most_telling_first(sizes, sizes)[:2] == [(1, 1), (64, 64)]
    assert most_telling_first([], []) == []


def test_groups_take_turns_by_weight() -> None:
    assert interleaved([(2.0, "aaaa"), (1.0, "bb")]) == list("abaaba")


def test_a_plan_is_the_same_every_time_and_has_no_point_twice() -> None:
    first = planned("32/8/128", "16/8/128")
    assert first == planned("32/8/128", "16/8/128")
    assert len(set(first)) == len(first)


def test_core_points_of_every_operation_and_shape_come_within_the_first_tenth() -> None:
    points = planned("32/8/128", "16/8/128", "64/8/128")
    first = points[: len(points) // 10]
    for heads in ((32, 8, 128), (16, 8, 128), (64, 8, 128)):
        of = [p for p in first if p.operation == "decode" and p.heads == HeadShape(*heads)]
        assert {(p["batch"], p["kv_len"]) for p in of} >= set(CARD.core_decode)
        of = [p for p in first if p.operation == "prefill" and p.heads == HeadShape(*heads)]
        assert {(p["batch"], p["q_len"]) for p in of} >= set(CARD.core_prefill)
    assert set(Counter(p.operation for p in first)) == {
        "prefill",
        "cached",
        "decode",
        "mixed",
        "gemm",
        "copy",
    }


def test_points_span_what_the_forms_are_fitted_on() -> None:
    points = planned("32/8/128")
    decode = [p for p in points if p.operation == "decode"]
    l2 = 50e6
    kv = [4096 * p["batch"] * p["kv_len"] for p in decode]
    assert min(kv) < 1e5
    assert sum(size > 4 * l2 for size in kv) > 20  # bandwidth is fitted beyond the L2 cache only
    prefill = [p for p in points if p.operation == "prefill"]
    assert max(p["q_len"] for p in prefill if p["batch"] == 1) == 16384
    assert all(p["q_len"] == p["kv_len"] for p in prefill)
    cached = [p for p in points if p.operation == "cached"]
    assert all(p["q_len"] < p["kv_len"] for p in cached)
    assert {p.table for p in cached} == {"attention_prefill"}


def test_mixed_steps_are_named_by_a_model_of_those_heads() -> None:
    (model,) = {(p.word("model"), p["tp"]) for p in planned("32/8/128") if p.operation == "mixed"}
    assert model == ("meta-llama/Llama-3.1-8B", 1)
    assert shapes.model_of_heads(HeadShape(64, 8, 128)) == ("meta-llama/Llama-3.1-70B", 1)
    assert shapes.model_of_heads(HeadShape(7, 7, 24)) is None
    assert not [p for p in planned("7/7/24") if p.operation == "mixed"]


def test_all_reduce_comes_after_the_core_in_one_row_for_each_number_of_gpus() -> None:
    points = planned("32/8/128", gpus=4)
    where = [i for i, p in enumerate(points) if p.operation == "all_reduce"]
    assert where == list(range(where[0], where[-1] + 1))
    assert [points[i]["num_gpus"] for i in where] == [2] * (len(where) // 2) + [4] * (len(where) // 2)
    assert all(points[i]["bytes"] == 2 * points[i]["message_size"] for i in where)
    assert where[0] > 50
    assert not [p for p in planned("32/8/128", gpus=1) if p.operation == "all_reduce"]


def test_only_what_was_asked_for_is_planned() -> None:
    assert {p.operation for p in planned("32/8/128", operations=("decode", "copy"))} == {"decode", "copy"}
    assert not planned("32/8/128", operations=("decode",), dtypes=("fp8",))  # no kernel here does it


def test_what_is_asked_for_and_cannot_be_had_is_told() -> None:
    wanted = Request(
        Shapes((HeadShape(8, 8, 512), HeadShape(7, 7, 24))), ("decode", "mixed", "copy"), ("fp8",)
    )
    assert list(left_out(wanted, EVERY)) == [
        "decode: left out in fp8: no installed kernel does it",
        "decode: 8/8/512 left out: heads are at most 256 wide",
        "mixed: left out in fp8: no installed kernel does it",
        "mixed: 8/8/512 left out: heads are at most 256 wide",
        "mixed: 7/7/24 left out: no model of the catalog has these heads to name them by",
    ]
    assert not list(left_out(replace(wanted, operations=("gemm", "encoder"), dtypes=("bfloat16",)), EVERY))


def test_a_kernel_is_not_asked_for_larger_heads_than_it_has() -> None:
    assert {p.operation for p in planned("8/8/512")} == {"gemm", "copy"}


def test_shapes_of_a_model() -> None:
    llama = shapes.of_model("Llama-3.1-8B", 2, request.OPERATIONS)
    assert llama.heads == (HeadShape(16, 4, 128),)
    assert llama.linears == (
        LinearShape(3072, 4096),
        LinearShape(4096, 2048),
        LinearShape(14336, 4096),
        LinearShape(4096, 7168),
        LinearShape(64128, 4096),
    )
    assert shapes.of_model("Qwen2.5-VL-7B", 1, request.OPERATIONS).encoders
    assert shapes.of_heads(HeadShape(64, 8, 128)).linears[2] == LinearShape(57344, 8192)  # as Llama-3.1-70B


def test_models_that_cannot_be_split_or_have_latent_attention_are_refused() -> None:
    with pytest.raises(KvsimError, match=r"--tp 3: .* 32 query heads"):
        shapes.of_model("Llama-3.1-8B", 3, request.OPERATIONS)
    with pytest.raises(KvsimError, match="latent attention"):
        shapes.of_model("deepseek-ai/DeepSeek-V3", 1, request.OPERATIONS)
    assert not shapes.of_model("deepseek-ai/DeepSeek-V3", 1, ("gemm",)).heads


def test_the_tiny_grid_has_every_operation() -> None:
    wanted = shapes.of_heads(HeadShape(12, 12, 64))
    points = plan(Request(wanted), TINY, EVERY, 2)
    assert {p.operation for p in points} == set(request.OPERATIONS) - {"encoder"}  # no model with vision
    assert len(points) < 100
