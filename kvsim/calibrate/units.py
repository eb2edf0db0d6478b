"""Rows of tables whose times are in the unit that their column names."""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from kvsim.calibrate.predict import predict
from kvsim.calibrate.rows import Rows, of_gpu, operations
from kvsim.calibrate.tables import Table
from kvsim.errors import KvsimError
from kvsim.gpu.cost.calibration import calibration

_FACTOR = 100.0  # no kernel is so far from what its GPU's numbers, or a relative's, say
_SAMPLE = 200


def checked_operations(tables: Iterable[Table], gpu: str | None = None) -> Rows:
    """All tables' rows by operation, as `operations`.

    gpu: only rows of that GPU. Raises KvsimError where a table's times are a hundred times too long or
    too short: another unit than its column says.
    """
    whole: dict[str, list[pd.DataFrame]] = {}
    for table in tables:
        for operation, frame in operations([table]).items():
            _check_unit(table, operation, frame)
            whole.setdefault(operation, []).append(frame)
    rows = {operation: pd.concat(frames, ignore_index=True) for operation, frames in whole.items()}
    return rows if gpu is None else of_gpu(rows, gpu)


def _check_unit(table: Table, operation: str, frame: pd.DataFrame) -> None:
    for name, part in frame.groupby("gpu"):
        few = part.sample(min(len(part), _SAMPLE), random_state=0)
        try:
            modelled, _ = predict(operation, few, calibration(str(name)))
        except KvsimError:
            continue  # nothing is known of the operation: no unit can look wrong
        factor = float(np.median(few.us.to_numpy(float) / modelled))
        if not 1 / _FACTOR < factor < _FACTOR:
            far = f"{factor:,.0f} times longer" if factor > 1 else f"{1 / factor:,.0f} times shorter"
            unit = "milliseconds" if table.form.scale > 1 else "microseconds"
            raise KvsimError(
                f"{table.path}: {table.form.time}: times of {name} are {far} than such kernels take; "
                f"the column is in {unit}"
            )
