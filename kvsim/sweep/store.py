"""The folder of a sweep: what was asked, one file for each finished point, and the tables at the end.

    sweep.json               what was asked, and by which kvsim
    points/<hash>.json       overrides and summary, or error, of the scenario with that hash
    table.parquet, table.csv a row for each point, in order
    probes.parquet, .csv     of a search: a row for each value that it tried
    replicas.parquet, .csv   of clusters: a row for each point and replica

A file is written under a temporary name and renamed, so whatever bears a point's name is whole.
"""

import hashlib
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from kvsim.results.store import ResultsError, writing
from kvsim.sweep.version import kvsim_version

if sys.platform != "win32":
    import fcntl

SWEEP, POINTS = "sweep.json", "points"
TABLE, PROBES, REPLICAS = "table", "probes", "replicas"
TABLES = tuple(f"{name}{ending}" for name in (TABLE, PROBES, REPLICAS) for ending in (".parquet", ".csv"))
_POINT_FILE = re.compile(r"[0-9a-f]{64}\.json")

_AGAIN = "delete it and run again"

Outcome = Mapping[str, Any]  # {"summary": ...} or {"error": ...}


class Memory:
    """Keeps finished points while the process lives."""

    def __init__(self) -> None:
        self._outcomes: dict[str, Outcome] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to give back."""

    def get(self, scenario_hash: str) -> Outcome | None:
        return self._outcomes.get(scenario_hash)

    def put(self, scenario_hash: str, overrides: Mapping[str, Any], outcome: Outcome) -> None:
        self._outcomes[scenario_hash] = outcome


class Folder(Memory):
    """Keeps them in files as well, and knows those of an earlier sweep in the same place.

    Use as a context; within, no other process may write there. Raises `ResultsError` for a place that is no
    sweep's, a damaged or foreign file, points of another kvsim (unless `fresh`: then they go), and
    where nothing can be written.
    """

    def __init__(self, path: Path, asked: Mapping[str, Any], *, fresh: bool = False) -> None:
        super().__init__()
        self.path = path
        self._asked, self._fresh = asked, fresh
        self._lock: int | None = None
        self._is_new = False

    def __enter__(self) -> Self:
        existed = self.path.exists()
        self._is_new = not existed
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(self.path)
        try:
            self._begin(existed)
        except BaseException as error:
            self.__exit__(error)
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        if self._is_new and any(raised) and not self._outcomes:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _begin(self, existed: bool) -> None:
        if existed and any(self.path.iterdir()):
            _check_is_sweep(self.path, fresh=self._fresh)
            if self._fresh:
                shutil.rmtree(self.path / POINTS, ignore_errors=True)
            else:
                _check_version(self.path)
                self._read_points()
        with writing(self.path):
            (self.path / POINTS).mkdir(exist_ok=True)
            for name in TABLES:  # they are of the sweep before
                (self.path / name).unlink(missing_ok=True)
        write_json(self.path / SWEEP, {"kvsim": kvsim_version(), **self._asked})

    def _read_points(self) -> None:
        for path in sorted((self.path / POINTS).glob("*")):
            if path.name.endswith(".tmp"):  # cut short by a kill
                path.unlink(missing_ok=True)
                continue
            if not _POINT_FILE.fullmatch(path.name) or not path.is_file():
                raise ResultsError(
                    f"{path}: no point of a sweep; move it away, or write elsewhere with --out"
                )
            super().put(path.stem, {}, _read_point(path))

    def put(self, scenario_hash: str, overrides: Mapping[str, Any], outcome: Outcome) -> None:
        """Raises `ResultsError` where it cannot be written; then nothing of it is there."""
        content = {
            "kvsim": kvsim_version(),
            "scenario_hash": scenario_hash,
            "overrides": overrides,
            "digest": _digest(outcome),
            **outcome,
        }
        try:
            write_json(self.path / POINTS / f"{scenario_hash}.json", content)
        except ResultsError as error:
            raise ResultsError(f"{error}; finished points are kept, the same command goes on") from None
        super().put(scenario_hash, overrides, outcome)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Whole or not at all; raises `ResultsError`."""
    temporary = path.with_name(f".{path.name}.tmp")
    text = json.dumps(_plain(content), indent=1, allow_nan=False) + "\n"
    with writing(path):
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _digest(outcome: Mapping[str, Any]) -> str:
    """Tells a figure that was changed by hand or by a bad disk."""
    return hashlib.sha256(json.dumps(_plain(outcome), sort_keys=True).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """JSON knows no infinity; the scenario's word for it is inf."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return "inf" if value == math.inf else value


def _locked(path: Path) -> int | None:
    """A lock that ends with the process, however it ends; file systems that know none do without."""
    if sys.platform == "win32":
        return None
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ResultsError(
            f"{path}: another sweep is writing there; wait for it, or give another --out"
        ) from None
    except OSError:
        pass
    return descriptor


def _check_is_sweep(path: Path, *, fresh: bool) -> None:
    """With `fresh` points without their sweep.json, or with a damaged one, are a sweep's as well."""
    known = {SWEEP, POINTS, *TABLES}
    foreign = sorted(p.name for p in path.iterdir() if p.name not in known and not p.name.endswith(".tmp"))
    if foreign:
        raise ResultsError(f"{path}: no folder of a sweep, it holds {foreign[0]}; give another --out")
    points = [p for p in (path / POINTS).glob("*") if not p.name.endswith(".tmp")]
    if fresh:
        mine = next((p for p in points if not _POINT_FILE.fullmatch(p.name)), None)
        if mine is not None:
            raise ResultsError(f"{mine}: no point of a sweep; move it away, or write elsewhere with --out")
    elif points and not (path / SWEEP).is_file():
        raise ResultsError(
            f"{path}: no folder of a sweep, {SWEEP} is missing; give another --out, "
            "or --fresh to compute its points again"
        )


def _check_version(path: Path) -> None:
    if not (path / SWEEP).exists():
        return
    made_by = read_sweep(path)["kvsim"]
    if made_by != kvsim_version() and any((path / POINTS).glob("*.json")):
        raise ResultsError(
            f"{path}: holds points of kvsim {made_by}, this is {kvsim_version()}; give another --out, "
            "or --fresh to compute them again"
        )


def read_sweep(folder: Path) -> dict[str, Any]:
    """The content of sweep.json; raises `ResultsError`."""
    return _read_json(
        folder / SWEEP,
        ("kvsim", "name", "axes", "asked"),
        f"{folder} is not the folder of a sweep",
        "run the sweep again with --fresh, or write elsewhere with --out",
    )


def _read_point(path: Path) -> Outcome:
    content = _read_json(path, ("kvsim", "scenario_hash", "digest"), "damaged")
    if content["scenario_hash"] != path.stem or ("summary" in content) == ("error" in content):
        raise ResultsError(f"{path}: damaged, not the point that its name says; {_AGAIN}")
    if content["kvsim"] != kvsim_version():
        raise ResultsError(f"{path}: of kvsim {content['kvsim']}, this is {kvsim_version()}; delete it")
    outcome: dict[str, Any] = {key: content[key] for key in ("summary", "error") if key in content}
    if content["digest"] != _digest(outcome):
        raise ResultsError(f"{path}: damaged, its figures are not those that were written; {_AGAIN}")
    return outcome


def _read_json(path: Path, keys: tuple[str, ...], otherwise: str, again: str = _AGAIN) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultsError(f"{otherwise}: {path.name}: {error.strerror or error}") from None
    except ValueError as error:
        raise ResultsError(f"{path}: damaged ({error}); {again}") from None
    if not isinstance(content, dict) or any(key not in content for key in keys):
        raise ResultsError(f"{path}: damaged or not of a sweep; {again}")
    return content
