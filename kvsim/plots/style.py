"""How every picture looks: colours, line styles, sizes, numbers on axes, titles, files.

Colours are Okabe and Ito's set ("Color Universal Design", 2008), told apart by people who see no red or
green; line styles, markers and hatches tell the same apart in greyscale print. Pictures are made without
pyplot, and what matplotlib's settings are elsewhere neither changes them nor is changed.
"""

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.ticker import FuncFormatter, MaxNLocator

from kvsim.errors import KvsimError
from kvsim.files import checked_place, write_whole

WIDTH = 6.5  # inches, a column of text
DPI = 150
SUFFIXES = (".png", ".svg", ".pdf")

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, BLACK = "#CC79A7", "#56B4E9", "#000000"
COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, BLACK)
LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 2)), (0, (7, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# About a point with settings at which vLLM would not start.
NOT_STARTING: dict[str, Any] = {
    "linestyle": "",
    "marker": "s",
    "markersize": 10,
    "fillstyle": "none",
    "color": RED,
    "markeredgewidth": 1.1,
}
SEQUENTIAL = "cividis"  # one map for all amounts: even to the eye, and in grey
GREY, PALE = "#595959", "#D9D9D9"
SIZE, SMALL, TITLE = 8.0, 7.0, 9.0  # points

_FONT = "DejaVu Sans"
_STYLE = {
    "font.family": [_FONT],  # comes with matplotlib: the same letters everywhere
    "font.size": SIZE,
    "axes.titlesize": TITLE,
    "axes.labelsize": SIZE,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.0,
    "hatch.linewidth": 0.6,
    "hatch.color": "#404040",
    "axes.formatter.use_mathtext": False,
    "svg.hashsalt": "kvsim",  # ids in SVG files are else random
    "pdf.fonttype": 42,
}
_NO_METADATA: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
_NOT_STYLE = {"backend", "backend_fallback", "interactive", "toolbar", "timezone"}


@contextmanager
def styled() -> Iterator[None]:
    """Within, matplotlib's defaults with this style; afterwards all settings are as they were."""
    settings: Any = {k: v for k, v in matplotlib.rcParamsDefault.items() if k not in _NOT_STYLE} | _STYLE
    with matplotlib.rc_context(settings):
        yield


class Picture(Figure):
    """A figure apart from pyplot, that a notebook shows all the same."""

    def _repr_png_(self) -> bytes:
        return rendered(self, ".png", 110)


def new_picture(height: float, width: float = WIDTH) -> Picture:
    """An empty picture, in inches."""
    figure = Picture(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def picture_and_axes(ax: Axes | None, height: float) -> tuple[Figure, Axes]:
    """The user's axes, or those of a new picture."""
    if ax is not None:
        figure = ax.get_figure(root=True)
        assert figure is not None
        return figure, ax
    figure = new_picture(height)
    return figure, figure.add_subplot()


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def line_style(index: int) -> dict[str, Any]:
    """Colour and dashes of a line: the same colour comes back with other dashes."""
    return {"color": colour(index), "linestyle": LINES[(index + index // len(COLOURS)) % len(LINES)]}


def point_style(index: int) -> dict[str, Any]:
    return line_style(index) | {"marker": MARKERS[(index + index // len(COLOURS)) % len(MARKERS)]}


# ---- numbers and words


def number(value: float, digits: int = 4) -> str:
    """Thousands separated, and no more digits than say something."""
    if value != value:
        return "-"
    if abs(value) >= 10 ** (digits - 1) or float(value).is_integer():
        return f"{value:,.0f}"
    text = f"{value:.{digits}g}"
    return f"{value:.{digits + 2}f}".rstrip("0").rstrip(".") if "e-" in text and abs(value) > 1e-4 else text


def separate_thousands(ax: Axes, axis: str = "both") -> None:
    """Tick labels as `number` writes them; few ticks."""
    for name, each in (("x", ax.xaxis), ("y", ax.yaxis)):
        if axis in (name, "both"):
            each.set_major_formatter(FuncFormatter(lambda value, _: number(value, 6)))


def few_ticks(ax: Axes, axis: str, count: int, *, whole: bool = False) -> None:
    (ax.xaxis if axis == "x" else ax.yaxis).set_major_locator(MaxNLocator(count, integer=whole))


def finish(ax: Axes, xlabel: str, ylabel: str, *, grid: str | None = "y") -> None:
    """Labels and a faint grid; explicit, so that axes of other styles look the same."""
    ax.set_xlabel(xlabel, fontsize=SIZE)
    ax.set_ylabel(ylabel, fontsize=SIZE)
    ax.tick_params(labelsize=SMALL, length=3, width=0.7)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    if grid:
        ax.grid(True, axis=grid, color=PALE, linewidth=0.5)  # type: ignore[arg-type]
        ax.set_axisbelow(True)


def shorten(text: str, length: int) -> str:
    """The text, or its beginning and its end."""
    if len(text) <= length:
        return text
    head = (length - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"


@cache
def _letters() -> frozenset[int]:
    """Code points of the font. One more font would depend on the machine, and so would the picture."""
    return frozenset(get_font(findfont(_FONT)).get_charmap())


def set_title(ax: Axes, title: str, subtitle: str = "", chars: int = 84, *, lift: int = 0) -> None:
    """What is shown, in bold, and of what, below it; from the left edge of the axes on.

    No layout counts the words, which may be wider than the axes; the axes' own title, of empty lines,
    keeps the room for them. lift: lines to leave free below the words. Raises KvsimError for letters that
    pictures cannot show.
    """
    unknown = sorted({letter for letter in title if not letter.isspace() and ord(letter) not in _letters()})
    if unknown:
        raise KvsimError(f"title: the pictures' font, {_FONT}, has no {' '.join(unknown[:5])}")
    below = textwrap.wrap(subtitle, int(chars * 1.2), max_lines=3, placeholder=" …") if subtitle else []
    lines = textwrap.wrap(title, chars - 10, max_lines=2, placeholder=" …")
    ax.set_title("\n".join([" "] * (math.ceil(1.4 * len(lines)) + len(below) + lift)), fontsize=SMALL, pad=5)
    grey = {"fontsize": SMALL, "color": GREY}
    free = 1.35 * SMALL * lift
    _above(ax, "\n".join(below), 5 + free, grey)
    _above(
        ax, "\n".join(lines), 8 + free + 1.35 * SMALL * len(below), {"fontsize": TITLE, "fontweight": "bold"}
    )


def _above(ax: Axes, text: str, points: float, look: dict[str, Any]) -> None:
    words = ax.annotate(
        text,
        (0, 1),
        (0, points),
        xycoords="axes fraction",
        textcoords="offset points",
        va="bottom",
        annotation_clip=False,
        **look,
    )
    words.set_in_layout(False)


def key_below(
    figure: Figure,
    ax: Axes,
    handles: Sequence[Any],
    labels: Sequence[str],
    columns: int = 1,
    handlelength: float = 1.6,
) -> None:
    """A legend under the axes: in a picture of ours at its lower edge, else below the user's axes."""
    look: dict[str, Any] = {
        "handles": list(handles),
        "labels": list(labels),
        "ncols": columns,
        "handlelength": handlelength,
        "labelspacing": 0.35,
        "columnspacing": 1.4,
    }
    if isinstance(figure, Picture):
        figure.legend(loc="outside lower left", borderaxespad=0.2, **look)
    else:
        ax.legend(loc="upper left", bbox_to_anchor=(0, -0.35), borderaxespad=0, **look)


def key_beside(ax: Axes, title: str, most: int = 14, entries: Sequence[Artist] | None = None) -> None:
    """A legend to the right of the axes; of very many entries the first ones and the last two.

    entries: labelled artists in place of those drawn.
    """
    handles, labels = ax.get_legend_handles_labels()
    if entries is not None:
        handles, labels = list(entries), [str(entry.get_label()) for entry in entries]
    if not handles:
        return
    if len(handles) > most:
        labels = [*labels[: most - 2], f"… {labels[-2]}", labels[-1]]
        handles = [*handles[: most - 2], *handles[-2:]]
    ax.legend(
        handles,
        labels,
        title=title or None,
        title_fontsize=SMALL,
        loc="upper left",
        bbox_to_anchor=(1.01, 1),
        borderaxespad=0,
        handlelength=3,
    )


def note(ax: Axes, text: str) -> None:
    """In the middle of axes that have nothing else to show."""
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", fontsize=SIZE, color=GREY)


# ---- files


def rendered(figure: Figure, suffix: str, dpi: float = DPI) -> bytes:
    """The picture's file; same picture, same bytes."""
    buffer = io.BytesIO()
    with styled():
        figure.savefig(buffer, format=suffix[1:], dpi=dpi, metadata=_NO_METADATA[suffix])
    return buffer.getvalue()


def checked_path(path: str | Path) -> Path:
    """The path, if a picture may go there; raises KvsimError."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        what = f"{suffix} is no format of pictures here" if suffix else "the name has no ending"
        raise KvsimError(f"{path}: {what}; end it in one of {', '.join(SUFFIXES)}")
    checked_place(path)
    return path


def save(figure: Figure, path: str | Path, dpi: float = DPI) -> Path:
    """Write a PNG, SVG or PDF, whole or not at all; raises KvsimError."""
    path = checked_path(path)
    write_whole(path, rendered(figure, path.suffix.lower(), dpi))
    return path
