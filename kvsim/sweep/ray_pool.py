"""Points computed in a Ray cluster, of this machine or of many. Every node needs the same kvsim."""

import logging
import os
import subprocess
import sys
from concurrent.futures import Future
from typing import Any

from kvsim.scenario import Scenario
from kvsim.sweep.pools import POINTS_AHEAD, PoolError, Task, to_end
from kvsim.sweep.version import kvsim_version
from kvsim.sweep.work import rehearse

LOCAL = "local"
_SECONDS_TO_ANSWER = 8


class RayPool:
    """address: "local" for a cluster of this machine alone, made for the sweep, or HOST:PORT of another.

    Raises `PoolError` if ray is not installed, nothing answers at the address, or a node has another kvsim.
    """

    def __init__(self, address: str, workers: int | None = None) -> None:
        self._ray = ray = _import_ray()
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address == LOCAL:
            options |= {"address": LOCAL, "num_cpus": workers, "include_dashboard": False}
        else:
            _check_answers(address)
            options |= {"address": address}
        try:
            ray.init(**options)
        except Exception as error:
            raise PoolError(f"--ray {address}: {_first_line(error)}") from None
        if address == LOCAL:
            to_end.append(self)
        cores = int(ray.cluster_resources().get("CPU", 1))
        self.slots = min(workers or cores, cores) * POINTS_AHEAD
        self._run = ray.remote(_done)

    def warm_up(self, scenario: Scenario) -> None:
        """On every node, since each has a cache of compiled code of its own."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        task = self._ray.remote(rehearse)
        nodes = [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        chosen = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
        pending = [task.options(scheduling_strategy=one).remote(scenario) for one in chosen]
        try:
            versions = [version for version, _ in self._ray.get(pending)]
        except Exception as error:
            raise PoolError(f"--ray: a node cannot run kvsim: {_first_line(error)}") from None
        for node, version in zip(nodes, versions, strict=True):
            if version != kvsim_version():
                where = node["NodeManagerAddress"]
                raise PoolError(
                    f"--ray: node {where} has kvsim {version}, this is {kvsim_version()}; install the same"
                )

    def submit(self, task: Task, *arguments: Any) -> "Future[Any]":
        future: Future[Any] = self._run.remote(task, *arguments).future()
        return future

    def close(self) -> None:
        self._ray.shutdown()
        if self in to_end:
            to_end.remove(self)


def _done(task: Task, *arguments: Any) -> Any:
    return task(*arguments)


def _import_ray() -> Any:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray warns if its default is left
    try:
        import ray
    except ImportError:
        raise PoolError("--ray: ray is not installed; pip install 'kvsim[ray]'") from None
    return ray


def _check_answers(address: str) -> None:
    """Ray itself would try for minutes."""
    if address == "auto" or address.startswith("ray://"):
        return
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS_TO_ANSWER, check=False)
    except subprocess.TimeoutExpired:
        raise PoolError(
            f"--ray {address}: no answer within {_SECONDS_TO_ANSWER} s; is a Ray head running there?"
        ) from None
    if done.returncode != 0:
        raise PoolError(f"--ray {address}: no Ray cluster answers there; start one with ray start --head")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
