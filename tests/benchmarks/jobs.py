"""The jobs of the benchmark: each gives rows."""

import tempfile
from collections.abc import Sequence

from bench import ENGINE, Bench, Job, beside_dynamo, cpu, said
from cluster_jobs import CLUSTER_JOBS
from measure import ROOT, Took
from rows import Row, least, most, ratio
from workers.all_waiting import COUNTS
from workers.hashing import ALGORITHMS

QUICKSTART = ROOT / "scenarios" / "quickstart.yaml"
GOLDEN = ROOT / "tests" / "conformance" / "golden"


# ---------------------------------------------------------------- one replica, beside Dynamo


def one_replica(rate: int) -> Job:
    def job(bench: Bench) -> list[Row]:
        load = {"workers": 1, "mode": "round_robin", "rate": rate, "prompt": 512, "output": 128}
        load |= {"shared": 0.0, "groups": 0, **ENGINE}
        count = bench.requests(100_000)
        rate_key = f"workload.rate={rate}"
        return beside_dynamo(bench, f"one-replica-{rate}", "one_replica", [rate_key], load, count)

    return job


# ---------------------------------------------------------------- all waiting, beside vLLM


def all_waiting(bench: Bench) -> list[Row]:
    name, vllm = "all-waiting", bench.vllm
    load = {"requests": bench.requests(20_000), "prefixes": 50, "prefix_len": 1024, "tail_len": 256}
    load |= {"output_len": 64, "blocks": 20_000, "seqs": 256, "budget": 8192, "block_size": 16}
    load |= {"asynchronous": False}
    took = bench.turns(
        kvsim=lambda: bench.kvsim.worker("all_waiting", side="kvsim", **load),
        vllm=(lambda: vllm.worker("all_waiting", side="vllm", **load)) if vllm else None,
    )
    ours, theirs = took["kvsim"], took.get("vllm", [])
    rows = [
        least(name, "kvsim, scheduler loop", said(ours, "loop"), "CPU s", note=_steps(ours)),
        least(name, "kvsim, building and hashing", said(ours, "build"), "CPU s"),
    ]
    if not theirs:
        return rows
    differ = [f"{key} {ours[0].says[key]} and {theirs[0].says[key]}" for key in COUNTS if _differ(took, key)]
    decided = "decided differently: " + ", ".join(differ) if differ else "both decided the same"
    return [
        *rows,
        least(name, "vLLM, scheduler loop", said(theirs, "loop"), "CPU s", note=_steps(theirs)),
        least(name, "vLLM, building and hashing (sha256)", said(theirs, "build"), "CPU s"),
        ratio(name, "vLLM loop / kvsim loop", said(theirs, "loop"), said(ours, "loop"), ">= 50"),
        ratio(name, "vLLM building / kvsim building", said(theirs, "build"), said(ours, "build")),
        Row(name, "counts that differ", len(differ), len(differ), "", "<= 0", decided),
    ]


def _steps(took: Sequence[Took]) -> str:
    steps = took[0].says["steps"]
    return f"{min(said(took, 'loop')) / steps * 1e6:,.1f} us a step, {steps:,} steps"


def _differ(took: dict[str, list[Took]], key: str) -> bool:
    return len({each.says[key] for side in took.values() for each in side}) > 1


# ---------------------------------------------------------------- kvsim alone


def step_cost(bench: Bench) -> list[Row]:
    """Whole runs over the number of steps: arrivals, SimPy, steps, rows, files and summary.

    Once with everything, and once without making and hashing the requests, which `hashing` measures.
    """
    loads = {
        "one_replica": (
            10,
            "<= 3",
            ["workload.rate=10.8", f"workload.num_requests={bench.requests(100_000)}"],
        ),
        "all_waiting": (253, "<= 30", [f"workload.num_requests={bench.requests(20_000)}"]),
    }
    rows = []
    for load, (batch, target, overrides) in loads.items():
        took = bench.turns(
            off=lambda load=load, more=overrides: bench.one_run(load, *more),
            on=lambda load=load, more=overrides: bench.one_run(load, *more, "record.steps=true"),
        )
        steps = took["off"][0].says["steps"]
        note = f"mean batch {took['on'][0].says['batch']:.1f}, {steps:,} steps"
        for which, text in (("off", "requests recorded"), ("on", "requests and steps recorded")):
            whole, making = said(took[which], "cpu"), said(took[which], "making")
            figure = f"batch {batch}, {text}"
            each = [(all_ - made) / steps * 1e6 for all_, made in zip(whole, making, strict=True)]
            rows.append(least("step-cost", figure, each, "us/step", target, note))
            each = [seconds / steps * 1e6 for seconds in whole]
            rows.append(least("step-cost", f"{figure}, with hashing", each, "us/step", note=note))
    return rows


def price(bench: Bench) -> list[Row]:
    """One call of the cost model from compiled code, a dense model at batch 128."""
    load = {"requests": 128, "context": 2000, "calls": bench.requests(200_000)}
    took = bench.turns(
        decode=lambda: bench.kvsim.worker("price", first=1, **load),
        mixed=lambda: bench.kvsim.worker("price", first=512, **load),
    )
    figures = {"decode": "128 decodes", "mixed": "127 decodes beside a prefill chunk"}
    return [
        least("price", figures[which], said(each, "us"), "us/step", "<= 0.3" if which == "decode" else "")
        for which, each in took.items()
    ]


