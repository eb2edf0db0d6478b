"""sglang's `prefix_hash`: the head of the prompt falls on a ring, unless its target is too busy.

Source: sgl-project/sglang `sgl-model-gateway/src/policies/prefix_hash.rs`. The tokens are kvsim's own, so
which target a given prompt falls on means nothing; that equal heads fall on the same one does.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Gt
from xxhash import xxh3_64_intdigest

from kvsim.cluster.policies.rings import RingChooser, SglangRing
from kvsim.cluster.policy import Chooser, Policy, RoutedRequest, View
from kvsim.tokens import expand, first_tokens


@dataclass(frozen=True, kw_only=True)
class PrefixHash(Policy):
    """The head of the prompt falls on a target of a hash ring.

    One that is too busy yields to the first of the least busy ones, unless that is too busy as well.

    prefix_token_count: length of the head, tokens. load_factor: times the mean number of requests in flight,
    the new one counted, are too many.
    """

    names: ClassVar[tuple[str, ...]] = ("prefix_hash",)

    prefix_token_count: Annotated[int, Ge(1)] = 256
    load_factor: Annotated[float, Gt(0)] = 1.25

    def start(self, router: Any) -> Chooser:
        return PrefixHashChooser(self)


class PrefixHashChooser(RingChooser):
    make_ring = SglangRing

    def __init__(self, policy: PrefixHash) -> None:
        super().__init__()
        self._policy = policy

    def choose(self, request: RoutedRequest, view: View) -> int:
        head = expand(first_tokens(request.prompt, self._policy.prefix_token_count))
        preferred = self.on_ring(f"{xxh3_64_intdigest(head.astype(np.uint32).tobytes()):016x}", view)
        loads = view.targets["in_flight"].tolist()
        limit = (sum(loads) + 1) / len(loads) * self._policy.load_factor
        if not sum(loads) or loads[preferred] <= limit:
            return preferred
        least = min(loads)
        return int(loads.index(least)) if least <= limit else preferred
