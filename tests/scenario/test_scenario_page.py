"""docs/scenario.md lists every key as the code has it."""

import importlib.util
from pathlib import Path

import pytest

from kvsim.scenario import ClusterSection, EngineSection, RecordSection, Scenario, SloSection
from kvsim.scenario.workload import TYPES, workload_section
from kvsim.workload.checks import FieldError

SCRIPT = Path(__file__).parent.parent.parent / "docs" / "scenario_page.py"
spec = importlib.util.spec_from_file_location("scenario_page", SCRIPT)
assert spec is not None
assert spec.loader is not None
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)

GOOD = {
    "shared_prefix": {"rate": 1, "num_requests": 1},
    "image": {"rate": 1, "num_requests": 1, "image_size": [64, 64]},
    "trace": {"path": "rows.jsonl"},
}


def test_the_page_is_what_the_schema_says():
    text = script.PAGE.read_text(encoding="utf-8")
    assert text == script.page(), "run python docs/scenario_page.py"
    for section in (Scenario, EngineSection, ClusterSection, SloSection, RecordSection):
        assert all(f"| `{key}` |" in text for key in section.model_fields)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("key", script.RANGES)
def test_what_lies_beyond_a_range_is_refused(kind, key):
    if key not in TYPES[kind].__dataclass_fields__:
        return
    low, high = script.RANGES[key]
    workload_section({"type": kind, **GOOD[kind], key: low})
    for beyond in (low - 1, high + 1):
        with pytest.raises(FieldError, match=rf"^{key}: {beyond} is out of range"):
            workload_section({"type": kind, **GOOD[kind], key: beyond})
