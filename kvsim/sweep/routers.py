"""One scenario under several routing policies: a sweep over its router."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError
from kvsim.scenario import Override, Scenario, Template
from kvsim.scenario.router import RouterKeys
from kvsim.scenario.yaml_file import parse_value
from kvsim.sweep.asked import Asked
from kvsim.sweep.axes import Axis
from kvsim.sweep.points import Resolver
from kvsim.sweep.store import SWEEP, read_sweep
from kvsim.sweep.version import kvsim_version

COMPARE = "--compare-routers"
_INTERVAL = "metrics_interval"
_PARAMETER = re.compile(r":([A-Za-z_][A-Za-z0-9_-]*)=([^:]*)$")
_NO_VALUE = re.compile(r"(?<!\.py):[^:]*$")  # FILE.py:CLASS is a name

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
    key, meanings = _meanings(template, named)
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
        name, parameter = name[: found.start()], found[1].replace("-", "_")
        if parameter in parameters:
            raise KvsimError(f"{option} {policy}: {parameter} is given twice; give it once")
        parameters = {parameter: _value(found[2], parameter, f"{option} {policy}"), **parameters}
    if not name or "=" in name or _NO_VALUE.search(name):
        raise KvsimError(f"{option} {policy}: write NAME or NAME:PARAMETER=VALUE, several with commas")
    return {"policy": name, **parameters}


def _value(text: str, parameter: str, option: str) -> Any:
    if not text.strip():
        raise KvsimError(f"{option}: {parameter} has no value; write {parameter}=VALUE")
    return parse_value(text, option)


def _name(policy: Mapping[str, Any]) -> str:
    """As it is typed."""
    parameters = (f":{key}={value}" for key, value in policy.items() if key != "policy")
    return f"{policy['policy']}{''.join(parameters)}"


def _meanings(template: Template, named: Mapping[str, Mapping[str, Any]]) -> tuple[str, dict[str, Any]]:
    """The key that is swept, and what stands there under each name; several routers all get the policy."""
    cluster = template.values.get("cluster") or {}
    places = list(cluster.get("routers") or ())
    if places:
        own = {place: _given(template, ("cluster", "routers", place)) for place in places}
        return "cluster.routers", {
            name: {place: _merged(own[place], policy) for place in places} for name, policy in named.items()
        }
    single = _given(template, ("cluster", "router"))
    return "cluster.router", {name: _merged(single, policy) for name, policy in named.items()}


def _given(template: Template, where: tuple[str, ...]) -> Mapping[str, Any]:
    """The entry of a router, without an interval that is its policy's own: another policy has another one."""
    own: Any = template.values.get("cluster") or {}
    for part in where[1:]:
        own = own.get(part)
    if not isinstance(own, Mapping):
        return {} if own is None else {"policy": own}
    bare = {key: value for key, value in own.items() if key != _INTERVAL}
    if _INTERVAL not in own:
        return bare
    cluster = template.scenario([Override(where, bare, ".".join(where))]).cluster
    section = cluster.router if len(where) == 2 else cluster.routers[where[2]]
    return bare if own[_INTERVAL] == section.metrics_interval else own


def _merged(own: Mapping[str, Any], policy: Mapping[str, Any]) -> dict[str, Any]:
    """A router's entry with another policy."""
    same = own.get("policy") == policy["policy"]
    kept = {key: value for key, value in own.items() if same or key in RouterKeys.model_fields}
    return {**kept, **policy}


def _check(template: Template, asked: Asked, key: str) -> None:
    """Every policy must be right before any is run."""
    resolver = Resolver(template, asked.options, asked.meanings)
    known: dict[str, Any] = {}  # scenario hash -> the name it was asked for by
    for name in asked.axes[0].values:
        point = resolver.point({key: name})
        if point.scenario is not None and name == asked.axes[0].values[0]:
            _check_choice(point.scenario, asked.options[key])
        if point.problem is not None:
            problem = point.problem.removeprefix(f"{key}={name}: ").removeprefix(f"{key}.policy: ")
            raise KvsimError(f"{asked.options[key]} {name}: {problem}")
        if point.hash in known:
            raise KvsimError(f"{asked.options[key]} {name}: is the same as {known[point.hash]}; give it once")
        known[point.hash] = name


def _check_choice(scenario: Scenario, option: str) -> None:
    """Raises KvsimError where every router has a single target."""
    targets = [
        sum(group.replicas if group.internal_balancing else group.num_engines for group in cell.groups)
        for cell in scenario.cells()
    ]
    if max(targets) < 2:
        some = "cluster.replicas=4" if scenario.cluster.is_short else "cluster.groups.NAME.replicas=4"
        raise KvsimError(
            f"{option}: no router has two or more to choose from; give it some with --set {some}"
        )
