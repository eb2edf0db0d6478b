"""What pictures of a sweep say beside its numbers: what vLLM refuses, what was fixed, found, or alike."""

import itertools

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Polygon
from plotted import BLOCK_SIZE, E2E, HIT_RATE, TOKENS, UTILIZATION, axes_of, says, sweep_frame, words_of

from kvsim.errors import KvsimError
from kvsim.plots import SweepPlots
from kvsim.plots.metrics import described

KEYS = [UTILIZATION, BLOCK_SIZE]
REMARK = "vLLM would not start: 16,384 tokens (max_model_len) do not fit the KV cache"


def grid(**axes) -> pd.DataFrame:
    """A point for each combination; the hit rate grows with numbers."""
    rows = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    for row in rows:
        total = sum(value for value in row.values() if isinstance(value, int | float))
        row.update({HIT_RATE: total / 1000, TOKENS: 10 * total, E2E: 1 + total / 100, "error": None})
    return pd.DataFrame(rows)


def picture(frame: pd.DataFrame, *keys: str, find: str = "") -> SweepPlots:
    return SweepPlots(frame, keys, "made", find=find)


# ---- settings at which vLLM would not start


@pytest.fixture
def refused() -> pd.DataFrame:
    """The best point, at utilization 0.9 and block size 16, would not start."""
    frame = sweep_frame()
    frame["remark"] = [REMARK if (u, b) == (0.9, 16) else None for u, b in frame[KEYS].to_numpy()]
    return frame


def test_a_heatmap_marks_settings_that_would_not_start(refused):
    figure = SweepPlots(refused, KEYS).heatmap("gpu_memory_utilization", "block_size", "hit_rate")
    corners = [patch for patch in axes_of(figure)[0].patches if isinstance(patch, Polygon)]
    assert [patch.get_xy()[0].tolist() for patch in corners] == [[2, 1]]
    assert says(figure, "red corner: vLLM would not start")
    assert says(figure, "framed, highest: 86.8% at gpu_memory_utilization 0.9, block_size 32")


def test_lines_mark_settings_that_would_not_start(refused):
    figure = SweepPlots(refused, KEYS).lines("gpu_memory_utilization", "hit_rate")
    (ax,) = axes_of(figure)
    (mark,) = [line for line in ax.lines if "not start" in str(line.get_label())]
    np.testing.assert_allclose(np.stack(mark.get_data()), [[0.9], [88.4]])
    assert "vLLM would\nnot start" in words_of(figure)
    assert says(figure, "ringed, highest: 86.8%")


def test_no_setting_on_the_frontier_would_not_start(refused):
    figure = SweepPlots(refused, KEYS).pareto()
    (ax,) = axes_of(figure)
    marks = {str(line.get_label()): np.stack(line.get_data(), axis=1) for line in ax.lines}
    best = (5660.0, 884.0)
    assert [tuple(point) for point in marks["vLLM would not start"]] == [best]
    assert best not in {tuple(point) for point in marks["on the frontier"]}


def test_effects_say_how_many_would_not_start(refused):
    assert says(SweepPlots(refused, KEYS).effects("hit_rate"), "counts 1 at which vLLM would not start")


# ---- many keys


def test_many_keys_are_drawn_with_some_of_them_fixed():
    axes = {"a": [1, 2], "b": [10, 20, 30], "c": ["x", "y"], "d": list(range(8))}
    plots = picture(grid(**axes), *axes)
    with pytest.raises(KvsimError, match=r"c, d were swept, too; choose a value: --where c=x --where d=0,"):
        plots.heatmap("a", "b")
    with pytest.raises(KvsimError, match=r"--by d has 8 values, .* at most 6 panels; .* --where d=0"):
        plots.where({"c": "x"}).heatmap("a", "b", by="d")
    with pytest.raises(KvsimError, match=r"d was swept, too; choose a value: --where d=0$"):
        plots.where({"c": "x"}).heatmap("a", "b")
    figure = plots.where({"c": "y", "d": "3.0"}).heatmap("a", "b", "hit_rate")
    cells = np.ma.filled(axes_of(figure)[0].collections[0].get_array(), np.nan)
    np.testing.assert_allclose(cells, [[1.4, 1.5], [2.4, 2.5], [3.4, 3.5]])


def test_a_value_that_was_not_swept_is_said():
    with pytest.raises(KvsimError, match="--where a=3: a was not swept there, but at 1, 2"):
        picture(grid(a=[1, 2], b=[1, 2]), "a", "b").where({"a": 3})
    with pytest.raises(KvsimError, match="--where: 'e' is not in the table"):
        picture(grid(a=[1, 2], b=[1, 2]), "a", "b").where({"e": 3})


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda plot: plot.heatmap("a", "b", by="a"), "--by a is an axis already"),
        (lambda plot: plot.lines("a", by="a"), "--by a is the axis already"),
        (lambda plot: plot.pareto("e2e_p99", "e2e"), "--x and --y are both vllm:e2e"),
    ],
)
def test_one_thing_is_not_drawn_against_itself(draw, says):
    with pytest.raises(KvsimError, match=says):
        draw(picture(grid(a=[1, 2], b=[1, 2]), "a", "b"))


# ---- lines


