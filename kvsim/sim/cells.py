"""Cells of a cluster: groups of replicas that share no router with others, each a run of its own.

What happens in one cell changes nothing in another, so cells may be computed anywhere and in any order:
joined, they give the same bytes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.results import ReplicaStats, RouterStats
from kvsim.sim.build import Cell, make_cores
from kvsim.sim.deployment import Deployment, Seat
from kvsim.sim.recorder import with_notes
from kvsim.tokens import stream_key
from kvsim.workload.request import RequestBlock, Workload, requests_of
from kvsim.workload.streams import generator

BYTES_PER_TOKEN = 4  # of a prompt on its way: token ids of 32 bits


@dataclass(frozen=True)
class CellResult:
    """What a cell gives: its engines' statistics, its router's, and when its last step ended (s).

    num_not_sent: requests of sessions that a refused one ended; None where no session goes on.
    """

    replicas: Sequence[ReplicaStats]
    router: RouterStats
    simulated_seconds: float
    first_refusal: str | None
    num_not_sent: int | None


# Computes cells by number, in order: `map`, or workers.
MapCells = Callable[[Callable[[int], Any], Sequence[int]], Iterable[Any]]


def deployment_of(cell: Cell, record: Any) -> Deployment:
    """Engines and router of a cell. Raises KvsimError if this machine has too little memory for them."""
    seats: list[Seat] = []
    for kind, group in enumerate(cell.groups):
        config = with_notes(group.plan.config, record.steps, record.events)
        cores = make_cores(config, group.plan.cost, group.num_engines)
        link = group.link
        way = (link.latency, BYTES_PER_TOKEN / link.bandwidth) if link else (0.0, 0.0)
        size = group.data_parallel_size
        if group.internal_balancing:
            ranks = [cores[first : first + size] for first in range(0, len(cores), size)]
            names: Sequence[str] = group.replica_names
        else:
            ranks, names = [[core] for core in cores], group.engine_names
        seats += [
            Seat(name, each, kind, group.api_server_count, *way)
            for name, each in zip(names, ranks, strict=True)
        ]
    router = cell.router
    return Deployment(
        seats, router.policy, router.kv_event_delay, router.kv_event_loss, router.metrics_interval, cell.name
    )


class Dealt:
    """The part of a workload that a cell gets. A session stays where it began."""

    def __init__(self, workload: Workload, cells: Sequence[Cell], number: int) -> None:
        self._workload, self._number = workload, number
        edges = np.cumsum([cell.share for cell in cells])
        self._edges = edges / edges[-1]
        self.num_requests = None
        self.max_concurrency = workload.max_concurrency
        self.has_follow_ups = workload.has_follow_ups
        self.has_sessions = workload.has_sessions

    def requests(self, seed: int) -> Iterator[Any]:
        """The requests of `blocks`, one by one."""
        return requests_of(self.blocks(seed))

    def blocks(self, seed: int) -> Iterator[RequestBlock]:
        """Requests in order of arrival."""
        rng = generator(seed, "cell")
        for block in self._workload.blocks(seed):
            own = np.flatnonzero(self._cells(block, rng, seed) == self._number)
            if len(own):
                yield block.take(own)

    def _cells(self, block: RequestBlock, rng: np.random.Generator, seed: int) -> NDArray[np.int64]:
        drawn = rng.random(len(block))
        if block.sessions is not None:
            for i, session in enumerate(block.sessions):
                if session is not None:
                    drawn[i] = stream_key(seed, "cell", session) / 2**64
        return np.searchsorted(self._edges, drawn, side="right")


def replica_stats(cell: Cell, stats: Sequence[dict[str, Any]]) -> list[ReplicaStats]:
    """Figures of a cell's engines with their names."""
    told = iter(stats)
    return [
        ReplicaStats(
            name,
            group.name,
            next(told),
            {"num_gpu_blocks": group.plan.config.num_gpu_blocks, "num_gpus": group.gpus_per_engine},
        )
        for group in cell.groups
        for name in group.engine_names
    ]


def facts_of(cells: Sequence[Cell], *, named: bool) -> dict[str, Any]:
    """The parts ``capacity`` and ``step_time`` of a summary, and ``groups`` if the scenario names them."""
    groups = [group for cell in cells for group in cell.groups]
    head = {"capacity": groups[0].plan.capacity, "step_time": groups[0].plan.cost.description}
    if not named:
        return head
    told = {
        group.name: {
            "router": cell.name,
            "replicas": group.replicas,
            "model": group.plan.cost.model.name,
            "gpu": group.plan.cost.gpu.name,
            "capacity": group.plan.capacity,
            "step_time": group.plan.cost.description,
        }
        for cell in cells
        for group in cell.groups
    }
    return {**head, "groups": told}
