"""Scenario files: strict YAML, checked and with all defaults filled in."""

from kvsim.scenario.engine import ClusterSection, EngineSection, SpeculativeSection
from kvsim.scenario.loader import load_scenario
from kvsim.scenario.schema import Scenario

__all__ = ["ClusterSection", "EngineSection", "Scenario", "SpeculativeSection", "load_scenario"]
