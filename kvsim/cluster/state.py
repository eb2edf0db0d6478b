"""Arrays that hold what a router knows: its targets, its own requests, an index of KV blocks.

A *target* is what a router chooses among: a replica, or one data-parallel rank of it. A router learns of it
in three ways only: by a snapshot of the engine's metrics with its time, by its own counters (what it sent and
what has come back), and by the stream of KV events. Compiled policies read these arrays through
`router_at(address)`, policies in Python through `kvsim.cluster.router.Router`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsim.addresses import array_at, words_at
from kvsim.compiled import compiled_inline, compiled_once
from kvsim.tokens import mix64

# What a choice may be besides a target's number
NO_ROOM = np.int64(-2)  # an array must grow first; nothing was changed

ROUTER_DTYPE = np.dtype(
    [
        ("num_targets", "i8"),
        ("block_size", "i8"),  # tokens of a block of the index
        ("draws", "u8"),  # random numbers drawn so far
        ("stream", "u8"),  # key of the random numbers
        # what the policy wants to be kept
        ("tracks_blocks", "i8"),  # `active_blocks` of the targets
        ("reads_events", "i8"),
        # the request being routed, noted by its policy when it chooses
        ("booked_prefill_tokens", "i8"),
        ("booked_client", "i8"),  # row of `by_client`
        ("num_lost_messages", "i8"),
        ("num_messages", "i8"),
    ]
)

TARGET_DTYPE = np.dtype(
    [
        # the latest snapshot of its metrics
        ("snapshot_time", "f8"),  # s
        ("num_waiting", "i8"),
        ("num_running", "i8"),
        ("kv_cache_usage", "f8"),  # 0..1
        # own counters
        ("in_flight", "i8"),  # requests sent that have not ended
        ("in_flight_tokens", "i8"),  # their prompt tokens
        ("prefill_tokens", "i8"),  # booked by the policy for those without a first token
        ("active_blocks", "i8"),  # distinct prompt blocks of requests in flight
        ("num_routed", "i8"),
        ("last_routed_time", "f8"),  # s; -inf before the first
        # facts
        ("num_gpu_blocks", "i8"),
        ("block_size", "i8"),
        ("max_num_seqs", "i8"),
        ("max_num_batched_tokens", "i8"),
        # scratch of a choice
        ("overlap", "i8"),  # leading blocks of the request that it is believed to hold
        ("score", "f8"),
    ]
)

# A request on its way to a choice, a row of the window at hand
ROUTED_DTYPE = np.dtype(
    [
        ("num_prompt_tokens", "i8"),
        ("max_tokens", "i8"),
        ("first_hash", "i8"),  # its block i has hashes[first_hash + i * hash_step]
        ("hash_step", "i8"),
        ("num_blocks", "i8"),  # full blocks of the prompt
        ("content_key", "u8"),  # of LoRA adapter and cache salt; 0: neither
        ("session", "u8"),  # 0: none
        ("first_segment", "i8"),  # its prompt is segments[first_segment:end_segment]
        ("end_segment", "i8"),
    ]
)

# A request in flight: bookings[uid % len(bookings)]
BOOKING_DTYPE = np.dtype(
    [
        ("uid", "i8"),  # 0: free
        ("target", "i8"),
        ("num_prompt_tokens", "i8"),
        ("prefill_tokens", "i8"),
        ("client", "i8"),
        ("first_held", "i8"),  # row of `held` where its hashes begin, or NONE
        ("num_held", "i8"),  # hashes
    ]
)


# What is in use of an array that can become full: a row of `RouterState.fill` for each of the five below
FILL_DTYPE = np.dtype(
    [
        ("used", "i8"),  # rows
        ("first_free", "i8"),  # row of `held`, or NONE
        ("lacks", "i8"),  # 1: somebody found no room, so it must grow
    ]
)
IN_BOOKINGS, IN_HOLDERS, IN_ACTIVE, IN_SHARED, IN_HELD = (np.int64(k) for k in range(5))


class RouterState(NamedTuple):
    """One router.

    scalars (1,); targets (n,); bookings (a power of two,); routed: the window's requests; hashes: their block
    keys, (t, 2), of which the first word is used; segments: their prompts, (s, 3).
    holders, active, shared: tables (`kvsim.cluster.hash_table`) by block hash of which targets hold the block
    (`worker_sets`) and which have it in use, and by hash and target of how many requests more than one use
    it (`active_blocks`). held: hashes of requests in flight, in linked rows. by_client: requests in flight of
    each front end that the router stands for and each target, (clients, n).
    """

    scalars: NDArray[np.void]
    targets: NDArray[np.void]
    bookings: NDArray[np.void]
    routed: NDArray[np.void]
    hashes: NDArray[np.uint64]
    segments: NDArray[np.uint64]
    fill: NDArray[np.void]
    holders: NDArray[np.uint64]
    active: NDArray[np.uint64]
    shared: NDArray[np.uint64]
    held: NDArray[np.uint64]
    by_client: NDArray[np.int64]


NUM_ARRAYS = len(RouterState._fields)  # a policy's own arrays follow


@compiled_once
def router_at(address):
    """The router whose words (`kvsim.addresses.words_of`) begin at `address`."""
    words = words_at(address)
    return RouterState(
        array_at(words, 0, ROUTER_DTYPE, 1),
        array_at(words, 1, TARGET_DTYPE, 1),
        array_at(words, 2, BOOKING_DTYPE, 1),
        array_at(words, 3, ROUTED_DTYPE, 1),
        array_at(words, 4, np.uint64, 2),
        array_at(words, 5, np.uint64, 2),
        array_at(words, 6, FILL_DTYPE, 1),
        array_at(words, 7, np.uint64, 2),
        array_at(words, 8, np.uint64, 2),
        array_at(words, 9, np.uint64, 2),
        array_at(words, 10, np.uint64, 2),
        array_at(words, 11, np.int64, 2),
    )


@compiled_inline
def drawn_word(scalars):
    """64 random bits of a router (scalars: ROUTER_DTYPE (1,))."""
    scalars["draws"][0] += np.uint64(1)
    return mix64(scalars["stream"][0] + mix64(scalars["draws"][0]))


@compiled_inline
def drawn_below(scalars, n):
    """A random whole number from 0 to n - 1; the bias is below n / 2**64."""
    return np.int64(drawn_word(scalars) % np.uint64(n))
