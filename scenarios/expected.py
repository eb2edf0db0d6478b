"""Run every scenario of this folder and keep its chief figures in expected/NAME.json; a test compares.

Also writes README.md, the list of questions.

    python scenarios/expected.py            all of them
    python scenarios/expected.py NAME...    these

A scenario with a `sweep:` block is swept, any other one is run. Counts are exact; other numbers have six
digits, since the last ones may differ between machines.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kvsim
from kvsim.sweep.figures import figures

HERE = Path(__file__).parent
EXPECTED = HERE / "expected"
README = HERE / "README.md"
NEEDS_A_TRACE = {"mooncake_conversation", "mooncake_routers"}  # which is not part of this repository
CHIEF = (
    "find.beyond",
    "requests.finished",
    "capacity.num_gpu_blocks",
    "capacity.kv_cache_size_tokens",
    "prefix_cache_hit_rate",
    "blocks_evicted",
    "vllm:num_preemptions",
    "recompute_tax",
    "waiting_steps.lora_limit",
    "vllm:kv_cache_usage_perc.peak",
    "vllm:time_to_first_token_seconds.p50",
    "vllm:time_to_first_token_seconds.p99",
    "vllm:request_time_per_output_token_seconds.p50",
    "vllm:request_time_per_output_token_seconds.p99",
    "generation_tokens_per_second",
    "request_goodput",
    "slo.all.share",
    "imbalance.requests.max_over_mean",
)


HEAD = """\
# Scenarios

One question a file. `kvsim sweep FILE` answers it where the file has a `sweep:` block, `kvsim run FILE` or
`kvsim steps FILE` where it has none; [expected](expected) holds the chief figures of each, written with this
page by `python scenarios/expected.py`.

![KV cache by model, utilization and max_num_batched_tokens](../docs/qwen3vl_sizing.png)

The founding study's sizing of a Qwen3-VL server, [qwen3vl_sizing.yaml](qwen3vl_sizing.yaml): model size and
`gpu_memory_utilization` decide, `max_num_batched_tokens` matters a little, `max_model_len` and `max_num_seqs`
not at all. The picture is drawn by `python docs/figures.py`.

| file | question |
|---|---|
"""


def names() -> list[str]:
    """The scenarios that this repository can run."""
    return sorted({path.stem for path in HERE.glob("*.yaml")} - NEEDS_A_TRACE)


def chief_figures(name: str) -> dict[str, Any]:
    """Of one run, or of each point of a sweep."""
    path = HERE / f"{name}.yaml"
    scenario = kvsim.load_scenario(path)
    if scenario.sweep_block is None:
        return {"question": question(path), "run": chief(figures(scenario.run().metrics))}
    result = scenario.sweep(workers=1, progress=False)
    rows = json.loads(result.frame.to_json(orient="records", double_precision=15))
    keys = [*result.axes, *filter(None, [result.searched])]
    return {
        "question": question(path),
        "sweep": [{**{key: row[key] for key in keys}, **chief(row)} for row in rows],
    }


def text_of(found: Mapping[str, Any]) -> str:
    """JSON with a line for each point."""
    if "run" in found:
        return json.dumps(found, indent=1) + "\n"
    rows = ",\n  ".join(map(json.dumps, found["sweep"]))
    return f'{{\n "question": {json.dumps(found["question"])},\n "sweep": [\n  {rows}\n ]\n}}\n'


def chief(row: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: rounded(row[key]) for key in CHIEF if row.get(key) is not None}
    said = {key: row[key] for key in ("remark", "error") if row.get(key)}
    return said if "error" in said else found | said


def rounded(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.6g}")


def question(path: Path) -> str:
    return path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def page() -> str:
    """README.md of this folder."""
    files = sorted(HERE.glob("*.yaml"))
    return HEAD + "".join(f"| [{path.name}]({path.name}) | {question(path)} |\n" for path in files)


def main(wanted: list[str]) -> None:
    EXPECTED.mkdir(exist_ok=True)
    for name in wanted or names():
        (EXPECTED / f"{name}.json").write_text(text_of(chief_figures(name)), encoding="utf-8")
        print(name)
    README.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
