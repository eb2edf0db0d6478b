"""Jobs of clusters: many replicas behind a router."""

import gzip
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from bench import ENGINE, Bench, Job, beside_dynamo, said
from measure import ROOT, Took
from rows import Row, least

MADE_TRACE = ROOT / "scenarios" / "data" / "made_trace.jsonl"
MODES = {"round_robin": "round_robin", "dynamo_kv": "kv_router"}  # kvsim's name and Dynamo's
SHARED = ("workload.prefix_len=256", "workload.suffix_len=256")  # with one of 8 prefixes
# Blocks that Dynamo takes where nobody says how many, of how many tokens, and tokens a step.
DYNAMOS_OWN = {"blocks": 16384, "block_size": 64, "seqs": 256, "budget": 8192}


def made(name: str, router: str, shared: float) -> Job:
    """Sixteen replicas, requests of 512 + 128 tokens at 160 per second."""

    def job(bench: Bench) -> list[Row]:
        count = bench.requests(100_000)
        load = {"workers": _replicas(16, count), "mode": MODES[router], "rate": 160}
        load |= {"prompt": 512, "output": 128, "shared": shared, "groups": 8 if shared else 0, **ENGINE}
        ours = [f"cluster.replicas={load['workers']}", f"cluster.router={router}"]
        ours += SHARED if shared else ()
        return beside_dynamo(bench, name, "cluster", ours, load, count)

    return job


def replayed(name: str, router: str, engine: dict[str, int]) -> Job:
    """A trace on sixteen replicas: Mooncake's conversations if it is given, else a small made one."""

    def job(bench: Bench) -> list[Row]:
        with _rows(bench.trace or MADE_TRACE, bench.requests(12_031)) as (trace, count):
            load = {"workers": _replicas(16, count), "mode": MODES[router], **engine}
            load |= {"trace": str(trace), "trace_block_size": 512}
            flags = {
                "num_gpu_blocks_override": engine["blocks"],
                "block_size": engine["block_size"],
                "max_num_batched_tokens": engine["budget"],
            }
            ours = [f"engine.{flag}={value}" for flag, value in flags.items()]
            ours += [f"cluster.replicas={load['workers']}", f"cluster.router={router}"]
            ours += [f"workload.path={trace}"]
            return beside_dynamo(bench, name, "cluster_trace", ours, load, count)

    return job


def _replicas(full: int, count: int) -> int:
    """Not more than requests, for benchmarks of a few of them."""
    return min(full, count)


@contextmanager
def _rows(trace: Path, count: int) -> Iterator[tuple[Path, int]]:
    """The first rows of a trace in a file that is not packed, and how many there are."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "trace.jsonl"
        with gzip.open(trace) if trace.suffix == ".gz" else open(trace, "rb") as file:
            rows = list(islice(file, count))
        target.write_bytes(b"".join(rows))
        yield target, len(rows)


def hour(bench: Bench) -> list[Row]:
    """64 replicas for one simulated hour: about 11 million steps."""
    count = bench.requests(24 * 3600)
    ours = [f"cluster.replicas={_replicas(64, count)}", "cluster.router=dynamo_kv", *SHARED]
    ours += ["workload.rate=24", f"workload.num_requests={count}"]
    took = bench.turns(run=lambda: bench.one_run("cluster", *ours))["run"]
    text = f"{took[0].says['simulated']:,.0f} simulated s, {_steps(took[0])}"
    return [
        least("cluster-hour", "64 replicas, one hour, dynamo_kv", said(took, "cpu"), "CPU s", "<= 30", text),
        least("cluster-hour", "peak of the process", [each.peak for each in took], "MiB", "<= 2048"),
    ]


def million(bench: Bench) -> list[Row]:
    """As beside Dynamo, with a million requests."""
    count = bench.requests(1_000_000)
    ours = [f"cluster.replicas={_replicas(16, count)}", f"workload.num_requests={count}"]
    took = bench.turns(
        round_robin=lambda: bench.one_run("cluster", *ours),
        dynamo_kv=lambda: bench.one_run("cluster", *ours, "cluster.router=dynamo_kv", *SHARED),
    )
    rows = []
    for router, each in took.items():
        figure = f"16 replicas, {router}"
        note = f"{_steps(each[0])}, peak {min(one.peak for one in each):,.0f} MiB"
        rows.append(least("cluster-million", figure, said(each, "cpu"), "CPU s", "<= 30", note))
    return rows


SIZES = (1, 4, 16, 64, 256)


def sizes(bench: Bench) -> list[Row]:
    """Ten requests per second and replica, for 100 s: is the time linear in replicas?"""
    rows = []
    for router in MODES:
        sides = {
            str(replicas): lambda replicas=replicas, router=router: _of_size(bench, router, replicas)
            for replicas in SIZES
            if replicas <= bench.requests(1000 * replicas)
        }
        for replicas, took in bench.turns(**sides).items():
            each = [seconds / int(replicas) * 1e3 for seconds in said(took, "cpu")]
            figure = f"{router}, {replicas} replicas, for each"
            note = f"{min(said(took, 'cpu')):.2f} CPU s, {_steps(took[0])}"
            rows.append(least("cluster-sizes", figure, each, "CPU ms", note=note))
    return rows


def _of_size(bench: Bench, router: str, replicas: int) -> Took:
    count = f"workload.num_requests={bench.requests(1000 * replicas)}"
    size = (f"cluster.replicas={replicas}", f"workload.rate={10 * replicas}")
    return bench.one_run("cluster", f"cluster.router={router}", *size, count, *SHARED)


def _steps(took: Took) -> str:
    return f"{took.says['finished']:,} requests, {took.says['steps']:,} steps"


CLUSTER_JOBS: dict[str, Job] = {
    "cluster-made": made("cluster-made", "round_robin", 0.0),
    "cluster-made-kv": made("cluster-made-kv", "dynamo_kv", 0.5),
    "cluster-trace": replayed("cluster-trace", "round_robin", ENGINE),
    "cluster-trace-kv": replayed("cluster-trace-kv", "dynamo_kv", ENGINE),
    "cluster-trace-64": replayed("cluster-trace-64", "round_robin", DYNAMOS_OWN),
    "cluster-trace-64-kv": replayed("cluster-trace-64-kv", "dynamo_kv", DYNAMOS_OWN),
    "cluster-hour": hour,
    "cluster-million": million,
    "cluster-sizes": sizes,
}
