"""Conversations: each turn's prompt is the one before, the kept answer and a new question.

    turn 1        system prompt | context | question 1
    turn 2        system prompt | context | question 1 | answer 1 | question 2
    turn 3        ...                                             | answer 2 | question 3

A model that reasons says `reasoning_len` tokens before its answer of `output_len` tokens. Chat templates of
such models leave the reasoning out of later prompts, so those part from the cached blocks where it began.

Names follow inference-perf's `shared_prefix` profile (`system_prompt_len`, `question_len`, `output_len`,
multi-turn) and vLLM's `benchmarks/multi_turn` (`num_turns`; its common prefix is the system prompt here,
its prefix of a conversation the context). There a turn is one message; here it is a question with its answer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvsim.tokens import Segments, stream_key
from kvsim.workload.arrivals import ArrivalTimes
from kvsim.workload.chat_turns import Turns, follow_up
from kvsim.workload.checks import MAX_TOKENS, FieldError, number, one_of, shown, whole
from kvsim.workload.durations import Duration, DurationSpec, duration
from kvsim.workload.generated import MAX_CHOICES, Tags, check_pace, check_tags, with_outputs
from kvsim.workload.lengths import Length, LengthSpec, length
from kvsim.workload.popularity import POPULARITIES, Popularity
from kvsim.workload.request import Request, RequestBlock, requests_of, turn_id
from kvsim.workload.streams import blocks, generator, token_streams

MAX_TURNS = 100_000
_LENGTHS = {  # field -> least value
    "num_turns": 1,
    "system_prompt_len": 0,
    "context_len": 0,
    "question_len": 1,
    "reasoning_len": 0,
    "output_len": 1,
}


@dataclass(frozen=True, kw_only=True)
class ChatWorkload:
    """Multi-turn chat; a session keeps its tenant, adapter and priority.

    rate: sessions that begin per second, above 0 to 1e9; inf begins all at time 0.
    num_sessions: how many; None for as many as the horizon takes.
    max_concurrency: sessions under way at most; the next one begins when one is over (so many clients). With
        rate inf a closed loop. None for no limit.
    max_tokens: see `kvsim.workload.generated`.
    arrival, burstiness: of the sessions' beginnings, see `kvsim.workload.arrivals`.
    num_turns: requests of a session (a length).
    num_system_prompts, system_prompt_len: different system prompts, each with a length drawn once.
    popularity, zipf_alpha: how a session picks its system prompt, see `kvsim.workload.popularity`.
    context_len: a session's own text before its first question, such as a document (a length).
    question_len: tokens of a question with the template around it, drawn for each turn (a length).
    reasoning_len: tokens that the model says before its answer, drawn for each turn (a length).
    output_len: tokens of an answer, drawn for each turn (a length).
    keep_answers: answers, as far as they were given, stand in the prompts of later turns.
    keep_reasoning: so does the reasoning before them.
    think_time: seconds from the end of an answer to the next question (a duration, see
        `kvsim.workload.durations`).
    num_tenants, num_loras, priority: as in `GeneratedWorkload`, drawn once for each session.
    """

    rate: float
    num_sessions: int | None = None
    max_concurrency: int | None = None
    arrival: str = "poisson"
    burstiness: float = 1.0
    num_turns: LengthSpec = 4
    num_system_prompts: int = 1
    system_prompt_len: LengthSpec = 512
    popularity: str = "uniform"
    zipf_alpha: float = 1.0
    context_len: LengthSpec = 0
    question_len: LengthSpec = 64
    reasoning_len: LengthSpec = 0
    output_len: LengthSpec = 128
    keep_answers: bool = True
    keep_reasoning: bool = False
    think_time: DurationSpec = 0.0
    max_tokens: int | None = None
    num_tenants: int = 0
    num_loras: int = 0
    priority: LengthSpec = 0

    def __post_init__(self) -> None:
        check_pace(self, "num_sessions", "sessions")
        check_tags(self)
        whole("num_system_prompts", self.num_system_prompts, 1, MAX_CHOICES)
        one_of("popularity", self.popularity, POPULARITIES)
        number("zipf_alpha", self.zipf_alpha, 0.0, 100.0)
        lengths = (
            "num_turns",
            "system_prompt_len",
            "context_len",
            "question_len",
            "reasoning_len",
            "output_len",
        )
        for field in lengths:
            self.lengths(field)
        for field in ("keep_answers", "keep_reasoning"):
            if not isinstance(getattr(self, field), bool):
                raise FieldError(field, f"{shown(getattr(self, field))} is neither true nor false")
        if self.keep_reasoning and not self.keep_answers:
            raise FieldError("keep_reasoning", "true keeps nothing while keep_answers is false; leave it out")
        self.think_times()

    def lengths(self, field: str) -> Length:
        high = MAX_TURNS if field == "num_turns" else MAX_TOKENS
        return length(field, getattr(self, field), _LENGTHS[field], high)

    def think_times(self) -> Duration:
        return duration("think_time", self.think_time)

    @property
    def num_requests(self) -> int | None:
        """All turns of all sessions, if their number is given; refused ones may cut sessions short."""
        turns = self.lengths("num_turns")
        return None if self.num_sessions is None or turns.low < turns.high else self.num_sessions * turns.low

    @property
    def has_follow_ups(self) -> bool:
        return self.lengths("num_turns").high > 1

    @property
    def has_sessions(self) -> bool:
        return True

    def requests(self, seed: int) -> Iterator[Request]:
        """The requests of `blocks`, one by one."""
        return requests_of(self.blocks(seed))

    def blocks(self, seed: int) -> Iterator[RequestBlock]:
        """First requests of sessions in order of arrival, those of session-0, session-1, ...

        The further ones come from their follow-ups. Everything is drawn beforehand: equal seed, equal
        sessions, in whatever order they go on.
        """
        arrivals = ArrivalTimes(generator(seed, "arrivals"), self.rate, self.arrival, self.burstiness)
        starts, turns, tags = _Starts(self, seed), _Drawer(self, seed), Tags(self, seed)
        for first, count in blocks(self.num_sessions):
            drawn, rows = turns.draw(count)
            prompts, bounds = starts.draw(first, drawn, rows[:-1])
            content, bounds = with_outputs(prompts, bounds, drawn.outputs(rows[:-1]))
            block = RequestBlock(
                [turn_id(f"session-{i}", 1) for i in range(first, first + count)],
                arrivals.draw(count),
                content,
                bounds,
                bounds[1:] - 1,
                drawn.limits[rows[:-1]],
                tags.priorities(count),
                None,
                tags.salts(count),
                tags.adapters(count),
                [f"session-{i}" for i in range(first, first + count)],
            )
            follow_ups = [follow_up(request, drawn, *rows[i : i + 2]) for i, request in enumerate(block)]
            yield replace(block, follow_ups=follow_ups)


class _Drawer:
    """Draws all turns of sessions when these begin."""

    def __init__(self, spec: ChatWorkload, seed: int) -> None:
        self._spec, self._num_drawn = spec, 0
        self._families = stream_key(seed, "question"), stream_key(seed, "output")
        self._lengths = {
            field: (spec.lengths(field), generator(seed, field))
            for field in ("num_turns", "question_len", "reasoning_len", "output_len")
        }
        self._think_times, self._rng = spec.think_times(), generator(seed, "think_time")

    def draw(self, count: int) -> tuple[Turns, NDArray[np.int64]]:
        """The turns of the next `count` sessions; session i has the rows bounds[i] .. bounds[i + 1] - 1."""
        rows = np.concatenate([[0], np.cumsum(self._draw("num_turns", count))])
        total, spec = int(rows[-1]), self._spec
        first, self._num_drawn = self._num_drawn, self._num_drawn + total
        questions, answers = (token_streams(family, first, total) for family in self._families)
        reasoning = self._draw("reasoning_len", total)
        outputs = reasoning + self._draw("output_len", total)
        limits = outputs if spec.max_tokens is None else np.full(total, spec.max_tokens)
        return Turns(
            questions,
            self._draw("question_len", total),
            answers,
            reasoning,
            np.minimum(outputs, limits),
            limits,
            self._think_times.draw(self._rng, total),
            spec.keep_answers,
            spec.keep_reasoning,
        ), rows

    def _draw(self, field: str, count: int) -> NDArray[np.int64]:
        drawn, rng = self._lengths[field]
        return drawn.draw(rng, count)


class _Starts:
    """Prompts of first turns."""

    def __init__(self, spec: ChatWorkload, seed: int) -> None:
        count = spec.num_system_prompts
        self._streams = token_streams(stream_key(seed, "system_prompt"), 0, count)
        self._lengths = spec.lengths("system_prompt_len").draw(generator(seed, "system_prompt_len"), count)
        rng = generator(seed, "system_prompt")
        self._picks = Popularity(rng, count, spec.popularity, spec.zipf_alpha)
        self._contexts = stream_key(seed, "context")
        self._context_length, self._rng = spec.lengths("context_len"), generator(seed, "context_len")

    def draw(self, first: int, turns: Turns, rows: NDArray[np.int64]) -> tuple[Segments, NDArray[np.int64]]:
        """Of the sessions number first, ...; their first turns are `rows`. As segments and bounds."""
        count = len(rows)
        picked = self._picks.draw(count)
        contents = np.zeros((count, 3, 3), np.uint64)
        contents[:, 0, 0], contents[:, 0, 2] = self._streams[picked], self._lengths[picked]
        contents[:, 1, 0] = token_streams(self._contexts, first, count)
        contents[:, 1, 2] = self._context_length.draw(self._rng, count)
        contents[:, 2, 0], contents[:, 2, 2] = turns.questions[rows], turns.question_lens[rows]
        is_there = contents[:, :, 2] > 0
        return contents[is_there], np.concatenate([[0], np.cumsum(is_there.sum(axis=1))])
