"""Recorded sessions: what a trace says of their requests, and the follow-ups that replay them in order."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from kvsim.tokens import Segments, first_tokens, segments, stream_key
from kvsim.workload.request import Request, turn_id
from kvsim.workload.streams import token_streams


@dataclass(frozen=True, slots=True, eq=False)
class RecordedTurn:
    """One request of a session.

    pause: seconds from the end of the request before to this one. Its prompt is the first `num_shared`
    segments of the one before (ids in common), then `new`; so long sessions take little memory. Or, if it
    `continues`, all of the one before, the answer to that, and `new`.
    """

    pause: float
    num_shared: int
    new: Segments
    num_output_tokens: int
    continues: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class RecordedSession:
    """A session of a trace: when it begins (seconds of the trace) and its requests in order."""

    name: str
    start: float
    turns: tuple[RecordedTurn, ...]


@dataclass(frozen=True, slots=True)
class Pace:
    """How sessions are replayed: factor on pauses, the longest one in seconds, seed of the outputs."""

    time_scale: float = 1.0
    longest_pause: float = np.inf
    seed: int = 0


def limited(sessions: Iterable[RecordedSession], num_requests: int | None) -> Iterator[RecordedSession]:
    """Sessions one by one until they have so many requests together; the last one is cut off there."""
    left = num_requests
    for session in sessions:
        if left is not None and left <= len(session.turns):
            yield replace(session, turns=session.turns[:left])
            return
        left = None if left is None else left - len(session.turns)
        yield session


def first_request(session: RecordedSession, arrival_time: float, pace: Pace) -> Request:
    """A session's first request; its follow-up leads to the others, named SESSION-turn-2 and so on."""
    return _request(session, 0, session.turns[0].new, arrival_time, pace)


def _request(session: RecordedSession, index: int, prompt: Segments, time: float, pace: Pace) -> Request:
    num_output = max(session.turns[index].num_output_tokens, 1)  # vLLM says at least one token
    stream = int(token_streams(stream_key(pace.seed, "output", session.name), index, 1)[0])
    output = segments((stream, 0, num_output))
    is_last = index + 1 == len(session.turns)
    return Request(
        turn_id(session.name, index + 1),
        time,
        prompt,
        output,
        num_output,
        session=session.name,
        follow_up=None if is_last else _Next(session, index + 1, prompt, output, pace),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Next:
    """The follow-up that sends request `index` of a session, after the one with `prompt` and `output`."""

    session: RecordedSession
    index: int
    prompt: Segments
    output: Segments
    pace: Pace

    @property
    def think_time(self) -> float:
        pause = self.session.turns[self.index].pause * self.pace.time_scale
        return min(pause, self.pace.longest_pause)

    @property
    def num_requests(self) -> int:
        return len(self.session.turns) - self.index

    def next_request(self, arrival_time: float, num_output_tokens: int) -> Request:
        turn = self.session.turns[self.index]
        if turn.continues:
            before = [self.prompt, first_tokens(self.output, num_output_tokens)]
        else:
            before = [self.prompt[: turn.num_shared]]
        prompt = np.concatenate([*before, turn.new])
        return _request(self.session, self.index, prompt, arrival_time, self.pace)
