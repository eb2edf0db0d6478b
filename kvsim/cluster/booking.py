"""What a router notes down: requests sent, first tokens, ends, KV events. For compiled code.

`kvsim.cluster.router.Router` has the same, one call each, for people.
"""

import numpy as np

from kvsim.cache.state import NONE
from kvsim.cluster import worker_sets
from kvsim.cluster.active_blocks import has_room_for_blocks, leave_blocks, use_blocks
from kvsim.cluster.state import IN_BOOKINGS, IN_HOLDERS
from kvsim.compiled import compiled_inline, compiled_part


@compiled_inline
def _row(router, uid):
    return np.int64(uid) & np.int64(router.bookings.shape[0] - 1)


@compiled_part
def room_to_send(router, uid, i):
    """Whether request number i of the window can be booked under `uid` (> 0, ascending)."""
    enough = True
    if router.bookings["uid"][_row(router, uid)] != 0:
        router.fill["lacks"][IN_BOOKINGS] = 1
        enough = False
    if router.scalars["tracks_blocks"][0] != 0:
        enough = has_room_for_blocks(router, router.routed["num_blocks"][i]) and enough
    return enough


@compiled_part
def send(router, uid, i, target, now):
    """Request i of the window goes to a target; there is room (`room_to_send`)."""
    tokens = router.routed["num_prompt_tokens"][i]
    prefill_tokens = router.scalars["booked_prefill_tokens"][0]
    row = _row(router, uid)
    bookings, targets = router.bookings, router.targets
    bookings["uid"][row] = uid
    bookings["target"][row] = target
    bookings["num_prompt_tokens"][row] = tokens
    bookings["prefill_tokens"][row] = prefill_tokens
    bookings["client"][row] = router.scalars["booked_client"][0]
    router.by_client[router.scalars["booked_client"][0], target] += 1
    bookings["first_held"][row] = NONE
    bookings["num_held"][row] = 0
    targets["in_flight"][target] += 1
    targets["in_flight_tokens"][target] += tokens
    targets["prefill_tokens"][target] += prefill_tokens
    targets["num_routed"][target] += 1
    targets["last_routed_time"][target] = now
    router.fill["used"][IN_BOOKINGS] += 1
    if router.scalars["tracks_blocks"][0] != 0:
        routed = router.routed
        first, step, n = routed["first_hash"][i], routed["hash_step"][i], routed["num_blocks"][i]
        bookings["first_held"][row] = use_blocks(router, router.hashes, first, step, n, target)
        bookings["num_held"][row] = n


@compiled_part
def first_token(router, uid):
    """A request's first token has come back: its prefill is over. Unknown requests are left alone."""
    row = _row(router, uid)
    bookings = router.bookings
    if bookings["uid"][row] == uid:
        router.targets["prefill_tokens"][bookings["target"][row]] -= bookings["prefill_tokens"][row]
        bookings["prefill_tokens"][row] = 0


@compiled_part
def end(router, uid):
    """A request has ended in whatever way. Unknown requests are left alone."""
    row = _row(router, uid)
    bookings, targets = router.bookings, router.targets
    if bookings["uid"][row] != uid:
        return
    target = bookings["target"][row]
    targets["in_flight"][target] -= 1
    router.by_client[bookings["client"][row], target] -= 1
    targets["in_flight_tokens"][target] -= bookings["num_prompt_tokens"][row]
    targets["prefill_tokens"][target] -= bookings["prefill_tokens"][row]
    if bookings["num_held"][row] > 0:
        leave_blocks(router, bookings["first_held"][row], bookings["num_held"][row], target)
    bookings["uid"][row] = 0
    router.fill["used"][IN_BOOKINGS] -= 1


@compiled_part
def stored(router, target, block_hash):
    """KV event: a target holds a block (first word of its hash); False, and nothing changed, without room."""
    return worker_sets.add(router.holders, router.fill, IN_HOLDERS, block_hash, target)


@compiled_part
def removed(router, target, block_hash):
    """KV event: a target holds a block no longer."""
    worker_sets.discard(router.holders, router.fill, IN_HOLDERS, block_hash, target)


@compiled_part
def cleared(router, target):
    """KV event: a target holds nothing any more."""
    worker_sets.clear(router.holders, router.fill, IN_HOLDERS, target)


@compiled_inline
def overlaps(router, i):
    """Fill `targets.overlap`: leading blocks of request i that each target holds by the KV events."""
    routed = router.routed
    first, step = routed["first_hash"][i], routed["hash_step"][i]
    out = router.targets["overlap"]
    worker_sets.leading_blocks(router.holders, router.hashes, first, step, routed["num_blocks"][i], out)
