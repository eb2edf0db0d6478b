"""Turns of conversations, and the follow-ups that ask them one after another."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.tokens import Segments, segments
from kvsim.workload.request import FollowUp, LoRA, Request, turn_id


@dataclass(frozen=True, eq=False)
class Turns:
    """Turns of some sessions, one after another, as columns; shape (turns,) each.

    questions, answers: keys of the token streams; an answer's stream holds the reasoning first.
    """

    questions: NDArray[np.uint64]
    question_lens: NDArray[np.int64]
    answers: NDArray[np.uint64]
    reasoning_lens: NDArray[np.int64]
    output_lens: NDArray[np.int64]
    limits: NDArray[np.int64]
    think_times: NDArray[np.float64]
    keep_answers: bool
    keep_reasoning: bool

    def outputs(self, rows: NDArray[np.int64]) -> Segments:
        """What the model says in these turns, shape (rows, 3)."""
        content = np.zeros((len(rows), 3), np.uint64)
        content[:, 0], content[:, 2] = self.answers[rows], self.output_lens[rows]
        return content

    def question(self, row: int) -> tuple[int, int, int]:
        return int(self.questions[row]), 0, int(self.question_lens[row])

    def kept(self, row: int, num_output_tokens: int) -> tuple[int, int, int]:
        """The part of an answer that stands in later prompts."""
        if not self.keep_answers:
            return 1, 0, 0
        start = 0 if self.keep_reasoning else int(self.reasoning_lens[row])
        said = min(num_output_tokens, int(self.output_lens[row]))
        return int(self.answers[row]), start, max(said - start, 0)


@dataclass(frozen=True, slots=True, eq=False)
class _Session:
    """What the turns of a session share; it has the rows first .. end - 1 of `turns`."""

    name: str
    turns: Turns
    first: int
    end: int
    cache_salt: str | None
    lora: LoRA | None
    priority: int


@dataclass(frozen=True, slots=True, eq=False)
class _NextTurn:
    """The follow-up that asks the question of turn `row` behind `prompt`."""

    session: _Session
    row: int
    prompt: Segments

    @property
    def think_time(self) -> float:
        return float(self.session.turns.think_times[self.row])

    @property
    def num_requests(self) -> int:
        return self.session.end - self.row

    def next_request(self, arrival_time: float, num_output_tokens: int) -> Request:
        session, turns, row = self.session, self.session.turns, self.row
        new = segments(turns.kept(row - 1, num_output_tokens), turns.question(row))
        prompt = np.concatenate([self.prompt, new])
        return Request(
            turn_id(session.name, row - session.first + 1),
            arrival_time,
            prompt,
            turns.outputs(np.array([row])),
            int(turns.limits[row]),
            cache_salt=session.cache_salt,
            lora=session.lora,
            priority=session.priority,
            session=session.name,
            follow_up=_NextTurn(session, row + 1, prompt) if row + 1 < session.end else None,
        )


def follow_up(request: Request, turns: Turns, first: np.int64, end: np.int64) -> FollowUp | None:
    """What comes after a session's first request."""
    if end == first + 1:
        return None
    tags = request.cache_salt, request.lora, request.priority
    session = _Session(request.session or "", turns, int(first), int(end), *tags)
    return _NextTurn(session, int(first) + 1, request.prompt)
