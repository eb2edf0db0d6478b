"""One style whatever matplotlib is set to, files whole or not at all."""

import io

import matplotlib
import numpy as np
import pytest
from matplotlib import image
from matplotlib.figure import Figure
from plotted import sweep_frame

from kvsim.errors import KvsimError
from kvsim.plots import SweepPlots, save
from kvsim.plots.style import COLOURS, WIDTH, number, rendered


def heatmap(**options) -> Figure:
    frame = sweep_frame()
    return SweepPlots(frame, list(frame.columns[:2]), "made").heatmap(**options)


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_equal_pictures_are_equal_files(tmp_path, suffix):
    first, second = (save(heatmap(), tmp_path / f"{n}{suffix}").read_bytes() for n in "ab")
    assert first == second
    assert len(first) > 5000
    for word in (b"matplotlib.org", b"CreationDate", b"<dc:date>", b"Software"):
        assert word not in first


def test_the_picture_is_a_column_wide():
    pixels = image.imread(io.BytesIO(rendered(heatmap(), ".png", 100)))
    assert pixels.shape[1] == 100 * WIDTH
    assert pixels[..., :3].std() > 0.05


def test_settings_of_matplotlib_neither_change_nor_matter():
    before = dict(matplotlib.rcParams)
    plain = rendered(heatmap(), ".png")
    assert dict(matplotlib.rcParams) == before
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "figure.dpi": 300}):
        assert rendered(heatmap(), ".png") == plain


def test_axes_of_the_user_are_drawn_on():
    figure = Figure()
    ax = figure.add_subplot()
    assert heatmap(ax=ax) is figure
    assert ax.get_xlabel() == "gpu_memory_utilization, share of the card"


@pytest.mark.filterwarnings("error")
def test_a_layout_of_the_user_holds():
    figure = Figure(figsize=(9, 4))
    left, right = figure.subplots(1, 2)
    heatmap(ax=left)
    heatmap(ax=right)
    figure.tight_layout()  # a warning would fail the test
    boxes = [ax.get_window_extent() for ax in figure.axes]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_a_notebook_shows_the_picture():
    assert heatmap()._repr_png_().startswith(b"\x89PNG")


def test_colours_differ_in_grey_or_have_other_dashes():
    assert len(set(COLOURS)) == 7


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567, "1,234,567"),
        (0.05, "0.05"),
        (12.3456, "12.35"),
        (0.9, "0.9"),
        (float("nan"), "-"),
        (-1234.5, "-1,234"),
        (0.00042, "0.00042"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("x.jpg", "one of .png, .svg, .pdf"),
        ("x", "has no ending"),
        ("no/x.png", "No such file"),
        ("folder.png", "is a folder"),
    ],
)
def test_a_path_that_does_not_do_leaves_nothing(tmp_path, name, says):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(KvsimError, match=says):
        save(heatmap(), tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


def test_a_failed_write_leaves_the_old_picture(tmp_path, monkeypatch):
    path = tmp_path / "x.png"
    path.write_bytes(b"old")
    monkeypatch.setattr(
        "os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(KvsimError, match="No space left"):
        save(heatmap(), path)
    assert path.read_bytes() == b"old"
    assert np.size(list(tmp_path.iterdir())) == 1
