"""A replayed run beside the measured one: KV usage, running and waiting requests, preemptions over time."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvsim.plots import style
from kvsim.validate.replay import Replay

_PANELS = {
    "kv_cache_pct": "KV cache\nusage, %",
    "running": "running,\nrequests",
    "waiting": "waiting,\nrequests",
}
_MEASURED, _SIMULATED = "measured", "simulated"


def draw_replay(replay: Replay, of: str) -> Figure:
    """Four panels; the measured counters only where they were recorded."""
    measured = replay.measured.series
    with style.styled():
        figure = style.new_picture(5.2)
        axes = list(figure.subplots(4, 1, sharex=True))
        for ax, (column, label) in zip(axes, _PANELS.items(), strict=False):
            if measured is not None:
                _line(ax, measured.t, measured[column], _MEASURED)
            _line(ax, replay.series.t, replay.series[column], _SIMULATED)
            style.finish(ax, "", label)
            ax.set_ylim(bottom=0)
        _preemptions(axes[3], replay)
        last = float(replay.steps.end_time.max())
        axes[3].set_xlim(0, max(last, last if measured is None else float(measured.t.max())))
        axes[3].set_xlabel("time, s", fontsize=style.SIZE)
        figure.align_ylabels(axes)
        handles, labels = axes[3].get_legend_handles_labels()
        style.key_below(figure, axes[3], handles, labels, columns=3, handlelength=3)
        figures = replay.errors()
        style.set_title(
            axes[0],
            "Measured and simulated over time",
            f"{of}; {len(replay.requests):,} requests; mean and median of TTFT, TPOT and E2E: "
            f"{figures['mape']:.1f} % off on average",
        )
    return figure


def _preemptions(ax: Axes, replay: Replay) -> None:
    fewest = replay.measured.fewest_preemptions
    if fewest is not None and replay.measured.series is not None:
        _line(ax, replay.measured.series.t, fewest, _MEASURED)
        _line(ax, replay.series.t, replay.fewest_preemptions, "simulated, read as the measured one", 2)
        counts = f"{int(fewest.iloc[-1])} and {int(replay.fewest_preemptions.iloc[-1])}"
        ax.text(
            0.01,
            0.97,
            f"rises of the waiting counter once all have arrived, measured and simulated: {counts};\n"
            f"all preemptions that were simulated: {replay.num_preemptions}",
            transform=ax.transAxes,
            va="top",
            fontsize=style.SMALL,
            color=style.GREY,
        )
    _line(ax, replay.steps.start_time, replay.steps.num_preempted.cumsum(), _SIMULATED)
    style.finish(ax, "", "preemptions\nso far")
    ax.set_ylim(0, max(ax.get_ylim()[1] * 1.45, 1))


def _line(ax: Axes, times: pd.Series, values: pd.Series, name: str, index: int | None = None) -> None:
    look = style.line_style(index if index is not None else int(name == _SIMULATED))
    ax.plot(times.to_numpy(float), values.to_numpy(float), label=name, drawstyle="steps-post", **look)
