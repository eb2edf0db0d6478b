"""``kvsim validate``: measured serving runs beside what kvsim predicts for them."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.progress import track

from kvsim import compiled
from kvsim.cli import collector
from kvsim.errors import KvsimError
from kvsim.files import readable
from kvsim.gpu import catalog
from kvsim.report.tables import console
from kvsim.report.validation import (
    print_filled,
    print_fit,
    print_replay,
    print_rows,
    print_summary,
    total_line,
)
from kvsim.scenario import load_scenario
from kvsim.validate.fit import fit_host_times
from kvsim.validate.predict import Prediction, predict
from kvsim.validate.replay import Replay, is_requests_table, prompts_of, read_run, replay
from kvsim.validate.rows import ServingRow, read_rows
from kvsim.validate.scenarios import RowScenario, row_scenario
from kvsim.validate.score import row_table, summary

WIDTH = 190  # of the tables where output goes to a file


def validate_command(
    file: Path,
    *,
    gpu: str | None,
    rows: str | None,
    scenario: Path | None,
    trace: Path | None,
    overrides: Sequence[str],
    output: Path | None,
    fit: bool,
    as_json: bool,
) -> None:
    """Raises KvsimError for a bad file or option; then nothing has been written."""
    collector.resume()
    if not _is_run(file):
        for name, value in (("scenario", scenario), ("trace", trace), ("set", overrides), ("o", output)):
            if value:
                dashes = "-" if len(name) == 1 else "--"
                raise KvsimError(f"{dashes}{name}: only for a file of single requests, which {file} is not")
        _validate_rows(file, gpu, rows, fit=fit, as_json=as_json)
        return
    for name, given in (("gpu", gpu), ("rows", rows), ("fit", fit)):
        if given:
            raise KvsimError(f"--{name}: only for a table of runs; {file} holds the requests of one run")
    if scenario is None:
        raise KvsimError(f"{file}: holds the requests of one run; say with --scenario FILE what served them")
    _validate_run(file, scenario, trace, overrides, output, as_json=as_json)


def _is_run(file: Path) -> bool:
    """Whether the file lists single requests; its columns say so."""
    readable(file)
    try:
        return is_requests_table(pd.read_csv(file, nrows=0).columns)
    except (OSError, ValueError) as error:
        raise KvsimError(f"{file}: cannot be read as CSV: {str(error).splitlines()[0]}") from None


# ---------------------------------------------------------------- a table of runs


def _validate_rows(file: Path, gpu: str | None, rows: str | None, *, fit: bool, as_json: bool) -> None:
    chosen = _on_gpu(_picked(read_rows(file), rows, file), gpu, file)
    made = list(_made(chosen, file))
    predictions = _predicted(made)
    table = row_table(predictions)
    if (table["error"] != "").all():
        raise KvsimError(f"{file}: row {table['row'].iloc[0]}: {table['error'].iloc[0]}{_more(len(table))}")
    lines = summary(table)
    if as_json:
        print(json.dumps({"rows": _plain(table), "summary": _plain(lines)}, indent=1))
        return
    out = _console()
    print_rows(table, out)
    print_filled(table, out)
    out.print()
    print_summary(lines, out)
    if fit:
        print_fit(fit_host_times(predictions), out)
    out.print(total_line(table))


def _more(count: int) -> str:
    return f" (and none of the other {count - 1} rows can be run)" if count > 1 else ""


def _plain(frame: pd.DataFrame) -> Any:
    return json.loads(frame.to_json(orient="records"))


def _console() -> Console:
    plain = console()
    if not plain.is_terminal:
        plain.width = WIDTH
    return plain


def _picked(rows: list[ServingRow], wanted: str | None, file: Path) -> list[ServingRow]:
    """Rows by number (1 is the first), range of numbers or id, separated by commas."""
    if wanted is None:
        return rows
    chosen: dict[int, ServingRow] = {}
    for part in filter(None, (part.strip() for part in wanted.split(","))):
        found = [row for row in rows if row.id == part] or list(_numbered(rows, part))
        if not found:
            raise KvsimError(f"--rows {part}: no such row in {file}, which has rows 1 to {len(rows)}")
        chosen |= {row.line: row for row in found}
    return [chosen[line] for line in sorted(chosen)]


def _numbered(rows: list[ServingRow], part: str) -> Iterator[ServingRow]:
    first, dash, last = part.partition("-")
    if first.isdecimal() and (last.isdecimal() or not dash):
        low, high = int(first), int(last or first)
        yield from (row for row in rows if low <= row.line <= high)


def _on_gpu(rows: list[ServingRow], gpu: str | None, file: Path) -> list[ServingRow]:
    if gpu is None:
        return rows
    name = catalog.gpu(gpu).name
    chosen = [row for row in rows if row.gpu == name]
    if not chosen:
        known = ", ".join(sorted({row.gpu for row in rows}))
        raise KvsimError(f"--gpu {gpu}: {file} has no row of it; there are {known}")
    return chosen


def _made(rows: Sequence[ServingRow], file: Path) -> Iterator[RowScenario]:
    for row in rows:
        try:
            yield row_scenario(row)
        except KvsimError as error:
            raise KvsimError(f"{file}: {error}") from None


def _predicted(made: Sequence[RowScenario]) -> list[Prediction]:
    """With a bar on a terminal."""
    err = Console(stderr=True)
    if not compiled.is_warm():
        err.print(compiled.COMPILING)
    shown = track(
        made, "simulating rows", console=err, transient=True, disable=not err.is_terminal, total=len(made)
    )
    return [predict(each) for each in shown]


# ---------------------------------------------------------------- one run, request by request


def _validate_run(
    file: Path,
    scenario: Path,
    trace: Path | None,
    overrides: Sequence[str],
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    from kvsim.plots import checked_path, save
    from kvsim.plots.replayed import draw_replay

    path = checked_path(output) if output is not None else None
    described = load_scenario(scenario, list(overrides))
    prompts = prompts_of(trace) if trace is not None else None
    result = replay(read_run(file), described, prompts)
    if as_json:
        print(json.dumps(_replay_json(result), indent=1))
    else:
        print_replay(result, console())
    if path is not None:
        of = f"{described.model} on {described.gpu}, rules of vLLM {described.vllm_version}"
        save(draw_replay(result, of), path)
        if not as_json:
            print(path)


def _replay_json(result: Replay) -> dict[str, Any]:
    fewest = result.measured.fewest_preemptions
    return {
        "latencies_s": _plain(result.table()),
        "num_preemptions": result.num_preemptions,
        "waiting_rises": {
            "measured": None if fewest is None else int(fewest.iloc[-1]),
            "simulated": int(result.fewest_preemptions.iloc[-1]),
        },
        **result.errors(),
    }
