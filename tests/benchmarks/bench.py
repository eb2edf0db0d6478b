"""How to measure, and what jobs have in common."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import HERE, Python, Took, run
from rows import Row, least, ratio

LOADS = HERE / "loads"
KVSIM = ("-c", "from kvsim.cli.main import main; main()")


@dataclass(frozen=True)
class Bench:
    """How to measure: a peer that is missing is None; `share` of the full number of requests."""

    kvsim: Python
    dynamo: Python | None
    vllm: Python | None
    rounds: int
    share: float
    trace: Path | None

    def requests(self, full: int) -> int:
        return max(round(full * self.share), 2)

    def turns(self, **sides: Callable[[], Took] | None) -> dict[str, list[Took]]:
        """Each side once a round, in turns; one that is None is left out."""
        took: dict[str, list[Took]] = {name: [] for name, side in sides.items() if side}
        for _ in range(self.rounds):
            for name, side in sides.items():
                if side:
                    took[name].append(side())
        return took

    def command(self, *arguments: str, **environment: str) -> Took:
        """The whole process of a ``kvsim`` command."""
        with tempfile.TemporaryDirectory() as folder:
            every = {**self.kvsim.environment, **environment}
            return run([self.kvsim.interpreter, *KVSIM, *arguments], Path(folder), **every)

    def one_run(self, load: str, *overrides: str) -> Took:
        """A scenario in a process whose compiled code is loaded."""
        return self.kvsim.worker("one_run", scenario=str(LOADS / f"{load}.yaml"), overrides=overrides)


Job = Callable[[Bench], list[Row]]


def said(took: Sequence[Took], name: str) -> list[float]:
    return [each.says[name] for each in took]


def cpu(took: Sequence[Took]) -> list[float]:
    return [each.cpu for each in took]


# What peers are called, and the module to be there.
PEERS = {"dynamo": ("Dynamo", "dynamo._core"), "vllm": ("vLLM", "vllm")}
# What both sides are given: 26,312 blocks of 16 tokens, 256 sequences and 2,048 tokens a step.
ENGINE = {"blocks": 26312, "block_size": 16, "seqs": 256, "budget": 2048}


def beside_dynamo(
    bench: Bench, name: str, load: str, overrides: Sequence[str], theirs: Mapping[str, Any], count: int
) -> list[Row]:
    """A run of `count` requests, in a warm process and as a whole one; Dynamo's replay of `theirs`."""
    dynamo = bench.dynamo
    overrides = [*overrides, f"workload.num_requests={count}"]
    options = [word for each in overrides for word in ("--set", each)]
    took = bench.turns(
        job=lambda: bench.one_run(load, *overrides),
        whole=lambda: bench.command("run", "--quiet", str(LOADS / f"{load}.yaml"), *options),
        dynamo=(lambda: dynamo.worker("dynamo_replay", requests=count, **theirs)) if dynamo else None,
    )
    ours, whole, others = took["job"], took["whole"], took.get("dynamo", [])
    per_second = f"{count / min(said(ours, 'cpu')):,.0f} requests per CPU s; {_about(ours[0])}"
    rows = [
        least(name, "kvsim, job with its code loaded", said(ours, "cpu"), "CPU s", note=per_second),
        least(name, "kvsim run, whole process", cpu(whole), "CPU s", note=_peak(whole)),
    ]
    if not others:
        return rows
    return [
        *rows,
        least(name, "Dynamo, replay call", said(others, "cpu"), "CPU s", note=_about(others[0])),
        least(name, "Dynamo, whole process", cpu(others), "CPU s", note=_peak(others)),
        ratio(name, "Dynamo process / kvsim job", cpu(others), said(ours, "cpu"), ">= 2"),
        ratio(name, "Dynamo call / kvsim job", said(others, "cpu"), said(ours, "cpu")),
        ratio(name, "Dynamo process / kvsim process", cpu(others), cpu(whole)),
    ]


def _about(took: Took) -> str:
    """Mean number of requests that are under way, by Little's law; hit rate and steps."""
    says = took.says
    steps = f", {says['steps']:,} steps" if "steps" in says else ""
    hits = f", {says['hit_rate']:.1%} hits" if says["hit_rate"] else ""
    return f"{says['e2e'] * says['finished'] / says['simulated']:.1f} in flight{hits}{steps}"


def _peak(took: Sequence[Took]) -> str:
    return f"{min(each.peak for each in took):,.0f} MiB"
