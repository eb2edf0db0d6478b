"""kvsim beside the peers that are installed, in one call: CPU seconds and their ratios.

    python tests/benchmarks/peers_bench.py
    python tests/benchmarks/peers_bench.py --dynamo-python PYTHON --vllm-python PYTHON --rounds 3
    python tests/benchmarks/peers_bench.py --jobs one-replica-10 pool --quick

Dynamo (`pip install ai-dynamo-runtime`) and vLLM (tests/conformance/README.md says how to install it without
a GPU) may live in environments of their own; a peer that is missing is named and skipped. Each side
runs in a process of its own, in turns; the best round counts, and the worst is printed beside it. Figures
move with the machine and what else it does: only the ratios of one call count. docs/speed.md
explains the jobs. Exit code 1: a job failed, or kvsim and vLLM decided differently.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import PEERS, Bench
from jobs import JOBS
from measure import FailedError, Python, kvsim_python
from rich.console import Console
from rows import Row, as_json, print_rows

WIDTH = 184
PACKAGES = ("numba", "numpy", "pyarrow", "simpy")


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = ", ".join(JOBS)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS), metavar="JOB", help=known)
    parser.add_argument("--rounds", type=int, default=2, help="turns of each side (2)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the requests")
    parser.add_argument("--share", type=float, default=1.0, help="share of the requests (1.0)")
    parser.add_argument("--dynamo-python", default=sys.executable, help="interpreter that can import dynamo")
    parser.add_argument("--vllm-python", default=sys.executable, help="interpreter that can import vllm")
    parser.add_argument("--trace", type=Path, help="for jobs that replay one: Mooncake's conversation trace")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    return parser


def main() -> int:
    args = options().parse_args()
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = WIDTH  # a file takes whole lines
    with tempfile.TemporaryDirectory() as bytecode:
        kvsim = kvsim_python(Path(bytecode))
        dynamo = Python(args.dynamo_python, {"DYN_LOG": "error"})
        peers = found({"dynamo": dynamo, "vllm": Python(args.vllm_python)}, console)
        facts = about(kvsim, peers)
        for name, text in facts.items():
            console.print(f"{name}: {text}", soft_wrap=True)
        share = args.share * (0.1 if args.quick else 1.0)
        bench = Bench(kvsim, peers["dynamo"], peers["vllm"], args.rounds, share, args.trace)
        bench.command("--help")  # Python's own compiling of the sources is over
        rows, failed = measured(bench, args.jobs, console)
    console.print()
    print_rows(rows, args.rounds, console)
    if args.json:
        args.json.write_text(json.dumps({**facts, "rows": [as_json(row) for row in rows]}, indent=2) + "\n")
    return int(failed or any(row.figure == "counts that differ" and not row.met for row in rows))


def found(wanted: dict[str, Python], console: Console) -> dict[str, Python | None]:
    """The peers that can be imported; the others are named."""
    peers: dict[str, Python | None] = {}
    for name, python in wanted.items():
        label, module = PEERS[name]
        problem = python.missing(module)
        peers[name] = None if problem else python
        if problem:
            console.print(f"{label}: skipped, {problem}", soft_wrap=True)
    return peers


def about(kvsim: Python, peers: dict[str, Python | None]) -> dict[str, Any]:
    """The machine and the versions, without names of machines or people."""
    dynamo, vllm = peers["dynamo"], peers["vllm"]
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    facts = {
        "machine": f"{processor()}, {os.cpu_count()} cores, load before the start {load}",
        "kvsim": kvsim.version(*PACKAGES),
    }
    if dynamo:
        facts["Dynamo"] = dynamo.version("ai-dynamo-runtime")
    if vllm:
        facts["vLLM"] = vllm.version("vllm")
    return facts


def processor() -> str:
    """As the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


def measured(bench: Bench, names: list[str], console: Console) -> tuple[list[Row], bool]:
    """Rows of all jobs, and whether one failed."""
    rows: list[Row] = []
    failed = False
    for name in names:
        console.print(f"{name} ...", style="dim")
        try:
            rows += JOBS[name](bench)
        except FailedError as error:
            console.print(f"{name}: failed: {error}", soft_wrap=True)
            failed = True
    return rows, failed


if __name__ == "__main__":
    sys.exit(main())
