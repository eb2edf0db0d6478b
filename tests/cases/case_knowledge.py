"""What a router of a case knows beforehand: an index, metrics, requests under way."""

from typing import Any

from case_aibrix import know_percent
from case_forms import Case
from case_history import HISTORIES, note_history, note_rate
from case_router import block_keys, request_of

from kvsim.cluster.policies.dynamo import DynamoKv
from kvsim.cluster.policies.llm_d import LlmD
from kvsim.cluster.router import Router
from kvsim.workload.request import Request

KNOWLEDGE = {"index", "removed", "cleared", "metrics", "running", "match_percent", "booked", "weights"}
PHASES = ("prefill", "decode")


def tell(router: Router, case: Case, asked: Request) -> int:
    """Bring a router into the situation of a case; the number that its next request, `asked`, gets."""
    stored = _index(router, case.get("index") or {})
    for name, places in (case.get("removed") or {}).items():
        for place in places:
            assert place < len(stored.get(name, [])), f"removed: {name} has no block {place} by KV events"
            router.removed(_number(router, name), stored[name][place])
    for name in case.get("cleared") or []:
        router.cleared(_number(router, name))
    for name, percent in (case.get("match_percent") or {}).items():
        know_percent(router, asked, _number(router, name), percent)
    running = _running(router, case)
    _metrics(router, case.get("metrics") or {}, running)
    uid = _run(router, running)
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


def _running(router: Router, case: Case) -> Case:
    """Requests under way by replica; a router that scrapes no metrics can only have counted them itself."""
    if case.get("running") or router.policy.scrapes_every is not None:
        return case.get("running") or {}
    metrics = case.get("metrics") or {}
    return {name: entry["running"] for name, entry in metrics.items() if "running" in entry}


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
            note_rate(router, _number(router, name))
            uid += 1
    return uid


def _book(router: Router, entry: Case, uid: int) -> None:
    """A request under way, `{on, prompt, phase}`: its prefill is booked as its policy would."""
    phase = entry.get("phase", "prefill")
    assert phase in PHASES, f"booked: phase {phase!r} is none of {PHASES}"
    request = request_of({key: value for key, value in entry.items() if key not in ("on", "phase")})
    target = _number(router, entry["on"])
    book(router, request, target, uid)
    if type(router.policy) in HISTORIES and not router.policy.reads_events:
        note_history(router, request, target)
    note_rate(router, target)
    if phase == "decode":
        router.first_token(uid)


def book(router: Router, request: Request, target: int, uid: int) -> None:
    """Send a request to a target that the policy did not choose; prefill is booked as the policy would."""
    overlap = int(router.overlaps(request)[target])
    router.state.scalars["booked_prefill_tokens"] = _uncached(router, request.num_prompt_tokens, overlap)
    router.send(uid, request, target, 0.0)


def _uncached(router: Router, num_tokens: int, overlap: int) -> int:
    """Tokens of the prompt in the window that a target which has `overlap` blocks of it must compute."""
    if isinstance(router.policy, LlmD):  # whole blocks of its own size, and what lies behind the last
        hashing = router.policy.own_hashing(router.block_size)
        size = hashing.block_size if hashing else router.block_size
        indexed = int(router.state.routed["num_blocks"][0]) * size
        return indexed - overlap * size + max(num_tokens - indexed, 0)
    if isinstance(router.policy, DynamoKv) and not router.policy.router_track_prefill_tokens:
        return 0
    return max(num_tokens - overlap * router.block_size, 0)
