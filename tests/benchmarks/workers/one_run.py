"""kvsim: one scenario, simulated and written to a folder, in a process whose compiled code is loaded.

    python one_run.py '{"scenario": FILE, "overrides": [...]}'

Before the time is taken a run of a few requests loads (or makes) the machine code.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import kvsim.cli.main  # noqa: F401  sets up Arrow's memory as `kvsim run` does
from kvsim.cli import collector
from kvsim.engine.core import EngineCore
from kvsim.scenario import load_scenario
from kvsim.sim import run_to_folder


class RequestsMade:
    """CPU seconds spent making requests and hashing their content."""

    def __init__(self) -> None:
        self.cpu = 0.0

    def watch(self, workload: type) -> None:
        make, prepare = workload.blocks, EngineCore.prepare

        def blocks(this, seed):
            made = make(this, seed)
            while (block := self.timed(next, made, None)) is not None:
                yield block

        workload.blocks = blocks
        EngineCore.prepare = lambda *arguments, **options: self.timed(prepare, *arguments, **options)

    def timed(self, function, *arguments, **options):
        begin = time.process_time()
        result = function(*arguments, **options)
        self.cpu += time.process_time() - begin
        return result


def main() -> None:
    arguments = json.loads(sys.argv[1])
    overrides = arguments["overrides"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        few = [each for each in overrides if not each.startswith("workload.num_requests=")]
        run_to_folder(load_scenario(arguments["scenario"], [*few, "workload.num_requests=2"]), folder / "few")
        collector.pause()  # and Python's collector of garbage
        collector.resume()
        made, scenario = RequestsMade(), load_scenario(arguments["scenario"], overrides)
        made.watch(type(scenario.build_workload()))
        begin = time.process_time()
        result, target = run_to_folder(load_scenario(arguments["scenario"], overrides), folder)
        cpu = time.process_time() - begin
        metrics = result.metrics
        said = {
            "cpu": cpu,
            "making": made.cpu,
            "steps": metrics["num_steps"],
            "finished": metrics["requests"]["finished"],
            "simulated": metrics["simulated_seconds"],
            "e2e": metrics["vllm:e2e_request_latency_seconds"]["mean"],
            "hit_rate": metrics["prefix_cache_hit_rate"],
        }
        if (target / "steps.parquet").exists():
            said["batch"] = float(result.steps["num_reqs"].mean())
        print(json.dumps(said))


if __name__ == "__main__":
    main()
