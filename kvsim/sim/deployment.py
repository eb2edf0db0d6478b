"""What serves the traffic of a run: replicas and the router in front of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvsim.cluster.fleet import Replica
from kvsim.cluster.policies.plain import RoundRobin
from kvsim.cluster.policies.vllm_dp import VllmDp
from kvsim.cluster.policy import Policy
from kvsim.cluster.router import Router, TargetFacts
from kvsim.engine.core import EngineCore


@dataclass(frozen=True)
class Seat:
    """A target of the router, to be: see `kvsim.cluster.fleet.Replica`.

    clients: API servers in front of its data-parallel ranks (cores), if it balances them itself.
    """

    name: str
    cores: Sequence[EngineCore]
    kind: int = 0
    clients: int = 1
    latency: float = 0.0
    seconds_per_token: float = 0.0


@dataclass(frozen=True)
class Deployment:
    """One router and its targets; event_delay (s), event_loss (0..1), metrics_interval (s): see `Fleet`."""

    seats: Sequence[Seat]
    policy: Policy = field(default_factory=RoundRobin)
    event_delay: float = 0.0
    event_loss: float = 0.0
    metrics_interval: float | None = None
    name: str = "router"

    @classmethod
    def of(cls, cores: Sequence[EngineCore], policy: Policy | None = None) -> "Deployment":
        """One target for each engine; all alike."""
        seats = [Seat(f"replica-{n}", [core]) for n, core in enumerate(cores)]
        return cls(seats, policy or RoundRobin())

    @property
    def cores(self) -> list[EngineCore]:
        return [core for seat in self.seats for core in seat.cores]

    def router(self, seed: int) -> Router:
        """The router, at the start of a run."""
        return Router(self.policy, [_facts(seat.name, seat.cores[0]) for seat in self.seats], seed, self.name)

    def replicas(self, seed: int) -> list[Replica]:
        """Its targets, with routers of their own where they balance ranks."""
        return [
            Replica(
                seat.name,
                seat.cores,
                seat.kind,
                self._balancer(seat, seed),
                seat.latency,
                seat.seconds_per_token,
            )
            for seat in self.seats
        ]

    def _balancer(self, seat: Seat, seed: int) -> Router | None:
        if len(seat.cores) == 1:
            return None
        ranks = [_facts(f"{seat.name}/dp{rank}", core) for rank, core in enumerate(seat.cores)]
        return Router(VllmDp(client_count=seat.clients), ranks, seed, seat.name)

    def fleet(self, kind: Any, seed: int, collect: Callable[[int], None], **options: Any) -> Any:
        """A `Fleet`, or what another class makes of the same arguments."""
        return kind(
            self.router(seed),
            self.replicas(seed),
            collect,
            seed=seed,
            event_delay=self.event_delay,
            event_loss=self.event_loss,
            metrics_interval=self.metrics_interval,
            **options,
        )


def _facts(name: str, core: EngineCore) -> TargetFacts:
    config = core.config
    size = config.kv_cache_config().group_block_sizes[config.index_group]
    return TargetFacts(name, config.num_gpu_blocks, size, config.max_num_seqs, config.max_num_batched_tokens)
