"""Runs the cases of routers: kinds routing, routing_index and dp.

Everything goes through `kvsim.cluster.router.Router` and the policies of the catalog. Where a policy draws, a
case is run with many seeds: `chosen_any` must be all that comes up, `chosen` the only one.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from case_aibrix import explained, hundred_blocks
from case_forms import Case
from case_history import note_history
from case_knowledge import KNOWLEDGE, book, tell
from case_router import REQUEST_KEYS, request_of, router_of

from kvsim.cluster.policies import policy_class
from kvsim.cluster.policies.aibrix import AibrixPrefixCache
from kvsim.cluster.policies.llm_d import LlmD
from kvsim.cluster.policies.longest_prefix import LongestPrefix
from kvsim.cluster.policies.production_stack import PrefixAware
from kvsim.cluster.policies.rings import RingChooser
from kvsim.cluster.policies.vllm_dp import VllmDp
from kvsim.cluster.policy import CompiledChooser
from kvsim.cluster.router import Router, TargetFacts
from kvsim.workload.request import Request

SEEDS = 64  # at least; more for many replicas, so that each that can be drawn is
STEP = 1e-3  # s between requests

META = {"id", "title", "area", "kind", "how", "source", "why", "name", "vllm_version", "tolerance", "expect"}
ROUTING_KEYS = META | KNOWLEDGE | {"policy", "replicas", "request", "requests", "hold"}
POTENTIAL = {"potential_decode_blocks": "active_blocks", "potential_prefill_tokens": "prefill_tokens"}
Part = tuple[str, Case, Case]  # where, what is expected, what was seen


def named(policy: Any) -> Case:
    """A policy by its name alone, or a mapping with its name and parameters."""
    return policy if isinstance(policy, dict) else {"name": policy}


def check_keys(case: Case, allowed: set[str]) -> None:
    unknown = case.keys() - allowed
    assert not unknown, f"the runner does not know {sorted(unknown)}"


# ---------------------------------------------------------------- routing


def routing_parts(case: Case) -> Iterator[Part]:
    """One request, or several in turn, each with what is expected of it."""
    check_keys(case, ROUTING_KEYS)
    case = {**case, "policy": named(case["policy"])}
    asked = _asked(case)
    runs = [_run(case, asked, 0)]
    if runs[0][-1]["draws"]:
        seeds = max(SEEDS, 4 * len(case["replicas"]) ** 2)
        runs += [_run(case, asked, seed) for seed in range(1, seeds)]
    for (where, entry), *seen in zip(asked, *runs, strict=True):
        yield where, _expected(entry["expect"]), _seen_together(seen)


def _asked(case: Case) -> list[tuple[str, Case]]:
    """(where, request with what is expected) for each request of a case."""
    single, several = case.get("request", {}), case.get("requests")
    assert several is None or not single, "a case has either a request or requests"
    if several is None:
        entry = single if isinstance(single, dict) else {"prompt": single}
        return [("", {**entry, "expect": case.get("expect", {})})]
    assert "expect" not in case, "with requests, each has its own expect"
    return [(f"request {entry.get('id', k)}: ", {"expect": {}, **entry}) for k, entry in enumerate(several)]


def _run(case: Case, asked: list[tuple[str, Case]], seed: int) -> list[Case]:
    """What is seen of each request."""
    router = router_of(case, seed)
    requests = [_request(router, entry, str(number)) for number, (_, entry) in enumerate(asked)]
    uid = tell(router, case, requests[0])
    out = []
    for number, ((_, entry), request) in enumerate(zip(asked, requests, strict=True)):
        hold = entry.get("hold", case.get("hold", False))
        now = STEP * (number + 1)
        out.append(_choice(router, request, now, uid + number, entry["expect"]))
        router.send(uid + number, request, out[-1]["target"], now)
        if not hold:
            router.first_token(uid + number)
            router.end(uid + number)
        out[-1]["draws"] = int(router.state.scalars["draws"][0])
    return out


def _request(router: Router, entry: Case, name: str) -> Request:
    if not REQUEST_KEYS & entry.keys():
        assert isinstance(router.policy, AibrixPrefixCache), "a case has either a request or requests"
        return hundred_blocks(router.policy)
    return request_of(_without(entry, "expect", "hold"), name)


def _choice(router: Router, request: Request, now: float, uid: int, expect: Case) -> Case:
    """The choice, and what explains it."""
    seen = _potential(router, request, uid) if POTENTIAL.keys() & expect.keys() else {}
    if "overlap_blocks" in expect:
        seen["overlap_blocks"] = _by_name(router, router.overlaps(request))
    target = router.choose(request, now)
    if "overlap_blocks" in expect and isinstance(router.policy, LlmD):
        seen["overlap_blocks"] = _by_name(router, router.chooser.arrays[1])  # found ones, also behind a gap
    scores = _by_name(router, np.array(router.state.targets["score"]))
    seen |= {"cost": scores, "score": scores, **explained(router), **_heads(router)}
    if router.policy.own_hashing(router.facts[0].block_size):
        seen["index_blocks"] = int(router.state.routed["num_blocks"][0])
    return {**seen, "target": target, "chosen": router.names[target]}


def _heads(router: Router) -> Case:
    """Of prefixaware: characters that matched, and whom they allow, as the choice left them in `overlap`."""
    if not isinstance(router.policy, PrefixAware):
        return {}
    chunks = _by_name(router, router.state.targets["overlap"])
    most = max(chunks.values())
    candidates = sorted(name for name, matched in chunks.items() if matched == most)
    return {"matched": most * router.policy.chunk_size, "candidates": candidates}


def _potential(router: Router, request: Request, uid: int) -> Case:
    """What each target's books would say if the request were sent there."""
    out = {name: np.zeros(router.num_targets, np.int64) for name in POTENTIAL}
    for target in range(router.num_targets):
        book(router, request, target, uid)
        for name, column in POTENTIAL.items():
            out[name][target] = router.state.targets[column][target]
        router.end(uid)
    return {name: _by_name(router, values) for name, values in out.items()}


