"""Scenario files: strict YAML, checked and with all defaults filled in."""

from kvsim.scenario.engine import ClusterSection, EngineSection, SpeculativeSection
from kvsim.scenario.loader import Override, load_scenario
from kvsim.scenario.measuring import RecordSection, SloSection
from kvsim.scenario.schema import Scenario

__all__ = [
    "ClusterSection",
    "EngineSection",
    "Override",
    "RecordSection",
    "Scenario",
    "SloSection",
    "SpeculativeSection",
    "load_scenario",
]
