"""Clusters whose every step takes the same time: what queueing theory calls servers."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from kvsim.cluster.policy import Policy
from kvsim.cluster.router import Router
from kvsim.engine.config import EngineConfig
from kvsim.engine.core import EngineCore
from kvsim.gpu.cost import COST_DTYPE
from kvsim.results import MemorySink, ReplicaStats, RequestLog, RouterStats, summarize
from kvsim.sim.deployment import Deployment
from kvsim.sim.recorder import with_notes
from kvsim.sim.run import Simulation
from kvsim.workload.request import Workload

STEP = 1 / 64  # s of every step


class OnePrice:
    """Steps take `STEP`, whatever is in them; no API server takes time in front."""

    name = "one price"

    def __init__(self) -> None:
        self.parameters = np.zeros(1, COST_DTYPE)
        self.parameters["tokens"] = STEP

    def frontend_seconds(self, prompt_tokens: int) -> float:
        return 0.0


@dataclass
class Served:
    """A run at its end: one row per request, the summary, the router with its counters."""

    requests: pd.DataFrame
    summary: dict
    router: Router


def serve(
    workload: Workload,
    config: EngineConfig,
    policy: Policy | None = None,
    replicas: int = 1,
    *,
    horizon: float | None = None,
    seed: int = 0,
) -> Served:
    """Run a workload on equal replicas."""
    noting = with_notes(config, steps=False, events=False)
    cores = [EngineCore(noting, OnePrice()) for _ in range(replicas)]
    sink = MemorySink()
    simulation = Simulation(
        Deployment.of(cores, policy), workload, seed=seed, log=RequestLog(sink), horizon=horizon
    )
    simulation.run()
    head = {"simulated_seconds": simulation.simulated_seconds}
    stats = [ReplicaStats(f"replica-{n}", "all", core.stats()) for n, core in enumerate(cores)]
    router: RouterStats = simulation.router_stats()
    summary = summarize(head, simulation.stats(), sink, replicas=stats, routers=[router])
    return Served(sink.read().to_pandas(), summary, simulation._fleet.router)
