"""KV events of engines in a router's index, also of several engines that are one target.

Ranks that a replica balances itself have a cache each, and the router in front sees one target. That holds a
block as long as any of its ranks does, of which the router inside keeps an index.
"""

import numpy as np

from kvsim.cache.state import LOG_REMOVED, LOG_STORED
from kvsim.cluster import booking
from kvsim.cluster.hash_table import key_of, row_of
from kvsim.cluster.state import router_at
from kvsim.cluster.worker_sets import only_holds
from kvsim.compiled import compiled, compiled_inline, compiled_part

_APPLIED = np.int64(0)


@compiled_inline
def _is_held(router, block_hash):
    key = key_of(block_hash)
    return router.holders[row_of(router.holders, key), 0] == key


@compiled_part
def _clear_rank(outer, target, inner, rank):
    for row in range(inner.holders.shape[0]):
        if only_holds(inner.holders, row, rank):
            booking.removed(outer, target, inner.holders[row, 0])
    booking.cleared(inner, rank)


@compiled_part
def apply_event(address, target, inner_address, rank, kind, block_hash):
    """What a KV event of a target says, or of its rank (inner_address: of the router inside, or 0).

    The address of the router without room for it, or 0. To be told again does no harm.
    """
    outer = router_at(address)
    if kind == LOG_STORED:
        if inner_address != 0 and not booking.stored(router_at(inner_address), rank, block_hash):
            return inner_address
        return _APPLIED if booking.stored(outer, target, block_hash) else address
    if kind == LOG_REMOVED:
        if inner_address != 0:
            inner = router_at(inner_address)
            booking.removed(inner, rank, block_hash)
            if _is_held(inner, block_hash):
                return _APPLIED
        booking.removed(outer, target, block_hash)
    elif inner_address != 0:
        _clear_rank(outer, target, router_at(inner_address), rank)
    else:
        booking.cleared(outer, target)
    return _APPLIED


@compiled
def apply_event_at(address, target, inner_address, rank, kind, block_hash):
    """`apply_event` from Python."""
    return apply_event(address, target, inner_address, rank, kind, block_hash)
