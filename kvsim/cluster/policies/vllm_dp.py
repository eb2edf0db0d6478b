"""vLLM's own balancing over data-parallel ranks, inside its API server.

Followed: vLLM 0.33.0 `v1/engine/core_client.py` (`DPLBAsyncMPClient.get_core_engine_for_request`) and
`v1/engine/coordinator.py` (counts every 100 ms).
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Le

from kvsim.addresses import array_at, words_at
from kvsim.cluster.policy import CompiledChooser, Policy
from kvsim.cluster.state import NUM_ARRAYS, drawn_below, router_at
from kvsim.compiled import compiled_entry
from kvsim.errors import KvsimError

MOST_CLIENTS = 1024  # as api_server_count

SCALE = np.dtype([("client_count", "i8"), ("snapshot_time", "f8")])
COORDINATOR_INTERVAL = 0.1  # s
_WAITING_WEIGHT, _FREE_USAGE = 6.0, 0.5


@compiled_entry
def _choose(address, i, now):
    router, words = router_at(address), words_at(address)
    scale = array_at(words, NUM_ARRAYS, SCALE, 1)
    starts = array_at(words, NUM_ARRAYS + 1, np.int64, 1)  # by client, where its next scan begins
    waiting = array_at(words, NUM_ARRAYS + 2, np.int64, 2)  # by client and target, as it believes
    targets, scalars = router.targets, router.scalars
    n, clients, client_count = targets.shape[0], waiting.shape[0], scale["client_count"][0]
    if targets["snapshot_time"][0] != scale["snapshot_time"][0]:
        scale["snapshot_time"][0] = targets["snapshot_time"][0]
        for client in range(clients):
            for t in range(n):
                waiting[client, t] = targets["num_waiting"][t]
    client = drawn_below(scalars, clients) if clients > 1 else np.int64(0)
    chosen, least = np.int64(0), np.inf
    for k in range(n):
        t = np.int64((starts[client] + k) % n)
        counted = waiting[client, t] + targets["num_running"][t]
        score = np.float64(max(client_count * router.by_client[client, t], counted))
        if waiting[client, t] > 0:
            usage = targets["kv_cache_usage"][t]
            score += waiting[client, t] * _WAITING_WEIGHT * max(0.0, usage - _FREE_USAGE)
        if score < least:
            chosen, least = t, score
    waiting[client, chosen] += client_count
    starts[client] = (starts[client] + 1) % n
    scalars["booked_client"][0] = client
    return chosen


@dataclass(frozen=True, kw_only=True)
class VllmDp(Policy):
    """The rank with the least of own requests in flight and counted ones, queues on full caches shunned.

    client_count: API servers (`--api-server-count`). client_index: which of them this router is; None: all
    of them, each request at one drawn at random, as connections are spread over processes. Each knows of its
    own requests only, and adds to the waiting ones until the coordinator's next counts.
    """

    names: ClassVar[tuple[str, ...]] = ("vllm_dp",)

    client_count: Annotated[int, Ge(1), Le(MOST_CLIENTS)] = 1
    client_index: Annotated[int, Ge(0)] | None = None

    @property
    def scrapes_every(self) -> float:
        return COORDINATOR_INTERVAL

    @property
    def num_clients(self) -> int:
        return self.client_count if self.client_index is None else 1

    def __post_init__(self) -> None:
        """Raises KvsimError for a client that does not exist."""
        if self.client_index is not None and self.client_index >= self.client_count:
            raise KvsimError(
                f"client_index: {self.client_index} is not below client_count, which is {self.client_count}"
            )

    def start(self, router: Any) -> CompiledChooser:
        n = router.num_targets
        indices = range(self.client_count) if self.client_index is None else [self.client_index]
        starts = np.array([n * index // self.client_count for index in indices], np.int64)
        waiting = np.zeros((len(starts), n), np.int64)
        return CompiledChooser(_choose, [np.array([(self.client_count, -math.inf)], SCALE), starts, waiting])
