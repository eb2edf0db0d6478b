"""Asks a policy without a router: a view of targets made by hand, requests out of pieces of streams."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.cluster.policy import Chooser, Policy, View
from kvsim.cluster.state import TARGET_DTYPE
from kvsim.tokens import segments
from kvsim.workload import Request


def request(*pieces: tuple[int, int, int], session: str | None = None, name: str = "r") -> Request:
    """A request whose prompt is (stream, first token, number of tokens) pieces."""
    return Request(name, 0.0, segments(*pieces), segments(), 1, session=session)


@dataclass
class Asked:
    """A policy at work over named targets, whose own counters are kept as a router would."""

    policy: Policy
    names: Sequence[str]
    seed: int = 0
    draws: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        chooser = self.policy.start(SimpleNamespace(num_targets=len(self.names)))
        assert isinstance(chooser, Chooser)
        self.chooser = chooser
        self.targets: NDArray[Any] = np.zeros(len(self.names), TARGET_DTYPE)
        self.targets["block_size"] = 16
        self.targets["last_routed_time"] = -np.inf
        self._random = np.random.default_rng(self.seed)

    def choose(self, asked: Request, now: float = 0.0) -> int:
        """The choice, which is then sent there."""
        target = self.chooser.choose(asked, View(now, self.names, self.targets, self._draw))
        self.targets["in_flight"][target] += 1
        self.targets["num_routed"][target] += 1
        self.targets["last_routed_time"][target] = now
        return target

    def end(self, target: int) -> None:
        self.targets["in_flight"][target] -= 1

    def _draw(self, n: int) -> int:
        self.draws.append(n)
        return int(self._random.integers(n))


def shares(choose: Callable[[], int], num_targets: int, times: int = 3000) -> list[float]:
    """How often each target is chosen."""
    chosen = np.bincount([choose() for _ in range(times)], minlength=num_targets)
    return (chosen / times).tolist()
