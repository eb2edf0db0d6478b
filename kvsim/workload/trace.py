"""Replay of recorded traces: JSON lines, plain or gzip, read one line at a time.

Id k of a trace stands for one fixed stream of tokens, the same in every run; a short last
chunk uses its first tokens. So two rows share exactly the tokens that their ids say, whatever
the engine's block size. Outputs carry no ids in these formats: each gets tokens of its own.
"""

import gzip
import hashlib
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from kvsim.errors import KvsimError
from kvsim.tokens import Segments, segments, stream_key
from kvsim.workload.checks import MAX_TOKENS, FieldError, number, shown, whole
from kvsim.workload.generated import MAX_CONCURRENCY, MAX_RATE, MAX_REQUESTS
from kvsim.workload.request import Request, RequestBlock, blocks_of
from kvsim.workload.streams import token_streams
from kvsim.workload.trace_rows import TraceRow, check_order, check_row

_GZIP_MAGIC = b"\x1f\x8b"


@lru_cache(maxsize=1 << 18)
def _id_stream(hash_id: int) -> int:
    return stream_key("mooncake", hash_id)


def prompt_segments(row: TraceRow) -> Segments:
    """The prompt of a row: one segment an id, shape (ids, 3)."""
    content = np.zeros((len(row.hash_ids), 3), np.uint64)
    content[:, 0] = [_id_stream(hash_id) for hash_id in row.hash_ids]
    content[:, 2] = row.block_size
    content[-1, 2] = row.input_length - row.block_size * (len(row.hash_ids) - 1)
    return content


def rows_to_requests(
    rows: Iterable[TraceRow], seed: int = 0, start: float = 0.0, factor: float = 1.0
) -> Iterator[Request]:
    """Requests of checked rows, named req-0, req-1, ..., each at (timestamp - start) x factor.

    `max_tokens` is the recorded output length (at least 1, as vLLM demands). Bailian rows get
    the root of their chat as session; one dictionary entry a row is kept for that.
    """
    outputs = stream_key(seed, "output")
    roots: dict[int | str, str] = {}
    latest = -math.inf
    for index, row in enumerate(rows):
        latest = max(latest, row.timestamp)  # a row within the tolerance arrives with the one above
        num_output = max(row.output_length, 1)
        output = segments((int(token_streams(outputs, index, 1)[0]), 0, num_output))
        arrival, session = (latest - start) * factor, _session(row, roots)
        yield Request(f"req-{index}", arrival, prompt_segments(row), output, num_output, session=session)


def _session(row: TraceRow, roots: dict[int | str, str]) -> str | None:
    if row.chat_id is None:
        return None if row.session is None else str(row.session)
    parent = row.parent_chat_id
    root = str(row.chat_id) if parent is None else roots.get(parent, str(row.chat_id))
    roots[row.chat_id] = root
    return root


