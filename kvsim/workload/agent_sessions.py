"""Agent sessions of kv-cache-tester (callanjfox/kv-cache-tester; AIPerf's `weka_trace`), a JSON object each.

    {"id", "block_size", "hash_id_scope", "requests": [{"t", "type", "in", "out", "hash_ids", ...}, ...]}

`hash_ids` has one id for each full block of the prompt (`in` // `block_size`; one more, for the block begun,
is taken too); tokens behind them are a request's own. Ids are the session's own unless `hash_id_scope` is
global. `think_time` is the client's pause before a request, in seconds. Where it is missing, the pause is `t`
less the `t` and the `api_time` of the request before, as far as these are known.

A request of type `subagent` holds the requests of an agent that the session started and waits for. They are
replayed in their place, one after another: where several sub-agents ran at once they follow each other here,
and the pause behind them counts from their recorded end. Their `t` may count from the sub-agent's own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvsim.tokens import Segments, stream_key
from kvsim.workload.checks import FieldError, one_of, required, shown, whole
from kvsim.workload.durations import MAX_SECONDS, seconds
from kvsim.workload.recorded import RecordedSession, RecordedTurn
from kvsim.workload.streams import token_streams, token_streams_at

_TYPES = ("n", "s", "subagent")
_SCOPES = ("local", "global")
_MAX_ID = 2**63 - 1


def is_agent_session(row: Any) -> bool:
    return isinstance(row, Mapping) and "requests" in row and "hash_ids" not in row


def check_agent_session(row: Any, trace_block_size: int | None = None) -> RecordedSession:
    """Read one session; raises FieldError naming the field, such as requests[3].in."""
    if not is_agent_session(row):
        raise FieldError("requests", "missing; each line of this trace is a session with requests")
    name = required("id", row)
    if type(name) not in (int, str) or name == "":
        raise FieldError("id", f"{shown(name)} is not the name of a session")
    block_size = trace_block_size or whole("block_size", required("block_size", row), 1)
    scope = one_of("hash_id_scope", row.get("hash_id_scope", "local"), _SCOPES)
    calls = list(_calls(_listed("requests", row["requests"])))
    if not calls:
        raise FieldError("requests", "empty; a session has at least one request")
    key = stream_key("agent", *([] if scope == "global" else [str(name)]))
    prompts = _Prompts(key, stream_key("agent tail", str(name)), block_size)
    turns = tuple(prompts.turn(call) for call in calls)
    return RecordedSession(str(name), calls[0].time, turns)


@dataclass(frozen=True, slots=True)
class _Call:
    """One request: its place in the file, time and pause in seconds, its other fields unread."""

    place: str
    time: float
    pause: float
    fields: Mapping[str, Any]


@dataclass(slots=True)
class _Clock:
    """Recorded end of the request before, and whether a sub-agent has run since the parent's last one."""

    end: float = 0.0
    elsewhere: bool = True  # the first request's pause says nothing

    def call(self, place: str, fields: Mapping[str, Any], offset: float) -> _Call:
        time = offset + _time(f"{place}.t", required("t", fields, place))
        told = _optional_time(f"{place}.think_time", fields.get("think_time"))
        pause = max(time - self.end, 0.0) if self.elsewhere or told is None else told
        self.end = max(self.end, time + (_optional_time(f"{place}.api_time", fields.get("api_time")) or 0.0))
        self.elsewhere = False
        return _Call(place, time, pause, fields)


def _calls(entries: list[Any]) -> Iterator[_Call]:
    """All requests in order, those of sub-agents in their place."""
    clock = _Clock()
    for number, entry in enumerate(entries):
        place = f"requests[{number}]"
        if not isinstance(entry, Mapping):
            raise FieldError(place, f"{shown(entry)} is not an object with t, type, in, ...")
        if one_of(f"{place}.type", required("type", entry, place), _TYPES) != "subagent":
            yield clock.call(place, entry, 0.0)
            continue
        yield from _sub_agent(place, entry, clock)


def _sub_agent(place: str, entry: Mapping[str, Any], clock: _Clock) -> Iterator[_Call]:
    begin, offset = _time(f"{place}.t", required("t", entry, place)), None
    clock.elsewhere = True
    for number, inner in enumerate(_listed(f"{place}.requests", required("requests", entry, place))):
        where = f"{place}.requests[{number}]"
        if not isinstance(inner, Mapping):
            raise FieldError(where, f"{shown(inner)} is not an object with t, type, in, ...")
        one_of(f"{where}.type", required("type", inner, where), _TYPES[:2])
        if offset is None:  # times that count from the sub-agent's own begin below it
            offset = begin if _time(f"{where}.t", required("t", inner, where)) < begin else 0.0
        yield clock.call(where, inner, offset)
    clock.elsewhere = True


@dataclass(slots=True)
class _Prompts:
    """Turns the ids of one request after another into what is new in each prompt."""

    ids_key: int
    tails_key: int
    block_size: int
    _before: list[int] = field(default_factory=list)
    _num_turns: int = 0

    def turn(self, call: _Call) -> RecordedTurn:
        place, fields = call.place, call.fields
        num_input = whole(f"{place}.in", required("in", fields, place), 1)
        num_output = whole(f"{place}.out", required("out", fields, place), 0)
        ids = self._ids(f"{place}.hash_ids", fields.get("hash_ids") or [], num_input)
        shared = _num_common(self._before, ids)
        new = self._segments(ids[shared:], num_input - shared * self.block_size)
        self._before = ids if len(ids) * self.block_size <= num_input else ids[:-1]  # full blocks only
        self._num_turns += 1
        return RecordedTurn(call.pause, shared, new, num_output)

    def _ids(self, place: str, ids: Any, num_tokens: int) -> list[int]:
        full = num_tokens // self.block_size
        begun = -(-num_tokens // self.block_size)
        if not isinstance(ids, list):
            raise FieldError(place, f"{shown(ids)} is not a list of whole numbers")
        if ids and not full <= len(ids) <= begun:
            blocks = f"{num_tokens} tokens have {full} full blocks of {self.block_size}"
            raise FieldError(place, f"{blocks}, the request has {len(ids)} ids")
        if set(map(type, ids)) <= {int} and (not ids or 0 <= min(ids) <= max(ids) <= _MAX_ID):
            return ids
        wrong = next(entry for entry in ids if type(entry) is not int or not 0 <= entry <= _MAX_ID)
        raise FieldError(place, f"{shown(wrong)} is not a whole number from 0")

    def _segments(self, ids: list[int], num_tokens: int) -> Segments:
        """The tokens of these ids, cut to `num_tokens`, or filled up with tokens of the request's own."""
        missing = num_tokens - len(ids) * self.block_size
        content = np.zeros((len(ids) + (missing > 0), 3), np.uint64)
        content[: len(ids), 0] = token_streams_at(self.ids_key, ids)
        content[: len(ids), 2] = self.block_size
        if missing > 0:
            content[-1] = token_streams(self.tails_key, self._num_turns, 1)[0], 0, missing
        elif missing < 0:
            content[-1, 2] = self.block_size + missing
        return content


def _num_common(before: list[int], ids: list[int]) -> int:
    pairs = zip(before, ids, strict=False)
    return next((number for number, (old, new) in enumerate(pairs) if old != new), min(len(before), len(ids)))


def _listed(place: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise FieldError(place, f"{shown(value)} is not a list of requests")
    return value


def _time(place: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_SECONDS:
        raise FieldError(place, f"{shown(value)} is not a number of seconds")
    return float(value)


def _optional_time(place: str, value: Any) -> float | None:
    return None if value is None else seconds(place, value)
