"""A sweep's table, asked for one figure: which points have it, which failed, how keys are written."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kvsim.errors import KvsimError
from kvsim.plots import style
from kvsim.plots.metrics import Metric, described, find_column, listed
from kvsim.scenario.units import unit_of

_LONG = 10_000.0  # milliseconds that are better said in seconds
_SHORT_UNITS = {"seconds": "s", "milliseconds": "ms"}
_ASKED_MOST = ("prefix_cache_hit_rate", "generation_tokens_per_second", "kv_cache_size_tokens")


class SweepTable:
    """A row per point; `axes` are the columns of swept keys. Raises KvsimError if there are none.

    find: "max:KEY" or "min:KEY" where a row is a search, and column KEY the value that it found. scenario:
    its plain values, by which keys get their units.
    """

    def __init__(
        self,
        frame: pd.DataFrame,
        axes: Sequence[str],
        name: str = "",
        find: str = "",
        scenario: Mapping[str, Any] | None = None,
    ) -> None:
        if not len(frame):
            raise KvsimError("the sweep has no finished point, so there is nothing to draw")
        missing = [axis for axis in axes if axis not in frame.columns]
        if missing or not axes:
            raise KvsimError(
                f"the sweep's table has no column for {missing[0] if missing else 'a swept key'}"
            )
        self.frame, self.axes, self.name, self._scenario = frame, list(axes), name, scenario
        self._goal, _, self._searched = find.partition(":")

    def where(self, key: str, value: Any) -> "SweepTable":
        """The rows with a value of a swept key, as it is or as text; raises KvsimError if none has it."""
        axis = self.axis(key, "--where")
        values = self.distinct(axis)
        found = [each for each in values if each == value or _same_text(each, str(value))]
        if not found:
            there = listed([written(each) for each in values]).removeprefix("there are ")
            raise KvsimError(f"--where {key}={value}: {axis} was not swept there, but at {there}")
        frame = self.frame[self.positions(axis) == values.index(found[0])].reset_index(drop=True)
        return SweepTable(frame, self.axes, self.name, f"{self._goal}:{self._searched}", self._scenario)

    @property
    def failed(self) -> NDArray[np.bool_]:
        """Points that ended in an error."""
        if "error" not in self.frame.columns:
            return np.zeros(len(self.frame), np.bool_)
        return np.array([isinstance(each, str) and bool(each) for each in self.frame["error"]], np.bool_)

    @property
    def not_starting(self) -> NDArray[np.bool_]:
        """Points that have figures, though vLLM would not start with their settings."""
        if "remark" not in self.frame.columns:
            return np.zeros(len(self.frame), np.bool_)
        remarked = [isinstance(each, str) and bool(each) for each in self.frame["remark"]]
        return np.array(remarked, np.bool_) & ~self.failed

    def of_starting(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The values, NaN where vLLM would not start: none of those is the best one."""
        return np.where(self.not_starting, np.nan, values)

    @property
    def first_error(self) -> str:
        errors = self.frame["error"][self.failed]
        return str(errors.iloc[0]) if len(errors) else ""

    def axis(self, name: str, option: str) -> str:
        """A swept key by its name or the end of it."""
        return find_column(name, self.axes, option)

    def metric(self, name: str, option: str) -> Metric:
        """A figure by its name or a short form of it."""
        if not self.figures:
            why = f"; the first error: {self.first_error}" if self.first_error else ""
            failed = f"{int(self.failed.sum())} of {len(self.frame)} points failed"
            raise KvsimError(f"the sweep's table has no figures, {failed}{why}")
        is_searched = bool(self._searched) and name == self._searched.rsplit(".", 1)[-1]
        column = find_column(self._searched if is_searched else name, self.figures, option)
        if column == self._searched:
            last = column.rsplit(".", 1)[-1]
            return Metric(column, f"{last} found", self._unit(column), 1.0, self._goal == "min")
        metric = described(column)
        typical = float(np.nanmedian(self.values(metric))) if metric.unit == "ms" else 0.0
        return replace(metric, unit="s", factor=1.0) if typical >= _LONG else metric

    def default_metric(self) -> str:
        """What was searched, else the first of the figures one asks for most that differs between points."""
        if self._searched in self.frame.columns:
            return self._searched
        columns = [c for name in _ASKED_MOST for c in self.figures if c.endswith(name)]
        differing = [c for c in columns if self.frame[c].nunique() > 1]
        found = [*differing, *columns, *self.figures]
        return found[0] if found else _ASKED_MOST[0]

    @property
    def figures(self) -> list[str]:
        """Columns with numbers, the swept keys apart; what was searched, even if no search found it."""
        others = [c for c in self.frame.columns if c not in (*self.axes, "error")]
        return [str(c) for c in others if c == self._searched or _has_numbers(self.frame[c])]

    def values(self, metric: Metric) -> NDArray[np.float64]:
        """In the metric's unit; NaN where a point failed or has no such figure."""
        numbers = pd.to_numeric(self.frame[metric.column], errors="coerce")
        column = numbers.to_numpy(np.float64, na_value=np.nan)
        return np.where(self.failed | ~np.isfinite(column), np.nan, column * metric.factor)

    def any_value(self, metric: Metric, kind: str) -> NDArray[np.float64]:
        """The same; raises KvsimError where no point has a value, with the first point's error."""
        found = self.values(metric)
        if not np.isfinite(found).any():
            why = f"; the first error: {self.first_error}" if self.first_error else ""
            count, bad = len(found), int(self.failed.sum())
            if metric.column == self._searched:
                raise KvsimError(f"{kind}: no search found a {self._searched} within the limits{why}")
            raise KvsimError(f"{kind}: no point has {metric.label}; {bad} of {count} failed{why}")
        return found

    def others(self, used: Sequence[str | None]) -> list[str]:
        """Swept keys with several values that a picture does not show yet."""
        return [a for a in self.axes if a not in used and self.frame[a].astype(str).nunique() > 1]

    def names(self, key: str) -> list[str]:
        """Its `distinct` values as written; models without their organisation where that tells them apart."""
        values = self.distinct(key)
        tails = [value.rsplit("/", 1)[-1] if isinstance(value, str) else value for value in values]
        return [written(value) for value in (tails if len(set(tails)) == len(values) else values)]

    def label(self, key: str) -> str:
        """A key as an axis shows it, with its unit."""
        last, unit = key.rsplit(".", 1)[-1], self._unit(key)
        return f"{last}, {unit}" if unit and last.removeprefix("num_") != unit else last

    def _unit(self, key: str) -> str:
        """As figures have it: s, requests/s."""
        unit = unit_of(key, self._scenario)
        return _SHORT_UNITS.get(unit, unit.replace(" per second", "/s"))

    def is_numeric(self, key: str) -> bool:
        column = self.frame[key]
        return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)

    def distinct(self, key: str) -> list[Any]:
        """Its values: numbers in order of size, others in order of appearance."""
        values = list(dict.fromkeys(map(_plain, self.frame[key])))
        return sorted(values) if self.is_numeric(key) else values

    def positions(self, key: str) -> NDArray[np.int64]:
        """Which of `distinct` each point has."""
        place = {value: i for i, value in enumerate(self.distinct(key))}
        return np.array([place[_plain(value)] for value in self.frame[key]], np.int64)

    def best_words(self, how: str, keys: Sequence[str], values: NDArray[np.float64], metric: Metric) -> str:
        """The best value and where it is; how: what marks it in the picture."""
        values = self.of_starting(values)
        best = metric.best(values)
        if best is None:
            return ""
        rows = np.flatnonzero(values == best)
        at = ", ".join(f"{key.rsplit('.', 1)[-1]} {written(self.frame[key].iloc[rows[0]])}" for key in keys)
        word = "lowest" if metric.low_is_good else "highest"
        more = f" (and {len(rows) - 1} equal)" if len(rows) > 1 else ""
        return f"{how}, {word}: {style.number(best)}{metric.suffix} at {at}{more}"

    def subtitle(self, *parts: str) -> str:
        count, bad = len(self.frame), int(self.failed.sum())
        failed = f", {bad} failed" if bad else ""
        noun = "search" if self._searched in self.frame.columns else "point"
        plural = "" if count == 1 else "es" if noun == "search" else "s"
        points = f"{count:,} {noun}{plural}{failed}"
        return "; ".join(filter(None, (self.name, points, *parts)))


def _has_numbers(column: pd.Series) -> bool:
    if pd.api.types.is_bool_dtype(column):
        return False
    if pd.api.types.is_numeric_dtype(column):
        return bool(column.notna().any())
    return bool(
        column.map(lambda value: isinstance(value, int | float) and not isinstance(value, bool)).any()
    )


def _same_text(value: Any, text: str) -> bool:
    """Whether the value may be typed so: numbers in any spelling, thousands separated as pictures do, too."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(text.replace(",", "")) == value
        except ValueError:
            return False
    return text.lower() in (str(value).lower(), written(value).lower(), "null" if value == "none" else "")


def written(value: Any) -> str:
    """A swept value on an axis or in a key."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    if isinstance(value, int | float | np.integer | np.floating):
        return style.number(float(value))
    return style.shorten(str(value), 28)


def _plain(value: Any) -> Any:
    """Something that compares and hashes: missing is one value, lists are text."""
    if value is None or (isinstance(value, float) and np.isnan(value)) or value is pd.NA:
        return "none"
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, str | int | float | bool) else str(value)
