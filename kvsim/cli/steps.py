"""``kvsim steps``: the batch of each engine step, as tables or as JSON lines."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from kvsim import compiled
from kvsim.cli import collector
from kvsim.cli.placing import placed
from kvsim.compiled import COMPILING
from kvsim.report.steps import print_heading, print_step
from kvsim.scenario import Scenario, load_scenario
from kvsim.sim.step_view import StepView
from kvsim.sim.steps import OnStep, scenario_steps

_ENTRIES = ("core._launch", "core._collect")


def steps_command(
    file: Path,
    trace: Path | None,
    overrides: Sequence[str],
    first: int,
    count: int,
    *,
    blocks: bool,
    as_json: bool,
) -> None:
    """Print steps as they come; raises `KvsimError` for bad input."""
    scenario = load_scenario(file, overrides, trace)
    collector.resume()
    out = Console(highlight=False, markup=False, emoji=False)
    with placed(scenario, file, overrides), _progress(first) as on_step:
        views = scenario_steps(scenario, first, count=count, blocks=blocks, on_step=on_step)
        if as_json:
            for view in views:
                print(json.dumps(view, default=as_mapping, separators=(",", ":")), flush=True)
        else:
            _show(scenario, views, first, count, out)


def _show(scenario: Scenario, views: Iterator[StepView], first: int, count: int, out: Console) -> None:
    last = None
    for view in views:
        if last is None:
            print_heading(scenario, out)
        print_step(view, out)
        last = view.step
    if last == first + count - 1:
        note = f"--from {last + 1} shows the next steps, --json complete lists"
    else:
        note = f"The run ends with step {last:,}."
    out.print(f"\n{note}", style="dim")


def as_mapping(value: Any) -> dict[str, Any]:
    """A view, or a part of it, with its field names as keys; for `json.dumps`."""
    if not is_dataclass(value):
        raise TypeError(f"{type(value).__name__} is not for JSON")
    return {each.name: getattr(value, each.name) for each in fields(value)}


@contextmanager
def _progress(first: int) -> Iterator[OnStep]:
    """Says that compiling begins, and how far away the first step is if it takes long."""
    talk = Console(stderr=True)
    status = talk.status("")
    cold = not all(map(compiled.is_warm, _ENTRIES))

    def on_step(done: int, now: float) -> None:
        nonlocal cold
        if cold:
            talk.print(COMPILING, soft_wrap=True)
            cold = False
        if not talk.is_terminal:
            return
        if done >= first - 1:
            status.stop()
        elif done % 1000 == 999:
            status.update(f"step {done + 1:,}, {now:,.1f} s simulated")
            status.start()

    try:
        yield on_step
    finally:
        status.stop()
