"""Pictures of a run hold the run's numbers."""

import numpy as np
import pandas as pd
import pytest
from plotted import axes_of, says, small
from recorded_steps import steps_table

import kvsim
from kvsim.errors import KvsimError
from kvsim.plots import memory_of
from kvsim.plots.binning import hit_window, series
from kvsim.plots.block_times import ages_at_eviction, reuse_gaps
from kvsim.plots.blocks import block_history
from kvsim.plots.cdf import Sample, cumulative, draw_cdf
from kvsim.plots.memory import bar_of_plan, bar_of_run
from kvsim.plots.timeseries import draw_timeseries
from kvsim.results import CachingMetrics

GIB = 2**30


# ---- memory


def test_the_parts_of_a_plan_fill_the_card():
    plan = kvsim.plan_capacity("Qwen/Qwen3-8B", "h100", max_model_len=8192)
    bar = bar_of_plan(plan)
    less_than_a_block = plan.prediction.total - sum(part.size for part in bar.parts)
    assert 0 <= less_than_a_block < plan.block_bytes
    figure = memory_of(plan)
    (ax,) = axes_of(figure)
    widths = [patch.get_width() for patch in ax.patches]
    assert widths == pytest.approx([part.size / GIB for part in bar.parts if part.size])
    assert ax.get_xlabel() == "memory of one GPU, GiB"
    assert says(figure, f"{plan.kv_cache_size_tokens:,} tokens in {plan.num_gpu_blocks:,} blocks")


def test_a_model_that_does_not_fit_shows_by_how_much():
    plan = kvsim.plan_capacity("Qwen/Qwen3-32B", "rtx-4090")
    found = plan.prediction
    figure = memory_of(plan)
    assert says(figure, "vLLM would not start")
    assert says(figure, f"{-found.available / GIB:,.2f} GiB over the budget")


def test_memory_that_was_given_is_all_that_is_drawn():
    plan = kvsim.plan_capacity("Qwen/Qwen3-8B", "h100", max_model_len=4096, kv_cache_memory_bytes=8 * GIB)
    (ax,) = axes_of(memory_of(plan))
    assert [patch.get_width() for patch in ax.patches] == pytest.approx([8.0], abs=0.01)


def test_the_bar_of_a_run_is_that_of_its_summary(result):
    facts = result.metrics["capacity"]
    scenario = result.plot._scenario()
    parts = {part.name: part.size for part in bar_of_run(scenario, result.metrics).parts}
    assert parts["KV cache"] == facts["kv_cache_bytes"]
    assert parts["KV cache"] + parts["KV memory not used"] == facts["available_kv_cache_bytes"]
    assert {"weights", "activation peak", "CUDA graphs", "non-torch", "left free"} <= set(parts)
    total = sum(parts.values())
    assert total / GIB == pytest.approx(23.52, abs=0.01)
    assert says(result.plot.memory(), "384 tokens in 24 blocks")


# ---- over time


def test_few_steps_are_drawn_one_by_one(result):
    steps = result.steps
    figure = result.plot.timeseries()
    running, waiting, usage, hits, preemptions, tokens = axes_of(figure)
    for ax, column, factor in (
        (running, "num_running", 1),
        (waiting, "num_waiting", 1),
        (usage, "kv_cache_usage_perc", 100),
    ):
        line = ax.lines[0]
        assert list(line.get_xdata()[:-1]) == steps["start_time"].tolist()
        assert list(line.get_ydata()[:-1]) == pytest.approx((factor * steps[column]).tolist())
    assert hits.lines[0].get_ydata()[-1] > 0
    for ax, column in ((preemptions, "num_preempted"), (tokens, "num_tokens")):
        edges, rates = ax.lines[0].get_data()
        assert np.sum(np.diff(edges) * rates[:-1]) == pytest.approx(steps[column].sum())
    assert tokens.get_xlabel() == "simulated time, s"
    assert [ax.get_ylabel().replace("\n", " ") for ax in axes_of(figure)] == [
        *("running, requests", "waiting, requests", "KV cache usage, %", "hit rate, % of tokens"),
        *("preemptions per second", "computed, tokens/s"),
    ]


