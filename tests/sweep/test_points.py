"""Which points a sweep has, and that each of them sees the same requests."""

import math

import pandas as pd
import pytest
from sweeps import scenario, write

from kvsim.errors import KvsimError
from kvsim.scenario import SweepSection, read_template, template_of
from kvsim.sweep.asked import asked
from kvsim.sweep.points import Resolver, expand


def points(**words) -> list[dict]:
    return expand(asked(None, **words))


def test_a_grid_is_every_combination_in_order():
    grid = points(set_=["engine.block_size=16,32", "workload.rate=1:3:1"])
    assert [tuple(point.values()) for point in grid] == [(b, r) for b in (16, 32) for r in (1, 2, 3)]


def test_listed_points_times_a_grid():
    listed = points(
        points=["engine.block_size=16; workload.rate=3", "engine.block_size=32"], set_=["seed=0,1"]
    )
    assert listed == [
        {"engine.block_size": 16, "workload.rate": 3, "seed": 0},
        {"engine.block_size": 16, "workload.rate": 3, "seed": 1},
        {"engine.block_size": 32, "seed": 0},
        {"engine.block_size": 32, "seed": 1},
    ]


def test_a_latin_sample_uses_every_part_of_each_axis_once():
    drawn = points(set_=["workload.rate=0.0:1", "seed=0:9", "engine.block_size=16,32"], sample="latin:10")
    assert sorted(int(point["workload.rate"] * 10) for point in drawn) == list(range(10))
    assert sorted(point["seed"] for point in drawn) == list(range(10))
    assert sorted(point["engine.block_size"] for point in drawn) == [16] * 5 + [32] * 5


@pytest.mark.parametrize("kind", ["latin", "random"])
def test_samples_follow_from_their_seed_and_axes_are_drawn_apart(kind):
    words = {"set_": ["workload.rate=1.0:64:log", "seed=0:1000"], "sample": f"{kind}:20"}
    assert points(**words) == points(**words) != points(**words, seed=1)
    alone = points(set_=["workload.rate=1.0:64:log"], sample=f"{kind}:20")
    assert [point["workload.rate"] for point in alone] == [
        point["workload.rate"] for point in points(**words)
    ]
    rates = [point["workload.rate"] for point in alone]
    assert 4 <= sum(rate < 8 for rate in rates) <= 16


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({}, "nothing to sweep"),
        ({"set_": ["a=1:40000:1"]}, "40,000 values are more than 10,000"),
        ({"set_": ["a=1:1000:1", "b=1:1000:1", "c=1:1000:1"]}, "1,000,000,000 points are more than 10,000"),
        ({"set_": ["a=1:2:1"], "sample": "latin:20000"}, "--max-points 20000"),
        ({"set_": ["a=1,2"], "sample": "latin"}, "write random:N or latin:N"),
        ({"set_": ["a=1,2"], "sample": "sobol:3"}, "write random:N or latin:N"),
        ({"sample": "latin:3"}, "draws from ranges"),
        ({"points": ["a=1"], "sample": "latin:3"}, "does not go with listed points"),
        ({"points": ["a=1", "a=1"]}, "given twice"),
        ({"points": ["a=1"], "set_": ["a=2"]}, "a stands in the listed points, too"),
        ({"points": ["a"]}, "write section.key=value"),
        ({"set_": ["record.steps=true,false"]}, "a sweep keeps summaries only"),
        ({"set_": ["name=a,b"]}, "cannot be swept"),
        ({"set_": ["a=1"], "subject_to": ["ttft_p99<=2s"]}, "goes with --find"),
        ({"find": "max:workload.rate"}, "needs a limit"),
        ({"find": "max:a", "set_": ["a=1"], "subject_to": ["ttft_p99<=2s"]}, "search it or sweep it"),
        ({"find": "best:a", "subject_to": ["ttft_p99<=2s"]}, "write max:KEY or min:KEY"),
        ({"find": "max:a=3:1", "subject_to": ["ttft_p99<=2s"]}, "empty range"),
        ({"find": "max:seed", "subject_to": ["ttft_p99<=2s"]}, "seed cannot be searched"),
        ({"set_": ["a=1,2"], "tolerance": 0.1}, "--tolerance 0.1: goes with --find"),
        ({"set_": ["a=1,2"], "seed": 3}, "--seed 3: goes with --sample"),
        ({"set_": ["a=1", "b=2"], "sample": "latin:3"}, "every key has a single value"),
        ({"find": "max:a", "subject_to": ["ttft_p99<=2s"], "sample": "latin:3"}, "draws from ranges"),
        *(
            ({"find": "max:a", "subject_to": ["ttft_p99<=2s"], "tolerance": share}, "is out of range")
            for share in (0.0, -0.1, 2.0, math.nan, math.inf)
        ),
        ({"set_": ["a=1:1e300:1"]}, "about 10^300 values are more than 10,000"),
    ],
)
def test_what_is_wrong_is_one_line(words, says):
    with pytest.raises(KvsimError) as error:
        points(**words)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_options_are_added_to_the_block_or_replace_it():
    block = SweepSection(set={"engine.block_size": [16, 32], "seed": "0:3:1"}, sample="latin:5", seed=7)
    given = asked(block, set_=["seed=9", "workload.rate=1,2"], sample="random:4")
    assert {axis.key: axis.values for axis in given.axes} == {
        "engine.block_size": (16, 32),
        "seed": (9,),
        "workload.rate": (1, 2),
    }
    assert (given.sample, given.seed) == (("random", 4), 7)


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ("find: max:workload.rate", "line 15: sweep.find: max:workload.rate: needs a limit"),
        (
            "find: max:workload.rate\n  subject_to: ttft_p99<=50%",
            "line 16: sweep.subject_to: ttft_p99<=50%: ttft_p99 is a time",
        ),
        ("set: {seed: '5:1:1'}", "line 15: sweep.set.seed: empty range"),
        (
            "set: {engine.block-size: [17]}",
            "line 15: sweep.set.engine.block_size: engine.block_size: 17 is not",
        ),
        ("points: [{engine.block_size: 17}]", "line 15: sweep.points: engine.block_size: 17 is not"),
        ("sample: latin:3", "line 15: sweep.sample: latin:3: draws from ranges"),
        ("set: {seed: [1]}\n  tolerance: 0.5", "line 16: sweep.tolerance: 0.5: goes with --find"),
    ],
)
def test_what_is_wrong_with_the_block_is_named_where_it_stands(tmp_path, block, says):
    template = read_template(write(tmp_path, f"sweep:\n  {block}\n"))
    with pytest.raises(KvsimError) as error:
        plan_sweep_of(template)
    assert str(error.value).startswith(str(tmp_path / "tiny.yaml"))
    assert says in str(error.value)
    assert "--set" not in str(error.value).replace("give them with --set", "")


