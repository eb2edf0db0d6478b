"""What a scenario says, as one number: equal for scenarios that give the same results."""

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from kvsim.scenario.engine import LATER_FLAGS

Values = dict[str, Any]


def digest_of(resolved: Mapping[str, Any]) -> str:
    """SHA-256 (hex) over the canonical JSON of `Scenario.resolved`.

    Files that are pinned count by their content alone. Keys that came later do not count at the values at
    which a scenario is what it was without them.
    """
    values = copy.deepcopy(dict(resolved))
    values.pop("record")
    for served in (values, *_groups(values)):
        _forget_places(served)
        _forget_later_flags(served["engine"])
    for router in _routers(values):
        if router.get("policy_sha256"):
            router["policy"] = router["policy"].rpartition(":")[2]
    values["workload"].pop("path", None)
    if values["workload"]["max_concurrency"] is None:
        values["workload"].pop("max_concurrency")
    text = json.dumps(_canonical(values), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _groups(values: Values) -> Iterator[Values]:
    yield from values["cluster"].get("groups", {}).values()


def _routers(values: Values) -> Iterator[Values]:
    cluster = values["cluster"]
    if isinstance(cluster.get("router"), dict):
        yield cluster["router"]
    yield from cluster.get("routers", {}).values()


def _forget_places(served: Values) -> None:
    if served.get("model_sha256"):
        served.pop("model")
    served.pop("calibration", None)


def _forget_later_flags(engine: Values) -> None:
    for flag, usual in LATER_FLAGS.items():
        if engine[flag] == usual:
            engine.pop(flag)


def _canonical(value: Any) -> Any:
    """10.0 and 10 are one number."""
    if isinstance(value, Mapping):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
