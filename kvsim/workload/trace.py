"""Replay of recorded traces: JSON lines, plain or gzip, read one line at a time.

Id k of a trace stands for one fixed stream of tokens, the same in every run; a short last
chunk uses its first tokens. So two rows share exactly the tokens that their ids say, whatever
the engine's block size. Outputs carry no ids in these formats: each gets tokens of its own.

Rows with times of their own arrive at them, whatever the server does (an open loop). Traces that record
sessions (`kvsim.workload.trace_sessions`) go on when the simulated answer has ended.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from kvsim.errors import KvsimError
from kvsim.tokens import stream_key
from kvsim.workload.arrivals import ArrivalTimes
from kvsim.workload.checks import MAX_TOKENS, FieldError, number, shown, whole
from kvsim.workload.durations import seconds
from kvsim.workload.generated import MAX_CONCURRENCY, MAX_RATE, MAX_REQUESTS
from kvsim.workload.recorded import Pace, RecordedSession, first_request, limited
from kvsim.workload.request import Request, RequestBlock, blocks_of, requests_of
from kvsim.workload.streams import generator, token_streams
from kvsim.workload.trace_lines import parse, read_lines
from kvsim.workload.trace_rows import TraceRow, all_segments, check_order, check_row
from kvsim.workload.trace_sessions import has_sessions, read_sessions

_BLOCK = 256  # rows that become requests at once


def rows_to_requests(
    rows: Iterable[TraceRow], seed: int = 0, start: float = 0.0, factor: float = 1.0
) -> Iterator[Request]:
    """Requests of checked rows, named req-0, req-1, ..., each at (timestamp - start) x factor.

    `max_tokens` is the recorded output length (at least 1, as vLLM demands). Bailian rows get
    the root of their chat as session; one dictionary entry a row is kept for that.
    """
    return requests_of(rows_to_blocks(rows, seed, start, factor))


def rows_to_blocks(
    rows: Iterable[TraceRow], seed: int = 0, start: float = 0.0, factor: float = 1.0
) -> Iterator[RequestBlock]:
    """The same in blocks, made as they are asked for."""
    outputs = stream_key(seed, "output")
    roots: dict[int | str, str] = {}
    first, latest = 0, -math.inf
    for part in _parts(iter(rows)):
        n = len(part)
        # a row within the tolerance arrives with the one above
        times = np.maximum(np.maximum.accumulate([row.timestamp for row in part]), latest)
        content, output_at = all_segments(part, token_streams(outputs, first, n))
        sessions = [_session(row, roots) for row in part]
        yield RequestBlock(
            [f"req-{index}" for index in range(first, first + n)],
            (times - start) * factor,
            content,
            np.concatenate([[0], output_at + 1]),
            output_at,
            content[output_at, 2].astype(np.int64),
            np.zeros(n, np.int64),
            sessions=sessions if any(sessions) else None,
        )
        first, latest = first + n, float(times[-1])


def _parts(rows: Iterator[TraceRow]) -> Iterator[list[TraceRow]]:
    """Rows in lists; the good ones in front of a bad one come before its error is raised."""
    while True:
        part: list[TraceRow] = []
        try:
            part.extend(islice(rows, _BLOCK))
        except KvsimError:
            if part:
                yield part
            raise
        if not part:
            return
        yield part


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
    trace_block_size: tokens an id; None for the format's own (Mooncake 512, Bailian 16, agent sessions
        say theirs).
    num_requests: at most so many requests, in the order of the file; None for all.
    start: rows, or sessions that begin, before this time of the trace, in seconds, are left out, and it
        becomes time 0.
    time_scale: factor on all times; 0.5 is twice the traffic.
    rate: instead of time_scale, the mean requests per second wanted; inf sends all at time 0. Where sessions
        are recorded: how many begin per second (Poisson); pauses within them stay.
    max_concurrency: see `GeneratedWorkload`.
    sha256: of the file's rows (`fingerprint`); whoever loads the description checks it.
    num_sessions: at most so many sessions, where sessions are recorded; None for all.
    max_think_time: seconds to which longer pauses of recorded sessions are cut; None for none.
    """

    path: str
    trace_block_size: int | None = None
    num_requests: int | None = None
    start: float = 0.0
    time_scale: float = 1.0
    rate: float | None = None
    max_concurrency: int | None = None
    sha256: str | None = None
    num_sessions: int | None = None
    max_think_time: float | None = None

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
        if self.num_sessions is not None:
            whole("num_sessions", self.num_sessions, 1, MAX_REQUESTS)
        if self.max_think_time is not None:
            seconds("max_think_time", self.max_think_time)

    def located(self, path: str, num_rows: int) -> "TraceWorkload":
        """This replay of a file found at `path`; `num_requests` tells how many it has, if each row is one."""
        if has_sessions(path):
            return replace(self, path=path)
        return replace(self, path=path, num_requests=min(self.num_requests or num_rows, num_rows))

    @property
    def has_follow_ups(self) -> bool:
        """Whether the file records sessions; raises KvsimError if it cannot be read."""
        return has_sessions(self.path)

    @property
    def has_sessions(self) -> bool:
        """Whether rows name their sessions, as the first one does; raises KvsimError as `rows` does."""
        if self.has_follow_ups:
            return True
        first = next(self.rows(), None)
        return first is not None and (first.chat_id is not None or first.session is not None)

    def rows(self) -> Iterator[TraceRow]:
        """The rows to replay, checked as they are read, at the trace's own times.

        Raises KvsimError naming file, line and field.
        """
        kept = (row for row in read_rows(self.path, self.trace_block_size) if row.timestamp >= self.start)
        return islice(kept, self.num_requests)

    def sessions(self) -> Iterator[RecordedSession] | None:
        """The sessions to replay, if the file records some; None for rows with times of their own.

        Raises KvsimError naming file, line and field.
        """
        recorded = read_sessions(self.path, self.trace_block_size)
        if recorded is None:
            if self.num_sessions is not None or self.max_think_time is not None:
                key = "num_sessions" if self.num_sessions is not None else "max_think_time"
                raise KvsimError(f"{self.path}: records no sessions that go on; leave {key} out")
            return None
        kept = (session for session in recorded if session.start >= self.start)
        return limited(islice(kept, self.num_sessions), self.num_requests)

    def blocks(self, seed: int) -> Iterator[RequestBlock]:
        """Requests in order of arrival, of sessions the first ones.

        Raises KvsimError naming file, line and field of a bad row.
        """
        block, sessions = None, self.sessions()
        if sessions is None:
            blocks = rows_to_blocks(self.rows(), seed, self.start, self._factor())
        else:
            blocks = blocks_of(self._first_requests(sessions, seed))
        for block in blocks:
            yield block
        if block is None:
            what = "row" if sessions is None else "session"
            raise KvsimError(f"{self.path}: no {what} at or after start, {self.start:g} s")

    def requests(self, seed: int) -> Iterator[Request]:
        """The requests of `blocks`, one by one."""
        return requests_of(self.blocks(seed))

    def _first_requests(self, sessions: Iterator[RecordedSession], seed: int) -> Iterator[Request]:
        drawn = self.rate and ArrivalTimes(generator(seed, "arrivals"), self.rate, "poisson", 1.0)
        pace = Pace(self.time_scale, math.inf if self.max_think_time is None else self.max_think_time, seed)
        for session in sessions:
            recorded = (session.start - self.start) * self.time_scale
            yield first_request(session, float(drawn.draw(1)[0]) if drawn else recorded, pace)

    def _factor(self) -> float:
        """By how much times are stretched; a given rate takes one more pass over the file."""
        if self.rate is None:
            return self.time_scale
        if math.isinf(self.rate):
            return 0.0
        count, first, last = 0, 0.0, 0.0
        for count, row in enumerate(self.rows(), 1):
            first, last = (row.timestamp if count == 1 else first), row.timestamp
        if count > 1 and last <= first:
            problem = f"all {count:,} rows are at {first:g} s, so no rate can be made of them; leave rate out"
            raise KvsimError(f"{self.path}: {problem}, or give inf")
        return (count - 1) / ((last - first) * self.rate) if count > 1 else 1.0


def read_rows(path: str | Path, trace_block_size: int | None = None) -> Iterator[TraceRow]:
    """Rows of a trace file, blank lines skipped; raises KvsimError "FILE line N: field F: problem"."""
    above: TraceRow | None = None
    for line_number, line in read_lines(path):
        try:
            row = check_row(parse(line), trace_block_size)
            check_order(row, above)
        except FieldError as error:
            raise KvsimError(f"{path} line {line_number}: field {error}") from None
        except ValueError as error:
            raise KvsimError(f"{path} line {line_number}: {error}") from None
        above = row
        yield row
