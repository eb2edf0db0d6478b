"""One scenario under several routing policies: a sweep over its router."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError
from kvsim.scenario import Scenario, Template
from kvsim.scenario.yaml_file import parse_value
from kvsim.sweep.asked import Asked
from kvsim.sweep.axes import Axis
from kvsim.sweep.points import Resolver
from kvsim.sweep.store import SWEEP, read_sweep
from kvsim.sweep.version import kvsim_version

COMPARE = "--compare-routers"
# What a router's entry says besides its policy's own parameters: it stays, whatever the policy.
ROUTER_KEYS = ("kv_event_delay", "kv_event_loss", "metrics_interval", "chars_per_token", "share")
_PARAMETER = re.compile(r":([A-Za-z_][A-Za-z0-9_-]*)=([^:]*)$")

Policy = str | Mapping[str, Any]  # name, name:parameter=value, or the mapping of a scenario


def routers_asked(template: Template, policies: Sequence[Policy], option: str = COMPARE) -> Asked:
    """A sweep over the scenario's router, one point for each policy.

    A policy is its name, ``name:parameter=value:parameter=value``, or a mapping with the key ``policy``. The
    scenario's delay and loss of events, its interval of metrics and the like stay as they are, and so do the
    parameters of the policy that it has itself. Raises KvsimError for an unknown policy or a wrong parameter,
    and where there is nothing to compare.
    """
    if not policies:
        raise KvsimError(
            f"{option}: no policies; write their names with commas, such as round_robin,dynamo_kv"
        )
    read = [_read(policy, option) for policy in policies]
    named = {_name(policy): policy for policy in read}
    if len(named) < len(read):
        twice = next(_name(each) for i, each in enumerate(read) if each in read[:i])
        raise KvsimError(f"{option} {twice}: is given twice; give it once")
    key, meanings = _meanings(template.values.get("cluster") or {}, named)
    axis = Axis(key, option, tuple(named))
    asked = Asked(axes=(axis,), options={key: option}, meanings={key: meanings})
    _check(template, asked, key)
    return asked


def is_stale(folder: Path) -> bool:
    """Whether another kvsim computed what a folder holds; raises `ResultsError` for a damaged one."""
    return (folder / SWEEP).is_file() and read_sweep(folder)["kvsim"] != kvsim_version()


def _read(policy: Policy, option: str) -> Mapping[str, Any]:
    if not isinstance(policy, str):
        if "policy" not in policy:
            raise KvsimError(f"{option}: a mapping needs the key policy, such as {{policy: dynamo_kv}}")
        return dict(policy)
    parameters: dict[str, Any] = {}
    name = policy.strip()
    while found := _PARAMETER.search(name):
        name = name[: found.start()]
        parameters = {found[1].replace("-", "_"): parse_value(found[2], f"{option} {policy}"), **parameters}
    if not name or "=" in name:
        raise KvsimError(f"{option} {policy}: write NAME or NAME:PARAMETER=VALUE, several with commas")
    return {"policy": name, **parameters}


def _name(policy: Mapping[str, Any]) -> str:
    """As it is typed."""
    parameters = (f":{key}={value}" for key, value in policy.items() if key != "policy")
    return f"{policy['policy']}{''.join(parameters)}"


def _meanings(
    cluster: Mapping[str, Any], named: Mapping[str, Mapping[str, Any]]
) -> tuple[str, dict[str, Any]]:
    """The key that is swept, and what stands there under each name; several routers all get the policy."""
    routers = cluster.get("routers")
    if isinstance(routers, Mapping) and routers:
        return "cluster.routers", {
            name: {place: _merged(own, policy) for place, own in routers.items()}
            for name, policy in named.items()
        }
    own = cluster.get("router")
    return "cluster.router", {name: _merged(own, policy) for name, policy in named.items()}


def _merged(own: Any, policy: Mapping[str, Any]) -> dict[str, Any]:
    """A router's entry with another policy."""
    if not isinstance(own, Mapping):
        return dict(policy)
    same = own.get("policy") == policy["policy"]
    kept = {key: value for key, value in own.items() if same or key in ROUTER_KEYS}
    return {**kept, **policy}


def _check(template: Template, asked: Asked, key: str) -> None:
    """Every policy must be right before any is run."""
    resolver = Resolver(template, asked.options, asked.meanings)
    for name in asked.axes[0].values:
        point = resolver.point({key: name})
        if point.scenario is not None and name == asked.axes[0].values[0]:
            _check_choice(point.scenario, asked.options[key])
        if point.problem is not None:
            problem = point.problem.removeprefix(f"{key}={name}: ").removeprefix(f"{key}.policy: ")
            raise KvsimError(f"{asked.options[key]} {name}: {problem}")


def _check_choice(scenario: Scenario, option: str) -> None:
    """Raises KvsimError where every router has a single target."""
    targets = [
        sum(group.replicas if group.internal_balancing else group.num_engines for group in cell.groups)
        for cell in scenario.cells()
    ]
    if max(targets) < 2:
        raise KvsimError(
            f"{option}: no router has two or more to choose from; give it some with --set cluster.replicas=4"
        )
