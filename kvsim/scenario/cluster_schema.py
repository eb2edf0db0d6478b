"""JSON Schema of the scenario's `cluster` section: what pydantic cannot say of routers and both forms."""

from typing import Any

from kvsim.cluster.policies import POLICIES
from kvsim.cluster.policy import Policy
from kvsim.scenario.cluster import NAME, SHA256
from kvsim.scenario.policy_section import RouterKeys, policy_section
from kvsim.scenario.router import USER_POLICY, policy_types

JsonSchema = dict[str, Any]

USER_SECTION = "UserPolicy"


def router_section_name(policy: type[Policy]) -> str:
    """The definition of a router with this policy."""
    return f"{policy.__name__}Router"


def complete_cluster(definitions: dict[str, JsonSchema]) -> None:
    """Add the routers' definitions to those of the scenario, and what holds for the section as a whole."""
    definitions |= router_definitions()
    section = definitions["ClusterSection"]
    properties, router = section["properties"], {"$ref": "#/$defs/Router"}
    properties["router"] |= {"allOf": [router]}
    properties["routers"]["patternProperties"] = {NAME: router}
    for key in ("links", "routers", "groups"):
        properties[key]["additionalProperties"] = False
    section["anyOf"] = [
        {"not": _any_of("links", "routers", "groups")},
        {
            "required": ["routers", "groups"],
            "properties": {"routers": {"minProperties": 1}, "groups": {"minProperties": 1}},
            "not": _any_of("replicas", "router"),
        },
    ]


def router_definitions() -> dict[str, JsonSchema]:
    """`Router`, and one section for each policy."""
    sections = {router_section_name(policy): _section(policy) for policy in policy_types()}
    sections[USER_SECTION] = _user_section()
    names: list[JsonSchema] = [{"enum": list(POLICIES)}, _user_policy()]
    return {"Router": {"anyOf": names + [{"$ref": f"#/$defs/{name}"} for name in sections]}} | sections


def _section(policy: type[Policy]) -> JsonSchema:
    section = policy_section(policy).model_json_schema()
    section["properties"] = {
        "policy": {"description": "who gets a request", "enum": list(policy.names)},
        **section["properties"],
    }
    section["required"] = ["policy", *section.get("required", ())]
    return section


def _user_section() -> JsonSchema:
    section = RouterKeys.model_json_schema()
    section["description"] = "A policy of your own; the other keys are its keyword arguments."
    section["properties"] = {
        "policy": {"description": "FILE.py:CLASS, sought beside the scenario first", **_user_policy()},
        "policy_sha256": {
            "description": "pins the file; stands in for its path in the scenario's hash",
            "type": "string",
            "pattern": SHA256,
        },
        **section["properties"],
    }
    return section | {"required": ["policy"], "additionalProperties": True}


def _user_policy() -> JsonSchema:
    return {"type": "string", "pattern": USER_POLICY}


def _any_of(*keys: str) -> JsonSchema:
    return {"anyOf": [{"required": [key]} for key in keys]}
