"""How much faster two workers finish a sweep than one, with points of at least two seconds.

    python tests/benchmarks/sweep_bench.py [--workers 2] [--points 8] [--seconds 2] [--rounds 3]

Workers are warm (started, libraries loaded) before the clock starts. One worker means one worker
process, so both sides hand points over in the same way. Wall clock, so the machine has to be quiet.
"""

import argparse
import time
from pathlib import Path

from measure import ROOT
from rich.console import Console
from rows import Row, least, print_rows, ratio

from kvsim.scenario import read_template
from kvsim.sweep.asked import asked
from kvsim.sweep.pools import Processes
from kvsim.sweep.run import Plan, do_nothing, drive, plan_sweep
from kvsim.sweep.store import Memory
from kvsim.sweep.work import run_point

SCENARIO = ROOT / "scenarios" / "quickstart.yaml"
TARGET = ">= 1.7"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenario", type=Path, default=SCENARIO)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--points", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    num_requests, seconds = long_enough(options.scenario, options.seconds)
    axes = [f"seed=1:{options.points}:1", f"workload.num_requests={num_requests}"]
    plan = plan_sweep(read_template(options.scenario), asked(None, set_=axes))
    rows = compare(plan, options.workers, options.rounds)
    print(f"{options.points} points of {num_requests:,} requests, {seconds:.1f} s each alone")
    print_rows(rows, options.rounds, Console(width=140))


def long_enough(scenario: Path, seconds: float) -> tuple[int, float]:
    """Requests with which a point takes at least so long, alone in a warm process; and how long."""
    template, num_requests = read_template(scenario), 2000
    run_point(template.scenario())
    while True:
        point = template.scenario([f"workload.num_requests={num_requests}"])
        begin = time.perf_counter()
        run_point(point)
        took = time.perf_counter() - begin
        if took >= seconds:
            return num_requests, took
        num_requests = int(num_requests * max(1.2, 1.1 * seconds / took))


def compare(plan: Plan, workers: int, rounds: int) -> list[Row]:
    """Rounds of one worker and of several, in turns."""
    one, several = [], []
    for _ in range(rounds):
        one.append(timed(plan, 1))
        several.append(timed(plan, workers))
    return [
        least("sweep", "1 worker", one, "s"),
        least("sweep", f"{workers} workers", several, "s"),
        ratio("sweep", f"{workers} workers against 1", one, several, TARGET),
    ]


def timed(plan: Plan, workers: int) -> float:
    """Seconds for all points, once the workers have run a small point each."""
    pool = Processes(workers)
    try:
        warm = [
            pool.submit(run_point, read_template(SCENARIO).scenario(["workload.num_requests=500"]))
            for _ in range(4 * workers)
        ]
        for future in warm:
            future.result()
        begin = time.perf_counter()
        drive(plan, pool, Memory(), do_nothing)
        return time.perf_counter() - begin
    finally:
        pool.close()


if __name__ == "__main__":
    main()
