"""The scenario's `cluster` section: replicas and a router, or groups, routers and links by name.

The short form is one group of the scenario's own model, GPU and engine. In the long form each group may
have others; `kvsim.scenario.groups` fills in what it leaves to the scenario and checks what goes together.
"""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo, WithJsonSchema, field_validator

from kvsim.scenario.calibration import calibration_file
from kvsim.scenario.engine import EngineSection, Section, key
from kvsim.scenario.named import GpuName, ModelName, Text, folder_of, pinned_calibration, pinned_model
from kvsim.scenario.router import DEFAULT_POLICY, Router

MAX_REPLICAS = 100_000
NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,59}$"
SHORT_GROUP, SHORT_ROUTER = "replica", "router"

Replicas = Annotated[int, Field(ge=1, le=MAX_REPLICAS)]


def _name(value: str) -> str:
    if not re.search(NAME, value):
        raise ValueError(
            "is no name; use letters, digits and underscores, up to 60, and begin with no underscore"
        )
    return value


Name = Annotated[str, AfterValidator(_name), WithJsonSchema({"type": "string", "pattern": NAME})]
SHA256 = "^[0-9a-f]{64}$"


def _there(value: str, info: ValidationInfo) -> str:
    calibration_file(value, folder_of(info))
    return value


class LinkSection(Section):
    """What a request takes on its way from the router to a replica."""

    bandwidth: Annotated[float, Field(gt=0, le=1e18, allow_inf_nan=False)] = key(
        ..., "bytes a second", "bytes per second", examples=[25.0e9]
    )
    latency: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = key(
        0.0, "time for the first byte", "seconds", examples=[10.0e-6]
    )


class GroupSection(Section):
    """Replicas that are alike. What a group does not say is the scenario's."""

    replicas: Replicas = key(1, "serving instances", "replicas")
    router: str | None = key(None, "one of routers; needed if there are several")
    link: str | None = key(None, "one of links; without it the router is next door")
    model: ModelName | None = key(None, "as the scenario's model")
    model_sha256: Annotated[str | None, Field(validate_default=True)] = key(
        None, "pins that config.json, as the scenario's", pattern=SHA256
    )
    gpu: GpuName | None = key(None, "as the scenario's gpu")
    calibration: Annotated[Text, AfterValidator(_there)] | None = key(
        None, "as the scenario's calibration; the scenario's own is taken for the same GPU"
    )
    calibration_sha256: Annotated[str | None, Field(validate_default=True)] = key(
        None, "pins that calibration, as the scenario's", pattern=SHA256
    )
    engine: EngineSection = Field(
        default_factory=EngineSection, description="vLLM's flags that differ from the scenario's"
    )

    @field_validator("model_sha256")
    @classmethod
    def _pin_model(cls, value: str | None, info: ValidationInfo) -> str | None:
        name = info.data.get("model")
        if name is None and value is not None and "model" in info.data:
            raise ValueError("goes with a config.json as model; leave it out")
        return None if name is None else pinned_model(name, value, folder_of(info))

    @field_validator("calibration_sha256")
    @classmethod
    def _pin_calibration(cls, value: str | None, info: ValidationInfo) -> str | None:
        return pinned_calibration(info.data.get("calibration"), value, folder_of(info))

    @field_validator("router", "link")
    @classmethod
    def _as_key(cls, value: str | None) -> str | None:
        """Names are keys, and in keys a dash is an underscore."""
        return None if value is None else value.replace("-", "_")


class ClusterSection(Section):
    """How many replicas serve the traffic, and who spreads it: `replicas` and `router` for replicas that are
    all alike, or `groups`, `routers` and `links` by name. Routers that share no group are cells of their own.
    """

    replicas: Replicas = key(1, "serving instances, if all are alike", "replicas", examples=[8])
    router: Annotated[Router, Field(validate_default=True)] = key(
        DEFAULT_POLICY,
        "who gets a request: a policy's name, or a mapping with its parameters",
        examples=["dynamo_kv", {"policy": "dynamo_kv", "kv_event_delay": 0.05}],
    )
    links: dict[Name, LinkSection] = key({}, "between router and replicas, by name")
    routers: dict[Name, Router] = key({}, "several, or for groups, by name; each as router")
    groups: dict[Name, GroupSection] = key({}, "replicas that differ, by name")

    @property
    def is_short(self) -> bool:
        return not self.groups

    @property
    def num_replicas(self) -> int:
        return self.replicas if self.is_short else sum(group.replicas for group in self.groups.values())

    def resolved(self) -> dict[str, Any]:
        """Plain values of the form that was given, with every default."""
        if self.is_short:
            router = self.router.policy if self.router.is_plain else self.router.resolved()
            return {"replicas": self.replicas, "router": router}
        return {
            "links": {name: link.model_dump() for name, link in self.links.items()},
            "routers": {name: router.resolved() for name, router in self.routers.items()},
            "groups": {name: group.model_dump() for name, group in self.groups.items()},
        }
