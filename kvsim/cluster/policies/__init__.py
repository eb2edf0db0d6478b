"""The routing policies by name, ours and the originals'; each is loaded when it is asked for."""

from collections.abc import Iterator, Mapping
from importlib import import_module

from kvsim.cluster.policy import Policy
from kvsim.errors import KvsimError

# module -> class -> its `names`, ours first
_CATALOG: dict[str, dict[str, tuple[str, ...]]] = {
    "plain": {
        "RandomChoice": ("random",),
        "RoundRobin": ("round_robin",),
        "PowerOfTwo": ("power_of_two",),
        "LeastRequest": ("least_request", "least-request"),
    },
    "longest_prefix": {"LongestPrefix": ("longest_prefix",)},
    "dynamo": {"DynamoKv": ("dynamo_kv", "kv")},
    "llm_d": {"LlmD": ("llm_d", "llm_d_epp")},
    "vllm_dp": {"VllmDp": ("vllm_dp",)},
    "aibrix": {"AibrixPrefixCache": ("aibrix_prefix_cache", "prefix-cache")},
    "mooncake": {"MooncakeConductor": ("mooncake_conductor",)},
    "rings": {
        "Session": ("session",),
        "ConsistentHashing": ("consistent_hashing", "consistent_hash"),
    },
    "prefix_hash": {"PrefixHash": ("prefix_hash",)},
    "sglang": {"CacheAware": ("sglang_cache_aware", "cache_aware")},
    "production_stack": {
        "SortedRoundRobin": ("production_stack_roundrobin", "roundrobin"),
        "PrefixAware": ("production_stack_prefixaware", "prefixaware"),
        "KvAware": ("production_stack_kvaware", "kvaware"),
    },
}


class _Policies(Mapping[str, type[Policy]]):
    """Name -> class."""

    def __init__(self) -> None:
        self._homes = {
            name: (module, kind)
            for module, kinds in _CATALOG.items()
            for kind, names in kinds.items()
            for name in names
        }

    def __getitem__(self, name: str) -> type[Policy]:
        module, kind = self._homes[name]
        policy: type[Policy] = getattr(import_module(f"kvsim.cluster.policies.{module}"), kind)
        return policy

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)


POLICIES = _Policies()
OWN_NAMES = tuple(names[0] for kinds in _CATALOG.values() for names in kinds.values())


def policy_class(name: str) -> type[Policy]:
    """The class of a policy by one of its names; raises KvsimError with the known ones."""
    if name not in POLICIES:
        known = ", ".join(OWN_NAMES)
        raise KvsimError(f"{name!r} is no known routing policy; known: {known}; or file.py:ClassName")
    return POLICIES[name]
