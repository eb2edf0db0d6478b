"""A results folder: written beside its place under a temporary name, then swapped in whole."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvsim.errors import KvsimError
from kvsim.results.columns import SCHEMA

SCENARIO, SUMMARY, REQUESTS = "scenario.yaml", "summary.json", "requests.parquet"


class ResultsError(KvsimError):
    """A results folder cannot be written or read; the message names it and the cause."""


def folder_name(name: str, scenario_hash: str) -> str:
    """``<name>-<8 hex>``; whatever could leave the folder becomes a dash."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "run"
    return f"{safe[:100]}-{scenario_hash[:8]}"


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """An empty folder that takes the place of `target` when the block ends without an error.

    On any error, an interrupt included, it vanishes and `target` is as it was. Raises
    `ResultsError` where nothing can be written.
    """
    temporary = target.parent / f".{target.name}.{os.getpid()}.tmp"
    with _explained(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not target.is_dir():
            raise FileExistsError(0, "a file of that name is in the way")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
    try:
        yield temporary
        with _explained(target):
            _swap(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _explained(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ResultsError(f"cannot write results to {place}: {error.strerror or error}") from None


def _swap(new: Path, target: Path) -> None:
    if not target.exists():
        new.rename(target)
        return
    old = new.with_name(f"{new.name}.old")
    target.rename(old)
    try:
        new.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


class ParquetSink:
    """Streams chunks to ``requests.parquet``; the bytes depend on nothing but the rows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: pq.ParquetWriter | None = pq.ParquetWriter(path, SCHEMA, compression="zstd")

    def write(self, table: pa.Table) -> None:
        assert self._writer is not None, "rows after the sink was read"
        with _explained(self._path):
            self._writer.write_table(table)

    def close(self) -> None:
        if self._writer is not None:
            with _explained(self._path):
                self._writer.close()
            self._writer = None

    def read(self, columns: list[str] | None = None) -> pa.Table:
        self.close()
        return pq.read_table(self._path, columns=columns)


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, content: str) -> None:
    with _explained(path):
        path.write_text(content, encoding="utf-8")


def read_texts(folder: Path) -> tuple[str, dict[str, Any]]:
    """Scenario text and summary of a results folder; raises `ResultsError`."""
    try:
        scenario = (folder / SCENARIO).read_text(encoding="utf-8")
        return scenario, json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultsError(f"{folder} is not a results folder: {error.strerror or error}") from None
    except ValueError as error:
        raise ResultsError(f"{folder} holds a broken file: {error}") from None


def read_requests(folder: Path, columns: list[str] | None = None) -> pa.Table:
    """Request rows of a results folder; raises `ResultsError`."""
    try:
        return pq.read_table(folder / REQUESTS, columns=columns)
    except (OSError, pa.ArrowInvalid) as error:
        raise ResultsError(f"{folder / REQUESTS} cannot be read: {error}") from None
