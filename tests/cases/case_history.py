"""Notes down what a router is said to have sent before, in the index of its own history."""

from collections.abc import Callable
from typing import Any

from kvsim.cluster.policies.production_stack import PrefixAwareChooser
from kvsim.cluster.policies.sglang import CacheAwareChooser
from kvsim.cluster.policies.text_tree import runs_of
from kvsim.cluster.router import Router
from kvsim.workload.request import Request


def _in_trie(chooser: PrefixAwareChooser, router: Router, request: Request, target: int) -> None:
    chooser.trie(router.num_targets).insert(request.prompt, target)


def _in_tree(chooser: CacheAwareChooser, router: Router, request: Request, target: int) -> None:
    chooser.tree(router.num_targets).insert(runs_of(request.prompt), target)


HISTORIES: dict[type, Callable[[Any, Router, Request, int], None]] = {
    PrefixAwareChooser: _in_trie,
    CacheAwareChooser: _in_tree,
}


def note_history(router: Router, request: Request, target: int) -> None:
    """As if the request had been sent to the target long ago."""
    note = HISTORIES.get(type(router.chooser))
    assert note, f"policy {router.policy.names[0]} keeps no index of what it sent"
    note(router.chooser, router, request, target)