def plan_sweep_of(template) -> None:
    given = asked(template.sweep, place=template.place)
    Resolver(template, given.options).points(expand(given))


def test_listed_points_are_named_by_their_option(tmp_path):
    given = asked(None, points=["engine.block_size=16", "engine.block_size=17"])
    with pytest.raises(KvsimError, match=r"^--point engine\.block_size=17: engine\.block_size: 17 is not"):
        Resolver(template_of(scenario(tmp_path)), given.options).points(expand(given))


# ---- what the schema says, before anything runs ----


def resolve(folder, *axes):
    resolver = Resolver(template_of(scenario(folder)))
    return resolver.points(expand(asked(None, set_=list(axes))))


@pytest.mark.parametrize(
    ("axes", "says"),
    [
        (["engine.blok_size=16,32"], "engine.blok_size: unknown key; did you mean block_size?"),
        (["engin.block_size=16,32"], "--set engin.block_size=16: engin: unknown key; did you mean engine?"),
        (["workload.rat=1,2"], "workload.rat: unknown key; did you mean rate?"),
        (
            ["engine.block_size=16,17"],
            "--set engine.block_size=17: engine.block_size: 17 is not a block size",
        ),
        (["engine.block_size=16,[32]"], "is not a whole number"),
        (["workload.rate=1,-1", "seed=1,2"], "--set workload.rate=-1: workload.rate: -1 is out of range"),
        (["gpu=rtx-4090,rtx-409"], "gpu"),
        (["engine.max_num_seqs=4096"], "is above max_num_batched_tokens"),  # in every point
        (["sweep.seed=1"], "the sweep: block is no part of a scenario"),
        (["gpu=zx81"], "'zx81' is not in the catalog; kvsim gpus lists what is"),
        (["model=nope/model"], "take one of kvsim models, or give a config.json"),
        (["workload.prefix_len.0=3"], "prefix_len is 300, not a section with keys"),
    ],
)
def test_wrong_keys_and_values_are_refused(tmp_path, axes, says):
    with pytest.raises(KvsimError) as error:
        resolve(tmp_path, *axes)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_values_that_do_not_go_together_are_points_with_a_problem(tmp_path):
    found = resolve(tmp_path, "engine.max_num_seqs=64,4096", "engine.max_num_batched_tokens=2048,8192")
    assert [bool(point.problem) for point in found] == [False, False, True, False]
    assert "4096 is above max_num_batched_tokens" in found[2].problem or "2048 is below" in found[2].problem
    split = resolve(tmp_path, "engine.tensor_parallel_size=1,2,3")
    assert [bool(point.problem) for point in split] == [False, False, True]


