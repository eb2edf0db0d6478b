"""The routing policies by name: ours, and what the originals call them."""

from kvsim.cluster.policies import (
    aibrix,
    dynamo,
    llm_d,
    longest_prefix,
    mooncake,
    plain,
    prefix_hash,
    production_stack,
    rings,
    sglang,
    vllm_dp,
)
from kvsim.cluster.policy import Policy
from kvsim.errors import KvsimError

_FAMILIES: tuple[tuple[type[Policy], ...], ...] = (
    plain.FAMILY,
    longest_prefix.FAMILY,
    dynamo.FAMILY,
    llm_d.FAMILY,
    vllm_dp.FAMILY,
    aibrix.FAMILY,
    mooncake.FAMILY,
    rings.FAMILY,
    prefix_hash.FAMILY,
    sglang.FAMILY,
    production_stack.FAMILY,
)

POLICIES: dict[str, type[Policy]] = {
    name: policy for family in _FAMILIES for policy in family for name in policy.names
}


def policy_class(name: str) -> type[Policy]:
    """The class of a policy by one of its names; raises KvsimError with the known ones."""
    if name not in POLICIES:
        known = ", ".join(dict.fromkeys(policy.names[0] for policy in POLICIES.values()))
        raise KvsimError(f"{name!r} is no known routing policy; known: {known}; or file.py:ClassName")
    return POLICIES[name]
