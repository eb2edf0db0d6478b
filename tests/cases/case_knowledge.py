"""What a router of a case knows beforehand: an index, metrics, requests under way."""

from typing import Any

from case_aibrix import know_percent
from case_forms import Case
from case_history import note_history
from case_router import block_keys, request_of

from kvsim.cluster.router import Router
from kvsim.workload.request import Request

KNOWLEDGE = {"index", "removed", "metrics", "running", "match_percent", "booked", "weights"}
PHASES = ("prefill", "decode")


def tell(router: Router, case: Case, asked: Request) -> int:
    """Bring a router into the situation of a case; the number that its next request, `asked`, gets."""
    stored = _index(router, case.get("index") or {})
    for name, places in (case.get("removed") or {}).items():
        for place in places:
            router.removed(_number(router, name), stored[name][place])
    for name, percent in (case.get("match_percent") or {}).items():
        know_percent(router, asked, _number(router, name), percent)
    _metrics(router, case.get("metrics") or {}, case.get("running") or {})
    uid = _run(router, case.get("running") or {})
    for entry in case.get("booked") or []:
        _book(router, entry, uid)
        uid += 1
    return uid


def _number(router: Router, name: Any) -> int:
    assert str(name) in router.names, f"{name} is no replica of the case"
    return router.names.index(str(name))


def _index(router: Router, index: Case) -> dict[str, list[int]]:
    """What replicas have, as KV events or the router's own history tell it; blocks of each, in order."""
    stored: dict[str, list[int]] = {}
    for name, prompts in index.items():
        target = _number(router, name)
        stored[name] = []
        for prompt in prompts:
            request = request_of(prompt)
            if not router.policy.reads_events:
                note_history(router, request, target)
                continue
            keys = block_keys(router, request)
            for key in keys:
                router.stored(target, key)
            stored[name] += keys
    return stored


def _metrics(router: Router, metrics: Case, running: Case) -> None:
    for name in dict.fromkeys([*metrics, *running]):
        entry = metrics.get(name) or {}
        unknown = entry.keys() - {"waiting", "running", "kv_cache_usage"}
        assert not unknown, f"metrics of {name}: the runner does not know {sorted(unknown)}"
        values = entry.get("waiting", 0), entry.get("running", running.get(name, 0))
        router.snapshot(_number(router, name), 0.0, *values, entry.get("kv_cache_usage", 0.0))


def _run(router: Router, running: Case) -> int:
    """Strangers under way on each replica, past their prefill."""
    uid = 1
    for name, count in running.items():
        for _ in range(count):
            router.send(uid, request_of(f"running-{uid}:1"), _number(router, name), 0.0)
            router.first_token(uid)
            uid += 1
    return uid


def _book(router: Router, entry: Case, uid: int) -> None:
    """A request under way, `{on, prompt, phase}`: its prefill is booked as its policy would."""
    phase = entry.get("phase", "prefill")
    assert phase in PHASES, f"booked: phase {phase!r} is none of {PHASES}"
    request = request_of({key: value for key, value in entry.items() if key not in ("on", "phase")})
    book(router, request, _number(router, entry["on"]), uid)
    if phase == "decode":
        router.first_token(uid)


def book(router: Router, request: Request, target: int, uid: int) -> None:
    """Send a request to a target that the policy did not choose; it books the tokens that are not cached."""
    overlap = int(router.overlaps(request)[target]) * router.block_size
    router.state.scalars["booked_prefill_tokens"] = max(request.num_prompt_tokens - overlap, 0)
    router.send(uid, request, target, 0.0)
