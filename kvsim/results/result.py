"""What a run gives back: the same rows and figures as its results folder."""

import html
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.results import glance
from kvsim.results.log import Sink
from kvsim.results.store import (
    REQUESTS,
    SCENARIO,
    SUMMARY,
    ParquetSink,
    read_requests,
    read_texts,
    replacing,
    write_json,
    write_text,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class RunResult:
    """Rows and figures of one finished run.

    ``metrics`` is the content of ``summary.json``, ``scenario`` the resolved scenario as
    YAML text; `requests` and `summary` are DataFrames.
    """

    def __init__(self, scenario: str, metrics: dict[str, Any], sink: "Sink | FolderSink") -> None:
        self.scenario = scenario
        self.metrics = metrics
        self._sink = sink

    @cached_property
    def requests(self) -> "pd.DataFrame":
        """One row per request in order of arrival; columns and units: `kvsim.results.COLUMNS`."""
        return self._sink.read().to_pandas()

    @cached_property
    def summary(self) -> "pd.DataFrame":
        """One row per metric: ``value`` of counters and ratios, else count, mean and percentiles."""
        import pandas as pd

        rows = {k: v for name, value in self.metrics.items() for k, v in _summary_rows(name, value)}
        frame = pd.DataFrame.from_dict(rows, orient="index")
        frame.index.name = "metric"
        return frame

    def save(self, folder: str | Path) -> Path:
        """Write the results folder, whole or not at all; raises `ResultsError`."""
        target = Path(folder)
        table = self._sink.read()  # before the swap: the rows may lie in the folder replaced
        with replacing(target) as temporary:
            sink = ParquetSink(temporary / REQUESTS)
            sink.write(table)
            sink.close()
            self.write_texts(temporary)
        return target

    def write_texts(self, folder: Path) -> None:
        """Scenario and summary, beside rows that are there already."""
        write_text(folder / SCENARIO, self.scenario)
        write_json(folder / SUMMARY, self.metrics)

    @classmethod
    def load(cls, folder: str | Path) -> "RunResult":
        """Read a results folder; request rows are read when asked for. Raises `ResultsError`."""
        scenario, metrics = read_texts(Path(folder))
        return cls(scenario, metrics, FolderSink(Path(folder)))

    def __repr__(self) -> str:
        return glance.text(self.metrics)

    def _repr_html_(self) -> str:
        facts = "".join(_html_row(row) for row in glance.facts(self.metrics))
        header = "".join(f"<th>{cell}</th>" for cell in glance.LATENCY_HEADER)
        body = "".join(_html_row(row) for row in glance.latency_rows(self.metrics))
        notes = "<br>".join(html.escape(line) for line in glance.notes(self.metrics))
        return (
            f"<p><b>{html.escape(glance.title(self.metrics))}</b><br>{notes}</p>"
            f"<table>{facts}</table><table><tr>{header}</tr>{body}</table>"
        )


class FolderSink:
    """Rows of a results folder on disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, columns: list[str] | None = None) -> "pa.Table":
        return read_requests(self._folder, columns)


def _summary_rows(name: str, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict) and "mean" in value:
        yield name, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _summary_rows(f"{name}.{key}", inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, {"value": value}


def _html_row(cells: tuple[str, ...]) -> str:
    return "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"
