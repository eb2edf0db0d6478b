"""Compute anew whatever in this repository kvsim has computed, when its figures have changed.

    python docs/refresh.py

That is: the scenarios' answers, the reference results, all pictures, the notebooks, the page of scenario
keys, README's figures. What is said about them in words stays; tests compare it, so run them next.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kvsim

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
COMMANDS = (
    ("scenarios/expected.py",),
    ("docs/figures.py", "--run"),
    ("docs/plots_gallery.py",),
    ("notebooks/execute.py",),
    ("-m", "kvsim.cli.main", "schema", "--markdown", "-o", "docs/scenario.md"),
)


def answer(name: str, figure: str, **where: Any) -> Any:
    """The figure of a scenario's run, or of its only points at these values, as scenarios/expected has it."""
    kept = json.loads((ROOT / "scenarios" / "expected" / f"{name}.json").read_text(encoding="utf-8"))
    rows = kept.get("sweep") or [kept["run"]]
    short = [{key.split(".")[-1]: value for key, value in row.items()} for row in rows]
    found = {row[figure] for row in short if where.items() <= row.items()}
    if len(found) != 1:
        raise ValueError(f"{name}: {figure} at {where} is one of {found}")
    return found.pop()


def filled(readme: str) -> str:
    """README with the present figures in its phrases; raises ValueError if a phrase is not there once."""
    for pattern, text in _phrases():
        readme, count = re.subn(pattern, lambda _, text=text: text, readme, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"README has {count} times: {pattern}")
    return readme


def _phrases() -> list[tuple[str, str]]:
    """(pattern, what stands there now)."""
    saved = answer("quickstart", "prefix_cache_hit_rate")
    sizing = {"model": "Qwen/Qwen3-VL-2B-Instruct", "gpu_memory_utilization": 0.9}
    once, twice = (
        answer("qwen3vl_sizing", "kv_cache_size_tokens", **sizing, max_num_batched_tokens=batched)
        for batched in (2048, 4096)
    )
    cached, plain = (answer("slo_goodput", "rate", enable_prefix_caching=on) for on in (True, False))
    one, many = (answer("tenants", "prefix_cache_hit_rate", num_tenants=count) for count in (0, 16))
    compared = ("round_robin", "dynamo_kv")
    blind, aware = (answer("routers", "prefix_cache_hit_rate", router=name) for name in compared)
    output = repr(kvsim.load_scenario(ROOT / "scenarios" / "quickstart.yaml").run())
    return [
        (r"\| [\d.]+% of the prompt tokens \|", f"| {saved:.1%} of the prompt tokens |"),
        (
            r"twice the batched tokens take [\d.]+%, length",
            f"twice the batched tokens take {1 - twice / once:.1%}, length",
        ),
        (
            r"[\d.]+ requests per second with the prefix cache, [\d.]+ without",
            f"{cached:.1f} requests per second with the prefix cache, {plain:.1f} without",
        ),
        (
            r"[\d.]+% of the prompt tokens hit in one cache for all, [\d.]+% with",
            f"{one:.1%} of the prompt tokens hit in one cache for all, {many:.1%} with",
        ),
        (
            r"[\d.]+% of the prompt tokens hit under round robin, [\d.]+% under",
            f"{blind:.1%} of the prompt tokens hit under round robin, {aware:.1%} under",
        ),
        (r"```\nquickstart: .*?\n```", f"```\n{output}\n```"),
    ]


def main() -> None:
    for command in COMMANDS:
        print("python", *command, flush=True)
        subprocess.run([sys.executable, *command], cwd=ROOT, check=True)
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