def test_the_first_preemption_and_the_full_pool_are_marked(result):
    steps = result.steps
    first = steps.loc[steps["num_preempted"] > 0, "start_time"].min()
    total = int(steps["num_preempted"].sum())
    assert total > 0
    figure = result.plot.timeseries(["preemptions", "kv_usage"])
    preemptions, _ = axes_of(figure)
    assert [list(line.get_xdata()) for line in preemptions.lines if line.get_linestyle() == ":"] == [
        [first] * 2
    ]
    assert says(figure, f"{total} in all")
    assert says(figure, "full from") == bool((steps["kv_cache_usage_perc"] >= 0.99).any())


def test_bins_keep_the_mean_and_the_extremes():
    steps = steps_table(10_000)
    line = series(steps, "running", (0.0, 100.0))
    assert len(line.time) == len(line.value) == 300
    area = (steps["num_running"] * steps["duration"]).sum() / steps["duration"].sum()
    assert line.value.mean() == pytest.approx(area)
    assert line.high.max() == steps["num_running"].max()
    assert line.low.min() == steps["num_running"].min()
    assert (line.low <= line.value).all()
    assert (line.value <= line.high).all()


def test_between_steps_nothing_runs():
    steps = steps_table(4, idle_after=1)
    line = series(steps, "running", (0.0, 1.0))
    assert line.value[2] == 0
    assert len(line.value) == 6


def test_the_hit_rate_is_that_of_vllm():
    steps = steps_table(300)
    line = series(steps, "hit_rate", (0.0, 100.0))
    metrics = CachingMetrics(hit_window(int(steps["num_new_reqs"].sum())))
    for row, value in zip(steps.itertuples(), line.value, strict=True):
        metrics.observe(row.num_new_reqs, row.prefix_cache_queries, row.prefix_cache_hits)
        assert value == pytest.approx(100 * metrics.hit_rate)


def test_a_line_for_each_replica():
    three = pd.concat([steps_table(50).assign(instance=i, num_running=i) for i in range(3)])
    figure = draw_timeseries(three, "three")
    running = axes_of(figure)[0]
    assert [line.get_label() for line in running.lines] == ["replica 0", "replica 1", "replica 2"]
    assert [set(line.get_ydata()) for line in running.lines] == [{0}, {1}, {2}]
    assert len({(line.get_color(), line.get_linestyle()) for line in running.lines}) == 3
    (alone,) = axes_of(draw_timeseries(three, "three", ["running"], replica=1))[0].lines
    assert set(alone.get_ydata()) == {1}


def test_lines_and_marks_have_the_names_of_replicas():
    parts = [
        steps_table(50).assign(instance=i, kv_cache_usage_perc=usage, num_preempted=i)
        for i, usage in enumerate((0.5, 1.0))
    ]
    figure = draw_timeseries(pd.concat(parts), "two", names=["x-0", "y-1"])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["x-0", "y-1"]
    assert [line.get_label() for line in axes_of(figure)[0].lines] == ["x-0", "y-1"]
    assert says(figure, "full from 0 s (y-1)")
    assert says(figure, "first at 0 s (y-1), 50 in all")
    alone = draw_timeseries(pd.concat(parts), "two", replica=1, names=["x-0", "y-1"])
    assert alone.axes[0].texts[0].get_text() == "two; y-1, 50 engine steps"
    assert not says(alone, "(y-1)")


def test_a_key_of_many_replicas_names_the_first_ones():
    names = [f"large-{i}" for i in range(64)]
    samples = {kind: [Sample(name, np.array([0.1, 0.2])) for name in names] for kind in ("ttft", "tpot")}
    figure = draw_cdf(samples, "made", {})
    (legend,) = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == [*names[:13], "large-13 … large-63"]
    assert all(ax.get_legend() is None for ax in axes_of(figure))
    figure.canvas.draw()
    assert legend.get_window_extent().y1 < min(ax.get_tightbbox().y0 for ax in axes_of(figure))
    steps = pd.concat([steps_table(5).assign(instance=i) for i in range(64)])
    (other,) = draw_timeseries(steps, "made", ["running"], names=names).legends
    assert [text.get_text() for text in other.get_texts()] == labels


