"""What the simulation is told of a scenario's cluster: cells, each a router with planned groups."""

from kvsim.errors import KvsimError
from kvsim.scenario.cluster import SHORT_GROUP, SHORT_ROUTER, ClusterSection, GroupSection
from kvsim.scenario.router import RouterSection
from kvsim.scenario.schema import Scenario
from kvsim.scenario.served import Served
from kvsim.sim.build import Cell, EnginePlan, Group, Link, RouterSpec, plan_engine


def cells_of(scenario: Scenario) -> tuple[Cell, ...]:
    """In the order of the file. Raises KvsimError for a group without room for a request."""
    cluster = scenario.cluster
    if cluster.is_short:
        group = _group(SHORT_GROUP, cluster.replicas, scenario.served, plan_engine(scenario), None)
        return (Cell(SHORT_ROUTER, _router(cluster.router, scenario), cluster.router.share, (group,)),)
    groups = {name: _named_group(name, group, scenario) for name, group in cluster.groups.items()}
    return tuple(
        Cell(
            name,
            _router(router, scenario),
            router.share,
            tuple(groups[key] for key, group in cluster.groups.items() if group.router == name),
        )
        for name, router in cluster.routers.items()
    )


def _router(router: RouterSection, scenario: Scenario) -> RouterSpec:
    policy = router.build(scenario.folder)
    interval = None if policy.scrapes_every is None else router.metrics_interval
    return RouterSpec(policy, router.kv_event_delay, router.kv_event_loss, interval)


def _named_group(name: str, group: GroupSection, scenario: Scenario) -> Group:
    served = Served(
        scenario.vllm_version,
        group.model or scenario.model,
        group.gpu or scenario.gpu,
        group.engine,
        group.calibration,
        scenario.image_pixels,
        scenario.folder,
    )
    try:
        plan = plan_engine(served)
    except KvsimError as error:
        raise KvsimError(f"cluster.groups.{name}: {error}") from None
    return _group(name, group.replicas, served, plan, _link(scenario.cluster, group.link))


def _group(name: str, replicas: int, served: Served, plan: EnginePlan, link: Link | None) -> Group:
    engine = served.engine
    return Group(
        name,
        replicas,
        engine.data_parallel_size,
        engine.data_parallel_size > 1 and not engine.data_parallel_external_lb,
        engine.api_server_count or 1,
        link,
        plan,
        engine.num_gpus // engine.data_parallel_size,
    )


def _link(cluster: ClusterSection, name: str | None) -> Link | None:
    if name is None:
        return None
    link = cluster.links[name]
    return Link(name, link.bandwidth, link.latency)
