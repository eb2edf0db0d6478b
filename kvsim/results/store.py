"""A results folder: written beside its place under a temporary name, then swapped in whole."""

import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError

if sys.platform != "win32":
    import fcntl

SCENARIO, SUMMARY, REQUESTS = "scenario.yaml", "summary.json", "requests.parquet"
STEPS, EVENTS = "steps.parquet", "events.parquet"  # on request
FILES = SCENARIO, SUMMARY, REQUESTS, STEPS, EVENTS
# What every summary holds, of what is shown of it.
IN_SUMMARY = (
    *("name", "model", "gpu", "vllm_version", "seed", "capacity", "step_time", "simulated_seconds"),
    *("warm_up", "requests", "waiting_steps", "recompute_tax", "slo", "request_goodput"),
    *("num_preempted_requests", "num_preempted_blocks", "num_lost_tokens", "generation_tokens_per_second"),
    *("vllm:kv_cache_usage_perc", "vllm:time_to_first_token_seconds", "vllm:e2e_request_latency_seconds"),
    *("vllm:request_time_per_output_token_seconds", "vllm:request_queue_time_seconds"),
)


class ResultsError(KvsimError):
    """A results folder cannot be written or read; the message names it and the cause."""


def folder_name(name: str, scenario_hash: str) -> str:
    """``<name>-<8 hex>``; whatever could leave the folder becomes a dash."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "run"
    return f"{safe[:100]}-{scenario_hash[:8]}"


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """An empty folder that takes the place of `target` when the block ends without an error.

    On any error, an interrupt included, it vanishes with every folder made for it, and `target`
    is as it was. A link is followed. Raises `ResultsError` where nothing can be written, and
    rather than throw away files that are not a run's.
    """
    with writing(target):
        replacement = _Replacement(Path(os.path.realpath(target)))
        _refuse_foreign(replacement.place)
    _under_way.append(replacement)
    try:
        with writing(target):
            replacement.temporary.mkdir(parents=True)
        yield replacement.temporary
        with writing(target):
            replacement.swap()
    finally:
        replacement.clean_up()
        _under_way.remove(replacement)


def abandon_all() -> None:
    """Undo what is half written, for a process about to end at once, without unwinding."""
    for replacement in _under_way:
        replacement.clean_up()


class _Replacement:
    """The folders of one replacement: `temporary` becomes `place`, what was there `old` for a moment."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.temporary = place.parent / f".{place.name}.{secrets.token_hex(4)}.tmp"
        self.old = self.temporary.with_suffix(".old")
        self._made = [path for path in place.parents if not path.exists()]

    def swap(self) -> None:
        with _alone_in(self.place.parent):
            _refuse_foreign(self.place)
            if self.place.exists():
                self.place.rename(self.old)
            self.temporary.rename(self.place)

    def clean_up(self) -> None:
        """Whenever it is called, nothing is lost and nothing stays."""
        if self.old.exists() and not self.place.exists():
            self.old.rename(self.place)
        for leftover in (self.temporary, self.old):
            shutil.rmtree(leftover, ignore_errors=True)
        with suppress(OSError):  # not empty
            for folder in self._made:
                folder.rmdir()


_under_way: list[_Replacement] = []


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Within, an OSError becomes a `ResultsError` about `place`."""
    try:
        yield
    except OSError as error:
        raise ResultsError(f"cannot write results to {place}: {error.strerror or error}") from None


def _refuse_foreign(place: Path) -> None:
    """Only a folder that holds a run's files and nothing else may be replaced."""
    if not place.exists():
        return
    if not place.is_dir():
        raise FileExistsError(0, "a file of that name is in the way")
    foreign = sorted(path.name for path in place.iterdir() if path.name not in FILES or not path.is_file())
    if foreign:
        problem = f"the folder holds {foreign[0]}, which no run wrote; move it away, or write elsewhere"
        raise FileExistsError(0, problem)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Runs that write the same results take turns, where the file system can lock a folder."""
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, content: str) -> None:
    with writing(path):
        path.write_text(content, encoding="utf-8")


def read_texts(folder: Path) -> tuple[str, dict[str, Any]]:
    """Scenario text and summary of a results folder; raises `ResultsError`."""
    scenario, summary = _read_text(folder, SCENARIO), _read_text(folder, SUMMARY)
    try:
        metrics = json.loads(summary)
    except ValueError as error:
        raise ResultsError(f"{folder / SUMMARY} is not JSON: {error}") from None
    missing = [key for key in IN_SUMMARY if not isinstance(metrics, dict) or key not in metrics]
    if missing:
        raise ResultsError(f"{folder / SUMMARY}: {missing[0]} is missing; this kvsim did not write it")
    parts = metrics.get("replicas", [])
    if not isinstance(parts, list) or not all(isinstance(part, dict) and "name" in part for part in parts):
        raise ResultsError(
            f"{folder / SUMMARY}: replicas is no list of replicas; this kvsim did not write it"
        )
    return scenario, metrics


def _read_text(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or error
        raise ResultsError(f"{folder} is not a results folder: {name}: {reason}") from None
    except ValueError as error:
        raise ResultsError(f"{folder / name} is not UTF-8 text: {error}") from None
