"""Notes down what a router is said to have sent before, in the index of its own history."""

from collections.abc import Callable
from typing import Any

from case_router import block_keys

from kvsim.cluster.policies.aibrix import AibrixPrefixCache
from kvsim.cluster.policies.dynamo import DynamoKv
from kvsim.cluster.policies.llm_d import LlmD
from kvsim.cluster.policies.production_stack import KvAwareChooser, PrefixAware
from kvsim.cluster.policies.request_stats import RequestStats
from kvsim.cluster.policies.rings import SessionChooser
from kvsim.cluster.policies.sglang import CacheAware
from kvsim.cluster.policies.text_tree import runs_of
from kvsim.cluster.router import Router
from kvsim.workload.request import Request


def _in_tree(router: Router, request: Request, target: int) -> None:
    chooser: Any = router.chooser
    chooser.tree(router.num_targets).insert(runs_of(request.prompt), target)


def _in_table(router: Router, request: Request, target: int) -> None:
    for key in block_keys(router, request):
        router.stored(target, key)


HISTORIES: dict[type, Callable[[Router, Request, int], None]] = {
    AibrixPrefixCache: _in_table,
    CacheAware: _in_tree,
    DynamoKv: _in_table,
    LlmD: _in_table,
    PrefixAware: _in_table,
}


def note_history(router: Router, request: Request, target: int) -> None:
    """As if the request had been sent to the target long ago."""
    note = HISTORIES.get(type(router.policy))
    assert note, f"policy {router.policy.names[0]} keeps no index of what it sent"
    note(router, request, target)


def note_rate(router: Router, target: int) -> None:
    """One more request in the rates of production-stack's policies, at the start of the case."""
    chooser: Any = router.chooser
    if isinstance(chooser, SessionChooser | KvAwareChooser):
        chooser._request_stats.note(target, 0.0)
    elif isinstance(router.policy, PrefixAware):
        stats = RequestStats(router.num_targets, router.policy.request_stats_window)
        stats._arrays = chooser.arrays[1:]
        stats.note(target, 0.0)
        chooser.arrays[1:] = stats._arrays
        router.grow()
