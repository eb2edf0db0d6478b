"""A router of the scenario's `cluster` section: a policy's name, or a mapping with its parameters."""

import dataclasses
import difflib
import hashlib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    ValidationInfo,
    WithJsonSchema,
)

from kvsim.cluster.policies import OWN_NAMES, POLICIES
from kvsim.cluster.policy import Policy
from kvsim.errors import KvsimError
from kvsim.gpu.catalog import is_file
from kvsim.scenario.named import folder_of
from kvsim.scenario.policy_section import RouterKeys, policy_section
from kvsim.scenario.user_policy import load_user_policy
from kvsim.workload.checks import FieldError, shown

DEFAULT_POLICY = "round_robin"
USER_POLICY = r"^.+\.py:.+$"  # FILE.py:CLASS


class RouterSection(RouterKeys):
    """A router, checked: `policy` by kvsim's own name, `parameters` with every default filled in."""

    policy: str
    policy_sha256: str | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)

    def build(self, folder: Path) -> Policy:
        """The policy; a user's is read from its file, which raises KvsimError."""
        if self.policy_sha256:
            return _load(self.policy, _folder_of(self.policy, folder), self.parameters)
        return POLICIES[self.policy](**self.parameters)

    def resolved(self) -> dict[str, Any]:
        """As a file has it."""
        pinned = {"policy_sha256": self.policy_sha256} if self.policy_sha256 else {}
        keys = {name: getattr(self, name) for name in RouterKeys.model_fields}
        return {"policy": self.policy, **pinned, **self.parameters, **keys}

    @property
    def is_plain(self) -> bool:
        """Whether it says no more than that requests are dealt out in turn."""
        return self.resolved() == _router(DEFAULT_POLICY, {}, Path()).resolved()


def read_router(value: Any, info: ValidationInfo) -> RouterSection:
    """A name or a mapping; raises ValueError, FieldError naming a key, or pydantic's ValidationError."""
    if isinstance(value, RouterSection):
        return value
    if isinstance(value, str):
        return _router(value, {}, folder_of(info))
    if not isinstance(value, Mapping):
        raise ValueError(f"{shown(value)} is neither a policy's name nor a mapping with policy: NAME")
    rest = dict(value)
    if rest.get("policy") is None:
        raise FieldError("policy", f"missing; one of {_choices()}")
    name = rest.pop("policy")
    if not isinstance(name, str):
        raise FieldError("policy", f"{shown(name)} is not text; one of {_choices()}")
    try:
        return _router(name, rest, folder_of(info))
    except _PolicyError as error:
        raise FieldError("policy", str(error)) from None


class _PolicyError(KvsimError):
    """About the policy's name."""


def _router(name: str, values: dict[str, Any], folder: Path) -> RouterSection:
    if re.search(USER_POLICY, name):
        return _user_router(name, values, folder)
    kind = _kind_of(name)
    section = policy_section(kind)
    for given in values:
        if given not in section.model_fields:
            raise FieldError(given, _no_parameter(given, kind))
    checked = section.model_validate(values)
    parameters = {field.name: getattr(checked, field.name) for field in dataclasses.fields(kind)}
    try:
        policy = kind(**parameters)
    except KvsimError as error:
        field, _, problem = str(error).partition(": ")
        raise FieldError(field, problem) from None
    return _checked(checked, policy, policy=kind.names[0], parameters=_plain(parameters))


def _user_router(text: str, values: dict[str, Any], folder: Path) -> RouterSection:
    keys = {name: values.pop(name) for name in [*values] if name in RouterKeys.model_fields}
    pin = values.pop("policy_sha256", None)
    checked = RouterKeys.model_validate(keys)
    for name, value in values.items():
        _check_finite(name, value)
    folder = _folder_of(text, folder)
    path = folder / text.rpartition(":")[0]
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if pin not in (None, found):
        raise FieldError("policy_sha256", f"{path} holds another policy, with {found}")
    policy = _load(text, folder, values)
    return _checked(checked, policy, policy=text, policy_sha256=found, parameters=values)


def _check_finite(field: str, value: Any) -> None:
    inner = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    )
    for name, item in inner:
        _check_finite(f"{field}.{name}", item)
    if isinstance(value, float) and not math.isfinite(value):
        raise FieldError(field, f"{shown(value)} is not a finite number")


def _folder_of(text: str, folder: Path) -> Path:
    """Where FILE.py:CLASS is: `folder` or else the working directory."""
    name = text.rpartition(":")[0]
    for place in (folder, Path()):
        if is_file(place / name):
            return place
    tried = " and ".join(dict.fromkeys(str(place / name) for place in (folder, Path())))
    raise _PolicyError(f"{shown(name)} is not a regular file (tried {tried})")


def _load(text: str, folder: Path, parameters: Mapping[str, Any]) -> Policy:
    """Runs the user's code."""
    try:
        return load_user_policy(text, parameters, folder.absolute(), list(RouterKeys.model_fields))
    except KvsimError as error:
        raise _PolicyError(str(error).removeprefix("policy ")) from None


def _checked(keys: BaseModel, built: Policy, **of_policy: Any) -> RouterSection:
    told = {name: getattr(keys, name) for name in RouterKeys.model_fields}
    if told["metrics_interval"] is None:
        told["metrics_interval"] = built.scrapes_every
    return RouterSection(**told, **of_policy)


def _kind_of(name: str) -> type[Policy]:
    """By kvsim's name or an original's; raises ValueError that lists the known ones."""
    spelled = {_spelled(each): each for each in POLICIES}
    known = spelled.get(_spelled(name))
    if known is not None:
        return POLICIES[known]
    near = difflib.get_close_matches(_spelled(name), spelled, n=1, cutoff=0.6)
    meant = f"did you mean {near[0]}? One" if near else "one"
    raise _PolicyError(f"{shown(name)} is not known; {meant} of {_choices()}")


def policy_types() -> list[type[Policy]]:
    """Each once, in the catalog's order."""
    return list(dict.fromkeys(POLICIES.values()))


def policy_names() -> list[str]:
    """kvsim's own, without what the originals say."""
    return list(OWN_NAMES)


def _choices() -> str:
    return f"{', '.join(policy_names())}, or FILE.py:CLASS"


def _spelled(name: str) -> str:
    return name.lower().replace("-", "_")


def _no_parameter(given: str, kind: type[Policy]) -> str:
    parameters = [field.name for field in dataclasses.fields(kind)]
    known = [*parameters, *RouterKeys.model_fields]
    near = difflib.get_close_matches(given.lower(), known, n=1, cutoff=0.6)
    meant = f"; did you mean {near[0]}?" if near else ";"
    own = f"it takes {', '.join(parameters)}" if parameters else "it takes none"
    own = own.replace("it", "It", 1) if near else own
    return (
        f"not a parameter of {kind.names[0]}{meant} {own} (any router: {', '.join(RouterKeys.model_fields)})"
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


Router = Annotated[RouterSection, BeforeValidator(read_router), WithJsonSchema({"title": "Router"})]
