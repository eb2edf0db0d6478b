"""The longest prefix in cache, whatever the load: what prefix affinity alone would do."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvsim.cluster.booking import overlaps
from kvsim.cluster.policy import CompiledChooser, Policy
from kvsim.cluster.state import router_at
from kvsim.compiled import compiled_entry


@compiled_entry
def _choose(address, i, now):
    router = router_at(address)
    overlaps(router, i)
    overlap = router.targets["overlap"]
    best = np.int64(0)
    for target in range(1, overlap.shape[0]):
        if overlap[target] > overlap[best]:
            best = np.int64(target)
    return best


@dataclass(frozen=True, kw_only=True)
class LongestPrefix(Policy):
    """The target that holds most leading blocks of the prompt by the KV events; of several the first."""

    names: ClassVar[tuple[str, ...]] = ("longest_prefix",)

    @property
    def reads_events(self) -> bool:
        return True

    def start(self, router: object) -> CompiledChooser:
        return CompiledChooser(_choose, [])