POOLS = (100_000, 27_656)  # usable blocks


def pool(bench: Bench) -> list[Row]:
    trace = str(bench.trace.resolve()) if bench.trace else None
    given = {"trace": trace, "requests": bench.requests(12_031), "pools": [size + 1 for size in POOLS]}
    took = bench.turns(kvsim=lambda: bench.kvsim.worker("open_loop_pool", **given))["kvsim"]
    source = "given trace" if trace else "made trace"
    rows = []
    for k, size in enumerate(POOLS):
        runs = [each.says["pools"][k] for each in took]
        rates = [each["blocks"] / each["cpu"] / 1e6 for each in runs]
        counts = "{blocks:,} blocks, {hits:,} hits, {evicted:,} evicted".format(**runs[0])
        rows.append(
            most("pool", f"pool of {size:,} blocks", rates, "M blocks/s", ">= 40", f"{source}, {counts}")
        )
    return rows


def hashing(bench: Bench) -> list[Row]:
    load, vllm = {"tokens": bench.requests(1_000_000), "block_size": 16, "prompt": 2000}, bench.vllm
    load["tokens"] = max(load["tokens"], load["prompt"])
    took = bench.turns(
        kvsim=lambda: bench.kvsim.worker("hashing", side="kvsim", **load),
        vllm=(lambda: vllm.worker("hashing", side="vllm", **load)) if vllm else None,
    )
    fast = said(took["kvsim"], "fast")
    rows = [most("hashing", "fast chain, ids made on the way", fast, "M tokens/s", ">= 150")]
    for side, text in (("kvsim", "kvsim's"), ("vllm", "vLLM's own")):
        for name in ALGORITHMS if side in took else ():
            rates = said(took[side], name)
            note = f"fast chain / it: {max(fast) / max(rates):,.0f} x"
            rows.append(most("hashing", f"{text} {name}", rates, "M tokens/s", note=note))
    return rows


def memory(bench: Bench) -> list[Row]:
    few, many = (bench.requests(count) for count in (100_000, 1_000_000))
    took = bench.turns(
        few=lambda: bench.one_run("one_replica", f"workload.num_requests={few}"),
        many=lambda: bench.one_run("one_replica", f"workload.num_requests={many}"),
    )
    peaks = {which: [each.peak for each in took[which]] for which in took}
    times = {which: said(took[which], "cpu") for which in took}
    linear = [seconds * many / few for seconds in times["few"]]
    return [
        least("memory", f"{few:,} requests, peak", peaks["few"], "MiB"),
        least("memory", f"{many:,} requests, peak", peaks["many"], "MiB"),
        _growth("peak, many / few", peaks["many"], peaks["few"]),
        least("memory", f"{few:,} requests", times["few"], "CPU s"),
        least("memory", f"{many:,} requests", times["many"], "CPU s"),
        _growth("time, many / linear", times["many"], linear),
    ]


def _growth(figure: str, many: Sequence[float], few: Sequence[float]) -> Row:
    each = [a / b for a, b in zip(many, few, strict=True)]
    best = min(many) / min(few)
    return Row("memory", figure, best, max(best, *each), "x", "<= 1.1")


def startup(bench: Bench) -> list[Row]:
    count = f"workload.num_requests={bench.requests(2000)}"
    quickstart = ("run", str(QUICKSTART), "--set", count)
    warm = bench.turns(
        run=lambda: bench.command(*quickstart),
        help=lambda: bench.command("--help"),
    )
    with tempfile.TemporaryDirectory() as cache:
        steps = ("steps", str(QUICKSTART), "--count", "1")
        commands = (quickstart, steps, ("verify", str(sorted(GOLDEN.iterdir())[0])))
        cold = [bench.command(*command, KVSIM_CACHE_DIR=cache) for command in commands]
    return [
        least("startup", "kvsim run quickstart, warm", [each.wall for each in warm["run"]], "s", "<= 4"),
        least("startup", "kvsim run quickstart, warm", cpu(warm["run"]), "CPU s"),
        least("startup", "kvsim --help", [each.wall for each in warm["help"]], "s", "<= 0.5"),
        _once("kvsim run quickstart, cold", cold[:1]),
        _once("run, steps and verify, cold", cold, "<= 60"),
    ]


def _once(figure: str, took: Sequence[Took], target: str = "") -> Row:
    seconds = sum(each.wall for each in took)
    return Row("startup", figure, seconds, seconds, "s", target, f"{sum(cpu(took)):.1f} CPU s; one round")


JOBS: dict[str, Job] = {
    "one-replica-10": one_replica(10),
    "one-replica-30": one_replica(30),
    **CLUSTER_JOBS,
    "all-waiting": all_waiting,
    "step-cost": step_cost,
    "price": price,
    "pool": pool,
    "hashing": hashing,
    "memory": memory,
    "startup": startup,
}
