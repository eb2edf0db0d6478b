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
from kvsim.scenario import load_scenario
from kvsim.sim import run_to_folder


def main() -> None:
    arguments = json.loads(sys.argv[1])
    overrides = arguments["overrides"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        few = [each for each in overrides if not each.startswith("workload.num_requests=")]
        run_to_folder(load_scenario(arguments["scenario"], [*few, "workload.num_requests=2"]), folder / "few")
        begin = time.process_time()
        result, target = run_to_folder(load_scenario(arguments["scenario"], overrides), folder)
        cpu = time.process_time() - begin
        metrics = result.metrics
        said = {
            "cpu": cpu,
            "steps": metrics["num_steps"],
            "finished": metrics["requests"]["finished"],
            "simulated": metrics["simulated_seconds"],
            "e2e": metrics["vllm:e2e_request_latency_seconds"]["mean"],
        }
        if (target / "steps.parquet").exists():
            said["batch"] = float(result.steps["num_reqs"].mean())
        print(json.dumps(said))


if __name__ == "__main__":
    main()
