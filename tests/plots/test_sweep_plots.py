"""Pictures of a sweep hold the table's numbers."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from plotted import BLOCK_SIZE, E2E, HIT_RATE, TOKENS, UTILIZATION, axes_of, says, sweep_frame

from kvsim.errors import KvsimError
from kvsim.plots import SweepPlots
from kvsim.plots.effects import effects
from kvsim.plots.grid import SweepTable
from kvsim.plots.metrics import described, find_column
from kvsim.plots.pareto import frontier, gpus_of

KEYS = [UTILIZATION, BLOCK_SIZE]


@pytest.fixture
def frame() -> pd.DataFrame:
    return sweep_frame()


def plots(frame: pd.DataFrame, keys=KEYS) -> SweepPlots:
    return SweepPlots(frame, keys, "made: a model on a card")


# ---- names


@pytest.mark.parametrize(
    ("name", "column"),
    [
        (E2E, E2E),
        ("e2e_p99", E2E),
        ("e2e.p99", E2E),
        ("e2e", E2E),
        ("hit_rate", HIT_RATE),
        ("tokens_per_second", TOKENS),
        ("e2e_request_latency_seconds_p99", E2E),
    ],
)
def test_figures_have_short_names(name, column, frame):
    assert find_column(name, frame.columns, "--y") == column
    underscored = {column: column.replace(".p99", "_p99") for column in frame.columns}
    assert find_column(name, underscored.values(), "--y") == underscored[column]


@pytest.mark.parametrize(
    ("column", "axis", "low_is_good"),
    [
        (E2E, "E2E latency p99, ms", True),
        (HIT_RATE, "prefix cache hit rate, %", False),
        (TOKENS, "generated tokens, tokens/s", False),
        ("vllm:kv_cache_usage_perc.mean", "KV cache usage mean, %", False),
        ("vllm:num_preemptions", "preemptions", True),
        ("capacity.kv_cache_bytes", "kv cache bytes, GiB", False),
        ("request_goodput", "goodput, requests/s", False),
        ("num_recomputed_tokens", "num recomputed tokens, tokens", True),
    ],
)
def test_every_figure_has_a_unit_and_a_good_direction(column, axis, low_is_good):
    metric = described(column)
    assert (metric.axis, metric.low_is_good) == (axis, low_is_good)


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda plot: plot.lines(y="hit_rte"), "nearest: hit_rate"),
        (lambda plot: plot.lines(x="blok_size"), f"nearest: {BLOCK_SIZE}"),
        (lambda plot: plot.heatmap(x="block_size", y="block_size"), "wants two swept keys"),
        (lambda plot: plot.heatmap(value="zzz"), "'zzz' is not in the table"),
        (lambda plot: plot.pareto(by="rate"), "--by: 'rate' is not in the table"),
    ],
)
def test_what_is_not_in_the_table_is_said(draw, says, frame):
    with pytest.raises(KvsimError, match=says):
        draw(plots(frame))


# ---- lines


def test_a_line_for_each_value_of_the_other_key(frame):
    figure = plots(frame).lines("gpu_memory_utilization", "hit_rate")
    (ax,) = axes_of(figure)
    lines = {line.get_label(): line for line in ax.lines}
    for size in (16, 32, 64):
        rows = frame[frame[BLOCK_SIZE] == size]
        assert list(lines[str(size)].get_xdata()) == rows[UTILIZATION].tolist()
        np.testing.assert_allclose(lines[str(size)].get_ydata(), 100 * rows[HIT_RATE])
    assert (ax.get_xlabel(), ax.get_ylabel()) == (
        "gpu_memory_utilization, share of the card",
        "prefix cache hit rate, %",
    )
    assert list(lines["failed"].get_xdata()) == [0.4]
    assert says(figure, "ringed, highest: 88.4% at gpu_memory_utilization 0.9, block_size 16")
    assert says(figure, "9 points, 3 failed")


@pytest.mark.parametrize(
    ("key", "label"),
    [
        ("cluster.router.kv_event_delay", "kv_event_delay, s"),
        ("cluster.routers.front.kv_event_loss", "kv_event_loss, share of messages"),
        ("cluster.router.metrics_interval", "metrics_interval, s"),
        ("cluster.router.speculative_ttl", "speculative_ttl, s"),
        ("cluster.links.rack.bandwidth", "bandwidth, bytes/s"),
        ("cluster.links.rack.latency", "latency, s"),
        ("cluster.replicas", "replicas"),
        ("cluster.groups.large.engine.max_num_seqs", "max_num_seqs, requests"),
        ("workload.think_time", "think_time, s"),
        ("workload.think_time.mean", "mean, s"),
        ("workload.rate", "rate, sessions/s"),
        ("engine.watermark", "watermark, share of the blocks"),
        ("horizon", "horizon, s"),
        ("cluster.router.overlap_score_credit", "overlap_score_credit"),
    ],
)
def test_swept_keys_have_the_units_of_the_schema(key, label):
    frame = pd.DataFrame({key: [1.0, 2.0, 3.0], HIT_RATE: [0.1, 0.2, 0.3], "error": None})
    scenario = {"workload": {"type": "chat"}, "cluster": {"router": "round_robin"}}
    (ax,) = axes_of(SweepPlots(frame, [key], scenario=scenario).lines())
    assert ax.get_xlabel() == label
    chosen = SweepPlots(frame, [key], scenario=scenario).where({key: 1.0})
    assert axes_of(chosen.lines())[0].get_xlabel() == label


def test_the_lowest_latency_is_the_best(frame):
    assert says(plots(frame).lines("block_size", "e2e_p99"), "ringed, lowest: 5,660 ms")


def test_many_lines_are_told_apart_by_a_colour_scale():
    sizes = [16 * n for n in range(1, 31)]
    figure = plots(sweep_frame(block_sizes=sizes)).lines(
        "gpu_memory_utilization", "hit_rate", by="block_size"
    )
    ax, bar = axes_of(figure)
    assert len({to_hex(line.get_color()) for line in ax.lines[:30]}) == 30
    assert bar.get_ylabel() == "block_size, tokens"


def test_names_are_not_joined_by_lines():
    frame = pd.DataFrame({"model": ["a", "b", "c"], TOKENS: [1.0, 3.0, 2.0]})
    (ax,) = axes_of(plots(frame, ["model"]).lines())
    line = ax.lines[0]
    assert line.get_linestyle() == "None"
    assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "b", "c"]


def test_one_point():
    frame = sweep_frame([0.9], [16])
    (ax,) = axes_of(plots(frame).lines())
    assert list(ax.lines[0].get_ydata()) == pytest.approx([88.4])
    for draw in (plots(frame).heatmap, plots(frame).pareto):
        assert axes_of(draw())


def test_where_every_point_failed_the_cause_is_said():
    failed = sweep_frame([0.3, 0.4])
    for draw in (plots(failed).lines, plots(failed).pareto):
        with pytest.raises(KvsimError, match="6 of 6 points failed; the first error: engine"):
            draw()
    figure = plots(failed).heatmap()
    assert says(figure, "Every point failed")
    assert len(hatched(axes_of(figure)[0])) == 6


def test_without_points_there_is_nothing_to_draw():
    with pytest.raises(KvsimError, match="no finished point"):
        plots(pd.DataFrame(columns=[*KEYS, HIT_RATE])).lines()


# ---- heatmap


def hatched(ax) -> list[Rectangle]:
    return [patch for patch in ax.patches if patch.get_hatch()]


def test_cells_hold_the_figures(frame):
    figure = plots(frame).heatmap("gpu_memory_utilization", "block_size", "hit_rate")
    ax, bar = axes_of(figure)
    cells = np.ma.filled(ax.collections[0].get_array(), np.nan)
    wanted = 100 * frame.pivot(index=BLOCK_SIZE, columns=UTILIZATION, values=HIT_RATE)
    np.testing.assert_allclose(cells, wanted)
    words = {text.get_text() for text in ax.texts}
    assert {f"{value:.1f}" for value in wanted.to_numpy().ravel() if value == value} <= words
    assert {patch.get_xy() for patch in hatched(ax)} == {(0, 0), (0, 1), (0, 2)}
    assert says(figure, "framed, highest: 88.4% at gpu_memory_utilization 0.9, block_size 16")
    assert bar.get_ylabel() == "prefix cache hit rate, %"
    frames = [patch.get_xy() for patch in ax.patches if not patch.get_fill()]
    assert set(frames) == {(2, 0)}


def test_a_long_name_beside_few_rows_stands_in_two_lines(frame):
    (ax, _) = plots(frame).heatmap("block_size", "gpu_memory_utilization", "hit_rate").axes
    assert ax.get_ylabel() == "gpu_memory_utilization,\nshare of the card"
    (ax, _) = plots(frame).heatmap("gpu_memory_utilization", "block_size", "hit_rate").axes
    assert ax.get_ylabel() == "block_size, tokens"


def test_a_missing_point_is_blank(frame):
    frame.loc[4, HIT_RATE] = np.nan
    figure = plots(frame.drop(index=5)).heatmap("gpu_memory_utilization", "block_size", "hit_rate")
    cells = np.ma.filled(axes_of(figure)[0].collections[0].get_array(), np.nan)
    assert np.isnan(cells[[1, 2], [1, 1]]).all()
    assert says(figure, "blank: no value")


def test_whole_numbers_that_are_missing_are_blank(frame):
    frame["blocks_evicted"] = pd.array([None, 1, 2, None, 4, 5, 6, 7, 8], dtype="Int64")
    ax = axes_of(plots(frame).heatmap("gpu_memory_utilization", "block_size", "evictions"))[0]
    cells = np.ma.filled(ax.collections[0].get_array(), np.nan)
    assert np.isnan(cells[0, 1])
    assert cells[2, 2] == 8


def test_a_third_key_makes_panels(frame):
    both = pd.concat([frame.assign(rate=1.0), frame.assign(rate=2.0)], ignore_index=True)
    figure = plots(both, [*KEYS, "rate"]).heatmap()
    assert [ax.get_title("right") for ax in axes_of(figure)[:2]] == ["rate 1", "rate 2"]
    third = pd.concat([both.assign(seed=0), both.assign(seed=1)], ignore_index=True)
    with pytest.raises(KvsimError, match="was swept, too"):
        plots(third, [*KEYS, "rate", "seed"]).heatmap(by="rate")


def test_narrow_cells_have_no_numbers():
    sizes = [16 * n for n in range(1, 61)]
    figure = plots(sweep_frame(block_sizes=sizes)).heatmap("block_size", "gpu_memory_utilization", "hit_rate")
    ax = axes_of(figure)[0]
    assert len(ax.texts) == 2  # title and what stands below it
    assert len(ax.get_xticks()) <= 17


# ---- pareto


def test_a_label_does_not_hide_the_point_before_it():
    near = [(1.0, 100.0), (4.9, 999.0), (5.0, 1000.0)]  # (latency, tokens): the last two side by side
    rows = [{"a": a, TOKENS: tokens, E2E: late, "error": None} for a, (late, tokens) in enumerate(near)]
    ax, *_ = axes_of(SweepPlots(pd.DataFrame(rows), ["a"]).pareto())
    sides = {text.get_text(): text.get_ha() for text in ax.texts if text.get_text() in ("0", "1", "2")}
    assert sides == {"0": "right", "2": "left"}


def test_nothing_on_the_frontier_is_beaten():
    draw = np.random.default_rng(3)
    x, y = draw.random(200), draw.random(200)
    x[5] = y[6] = np.nan
    on = frontier(x, y)
    for row in range(200):
        beaten = ((x <= x[row]) & (y >= y[row]) & ((x < x[row]) | (y > y[row]))).any()
        assert (row in on) == (not beaten and np.isfinite(x[row] + y[row]))
    assert (np.diff(x[on]) > 0).all()


def test_points_are_throughput_per_gpu_against_latency(frame):
    frame["engine.tensor_parallel_size"] = [1, 2, 4] * 3
    keys = [*KEYS, "engine.tensor_parallel_size"]
    assert gpus_of(SweepTable(frame, keys), 2).tolist() == [2, 4, 8] * 3
    figure = plots(frame, keys).pareto()
    (ax,) = axes_of(figure)
    points = np.concatenate(
        [np.stack(line.get_data(), axis=1) for line in ax.lines[:-1]]
    )  # the last is the frontier
    good = frame.dropna(subset=[E2E])
    per_gpu = good[TOKENS] / good["engine.tensor_parallel_size"]
    wanted = np.stack([1e3 * good[E2E], per_gpu], axis=1)
    np.testing.assert_allclose(points[np.lexsort(points.T)], wanted[np.lexsort(wanted.T)])
    assert ax.get_ylabel() == "generated tokens, tokens/s per GPU"
    assert says(figure, "0.9, 16, 1")


# ---- effects


def test_effects_are_means_over_settings_that_are_complete():
    frame = pd.DataFrame(
        [
            {"a": 1, "b": "x", "tokens_made": 10.0, "error": None},
            {"a": 2, "b": "x", "tokens_made": 30.0, "error": None},
            {"a": 1, "b": "y", "tokens_made": 11.0, "error": None},
            {"a": 2, "b": "y", "tokens_made": 33.0, "error": None},
            {"a": 1, "b": "z", "tokens_made": 99.0, "error": None},
            {"a": 2, "b": "z", "tokens_made": None, "error": "refused"},
        ]
    )
    table = SweepTable(frame, ["a", "b"])
    large, small = effects(table, table.values(described("tokens_made")))
    assert (large.key, large.values, list(large.means)) == ("b", ("x", "y", "z"), [10.0, 11.0, 99.0])
    assert (small.key, list(small.means)) == ("a", [10.5, 31.5])


def test_effects_draw_the_largest_first(frame):
    ax, *_ = axes_of(plots(frame).effects("hit_rate"))
    names = [label.get_text().split("\n")[0] for label in ax.get_yticklabels()]
    bars = [line.get_xdata() for line in ax.get_lines() if line.get_linewidth() == 7]
    assert sorted(names) == ["block_size", "gpu_memory_utilization"]
    assert np.ptp(bars[0]) >= np.ptp(bars[1])


def test_effects_say_so_where_a_key_changes_nothing():
    rows = [{"a": a, "b": b, "tokens_made": 10.0 * a, "error": None} for a in (1, 2) for b in ("x", "y")]
    ax, *_ = axes_of(SweepPlots(pd.DataFrame(rows), ["a", "b"]).effects("tokens_made"))
    assert {"1", "2", "all values alike"} <= {text.get_text() for text in ax.texts}
    assert not {"x", "y"} & {text.get_text() for text in ax.texts}


def test_effects_want_two_keys(frame):
    with pytest.raises(KvsimError, match="effects: wants two swept keys"):
        plots(frame[frame[BLOCK_SIZE] == frame[BLOCK_SIZE].iloc[0]]).effects()