def test_a_window_holds_its_steps_only(result):
    end = result.steps["end_time"].max()
    (ax,) = axes_of(result.plot.timeseries("running", window=(0.2, 0.4)))
    assert ax.get_xlim() == (0.2, 0.4)
    assert len(ax.lines[0].get_xdata()) < len(result.steps)
    with pytest.raises(KvsimError, match="no engine step between 100 and 200 s"):
        result.plot.timeseries(window=(100, 200))
    assert end < 100


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda plot: plot.timeseries("runing"), "did you mean running"),
        (lambda plot: plot.timeseries(replica=3), "timeseries: there is no replica 3; there is one, 0$"),
        (lambda plot: plot.timeseries(replica="a\nb"), "there is no replica a b; there is one, 0$"),
        (lambda plot: plot.cdf("tftt"), "did you mean ttft"),
        (lambda plot: plot.cdf(replica=3), "cdf: there is no replica 3; there is one, 0$"),
        (lambda plot: plot.cdf(replica=-1), "cdf: there is no replica -1; there is one, 0$"),
        (lambda plot: plot.blocks((1000, 1010)), "begins at step 1,000"),
        (lambda plot: plot.blocks(), "are more than a block map shows, 200; choose some with --window"),
    ],
)
def test_what_cannot_be_drawn_is_said(result, draw, says):
    with pytest.raises(KvsimError, match=says):
        draw(result.plot)


def test_what_was_not_recorded_is_said_with_the_way(tmp_path):
    plain = kvsim.load_scenario(small(tmp_path), ["record.steps=false", "record.events=false"]).run()
    with pytest.raises(KvsimError, match="--record steps"):
        plain.plot.timeseries()
    with pytest.raises(KvsimError, match="--record events"):
        plain.plot.cdf("block_age")
    assert axes_of(plain.plot.cdf())


# ---- distributions


def test_latencies_are_those_of_the_requests(result):
    figure = result.plot.cdf()
    for ax, column, label in zip(
        axes_of(figure), ("ttft", "tpot", "e2e"), ("TTFT, ms", "TPOT, ms", "E2E latency, ms"), strict=True
    ):
        x, y = ax.lines[0].get_data()
        assert list(x[1:]) == pytest.approx(sorted(1e3 * result.requests[column]))
        assert list(y) == pytest.approx(np.linspace(0, 100, len(result.requests) + 1))
        assert ax.get_xlabel() == label
    share = 100 * result.metrics["slo"]["ttft"]["share"]
    assert says(figure, f"SLO 50 ms: {share:.1f}% keep it")
    p99 = 1e3 * result.metrics["vllm:time_to_first_token_seconds"]["p99"]
    assert says(figure, f"p99  {p99:.3g} ms")


def test_many_values_are_drawn_by_some_of_them():
    values = np.random.default_rng(0).lognormal(size=100_000)
    x, share = cumulative(values)
    assert len(x) <= 2000
    assert (x[0], x[-1]) == (values.min(), values.max())
    ordered = np.sort(values)
    assert (ordered[np.round(share / 100 * len(values)).astype(int) - 1] == x).all()


def test_values_that_are_missing_are_left_out():
    x, share = cumulative(np.array([3.0, np.nan, 1.0]))
    assert (list(x), list(share)) == ([1.0, 3.0], [50.0, 100.0])


def test_each_replica_has_its_distribution(result):
    def split(requests):
        return requests.assign(instance=np.arange(len(requests)) % 3)

    apart = kvsim.RunResult(result.scenario, result.metrics, result._tables)
    apart.__dict__["requests"] = split(result.requests)
    (ax,) = axes_of(apart.plot.cdf("ttft"))
    assert [line.get_label() for line in ax.lines[:3]] == ["replica 0", "replica 1", "replica 2"]


def test_ages_begin_when_a_block_becomes_reusable():
    rows = [(0, "stored", 1, 1.0), (0, "stored", 2, 2.0), (0, "evicted", 1, 4.0), (1, "stored", 1, 5.0)]
    rows += [(0, "stored", 1, 6.0), (0, "evicted", 1, 6.5), (1, "evicted", 1, 9.0)]
    events = pd.DataFrame(rows, columns=["instance", "kind", "block_id", "time"])
    assert ages_at_eviction(events).tolist() == [3.0, 0.5, 4.0]


def test_every_hit_on_a_block_has_a_gap(result):
    gaps = reuse_gaps(result.events, result.plot._scenario(), 16)
    metrics = result.metrics
    assert len(gaps) == (metrics["vllm:prefix_cache_hits"] + metrics["preempted_hits"]) // 16
    assert (gaps >= 0).all()  # two requests of one batch may hit the same block
    figure = result.plot.cdf(["block_age", "reuse_gap"])
    assert says(figure, f"{metrics['blocks_evicted']} evictions, {len(gaps)} block hits")


# ---- blocks


