"""What all fits share: which rows are fitted, nodes of tables, records with their sources."""

from collections.abc import Iterable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kvsim.calibrate.choice import note
from kvsim.calibrate.smooth import MOST_ROWS, Parameters
from kvsim.calibrate.tables import left_out
from kvsim.gpu.cost.calibration import Source, ValueSet
from kvsim.gpu.cost.residual import ResidualTable

NARROW = 6  # with fewer shapes than this, only rates are fitted; the rest is a relative's
OCTAVES = tuple(2.0 ** np.arange(21))

# Whichever comes first was measured closest to how vLLM runs the layer.
_PREFERRED = ("gemm", "step_dense", "step_per_sequence", "layers_v0", "vidur_linear")


def to_fit(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows less the quarter that is left out."""
    return frame[~left_out(frame.digest.to_numpy())]


def preferred(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the source that comes first; steps' layers and heads belong together."""
    present = [form for form in _PREFERRED if form in set(frame.form)]
    first = present[0] if present else str(frame.form.iloc[0])
    kept = {first, "step_per_sequence"} if first == "step_dense" else {first}
    return frame[frame.form.isin(kept)]


def within(nodes: Iterable[float], values: NDArray[np.float64]) -> tuple[float, ...]:
    """The nodes that span the values."""
    ordered = sorted(nodes)
    first = max([i for i, node in enumerate(ordered) if node <= values.min()], default=0)
    last = min([i for i, node in enumerate(ordered) if node >= values.max()], default=len(ordered) - 1)
    return tuple(float(node) for node in ordered[first : last + 1])


def _said(rows: pd.DataFrame, column: str) -> str:
    """What the rows say in a column, each once, in the order of their forms."""
    words = rows.drop_duplicates(["form", column]).sort_values("form", kind="stable")[column]
    return ", ".join(dict.fromkeys(word for word in map(str, words) if word))


def sample(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.sample(MOST_ROWS, random_state=0) if len(rows) > MOST_ROWS else rows


def value_set(
    parameters: Parameters,
    table: ResidualTable | None,
    rows: pd.DataFrame,
    frame: pd.DataFrame,
    axes: tuple[str, ...],
) -> ValueSet:
    return ValueSet(
        parameters=parameters,
        residual=table.to_json() if table else None,
        source=Source(
            **{name: _said(rows, name) for name in ("package", "version", "licence")},
            kernel=", ".join(sorted(filter(None, map(str, rows.kernel.unique())))),
            engine=_said(rows, "setup"),
            note=note(rows),
        ),
        measured={axis: (float(rows[axis].min()), float(rows[axis].max())) for axis in axes},
        rows=len(rows),
        tables=sorted(map(str, frame.table.unique())),
    )