def _by_name(router: Router, values: Any) -> Case:
    return dict(zip(router.names, values.tolist(), strict=True))


def _expected(expect: Case) -> Case:
    """`chosen_any` and `candidates` are sets."""
    sets = {key: sorted(map(str, expect[key])) for key in ("chosen_any", "candidates") if key in expect}
    return {key: str(value) if key == "chosen" else value for key, value in expect.items()} | sets


def _seen_together(runs: list[Case]) -> Case:
    """What was seen with all seeds: choices as a set, the rest with the first of them."""
    names = sorted({seen["chosen"] for seen in runs})
    together = {key: value for key, value in runs[0].items() if key not in ("target", "draws")}
    return {**together, "chosen": " or ".join(names), "chosen_any": names}


# ---------------------------------------------------------------- routing_index


def routing_index_parts(case: Case) -> Iterator[Part]:
    """Indexes alone: production-stack's trie and ring of sessions, what a policy knows of blocks."""
    check_keys(case, META | KNOWLEDGE | {"trie", "lookups", "ring", "policy", "replicas"})
    assert "trie" in case or "index" in case or "lookups" not in case, "lookups need a trie or an index"
    if "trie" in case:
        assert "lookups" in case, "a trie needs lookups"
        yield from _lookups(case["trie"], case["lookups"])
    elif "index" in case:
        yield from _index_lookups(case)
    if "ring" in case:
        yield from _ring(case["ring"])


def _index_lookups(case: Case) -> Iterator[Part]:
    """What a policy, by default one that reads KV events, knows that each replica has of a prompt."""
    replicas = case.get("replicas") or list(case["index"])
    case = {**case, "policy": named(case.get("policy", LongestPrefix.names[0])), "replicas": replicas}
    for number, entry in enumerate(case["lookups"], 1):
        router = router_of({**case, "requests": [entry]}, 0)
        request = request_of(_without(entry, "available", "expect"))
        tell(router, case, request)
        blocks = _by_name(router, router.overlaps(request))
        known = {name: blocks[name] for name in map(str, entry.get("available", router.names))}
        most = max(known.values())
        candidates = sorted(name for name, matched in known.items() if matched == most)
        matched = {"matched": most * router.block_size, "candidates": candidates}
        yield f"lookup {number}: ", _expected(entry["expect"]), {"overlap_blocks": blocks, **matched}


