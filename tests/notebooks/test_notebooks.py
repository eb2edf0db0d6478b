"""Each notebook runs, shows what it is kept with, and ends with a decision that its figures support."""

import time
from typing import Any

import pytest
from notebook_script import NOTEBOOKS, load

script = load()
MOST_BYTES = 300_000


def shown(notebook: Any) -> list[str]:
    """What each code cell prints and shows, as text; pictures' bytes follow matplotlib's release."""
    return [" ".join("".join(map(_text, cell.outputs)).split()) for cell in code_cells(notebook)]


def _text(output: Any) -> str:
    return output.text if output.output_type == "stream" else output.data["text/plain"] + "\n"


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def pictures(notebook: Any) -> int:
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    return sum("image/png" in output.get("data", {}) for output in outputs)


def test_there_are_three() -> None:
    assert [name[:2] for name in script.names()] == ["01", "02", "03"]


@pytest.mark.parametrize("name", script.names())
def test_it_runs_and_shows_what_it_is_kept_with(name: str) -> None:
    """The cells that compare decision and figures run, too: an assertion that fails ends the execution."""
    start = time.monotonic()
    fresh, kept = script.executed(name), script.stored(name)
    assert shown(fresh) == shown(kept), f"run python notebooks/execute.py {name}"
    assert pictures(fresh) == pictures(kept) > 0
    assert time.monotonic() - start < 60


@pytest.mark.parametrize("name", script.names())
def test_it_ends_with_a_decision_that_is_checked(name: str) -> None:
    *_, checks, decision = script.stored(name).cells
    assert checks.cell_type == "code"
    assert checks.source.count("assert ") >= 4
    assert not checks.outputs
    assert decision.cell_type == "markdown"
    assert decision.source.startswith("## Decision\n\n**")


@pytest.mark.parametrize("name", script.names())
def test_it_is_kept_executed_and_small(name: str) -> None:
    counts = [cell.execution_count for cell in code_cells(script.stored(name))]
    assert counts == list(range(1, len(counts) + 1))
    assert (NOTEBOOKS / f"{name}.ipynb").stat().st_size < MOST_BYTES


def test_a_decision_that_its_figures_do_not_support_fails(tmp_path, monkeypatch) -> None:
    from nbclient.exceptions import CellExecutionError

    cells = [{"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "id": "cell-0"}]
    notebook = {"cells": [cells[0] | {"source": "assert 1 > 2"}], "metadata": script.METADATA}
    text = script.nbformat.writes(script.nbformat.from_dict(notebook | {"nbformat": 4, "nbformat_minor": 5}))
    (tmp_path / "wrong.ipynb").write_text(text, encoding="utf-8")
    monkeypatch.setattr(script, "HERE", tmp_path)
    with pytest.raises(CellExecutionError, match="AssertionError"):
        script.main(["wrong"])
    assert (tmp_path / "wrong.ipynb").read_text(encoding="utf-8") == text