def test_items_of_lists_are_reached_by_index(tmp_path):
    path = tmp_path / "image.yaml"
    path.write_text(
        "model: Qwen/Qwen3-VL-2B-Instruct\ngpu: rtx-4090\n"
        "workload: {type: image, rate: 1, num_requests: 3, image_size: [[1152, 864], [64, 64]]}\n"
    )
    resolver = Resolver(read_template(path))
    (point,) = resolver.points([{"workload.image_size.1.0": 640}])
    assert point.scenario.workload.image_size == [[1152, 864], [640, 64]]
    with pytest.raises(KvsimError, match="give an index from 0 to 1, not 2"):
        resolver.points([{"workload.image_size.2.0": 640}])


def test_a_scenario_in_hand_sweeps_like_its_file(tmp_path):
    path = write(tmp_path)
    values = {"gpu": "h100-sxm", "engine.max_num_seqs": None}  # what follows from the GPU is filled in anew
    of_file = Resolver(read_template(path)).point(values)
    in_hand = Resolver(template_of(scenario(tmp_path))).point(values)
    assert of_file.hash == in_hand.hash
    assert of_file.scenario.engine.max_num_seqs == 1024


# ---- identical requests ----

STREAM = ["request_id", "arrival_time", "num_prompt_tokens", "num_output_tokens"]
ENGINE_VALUES = [
    {"engine.block_size": 32},
    {"engine.num_gpu_blocks_override": 120},
    {"engine.max_num_seqs": 4, "engine.max_num_batched_tokens": 512},
    {"engine.enable_prefix_caching": False},
    {"engine.scheduling_policy": "priority"},
    {"vllm_version": "0.16"},
    {"gpu": "h100-sxm", "model": "Qwen/Qwen3-8B"},
]


@pytest.mark.parametrize("values", ENGINE_VALUES, ids=str)
def test_engine_keys_leave_the_requests_as_they_are(tmp_path, values):
    resolver = Resolver(template_of(scenario(tmp_path)))
    base, other = (resolver.point(each).scenario for each in ({}, values))
    before, after = (each.run().requests[STREAM] for each in (base, other))
    assert (after["num_output_tokens"] > 0).all()
    pd.testing.assert_frame_equal(before, after, check_exact=True)
    blocks = [list(each.build_workload().blocks(each.seed)) for each in (base, other)]
    for ours, theirs in zip(*blocks, strict=True):
        assert ours.arrival_times.tobytes() == theirs.arrival_times.tobytes()
        assert ours.segments.tobytes() == theirs.segments.tobytes()  # the tokens themselves


@pytest.mark.parametrize("more", ["", "  burstiness: 0.5\n", "  arrival: constant\n"])
@pytest.mark.parametrize("rate", [5, 200.0, "inf"])
def test_the_rate_scales_arrivals_and_changes_nothing_else(tmp_path, more, rate):
    resolver = Resolver(template_of(scenario(tmp_path, more)))
    base, other = (resolver.point(each).scenario for each in ({}, {"workload.rate": rate}))
    for ours, theirs in zip(base.workload.blocks(3), other.workload.blocks(3), strict=True):
        assert ours.segments.tobytes() == theirs.segments.tobytes()
        assert ours.bounds.tobytes() == theirs.bounds.tobytes()
        factor = 0.0 if rate == "inf" else 20 / rate
        assert theirs.arrival_times == pytest.approx(ours.arrival_times * factor, rel=1e-12)
