"""What a run gives back: the same rows and figures as its results folder."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kvsim.errors import KvsimError
from kvsim.results import glance, notebook
from kvsim.results.columns import COLUMNS, EVENT_COLUMNS, REQUEST_ID_OF_EVENT, STEP_COLUMNS, with_session
from kvsim.results.sinks import Rows, Sinks, Tables
from kvsim.results.store import SCENARIO, SUMMARY, read_texts, replacing, write_json, write_text

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.plots import RunPlots


class RunResult:
    """Rows and figures of one finished run.

    ``metrics`` is the content of ``summary.json``, ``scenario`` the resolved scenario as
    YAML text; `requests`, `steps`, `events` and `summary` are DataFrames. `steps` and `events` are
    there only if the scenario recorded them.
    """

    def __init__(self, scenario: str, metrics: dict[str, Any], tables: Tables | Sinks) -> None:
        self.scenario = scenario
        self.metrics = metrics
        self._tables = Tables(*tables)

    @cached_property
    def requests(self) -> "pd.DataFrame":
        """One row per request in order of arrival; columns and units: `describe_columns`."""
        return self._tables.requests.read().to_pandas()

    @cached_property
    def steps(self) -> "pd.DataFrame":
        """One row per engine step that computed something. Raises KvsimError if not recorded."""
        return _recorded("steps", self._tables.steps).read().to_pandas()

    @cached_property
    def events(self) -> "pd.DataFrame":
        """One row per event of blocks and requests, in order; with the names of the requests.

        Numbers may be missing (``<NA>``). Raises KvsimError if not recorded.
        """
        import pandas as pd

        whole = {pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}
        frame = _recorded("events", self._tables.events).read().to_pandas(types_mapper=whole.get)
        names = self._tables.requests.read(["request_id"]).to_pandas()["request_id"]
        place = frame.columns.get_loc("request") + 1
        frame.insert(place, REQUEST_ID_OF_EVENT.name, frame["request"].map(names))
        return frame

    @cached_property
    def summary(self) -> "pd.DataFrame":
        """One row per metric: ``value`` of counters and ratios, else count, mean and percentiles."""
        import pandas as pd

        rows = {k: v for name, value in self.metrics.items() for k, v in _summary_rows(name, value)}
        frame = pd.DataFrame.from_dict(rows, orient="index")
        frame.index.name = "metric"
        return frame

    @property
    def plot(self) -> "RunPlots":
        """Pictures: `plot.memory()`, `.timeseries()`, `.cdf("ttft")`, `.blocks()`."""
        from kvsim.plots import RunPlots  # stands above; only loaded for who draws

        return RunPlots(self)

    @staticmethod
    def describe_columns() -> "pd.DataFrame":
        """Type, unit and meaning of every column of `requests`, `steps` and `events`."""
        import pandas as pd

        tables = {
            "requests": with_session(COLUMNS),
            "steps": STEP_COLUMNS,
            "events": (*EVENT_COLUMNS, REQUEST_ID_OF_EVENT),
        }
        rows = [
            (table, column.name, str(column.type), column.unit, column.meaning)
            for table, columns in tables.items()
            for column in columns
        ]
        frame = pd.DataFrame(rows, columns=["table", "column", "type", "unit", "meaning"])
        return frame.set_index(["table", "column"])

    def save(self, folder: str | Path) -> Path:
        """Write the results folder, whole or not at all; raises `ResultsError`."""
        target = Path(folder)
        with replacing(target) as temporary:
            self._tables.copy(temporary)  # before the swap: the rows may lie in the folder replaced
            self.write_texts(temporary)
        return target

    def write_texts(self, folder: Path) -> None:
        """Scenario and summary, beside rows that are there already."""
        write_text(folder / SCENARIO, self.scenario)
        write_json(folder / SUMMARY, self.metrics)

    @classmethod
    def load(cls, folder: str | Path) -> "RunResult":
        """Read a results folder; rows are read when asked for. Raises `ResultsError`."""
        scenario, metrics = read_texts(Path(folder))
        return cls(scenario, metrics, Tables.of_folder(Path(folder)))

    def __repr__(self) -> str:
        return glance.text(self.metrics)

    def _repr_html_(self) -> str:
        return notebook.html(self.metrics)


def _recorded(table: str, rows: Rows | None) -> Rows:
    if rows is None:
        raise KvsimError(
            f"{table} were not recorded; they are with record: {{{table}: true}} in the scenario, with "
            f'load_scenario(path, ["record.{table}=true"]), or with kvsim run --record {table}'
        )
    return rows


def _summary_rows(name: str, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict) and "mean" in value:
        yield name, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _summary_rows(f"{name}.{key}", inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, {"value": value}
