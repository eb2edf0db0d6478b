"""Scenario files: strict YAML, checked and with all defaults filled in."""

from kvsim.scenario.cluster import ClusterSection, GroupSection, LinkSection
from kvsim.scenario.engine import EngineSection, SpeculativeSection
from kvsim.scenario.loader import Override, ScenarioError, Template, load_scenario, read_template, template_of
from kvsim.scenario.measuring import RecordSection, SloSection
from kvsim.scenario.schema import Scenario
from kvsim.scenario.sweep_block import SweepSection

__all__ = [
    "ClusterSection",
    "EngineSection",
    "GroupSection",
    "LinkSection",
    "Override",
    "RecordSection",
    "Scenario",
    "ScenarioError",
    "SloSection",
    "SpeculativeSection",
    "SweepSection",
    "Template",
    "load_scenario",
    "read_template",
    "template_of",
]
