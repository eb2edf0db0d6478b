"""The file of `kvsim capacity --evaluate`: published start-up logs as a CSV, one a row, every cell checked.

Columns of public collections: id, engine, version, arch_class, model, quant,
kv_dtype, gpu, total_gib, tp, gpu_memory_utilization, max_model_len, max_num_seqs, max_num_batched_tokens,
enforce_eager, block_size, and what vLLM printed: available_kv_gib, available_kv_bytes, num_gpu_blocks,
num_cpu_blocks, kv_tokens, max_concurrency, needed_gib, est_max_len; status is "ok" or "failed".
"""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvsim.errors import KvsimError
from kvsim.gpu.releases import Release, release

PRINTED = ("available_kv_gib", "available_kv_bytes", "num_gpu_blocks", "kv_tokens")
_NUMBERS = (
    *PRINTED,
    "total_gib",
    "tp",
    "gpu_memory_utilization",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enforce_eager",
    "block_size",
    "num_cpu_blocks",
    "max_concurrency",
    "needed_gib",
    "est_max_len",
)
_ABOVE_ZERO = ("total_gib", "tp", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size")
_NEEDED = ("id", "model", "status")
_SURPLUS = "\0"  # key of the cells beyond the header; no column has that name


@dataclass(frozen=True)
class LogRow:
    """One start-up. `number` is a column as a float, None where it is blank."""

    cells: Mapping[str, str]
    where: str

    def __getitem__(self, key: str) -> str:
        return (self.cells.get(key) or "").strip()

    def number(self, key: str) -> float | None:
        text = self[key]
        if not text or text == "auto":
            return None
        try:
            value = float(text.replace(",", ""))
        except ValueError:
            value = float("nan")
        if not abs(value) < 1e18:
            raise KvsimError(f"{self.where}: {key} is {text[:40]!r}, wanted a number")
        return value

    def whole(self, key: str) -> int | None:
        value = self.number(key)
        return None if value is None else int(value)

    @property
    def tp(self) -> int:
        return max(1, self.whole("tp") or 1)

    @property
    def names_no_release(self) -> bool:
        """Whether a version is stated that is none (a branch, a date)."""
        try:
            release(self["version"], self["engine"])
        except KvsimError:
            return True
        return False

    @property
    def release(self) -> Release:
        """As stated; one of the usual where the text is no release (a branch, a date)."""
        try:
            return release(self["version"], self["engine"])
        except KvsimError:
            return release("", self["engine"])


def read_rows(path: Path) -> list[LogRow]:
    """All rows; raises KvsimError with file and line for what cannot be read."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise KvsimError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise KvsimError(f"{path}: not UTF-8 text") from error
    try:
        reader = csv.DictReader(text.splitlines(), restkey=_SURPLUS)
        _check_header(reader.fieldnames or (), path)
        rows = [LogRow(row, f"{path}: line {reader.line_num}") for row in reader]
    except csv.Error as error:
        raise KvsimError(f"{path}: not a CSV file: {error}") from error
    if not rows:
        raise KvsimError(f"{path}: no row under the header")
    ids: dict[str, str] = {}
    for row in rows:  # everything wrong is told before anything is counted
        _check_row(row)
        if row["id"] in ids:
            raise KvsimError(
                f"{row.where}: id {row['id'][:40]!r} is that of {ids[row['id']]}; give each its own"
            )
        ids[row["id"]] = row.where.rpartition(": ")[2]
    return rows


def _check_header(columns: Sequence[str], path: Path) -> None:
    missing = [key for key in _NEEDED if key not in columns]
    if missing:
        raise KvsimError(f"{path}: no column {missing[0]!r}; wanted a CSV with {', '.join(_NEEDED)} ...")
    twice = [name for name, count in Counter(columns).items() if count > 1]
    if twice:
        raise KvsimError(f"{path}: column {twice[0][:40]!r} stands in the header more than once")


def _check_row(row: LogRow) -> None:
    """Raises KvsimError for a row that is longer or shorter than the header, or a number out of range."""
    if _SURPLUS in row.cells:
        raise KvsimError(f"{row.where}: {len(row.cells[_SURPLUS])} cells more than the header has columns")
    lacking = [key for key, value in row.cells.items() if value is None]
    if lacking:
        raise KvsimError(f"{row.where}: ends before column {lacking[0]!r}")
    if not row["id"]:
        raise KvsimError(f"{row.where}: id is blank")
    for key in _NUMBERS:
        value = row.number(key)
        if value is None or key == "available_kv_gib":  # which is below 0 where the weights took too much
            continue
        wanted = {"gpu_memory_utilization": "above 0 and at most 1", "enforce_eager": "0 or 1"}.get(key)
        good = value > 0 if key in _ABOVE_ZERO else value >= 0
        if wanted:
            good = 0 < value <= 1 if key == "gpu_memory_utilization" else value in (0, 1)
        if not good:
            wanted = wanted or ("above 0" if key in _ABOVE_ZERO else "from 0")
            raise KvsimError(f"{row.where}: {key} is {row[key][:40]!r}, wanted a number {wanted}")
