"""Cells of one scenario computed by workers: what `kvsim.sim.run.run_scenario` takes as `map_cells`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from kvsim.errors import KvsimError
from kvsim.scenario import Scenario
from kvsim.sim.cells import MapCells
from kvsim.sweep.pools import Pool, local_pool, lost_worker, num_cores, worthwhile


@contextmanager
def cells_on(scenario: Scenario, workers: int | None = None, ray: str | None = None) -> Iterator[MapCells]:
    """Workers for the cells of a scenario, ended with the block.

    workers: processes; None for one for each core if that is quicker. ray: "local", or HOST:PORT.
    Raises `PoolError` where workers cannot be had or are lost.
    """
    num_cells = len(scenario.cluster.routers)
    with closing(_pool(scenario, num_cells, workers, ray)) as pool:
        pool.warm_up(scenario)
        yield _mapped(pool)


def _pool(scenario: Scenario, num_cells: int, workers: int | None, ray: str | None) -> Pool:
    if ray:
        from kvsim.sweep.ray_pool import RayPool

        return RayPool(ray, workers)
    most = min(workers or num_cores(), num_cells)
    return local_pool(most if workers else worthwhile(num_cells, scenario, most))


def _mapped(pool: Pool) -> MapCells:
    def cells(compute: Callable[[int], Any], numbers: Sequence[int]) -> Iterator[Any]:
        try:
            futures = [pool.submit(_computed, compute, number) for number in numbers]
            for future in futures:
                result, problem = future.result()
                if problem is not None:
                    raise KvsimError(problem)
                yield result
        except Exception as error:
            raise lost_worker(error) or error from None

    return cells


def _computed(compute: Callable[[int], Any], number: int) -> tuple[Any, str | None]:
    """A cell, or what is wrong with it in words."""
    try:
        return compute(number), None
    except KvsimError as error:
        return None, str(error)
