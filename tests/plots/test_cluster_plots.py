"""Pictures of clusters hold the figures of their replicas and policies."""

import numpy as np
import pandas as pd
import pytest
from made_clusters import ROUTER, comparison, replica, summary
from matplotlib.figure import Figure
from plotted import axes_of, says, small, words_of

import kvsim
from kvsim.errors import KvsimError
from kvsim.plots import SweepPlots
from kvsim.plots.metrics import described
from kvsim.plots.replica_names import number_of
from kvsim.plots.replicas import PANELS, draw_replicas
from kvsim.plots.style import rendered
from kvsim.results import RunResult


def heights(ax) -> list[float]:
    return [patch.get_height() for patch in ax.patches]


def widths(ax) -> list[float]:
    return [patch.get_width() for patch in ax.patches]


# ---- replicas of a run


def test_a_bar_for_each_replica_in_each_panel():
    figure = draw_replicas(summary([replica(i, 10 + i) for i in range(3)]), "made")
    requests, hits, usage = axes_of(figure)
    assert heights(requests) == [10, 11, 12]
    assert heights(hits) == pytest.approx([50, 51, 52])
    assert heights(usage) == pytest.approx([20, 20.5, 21])
    peaks = next(line for line in usage.lines if line.get_linestyle() == "None")
    assert list(peaks.get_ydata()) == pytest.approx([60, 60, 60])
    assert says(figure, "mean 11, most 1.09 times that")
    assert says(figure, "all 52%")
    assert says(figure, "made; 3 replicas, dynamo_kv; strokes: peak")
    assert [label.get_text() for label in usage.get_xticklabels()] == ["h100-0", "h100-1", "h100-2"]


@pytest.mark.parametrize("panel", PANELS)
def test_every_panel_alone(panel):
    figure = draw_replicas(summary([replica(i, 10 + i) for i in range(3)]), "made", [panel])
    (ax,) = axes_of(figure)
    assert len(ax.patches) == 3
    assert max(heights(ax)) > 0


def test_groups_have_colours_and_a_key():
    parts = [replica(0, 10, "h100"), replica(1, 20, "h100"), replica(0, 5, "l40s")]
    figure = draw_replicas(summary(parts), "made", ["requests"])
    (ax,) = axes_of(figure)
    first, second, third = (patch.get_facecolor() for patch in ax.patches)
    assert first == second != third
    assert says(figure, "h100")
    assert says(figure, "l40s")


def test_many_replicas_are_numbered():
    figure = draw_replicas(summary([replica(i, 10 + i % 7) for i in range(256)]), "made")
    ax = axes_of(figure)[-1]
    assert ax.get_xlabel() == "number of the replica"
    assert len(ax.get_xticks()) < 20


def test_a_replica_that_served_nothing_has_an_empty_place():
    idle = replica(1, 0) | {"prefix_cache_hit_rate": None}
    figure = draw_replicas(summary([replica(0, 10), idle]), "made")
    assert heights(axes_of(figure)[1]) == pytest.approx([50, 0])


@pytest.mark.parametrize(
    ("metrics", "panels", "problem"),
    [
        ({}, ["requests"], "replicas: the run has a single replica, so there is nothing to compare"),
        (summary([replica(0, 1), replica(1, 1)]), ["hits"], "replicas: 'hits' is not known;"),
    ],
)
def test_what_replicas_refuse(metrics, panels, problem):
    with pytest.raises(KvsimError, match=problem):
        draw_replicas(metrics, "made", panels)


# ---- other pictures of a run of a cluster


@pytest.fixture(scope="module")
def grouped(tmp_path_factory) -> RunResult:
    """Two groups on different cards; the scenario's own card serves the second."""
    path = small(tmp_path_factory.mktemp("groups"))
    groups = "{big: {replicas: 2, gpu: h100}, other: {replicas: 1}}"
    cluster = f"cluster={{routers: {{front: round_robin}}, groups: {groups}}}"
    return kvsim.load_scenario(path, [cluster]).run()


def test_replicas_of_groups_have_their_names_and_cards(grouped):
    assert [part["name"] for part in grouped.metrics["replicas"]] == ["big-0", "big-1", "other-0"]
    figure = grouped.plot.replicas()
    assert says(figure, "small: Qwen/Qwen3-VL-2B-Instruct on H100 SXM, RTX 4090, vLLM 0.33; 3 replicas")


