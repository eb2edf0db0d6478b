"""What the README shows is what comes out."""

import importlib.util
import json
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

import kvsim
from kvsim.cli.main import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def script(name: str) -> ModuleType:
    """A script of docs/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_figures_shown_are_those_of_the_scenarios() -> None:
    """What the quickstart prints, and the answers in the table."""
    assert script("refresh").filled(README) == README, "run python docs/refresh.py"


def test_the_scenario_shown_runs(tmp_path: Path) -> None:
    shown = re.search(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert shown
    path = tmp_path / "chat.yaml"
    path.write_text(shown[1], encoding="utf-8")
    result = kvsim.load_scenario(path, ["workload.num_requests=20"]).run()
    assert result.metrics["requests"]["finished"] == 20


def test_the_pictures_are_drawn_from_the_reference_results(tmp_path: Path) -> None:
    figures = script("figures")
    drawn = figures.draw(tmp_path)
    assert {path.name for path in drawn} == {path.name for path in (ROOT / "docs").glob("*.png")}
    for path in drawn:
        assert path.read_bytes().startswith(b"\x89PNG")
    for name in figures.SWEPT:
        kept = json.loads((ROOT / "scenarios" / "expected" / f"{name}.json").read_text(encoding="utf-8"))
        found = figures.result(name).frame["prefix_cache_hit_rate"].tolist()
        assert found == pytest.approx([row["prefix_cache_hit_rate"] for row in kept["sweep"]], rel=1e-5)


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "scenarios" / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page}: {target}"


def test_the_python_shown_runs_and_gives_what_it_says(monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict = {}
    for code in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL):
        exec(code, names)
    assert len(names["result"].requests) == 100
    assert names["manager"].get_computed_blocks("b") == ([[1, 2]], 8)
    assert names["manager"].free_queue() == [4, 5, 6, 7, 8, 9, 10, 3, 2, 1]
    assert [len(event.block_hashes) for event in names["events"]] == [3, 3, 1]


def test_the_python_of_the_readme_runs(monkeypatch, capfd) -> None:
    monkeypatch.chdir(ROOT)
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code
    names: dict = {}
    exec(code[1], names)
    assert len(names["result"].requests) == 2000


def test_the_commands_of_the_readme_are_accepted(tmp_path: Path, monkeypatch, capfd) -> None:
    """Sweep and plot, with few requests; the trace of the other line is not part of this repository."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    block = re.search(r"```\n(kvsim run .*?)```", README, re.DOTALL)
    assert block
    for line in block[1].splitlines():
        args = shlex.split(line, comments=True)[1:]
        if "--trace" in args:
            continue
        if args[0] in ("run", "sweep"):
            args += ["--set", "workload.num_requests=20"]
        with pytest.raises(SystemExit) as ended:
            main(args)
        assert not ended.value.code, capfd.readouterr().err
    assert [path.suffix for path in tmp_path.glob("*.png")] == [".png"]


def test_the_speculation_shown_is_valid(tmp_path: Path) -> None:
    shown = re.search(
        r"    engine:\n(      speculative_config: .*)\n", (ROOT / "docs" / "scenario.md").read_text()
    )
    assert shown
    override = "engine.speculative_config=" + shown[1].split(": ", 1)[1]
    result = kvsim.load_scenario(
        ROOT / "scenarios" / "quickstart.yaml", [override, "workload.num_requests=20"]
    ).run()
    drafted = result.metrics["vllm:spec_decode_num_draft_tokens"]
    assert 0 < result.metrics["vllm:spec_decode_num_accepted_tokens"] < drafted
