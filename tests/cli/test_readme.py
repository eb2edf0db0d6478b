"""What the README shows is what comes out."""

import re
from pathlib import Path

import kvsim

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_output_shown_is_that_of_the_quickstart() -> None:
    shown = re.search(r"```\n(quickstart: .*?)\n```", README, re.DOTALL)
    assert shown
    assert shown[1] == repr(kvsim.load_scenario(ROOT / "scenarios" / "quickstart.yaml").run())


def test_the_scenario_shown_runs(tmp_path: Path) -> None:
    shown = re.search(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert shown
    path = tmp_path / "chat.yaml"
    path.write_text(shown[1], encoding="utf-8")
    result = kvsim.load_scenario(path, ["workload.num_requests=20"]).run()
    assert result.metrics["requests"]["finished"] == 20


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
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
