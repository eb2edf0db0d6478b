"""Traces that record sessions: which files do, and their sessions in order of beginning.

Agent sessions (`kvsim.workload.agent_sessions`) stand one on a line and are read as they are asked for. Rows
of AIPerf's and Dynamo's `mooncake_trace` belong together by `session_id`; a session's first row may have a
`timestamp` (ms), the later ones have a `delay` (ms after the answer before) in its place. Such rows may stand
anywhere in the file, so all are read first. Rows with ids have those of their whole prompt, as Dynamo takes
them; rows without hold only what is new, so that their prompt is the one before, the answer and
`input_length` tokens of their own, as AIPerf sends them (which does so with ids, too). A file whose rows all
have times of their own records no sessions in this sense, with or without `session_id`: it is replayed as it
was recorded.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError
from kvsim.tokens import segments, stream_key
from kvsim.workload.agent_sessions import check_agent_session, is_agent_session
from kvsim.workload.checks import FieldError, shown
from kvsim.workload.durations import MAX_SECONDS, seconds
from kvsim.workload.recorded import RecordedSession, RecordedTurn
from kvsim.workload.trace_lines import parse, read_lines
from kvsim.workload.trace_rows import TOLERANCE, check_row, prompt_segments


def read_sessions(path: str | Path, trace_block_size: int | None = None) -> Iterator[RecordedSession] | None:
    """The sessions of a file in order of beginning; None if it records none.

    Raises KvsimError "FILE line N: field F: problem", for agent sessions as they are read.
    """
    first = _peek(path)
    if is_agent_session(first):
        return _agent_sessions(path, trace_block_size)
    return iter(_sessions_of_rows(path, trace_block_size)) if _goes_on(path, first) else None


def has_sessions(path: str | Path) -> bool:
    """Whether a file records sessions; raises KvsimError if it cannot be read."""
    first = _peek(path)
    return is_agent_session(first) or _goes_on(path, first)


def _peek(path: str | Path) -> Any:
    """The first row; what is no JSON is left to the reader of rows to tell."""
    for _, line in read_lines(path):
        try:
            return parse(line)
        except ValueError:
            return None
    return None


def _goes_on(path: str | Path, first: Any) -> bool:
    """Whether rows belong to sessions and one of them counts from the answer before it."""
    if not isinstance(first, Mapping) or first.get("session_id") is None or first.get("chat_id") is not None:
        return False
    for _, line in read_lines(path):
        try:
            row = parse(line)
        except ValueError:
            return False
        if isinstance(row, Mapping) and ("delay" in row or row.get("timestamp") is None):
            return True
    return False


def _agent_sessions(path: str | Path, trace_block_size: int | None) -> Iterator[RecordedSession]:
    known: dict[str, int] = {}  # name -> line
    above = 0.0
    for line_number, line in read_lines(path):
        try:
            session = check_agent_session(parse(line), trace_block_size)
            if session.name in known:
                raise FieldError("id", f"{shown(session.name)} is that of line {known[session.name]} as well")
            if session.start < above - TOLERANCE:
                problem = f"{session.start:g} s lies before the session above, {above:g} s"
                raise FieldError("requests[0].t", f"{problem}; sort sessions by time")
        except FieldError as error:
            raise KvsimError(f"{path} line {line_number}: field {error}") from None
        except ValueError as error:
            raise KvsimError(f"{path} line {line_number}: {error}") from None
        known[session.name] = line_number
        above = max(above, session.start)
        yield session


def _sessions_of_rows(path: str | Path, trace_block_size: int | None) -> list[RecordedSession]:
    starts: dict[str, float] = {}
    turns: dict[str, list[RecordedTurn]] = {}
    for line_number, line in read_lines(path):
        try:
            fields = parse(line)
            row = check_row(fields, trace_block_size, in_session=True)
            name = f"line-{line_number}" if row.session is None else str(row.session)
            pause = _pause(fields, is_first=name not in turns)
        except FieldError as error:
            raise KvsimError(f"{path} line {line_number}: field {error}") from None
        except ValueError as error:
            raise KvsimError(f"{path} line {line_number}: {error}") from None
        starts.setdefault(name, row.timestamp)
        of_session = turns.setdefault(name, [])
        own = segments((stream_key("row without ids", line_number), 0, row.input_length))
        prompt, continues = (prompt_segments(row), False) if row.hash_ids else (own, bool(of_session))
        of_session.append(RecordedTurn(pause, 0, prompt, row.output_length, continues))
    sessions = [RecordedSession(name, starts[name], tuple(of_session)) for name, of_session in turns.items()]
    return sorted(sessions, key=lambda session: session.start)


def _pause(row: Mapping[str, Any], is_first: bool) -> float:
    """Seconds from the answer before to this row."""
    if is_first:
        return 0.0
    if row.get("delay") is None and row.get("timestamp") is not None:
        problem = "a later row of its session needs delay instead, ms after the answer before"
        raise FieldError("timestamp", problem)
    delay = row.get("delay")
    return 0.0 if delay is None else seconds("delay", delay, MAX_SECONDS * 1000, "milliseconds") / 1000.0