def test_memory_has_a_bar_for_each_group(grouped):
    figure = grouped.plot.memory()
    (ax,) = axes_of(figure)
    rows: dict[float, float] = {}
    for patch in ax.patches:
        middle = patch.get_y() + patch.get_height() / 2
        rows[middle] = rows.get(middle, 0) + patch.get_width()
    assert list(rows) == pytest.approx([0, 1])
    assert list(rows.values()) == pytest.approx([79.19, 23.52], abs=0.01)
    assert says(figure, "big: 2 replicas, Qwen/Qwen3-VL-2B-Instruct on H100 SXM")
    assert says(figure, "other: 1 replica, Qwen/Qwen3-VL-2B-Instruct on RTX 4090")
    peaks = [part["vllm:kv_cache_usage_perc"]["peak"] for part in grouped.metrics["replicas"]]
    assert max(peaks[:2]) != peaks[2]
    for peak, total in ((max(peaks[:2]), "79.19"), (peaks[2], "23.52")):
        assert says(
            figure, f"384 tokens in 24 blocks, at most {peak:.1%} in use; budget: 0.92 of {total} GiB"
        )
    assert says(figure, "GiB of big | other")
    assert says(figure, "KV memory not used  66.18 | 14.96")
    assert says(figure, "one GPU of each of 2 groups")
    assert grouped.plot.memory(title="Mine", ax=Figure().add_subplot()) is not None


def test_memory_of_many_groups_shows_the_first_ones(tmp_path):
    groups = ", ".join(f"g{i}: {{replicas: {1 + (i == 0)}}}" for i in range(12))
    cluster = f"cluster={{routers: {{front: round_robin}}, groups: {{{groups}}}}}"
    figure = kvsim.load_scenario(small(tmp_path), [cluster]).run().plot.memory()
    assert says(figure, "one GPU of each of the first 10 of 12 groups")
    (ax,) = axes_of(figure)
    assert len({patch.get_y() for patch in ax.patches}) == 10
    assert "weights" in words_of(figure)


def test_memory_of_one_group_is_that_of_its_card(tmp_path):
    cluster = "cluster={routers: {front: round_robin}, groups: {big: {replicas: 2, gpu: h100}}}"
    figure = kvsim.load_scenario(small(tmp_path), [cluster]).run().plot.memory()
    assert says(figure, "Qwen/Qwen3-VL-2B-Instruct on H100 SXM, one GPU's memory; at most")
    assert says(figure, "of the GPU's 79.")


# ---- one replica of several


@pytest.mark.parametrize("replica", ["big-1", "1", 1, np.int64(1)])
def test_a_replica_is_asked_for_by_name_or_number(grouped, replica):
    figure = grouped.plot.cdf("ttft", replica=replica)
    requests = grouped.requests
    mine = requests.loc[requests["instance"] == 1, "ttft"]
    assert list(axes_of(figure)[0].lines[0].get_xdata()[1:]) == pytest.approx(sorted(1e3 * mine))
    assert says(figure, f"{len(mine)} finished requests, big-1")
    steps = int((grouped.steps["instance"] == 1).sum())
    assert says(grouped.plot.timeseries("running", replica=replica), f"big-1, {steps} engine steps")


def test_a_replica_that_is_not_there_is_answered_with_the_names():
    names = ["big-0", "big-1", "other-0"]
    said = "cdf: there is no replica big-7; there are big-0, big-1, other-0; or a number from 0 to 2"
    with pytest.raises(KvsimError, match=f"^{said}$"):
        number_of("big-7", names, "cdf")
    with pytest.raises(KvsimError, match="there is no replica 3; there are big-0"):
        number_of(3, names, "cdf")
    many = [f"replica-{i}" for i in range(64)]
    assert number_of("replica-12", many, "cdf") == 12
    with pytest.raises(KvsimError, match=r"no replica relica-12; nearest: replica-12, .*; or a number"):
        number_of("relica-12", many, "cdf")
    with pytest.raises(
        KvsimError, match=r"no replica 64; there are replica-0, .* \(64 in all\); or a number"
    ):
        number_of("64", many, "cdf")


def test_latencies_of_replicas_have_one_key_under_the_panels(grouped):
    figure = grouped.plot.cdf()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["big-0", "big-1", "other-0"]


def test_blocks_are_those_of_one_engine(grouped):
    with pytest.raises(KvsimError, match="blocks: the run has several engines"):
        grouped.plot.blocks()


def test_reuse_gaps_are_within_a_replica(grouped):
    gaps = grouped.plot.cdf("reuse_gap")
    assert says(gaps, "block hits")
    with pytest.raises(KvsimError, match="cdf: there is no replica 3; there are big-0, big-1, other-0; or a"):
        grouped.plot.cdf("reuse_gap", replica=3)


def test_a_policy_of_the_users_own_need_not_be_there_anymore(tmp_path, monkeypatch):
    path = small(tmp_path)
    (tmp_path / "mine.py").write_text(
        "class First:\n    def choose(self, request, view):\n        return 0\n"
    )
    result = kvsim.load_scenario(path, ["cluster={replicas: 2, router: 'mine.py:First'}"]).run()
    (tmp_path / "mine.py").unlink()
    assert [part["requests"]["total"] for part in result.metrics["replicas"]] == [8, 0]
    assert result.plot.memory() is not None
    assert says(result.plot.cdf("reuse_gap"), "block hit")


def test_sessions_have_no_reuse_gaps(tmp_path):
    lengths = "system_prompt_len: 30, question_len: 9, output_len: 4"
    workload = f"workload={{type: chat, num_sessions: 2, num_turns: 2, rate: 5, {lengths}}}"
    result = kvsim.load_scenario(small(tmp_path), [workload]).run()
    with pytest.raises(KvsimError, match="cdf: reuse_gap needs requests that do not wait for answers"):
        result.plot.cdf("reuse_gap")