def _lookups(trie: Case, lookups: list[Case]) -> Iterator[Part]:
    check_keys(trie, {"chunk_size", "inserted"})
    inserted = [(str(entry["on"]), request_of(_without(entry, "on"))) for entry in trie.get("inserted", [])]
    names = sorted({name for name, _ in inserted} | {str(n) for one in lookups for n in one["available"]})
    policy = PrefixAware(chunk_size=trie.get("chunk_size", 128), chars_per_token=1)
    router = Router(policy, _facts(names))
    for name, request in inserted:
        note_history(router, request, names.index(name))
    for number, entry in enumerate(lookups):
        request = request_of(_without(entry, "available", "expect"))
        matched = {name: router.overlaps(request)[names.index(name)] for name in map(str, entry["available"])}
        most = max(matched.values())
        candidates = sorted(name for name, chunks in matched.items() if chunks == most)
        seen = {"matched": int(most) * policy.chunk_size, "candidates": candidates}
        yield f"lookup {number + 1}: ", _expected(entry["expect"]), seen


def _without(entry: Case, *keys: str) -> Case:
    return {key: value for key, value in entry.items() if key not in keys}


def _facts(names: list[str]) -> list[TargetFacts]:
    return [TargetFacts(name, num_gpu_blocks=1) for name in names]


def _ring(ring: Case) -> Iterator[Part]:
    """Sessions on a ring of nodes, and without one of them: `after_removing_NODE` names those that move.

    policy: whose ring it is, production-stack's unless it is named.
    """
    removals = [key for key in ring if key.startswith("after_removing_")]
    check_keys(ring, {"policy", "nodes", "keys", *removals})
    policy = str(ring.get("policy", "session"))
    nodes, keys = list(map(str, ring["nodes"])), {str(k): str(v) for k, v in ring["keys"].items()}
    yield "ring: ", keys, _on_ring(policy, nodes, keys)
    for removal in removals:
        removed = _node(nodes, removal.removeprefix("after_removing_"))
        expect = keys | {str(k): str(v) for k, v in ring[removal].items()}
        yield f"ring {removal}: ", expect, _on_ring(policy, [n for n in nodes if n != removed], expect)


def _on_ring(policy: str, nodes: list[str], keys: Case) -> Case:
    """Where each session goes; by the node's name in the case, which may be short for it."""
    router = Router(policy_class(policy)(), _facts(nodes))
    assert isinstance(router.chooser, RingChooser), f"policy {policy} has no ring of sessions"
    seen = {}
    for key, name in keys.items():
        node = nodes[router.choose(request_of({"prompt": "P:1", "session": key}), 0.0)]
        seen[key] = name if _node(nodes, name) == node else node
    return seen


def _node(nodes: list[str], name: str) -> str | None:
    """A node by its name, or by the host in its address."""
    return next((node for node in nodes if name in (node, node.partition("//")[2].partition(":")[0])), None)


# ---------------------------------------------------------------- dp


def dp_parts(case: Case) -> Iterator[Part]:
    """Requests that reach one API server with several ranks, one after the other; none ends."""
    check_keys(case, META | {"client_count", "client_index", "snapshot", "requests"})
    ranks = [str(rank) for rank in range(len(case["snapshot"]))]
    policy = VllmDp(client_count=case.get("client_count", 1), client_index=case.get("client_index", 0))
    router = Router(policy, _facts(ranks))
    for rank, (waiting, running, usage) in enumerate(case["snapshot"]):
        router.snapshot(rank, 0.0, waiting, running, usage)
    chosen = []
    for uid in range(1, case["requests"] + 1):
        request = request_of(f"P-{uid}:1")
        chosen.append(router.choose(request, STEP * uid))
        router.send(uid, request, chosen[-1], STEP * uid)
    assert isinstance(router.chooser, CompiledChooser)
    *_, waiting = router.chooser.arrays  # by API server and rank, as each believes
    yield "", case.get("expect", {}), {"chosen": chosen, "waiting_after": waiting[0].tolist()}
