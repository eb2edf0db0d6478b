"""Units of keys are those of the schema, wherever in a scenario they stand."""

import pytest

from kvsim.scenario.units import unit_of

CHAT = {"workload": {"type": "chat", "output_len": {"distribution": "lognormal", "mean": 5, "sigma": 1}}}
PREFIX = {
    "workload": {"type": "shared_prefix", "output_len": {"distribution": "normal", "mean": 5, "std": 1}}
}


@pytest.mark.parametrize(
    ("key", "scenario", "unit"),
    [
        ("workload.rate", CHAT, "sessions per second"),
        ("workload.rate", PREFIX, "requests per second"),
        ("workload.rate", None, "per second"),  # all that the types agree on
        ("workload.max_concurrency", None, ""),
        ("workload.output_len", None, "tokens"),
        ("workload.output_len.mean", PREFIX, "tokens"),
        ("workload.output_len.mean", CHAT, ""),  # of a logarithm
        ("workload.prefix-len", PREFIX, "tokens"),
        ("workload.prefix_len", CHAT, "tokens"),  # if the type is swept, too
        ("workload.parts.a.think_time", None, "seconds"),
        ("cluster.groups.a.engine.block_size", None, "tokens"),
        ("cluster.router.request_stats_window", {"cluster": {"router": {"policy": "random"}}}, "seconds"),
        ("max_num_seqs", None, "requests"),  # as flags of vLLM are written
        ("slo.ttft", None, "seconds"),
        ("model", None, ""),
        ("no.such.key", None, ""),
    ],
)
def test_units_of_keys(key, scenario, unit):
    assert unit_of(key, scenario) == unit