def test_the_block_map_is_that_of_the_steps(result):
    scenario = result.plot._scenario()
    seen = block_history(scenario, (20, 29), None)
    for column, view in enumerate(scenario.steps(20, 10, blocks=True)):
        pool = view.block_map
        owners = {each.block_id: each.owners for each in pool.blocks}
        for row, block in enumerate(seen.blocks):
            holders = owners.get(block, [])
            assert seen.num_owners[row, column] == len(holders)
            assert (seen.owner[row, column] < 0) == (not holders)
            assert not holders or seen.requests[seen.owner[row, column]] in holders
            free = block in pool.free_queue
            assert seen.place[row, column] == (pool.free_queue.index(block) if free else -1)
    assert seen.blocks == list(range(1, 24))


def test_a_block_map_names_requests_and_preemptions(result):
    first = int(result.steps.loc[result.steps["num_preempted"] > 0, "step"].iloc[0])
    figure = result.plot.blocks((first - 5, first + 5))
    (ax,) = axes_of(figure)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("engine step", "block id")
    assert says(figure, "req-0")
    assert says(figure, "preemption (1 in all)")


def test_a_large_pool_shows_the_blocks_that_were_used(tmp_path):
    overrides = ["engine.num_gpu_blocks_override=5000", "workload.num_requests=1"]
    one = kvsim.load_scenario(small(tmp_path), overrides).run()
    assert says(one.plot.blocks(), "(those that were used)")
    many = kvsim.load_scenario(
        small(tmp_path), [*overrides[:1], "workload.suffix_len=2000", "engine.max_model_len=4096"]
    )
    with pytest.raises(KvsimError, match="at most 128"):
        many.run().plot.blocks((1, 100))


# ---- nothing to draw


def test_a_run_without_steps_says_so(tmp_path):
    empty = kvsim.load_scenario(small(tmp_path), ["horizon=0.0001"]).run()
    for draw in (empty.plot.timeseries, empty.plot.blocks):
        with pytest.raises(KvsimError, match="no engine step"):
            draw()
    with pytest.raises(KvsimError, match="no request finished"):
        empty.plot.cdf()
    assert axes_of(empty.plot.memory())


def test_a_run_of_one_request(tmp_path):
    one = kvsim.load_scenario(small(tmp_path), ["workload.num_requests=1"]).run()
    x, _ = axes_of(one.plot.cdf("ttft"))[0].lines[0].get_data()
    assert list(x) == pytest.approx([1e3 * one.requests["ttft"][0]] * 2)
    assert says(one.plot.timeseries(), "no preemption")
    with pytest.raises(KvsimError, match="no cached block was evicted"):
        one.plot.cdf("block_age")


def test_models_with_several_groups_have_no_reuse_gap(result):
    two = result.events.assign(
        group_id=pd.array([0, 1] * len(result.events), dtype="Int32")[: len(result.events)]
    )
    with pytest.raises(KvsimError, match="one KV cache group; this one has several"):
        reuse_gaps(two, result.plot._scenario(), 16)


def test_panels_beside_one_in_seconds_are_not_in_many_milliseconds():
    kinds = {"ttft": [2.0, 4.0], "tpot": [0.03, 0.04], "e2e": [8.0, 30.0]}
    samples = {kind: [Sample("", np.array(values))] for kind, values in kinds.items()}
    labels = [ax.get_xlabel() for ax in axes_of(draw_cdf(samples, "made", {}))]
    assert labels == ["TTFT, s", "TPOT, ms", "E2E latency, s"]
    limited = draw_cdf({"ttft": [Sample("", np.array([1.0, 4.0]))]}, "made", {"ttft": 10.0})
    assert says(limited, "SLO 10 s")


@pytest.mark.parametrize(("usage", "place"), [(0.95, 0.06), (0.2, 0.94)])
def test_words_about_a_panel_do_not_lie_on_the_line(usage, place):
    steps = steps_table(10).assign(kv_cache_usage_perc=usage)
    (ax,) = axes_of(draw_timeseries(steps, "made", ["kv_usage"]))
    (peak,) = [text for text in ax.texts if text.get_text().startswith("peak")]
    assert peak.xy[1] == place


def test_a_name_in_the_block_map_stands_in_the_middle_of_its_blocks(result):
    (ax,) = axes_of(result.plot.blocks((1, 40)))
    names = [text for text in ax.texts if text.get_text().startswith("req-")]
    assert names
    assert all(text.get_position()[1] > 0 and text.get_fontsize() >= 5.5 for text in names)