def test_the_key_asked_for_gives_the_colour():
    frame = grid(rate=[1, 2, 3], block_size=[16, 64], model=["org/one", "org/two"])
    frame[HIT_RATE] += 0.1 * (frame["model"] == "org/two")
    figure = picture(frame, "rate", "block_size", "model").lines("rate", "hit_rate", by="model")
    (ax,) = axes_of(figure)
    looks = {str(line.get_label()): (to_hex(line.get_color()), line.get_linestyle()) for line in ax.lines}
    assert looks["one, 16"][0] == looks["one, 64"][0] != looks["two, 16"][0]
    assert looks["one, 16"][1] == looks["two, 16"][1] != looks["one, 64"][1]
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["model", "one", "two", "block_size", "16", "64"]


def test_lines_that_lie_on_one_another_are_all_seen():
    frame = grid(rate=[1, 2, 3], model=["org/one", "org/two", "org/three"])
    figure = picture(frame, "rate", "model").lines("rate", "hit_rate")
    widths = [line.get_linewidth() for line in axes_of(figure)[0].lines[:3]]
    assert widths == sorted(set(widths), reverse=True)
    assert says(figure, "lie on one another")
    frame.loc[frame["model"] == "org/two", HIT_RATE] += 0.1
    frame.loc[frame["model"] == "org/three", HIT_RATE] += 0.2
    assert not says(picture(frame, "rate", "model").lines("rate", "hit_rate"), "lie on one another")


def test_the_key_of_many_settings_leaves_the_lines_their_room():
    axes = {
        "rate": [1, 2, 3],
        "model": [f"org/a-model-with-quite-a-long-name-{i}" for i in range(9)],
        "block_size": [16, 32, 64, 128],
    }
    figure = picture(grid(**axes), *axes).lines("rate", "hit_rate")
    figure.canvas.draw()
    (ax,) = axes_of(figure)
    assert ax.get_position().width > 0.5


def test_a_sample_is_drawn_by_points():
    draw = np.random.default_rng(1)
    columns = {key: draw.random(12) for key in ("a", "b", "c", TOKENS)}
    figure = picture(pd.DataFrame(columns), "a", "b", "c").lines("a", by="b")
    ax, bar = axes_of(figure)
    points = [line for line in ax.lines if line.get_marker() == "o" and line.get_fillstyle() == "full"]
    assert {line.get_linestyle() for line in points} == {"None"}
    assert len({to_hex(line.get_color()) for line in points}) == 12
    assert (bar.get_ylabel(), ax.get_legend()) == ("b", None)
    assert says(figure, "c differ, too")


# ---- searches


def test_a_search_shows_what_it_found():
    frame = pd.DataFrame(
        {
            "block_size": [16, 64],
            "workload.rate": [5.5, 4.5],
            "find.beyond": [5.6, 4.6],
            HIT_RATE: [0.4, 0.5],
            "error": None,
        }
    )
    scenario = {"workload": {"type": "shared_prefix"}}
    figure = SweepPlots(frame, ["block_size"], "made", find="max:workload.rate", scenario=scenario).lines()
    (ax,) = axes_of(figure)
    assert list(ax.lines[0].get_ydata()) == [5.5, 4.5]
    assert ax.get_ylabel() == "rate found, requests/s"
    assert says(figure, "2 searches; ringed, highest: 5.5 requests/s at block_size 16")
    assert says(picture(frame, "block_size", find="min:workload.rate").lines(y="rate"), "ringed, lowest: 4.5")


def test_a_search_that_found_nothing_says_so():
    why = "no workload.rate of 1 values from 1 to 1 keeps every limit"
    frame = pd.DataFrame({"block_size": [16, 64], "workload.rate": None, "find.beyond": 1, "error": why})
    with pytest.raises(KvsimError, match=r"no search found a workload\.rate within the limits; the first"):
        picture(frame, "block_size", find="max:workload.rate").lines()


# ---- effects and pareto


def test_effects_want_values_that_were_tried_against_each_other():
    draw = np.random.default_rng(2)
    frame = pd.DataFrame({key: draw.random(12) for key in ("a", "b", TOKENS)})
    with pytest.raises(KvsimError, match="12 values of a were not tried against each other"):
        picture(frame, "a", "b").effects()
    failures = grid(a=[1, 2], b=["x", "y"])
    failures.loc[[0, 3], [TOKENS, HIT_RATE, "error"]] = [np.nan, np.nan, "refused"]
    assert axes_of(picture(failures, "a", "b").effects("tokens_per_second"))


@pytest.mark.parametrize(
    ("column", "span", "text"),
    [
        (HIT_RATE, 9.74123, "9.7 percentage points"),
        (HIT_RATE, 0.008024, "< 0.1 percentage points"),
        (HIT_RATE, 0.0, "0.0 percentage points"),
        (E2E, 1234.5, "1,234 ms"),
    ],
)
def test_differences_of_shares_are_percentage_points(column, span, text):
    assert described(column).difference(span) == text


def test_marks_of_the_frontier_that_overlap_are_said():
    rows = [(1.0, 500.0), (1.0001, 500.01), (9.0, 400.0)]
    frame = pd.DataFrame([{"block_size": i, E2E: x, TOKENS: y} for i, (x, y) in enumerate(rows)])
    figure = picture(frame, "block_size").pareto()
    assert says(figure, "2 on the frontier (some marks overlap)")
    assert "frontier" not in words_of(figure)


def test_points_close_together_get_axes_of_their_own():
    rows = [(1.0, 500.0), (1.01, 510.0), (1.02, 505.0)]
    frame = pd.DataFrame([{"block_size": i, E2E: x, TOKENS: y} for i, (x, y) in enumerate(rows)])
    figure = picture(frame, "block_size").pareto()
    assert axes_of(figure)[0].get_ylim()[0] > 490
    assert "frontier" in words_of(figure)
    assert not says(figure, "overlap")
