"""``kvsim schema``."""

import json
from pathlib import Path

import pytest

from kvsim.cli.main import main
from kvsim.report.scenario_page import scenario_page
from kvsim.scenario.json_schema import json_schema


@pytest.fixture
def schema(tmp_path: Path, monkeypatch, capfd):
    """Runs `kvsim schema` in an empty folder; returns exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["schema", *args])
        out = capfd.readouterr()
        return int(ended.value.code or 0), out.out, out.err

    return run


def test_it_prints_the_schema(schema) -> None:
    code, out, err = schema()
    assert (code, err) == (0, "")
    assert json.loads(out) == json_schema()


def test_it_writes_the_schema(schema) -> None:
    assert schema("-o", "kvsim.schema.json") == (0, "", "")
    assert json.loads(Path("kvsim.schema.json").read_text()) == json_schema()
    assert schema("--output", "kvsim.schema.json") == (0, "", "")


def test_it_prints_and_writes_the_reference(schema) -> None:
    assert schema("--markdown") == (0, scenario_page(), "")
    assert schema("--markdown", "-o", "scenario.md") == (0, "", "")
    assert Path("scenario.md").read_text(encoding="utf-8") == scenario_page()


@pytest.mark.parametrize("place", ["nowhere/schema.json", "."])
def test_a_place_that_cannot_be_written_is_named(schema, place: str) -> None:
    code, out, err = schema("-o", place)
    assert (code, out) == (2, "")
    assert err.startswith(f"kvsim: cannot write {place}: ")
    assert err.count("\n") == 1
    assert list(Path().iterdir()) == []