@dataclass(frozen=True, kw_only=True)
class TraceWorkload:
    """Replay of a trace file.

    path: the file.
    trace_block_size: tokens an id; None for the format's own (Mooncake 512, Bailian 16).
    num_requests: at most so many rows; None for all.
    start: rows before this time of the trace, in seconds, are left out, and it becomes time 0.
    time_scale: factor on all times; 0.5 is twice the traffic.
    rate: instead of time_scale, the mean requests per second wanted; inf sends all at time 0.
    max_concurrency: see `GeneratedWorkload`.
    sha256: of the file's rows (`fingerprint`); whoever loads the description checks it.
    """

    path: str
    trace_block_size: int | None = None
    num_requests: int | None = None
    start: float = 0.0
    time_scale: float = 1.0
    rate: float | None = None
    max_concurrency: int | None = None
    sha256: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path:
            raise FieldError("path", f"{shown(self.path)} is not the name of a file")
        if self.trace_block_size is not None:
            whole("trace_block_size", self.trace_block_size, 1, MAX_TOKENS)
        if self.num_requests is not None:
            whole("num_requests", self.num_requests, 1, MAX_REQUESTS)
        if self.start != 0 or self.start is False:
            number("start", self.start, 0.0, 1e12)
        number("time_scale", self.time_scale, 0.0, 1e9)
        if self.rate is not None:
            number("rate", self.rate, 0.0, MAX_RATE, infinite=True)
            if self.time_scale != 1.0:
                raise FieldError("rate", "give rate or time_scale, not both")
        if self.max_concurrency is not None:
            whole("max_concurrency", self.max_concurrency, 1, MAX_CONCURRENCY)
        if self.sha256 is not None and not re.fullmatch("[0-9a-f]{64}", str(self.sha256)):
            raise FieldError("sha256", f"{shown(self.sha256)} is not 64 hex digits")

    def rows(self) -> Iterator[TraceRow]:
        """The rows to replay, checked as they are read, at the trace's own times.

        Raises KvsimError naming file, line and field.
        """
        kept = (row for row in read_rows(self.path, self.trace_block_size) if row.timestamp >= self.start)
        return islice(kept, self.num_requests)

    def blocks(self, seed: int) -> Iterator[RequestBlock]:
        """The requests in blocks; raises what `requests` does."""
        return blocks_of(self.requests(seed))

    def requests(self, seed: int) -> Iterator[Request]:
        """Requests in order of arrival; raises KvsimError naming file, line and field of a bad row."""
        factor, request = self._factor(), None
        for request in rows_to_requests(self.rows(), seed, self.start, factor):
            yield request
        if request is None:
            raise KvsimError(f"{self.path}: no row at or after start, {self.start:g} s")

    def _factor(self) -> float:
        """By how much times are stretched; a given rate takes one more pass over the file."""
        if self.rate is None:
            return self.time_scale
        if math.isinf(self.rate):
            return 0.0
        count, first, last = 0, 0.0, 0.0
        for count, row in enumerate(self.rows(), 1):
            first, last = (row.timestamp if count == 1 else first), row.timestamp
        return (count - 1) / ((last - first) * self.rate) if last > first else 1.0


def read_rows(path: str | Path, trace_block_size: int | None = None) -> Iterator[TraceRow]:
    """Rows of a trace file, blank lines skipped; raises KvsimError "FILE line N: field F: problem"."""
    above: TraceRow | None = None
    for line_number, line in read_lines(path):
        try:
            row = check_row(_parse(line), trace_block_size)
            check_order(row, above)
        except FieldError as error:
            raise KvsimError(f"{path} line {line_number}: field {error}") from None
        except ValueError as error:
            raise KvsimError(f"{path} line {line_number}: {error}") from None
        above = row
        yield row


def _long_digits(digits: str) -> int | str:
    """A number; one of absurdly many digits stays text, for the check of its field to refuse."""
    return int(digits) if len(digits) <= 100 else digits


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON at column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise ValueError("not a row: nested too deeply") from None
    except ValueError:  # Python's own limit on digits
        return json.loads(line, parse_int=_long_digits)


def read_lines(path: str | Path) -> Iterator[tuple[int, bytes]]:
    """(line number, line) of each line that is not blank; gzip is known by its first bytes."""
    line_number = 0
    try:
        with _open(path) as file:
            for line_number, line in enumerate(file, 1):
                if line.strip():
                    yield line_number, line
    except (OSError, EOFError, ValueError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        where = f" line {line_number + 1}" if line_number else ""
        raise KvsimError(f"{path}{where}: cannot be read: {reason}") from None


def _open(path: str | Path) -> IO[bytes]:
    with open(path, "rb") as file:
        packed = file.read(2) == _GZIP_MAGIC
    return gzip.open(path, "rb") if packed else open(path, "rb")  # type: ignore[return-value]


def fingerprint(path: str | Path) -> tuple[str, int]:
    """SHA-256 (hex) of a trace's lines and how many there are; gzip or not makes no difference."""
    digest, count = hashlib.sha256(), 0
    for _, line in read_lines(path):
        digest.update(line.strip() + b"\n")
        count += 1
    return digest.hexdigest(), count
