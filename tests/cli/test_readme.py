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
    for page in (README, (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")):
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page):
            assert (ROOT / target).exists(), target
