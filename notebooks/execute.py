"""Execute the notebooks of this folder and keep them with their outputs; equal results give equal bytes.

    python notebooks/execute.py            all of them
    python notebooks/execute.py NAME...    these

Needs what `pip install 'kvsim[notebook]'` brings.
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

HERE = Path(__file__).parent
SECONDS = 300  # for one cell; the first run on a machine compiles
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
WIDGET = "application/vnd.jupyter.widget-view+json"


def names() -> list[str]:
    return sorted(path.stem for path in HERE.glob("*.ipynb"))


def stored(name: str) -> NotebookNode:
    """A notebook as it lies in this folder."""
    return nbformat.read(HERE / f"{name}.ipynb", as_version=4)


def executed(name: str) -> NotebookNode:
    """A notebook with fresh outputs; raises nbclient's CellExecutionError for the first cell that fails."""
    notebook = stored(name)
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(HERE)}},
        record_timing=False,
    )
    client.execute()
    _tidy(notebook)
    return notebook


def _tidy(notebook: NotebookNode) -> None:
    """Without what differs between executions: progress bars, messages, names of cells, versions."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", nbformat.from_dict({})
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if _lasts(output)]


def _lasts(output: NotebookNode) -> bool:
    if output.output_type == "stream":
        return output.name == "stdout"
    return WIDGET not in output.get("data", {})


def main(wanted: list[str]) -> None:
    for name in wanted or names():
        path = HERE / f"{name}.ipynb"
        path.write_text(nbformat.writes(executed(name)) + "\n", encoding="utf-8")
        print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main([Path(arg).stem for arg in sys.argv[1:]])