# ---- policies of a comparison


def plots(frame: pd.DataFrame, replicas: pd.DataFrame | None = None, axes=(ROUTER,)) -> SweepPlots:
    return SweepPlots(frame, axes, "made", replicas=replicas)


def test_a_bar_for_each_policy_and_a_stroke_for_each_replica():
    figure = plots(*comparison()).routers()
    hits, ttft, spread = axes_of(figure)
    assert widths(hits) == pytest.approx([40, 50])
    assert widths(ttft) == pytest.approx([500, 1500])
    assert widths(spread) == pytest.approx([1.0, 1.1])
    assert [list(line.get_xdata()) for line in hits.lines] == [
        pytest.approx([40, 41]),
        pytest.approx([50, 51]),
    ]
    assert list(spread.lines[1].get_xdata()) == pytest.approx([0.9, 1.1])  # over the mean of 10
    assert says(figure, "strokes: single replicas")
    assert says(figure, "50%")
    assert [label.get_text() for label in hits.get_yticklabels()] == ["round_robin", "dynamo_kv"]


def test_another_swept_key_has_colours():
    frame, _ = comparison()
    both = pd.concat([frame.assign(**{"workload.rate": rate}) for rate in (5, 10)], ignore_index=True)
    figure = plots(both, axes=(ROUTER, "workload.rate")).routers("hit_rate")
    (ax,) = axes_of(figure)
    assert len(ax.patches) == 4
    assert len({patch.get_facecolor() for patch in ax.patches}) == 2
    assert says(figure, "rate 10")
    whole = pd.concat([both.assign(seed=seed) for seed in (0, 1)], ignore_index=True)
    with pytest.raises(KvsimError, match="routers: seed has several values, too; choose one with --where"):
        plots(whole, axes=(ROUTER, "workload.rate", "seed")).routers(by="rate")


def test_a_policy_that_failed_has_no_bar():
    frame, replicas = comparison()
    frame.loc[1, "prefix_cache_hit_rate"] = np.nan
    frame.loc[1, "error"] = "the policy raised"
    figure = plots(frame, replicas).routers("hit_rate")
    assert widths(axes_of(figure)[0]) == pytest.approx([40, 0])
    assert says(figure, "failed")


def test_latencies_far_apart_have_a_logarithmic_axis():
    frame, replicas = comparison()
    frame.loc[1, "vllm:time_to_first_token_seconds.p99"] = 60.0
    (ax,) = axes_of(plots(frame, replicas).routers("ttft_p99"))
    assert ax.get_xscale() == "log"
    assert not ax.patches  # bars have no length there
    assert ax.collections[0].get_offsets()[:, 0].tolist() == pytest.approx(
        [0.5, 60]
    )  # seconds: milliseconds would have five digits
    assert all(0.25 <= tick <= 60 for tick in ax.get_xticks())


def test_a_sweep_without_routers_says_how_to_compare_them():
    frame, _ = comparison()
    with pytest.raises(KvsimError, match="block_size was swept, no router; compare them with kvsim run FILE"):
        plots(frame.rename(columns={ROUTER: "engine.block_size"}), axes=("engine.block_size",)).routers()


def test_equal_comparisons_give_equal_pictures():
    first, second = (rendered(plots(*comparison()).routers(), ".svg") for _ in range(2))
    assert first == second


# ---- figures of clusters in the other kinds


@pytest.mark.parametrize(
    ("column", "axis", "low_is_good"),
    [
        ("imbalance.requests.max_over_mean", "imbalance of requests (most / mean)", True),
        ("imbalance.busy_time.max_over_mean", "imbalance of busy time (most / mean)", True),
        ("imbalance.requests.jain", "Jain's index of requests", False),
        ("imbalance.busy_time.jain", "Jain's index of busy time", False),
    ],
)
def test_figures_of_imbalance(column, axis, low_is_good):
    metric = described(column)
    assert (metric.axis, metric.low_is_good, metric.factor) == (axis, low_is_good, 1.0)


def test_the_frontier_of_hit_rate_and_latency_over_a_weight():
    """More weight on the cache: more hits, but a longer tail; the point that is worse in both is beaten."""
    key = "cluster.router.overlap_score_credit"
    rows = [(0.0, 0.3, 1.0), (1.0, 0.6, 2.0), (2.0, 0.5, 3.0)]
    frame = pd.DataFrame(
        [{key: w, "prefix_cache_hit_rate": h, "vllm:time_to_first_token_seconds.p99": t} for w, h, t in rows]
    ).assign(error=None)
    figure = SweepPlots(frame, [key], "made").pareto(x="ttft_p99", y="hit_rate")
    assert says(figure, "2 on the frontier")
    assert says(figure, "labels: overlap_score_credit")
    assert says(figure, "Prefix cache hit rate against TTFT p99")
