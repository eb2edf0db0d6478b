"""``kvsim calibrate``: fit, evaluate and show the numbers behind step times."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvsim.calibrate.choice import as_run, check_words, one_kernel
from kvsim.calibrate.evaluate import (
    FITTED,
    LEFT_OUT,
    OUTSIDE,
    UNKNOWN,
    errors_by_key,
    keys,
    scored,
    summary,
)
from kvsim.calibrate.evaluate_beyond import BEYOND, beyond_range
from kvsim.calibrate.fit import fit_gpu, gpus_of
from kvsim.calibrate.rows import Rows
from kvsim.calibrate.tables import read_tables
from kvsim.calibrate.units import checked_operations
from kvsim.cli import collector
from kvsim.errors import KvsimError
from kvsim.files import checked_place
from kvsim.gpu import catalog
from kvsim.gpu.cost.calibration import Calibration, calibration, completed, supplemented
from kvsim.report.calibration import print_errors, print_fit, print_notes, print_values, total_line
from kvsim.report.tables import console


def fit_command(
    tables: Sequence[Path], gpu: str | None, kernels: Sequence[str], out: Path | None, *, quiet: bool
) -> None:
    """Fit and write one file a GPU; raises KvsimError for bad tables."""
    collector.resume()
    rows = _rows(tables, gpu, say=_silent if quiet else print)
    check_words(rows, kernels)
    names = gpus_of(rows)
    if out is not None and len(names) > 1 and not out.is_dir():
        raise KvsimError(
            f"-o {out}: the tables are of {len(names)} GPUs ({', '.join(names)}); "
            "give a folder that exists, or --gpu"
        )
    paths = {name: _place(out, name) for name in names}
    for path in paths.values():
        checked_place(path)  # before minutes of fitting
    fitted = [(name, with_errors(fit_gpu(name, rows, kernels), rows)) for name in names]
    for name, result in fitted:
        result.save(paths[name])
        if not quiet:
            print_fit(result, _others(result, rows), _too_few(result, rows), console())
        print(paths[name])


def _place(out: Path | None, gpu: str) -> Path:
    if out is None:
        return Path(file_name(gpu))
    return out / file_name(gpu) if out.is_dir() else out


def _too_few(result: Calibration, rows: Rows) -> dict[str, int]:
    """Value sets that the tables have rows of, too few to fit -> how many."""
    counts: dict[str, int] = {}
    for operation, frame in rows.items():
        for key in keys(operation, frame[frame.gpu == result.gpu]) if operation != "unequal" else ():
            counts[key] = counts.get(key, 0) + (key not in result.values)
    return {key: count for key, count in counts.items() if count}


def _others(result: Calibration, rows: Rows) -> list[str]:
    """Kernels that were timed and not fitted."""
    taken = {name for values in result.values.values() for name in values.source.kernel.split(", ")}
    mine = [frame[frame.gpu == result.gpu] for frame in rows.values()]
    timed = {str(name) for frame in mine for name in frame.kernel[frame.measured].unique()}
    return sorted(timed - taken)


def with_errors(fitted: Calibration, rows: Rows) -> Calibration:
    """The calibration with what it scores on its fitted rows and on the quarter left out."""
    mine = {operation: frame[frame.gpu == fitted.gpu] for operation, frame in rows.items()}
    return errors_by_key(fitted, completed(fitted), mine)


def file_name(gpu: str) -> str:
    """``h100_sxm.json``."""
    return re.sub(r"[^a-z0-9]+", "_", gpu.lower()).strip("_") + ".json"


def evaluate_command(
    tables: Sequence[Path], gpu: str | None, file: Path | None, *, beyond: bool, as_json: bool
) -> None:
    """Score the calibrations that come with kvsim, or the one in `file`; raises KvsimError."""
    collector.resume()
    rows = _rows(tables, gpu, say=_silent if as_json else print)
    known = {name: calibration(name) for name in gpus_of(rows)}
    if file is not None:
        given = Calibration.load(file)
        if given.gpu not in known:
            raise KvsimError(f"{file}: is a calibration of {given.gpu}; the tables are of {', '.join(known)}")
        known[given.gpu] = supplemented(given)
    result = scored(rows, known.__getitem__)
    far = beyond_range(rows) if beyond else result[:0]
    lines = summary(result, far)
    if as_json:
        print(json.dumps(json.loads(lines.to_json(orient="records")), indent=1))
        return
    out = console()
    print_errors(lines, out)
    print_notes(known, out)
    for which in (FITTED, OUTSIDE, UNKNOWN, LEFT_OUT):
        part = result[result.which == which]
        if len(part) and which != _last(result):
            out.print(total_line(part, which), highlight=False)
    if len(far):
        out.print(total_line(far, BEYOND), highlight=False)
    last = _last(result)
    out.print(total_line(result[result.which == last], last), highlight=False)


def _last(result: Any) -> str:
    """What the last line totals: rows that were never fitted, where there are such."""
    present = set(result.which)
    return next(which for which in (LEFT_OUT, UNKNOWN, OUTSIDE, FITTED) if which in present)


def show_command(gpu: str, tables: Sequence[Path], file: Path | None, out: Path | None) -> None:
    """Draw a GPU's curves, and the measured points of tables; raises KvsimError."""
    from kvsim.plots import checked_path, save
    from kvsim.plots.kernels import draw_kernels

    collector.resume()
    name = catalog.gpu(gpu).name
    known = calibration(name)
    if file is not None:
        known = supplemented(_of_gpu(Calibration.load(file), name, file))
    path = checked_path(out or Path(file_name(name)).with_suffix(".png"))
    rows = _rows(tables, gpu) if tables else {}
    save(draw_kernels(known, _of_its_kernels(rows, known)), path)
    print_values(known, console())
    print(path)


def _of_its_kernels(rows: Rows, known: Calibration) -> Rows:
    """Of several kernels that were timed, those that the numbers are of."""
    names = [name for values in known.values.values() for name in values.source.kernel.split(", ") if name]
    return {operation: as_run(one_kernel(frame, names)) for operation, frame in rows.items()}


def _of_gpu(given: Calibration, name: str, file: Path) -> Calibration:
    if given.gpu != name:
        raise KvsimError(f"{file}: is a calibration of {given.gpu}, not of {name}")
    return given


def _silent(text: str) -> None:
    pass


def _rows(tables: Sequence[Path], gpu: str | None, say: Callable[[str], None] = _silent) -> Rows:
    read = read_tables(tables)
    for table in read:
        if table.form.passed_over:
            say(f"{table.path}: passed over: {table.form.passed_over}")
    rows = checked_operations(read, gpu)
    if not rows and gpu is not None:
        raise KvsimError(f"--gpu {gpu}: the tables have no rows of it that kvsim models")
    if not rows:
        raise KvsimError(f"{tables[0]}: no row of the tables is of an operation that kvsim models")
    return rows
