"""What a sweep gives back: a tidy table, the same as in its folder."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kvsim.results.store import writing
from kvsim.sweep.store import PROBES, REPLICAS, SWEEP, TABLE, read_sweep, write_json
from kvsim.sweep.table import frame_of, read_table, table_of, write_tables

if TYPE_CHECKING:
    import pandas as pd


class SweepResult:
    """Rows of a finished sweep.

    ``name`` is the scenario's, ``axes`` the swept keys, ``asked`` what the sweep was asked, ``kvsim`` the
    version that computed it. `frame` has a row for each point, in order: the swept keys, then the summary's
    figures under vLLM's metric names ("vllm:time_to_first_token_seconds.p99"), then ``error``. With a search
    there is a row for each one instead, with the best value of the searched key, and `probes` has the points
    that it tried. `replicas` has the figures of each replica of clusters.
    """

    def __init__(
        self,
        head: Mapping[str, Any],
        table: pa.Table,
        probes: pa.Table | None = None,
        replicas: pa.Table | None = None,
    ) -> None:
        self._head = dict(head)
        self.name: str = head["name"]
        self.kvsim: str = head["kvsim"]
        self.axes: tuple[str, ...] = tuple(head["axes"])
        self.asked: dict[str, Any] = head["asked"]
        self._table, self._probes, self._replicas = table, probes, replicas

    @classmethod
    def of_rows(
        cls,
        head: Mapping[str, Any],
        rows: Sequence[Mapping[str, Any]],
        probes: Sequence[Mapping[str, Any]],
        replicas: Sequence[Mapping[str, Any]] = (),
    ) -> "SweepResult":
        """Tables of the rows of all points, of all probes of a search, of all replicas of clusters."""
        tried = table_of(probes, head["axes"]) if probes else None
        parts = table_of(replicas, head["axes"], last=()) if replicas else None
        return cls(head, table_of(rows, head["axes"]), tried, parts)

    @cached_property
    def frame(self) -> "pd.DataFrame":
        """One row per point, or per search."""
        return frame_of(self._table)

    @cached_property
    def probes(self) -> "pd.DataFrame | None":
        """One row per value that a search tried, with ``find.meets``; None without a search."""
        return None if self._probes is None else frame_of(self._probes)

    @cached_property
    def replicas(self) -> "pd.DataFrame | None":
        """One row per point and replica: swept keys, its name, its group, figures; None without clusters."""
        return None if self._replicas is None else frame_of(self._replicas)

    @property
    def searched(self) -> str | None:
        """The searched key; None without a search."""
        find = self.asked["find"]
        return find.partition(":")[2].partition("=")[0] if find else None

    @property
    def num_failed(self) -> int:
        """Rows with an error."""
        return self._table.num_rows - self._table["error"].null_count

    @property
    def plot(self) -> Any:
        """Pictures of the sweep, see `kvsim.plots`; of a search alone, those of the values that it tried."""
        from kvsim.plots import SweepPlots  # loads matplotlib

        if self.probes is not None and self.searched is not None and not self.axes:
            return SweepPlots(
                self.probes, (self.searched,), self.name, self._gpus(), scenario=self._head["scenario"]
            )
        find = (self.asked["find"] or "").partition("=")[0]
        return SweepPlots(
            self.frame, self.axes, self.name, self._gpus(), find, self.replicas, self._head["scenario"]
        )

    def _gpus(self) -> int:
        """GPUs of a point as the scenario has them; swept sizes stand in the table."""
        scenario = self._head["scenario"]
        sizes = (
            scenario.get(section, {}).get(key, 1)
            for section, key in (
                ("engine", "tensor_parallel_size"),
                ("engine", "pipeline_parallel_size"),
                ("cluster", "replicas"),
            )
        )
        return math.prod(size for size in sizes if isinstance(size, int))

    def save(self, folder: str | Path) -> Path:
        """Write what was asked and the tables; finished points that lie there stay. Raises `ResultsError`."""
        target = Path(folder)
        with writing(target):
            target.mkdir(parents=True, exist_ok=True)
        write_json(target / SWEEP, self._head)
        write_tables(target, TABLE, self._table)
        if self._probes is not None:
            write_tables(target, PROBES, self._probes)
        if self._replicas is not None:
            write_tables(target, REPLICAS, self._replicas)
        return target

    @classmethod
    def load(cls, folder: str | Path) -> "SweepResult":
        """Read the folder of a finished sweep; raises `ResultsError`."""
        target = Path(folder)
        head = read_sweep(target)
        probes = read_table(target / f"{PROBES}.parquet") if head["asked"].get("find") else None
        parts = target / f"{REPLICAS}.parquet"
        replicas = read_table(parts) if parts.exists() else None
        return cls(head, read_table(target / f"{TABLE}.parquet"), probes, replicas)

    def __repr__(self) -> str:
        count = self._table.num_rows
        noun = ("search" if count == 1 else "searches") if self.searched else f"point{'s'[: count != 1]}"
        what = f"{count:,} {noun}"
        over = f" over {', '.join(self.axes)}" if self.axes else ""
        failed = f", {self.num_failed:,} failed" if self.num_failed else ""
        return f"{self.name}: {what}{over}{failed}"

    def _repr_html_(self) -> str:
        from html import escape

        frame: Any = self.frame
        return f"<b>{escape(repr(self))}</b>{frame._repr_html_()}"
