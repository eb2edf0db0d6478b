"""Mooncake: the conductor's index of KV events, and the paper's cache-aware choice without transfers.

Followed: Qin et al., Mooncake (FAST '25), Algorithm 1, with every prefix computed where the request goes; the
index as in kvcache-ai/Mooncake's conductor (Aug 2026): complete blocks, up to the first that is missing. The
rejection of requests that would break a latency target is left out.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Gt

from kvsim.addresses import array_at, words_at
from kvsim.cluster.booking import overlaps
from kvsim.cluster.policy import CompiledChooser, Policy
from kvsim.cluster.state import NUM_ARRAYS, router_at
from kvsim.compiled import compiled_entry


@compiled_entry
def _choose(address, i, now):
    router = router_at(address)
    rate = array_at(words_at(address), NUM_ARRAYS, np.float64, 1)[0]
    overlaps(router, i)
    targets, scalars = router.targets, router.scalars
    tokens, block_size = router.routed["num_prompt_tokens"][i], scalars["block_size"][0]
    best, least = np.int64(0), np.inf
    for t in range(targets.shape[0]):
        uncached = max(np.int64(0), tokens - targets["overlap"][t] * block_size)
        time_to_first_token = (targets["prefill_tokens"][t] + uncached) / rate
        targets["score"][t] = time_to_first_token
        if time_to_first_token < least:
            best, least = np.int64(t), time_to_first_token
            scalars["booked_prefill_tokens"][0] = uncached
    return best


@dataclass(frozen=True, kw_only=True)
class MooncakeConductor(Policy):
    """The target with the least estimated time to the first token, the first of equals.

    T_queue + T_prefill: the tokens to compute of the router's own requests that have no first token yet, and
    this prompt's tokens behind the target's cached prefix, both at `prefill_tokens_per_second`. With one
    speed for all targets it scales the estimate and changes no choice.
    """

    names: ClassVar[tuple[str, ...]] = ("mooncake_conductor",)

    prefill_tokens_per_second: Annotated[float, Gt(0)] = 10_000.0

    @property
    def reads_events(self) -> bool:
        return True

    def start(self, router: Any) -> CompiledChooser:
        return CompiledChooser(_choose, [np.array([self.prefill_tokens_per_second])])
