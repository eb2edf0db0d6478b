"""`result.plot`: the pictures of one run."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvsim.errors import KvsimError
from kvsim.plots.block_times import ages_at_eviction, reuse_gaps
from kvsim.plots.blocks import block_history, draw_blocks
from kvsim.plots.cdf import KINDS, LATENCIES, Sample, draw_cdf
from kvsim.plots.memory import bar_of_run, draw_memory
from kvsim.plots.memory_groups import MOST_GROUPS, draw_groups, memory_of_group
from kvsim.plots.metrics import one_of
from kvsim.plots.replica_names import name_of, names_of, number_of
from kvsim.plots.replicas import DEFAULT_PANELS as REPLICA_PANELS
from kvsim.plots.replicas import draw_replicas
from kvsim.plots.timeseries import PANELS, draw_timeseries
from kvsim.results.cluster_glance import served
from kvsim.scenario import Scenario, load_scenario
from kvsim.scenario.yaml_file import dump, parse_mapping

if TYPE_CHECKING:
    from kvsim.results import RunResult


class RunPlots:
    """Each method gives back a matplotlib Figure, which a notebook shows; `kvsim.plots.save` writes it.

    ax: axes to draw on in place of a new picture. title: in place of the one that says what is shown.
    All raise KvsimError with one line that says what is wrong.
    """

    def __init__(self, result: "RunResult") -> None:
        self._result = result

    def memory(self, *, title: str | None = None, ax: Axes | None = None) -> Figure:
        """Where the bytes of one GPU go: weights, activation, graphs, KV cache; GiB (2^30) and tokens.

        A bar for each group of a cluster.
        """
        metrics = self._result.metrics
        groups = metrics.get("groups", {})
        if len(groups) > 1:
            names = list(groups)[:MOST_GROUPS]
            shown = [memory_of_group(name, self._without_trace(name), metrics) for name in names]
            return draw_groups(shown, len(groups), self._of(), ax, title)
        group: dict[str, Any] = next(iter(groups.values()), {})
        return draw_memory(bar_of_run(self._without_trace(), {**metrics, **group}), ax, title)

    def timeseries(
        self,
        metric: str | Sequence[str] | None = None,
        *,
        window: tuple[float, float] | None = None,
        replica: int | str | None = None,
        title: str | None = None,
        ax: Axes | None = None,
    ) -> Figure:
        """Over simulated time; needs recorded steps (`record: {steps: true}`).

        metric: one or several of running, waiting, kv_usage, hit_rate, preemptions, tokens (all).
        window: from, to in seconds. replica: only this one's line, by its name in the summary or its number.
        """
        panels = (metric,) if isinstance(metric, str) else tuple(metric or PANELS)
        return draw_timeseries(
            self._result.steps,
            self._of(),
            panels,
            window=window,
            replica=self._number_of(replica, "timeseries"),
            names=names_of(self._result.metrics),
            title=title,
            ax=ax,
        )

    def cdf(
        self,
        kind: str | Sequence[str] = ("ttft", "tpot", "e2e"),
        *,
        replica: int | str | None = None,
        trace: str | Path | None = None,
        title: str | None = None,
        ax: Axes | None = None,
    ) -> Figure:
        """Cumulative distribution of ttft, tpot, e2e or queue_time; block_age (at eviction) or reuse_gap.

        Latencies are those of the summary: finished requests that arrived after the warm-up. The last
        two need recorded events (`record: {events: true}`). replica: see `timeseries`. trace: see `blocks`;
        only for reuse_gap.
        """
        kinds = [one_of(each, KINDS, "cdf") for each in ([kind] if isinstance(kind, str) else kind)]
        number = self._number_of(replica, "cdf")
        samples = {each: self._samples(each, number, trace) for each in kinds}
        limits = {
            name: limit["limit"] for name, limit in self._result.metrics["slo"].items() if name != "all"
        }
        return draw_cdf(samples, self._of_sample(samples, number), limits, title=title, ax=ax)

    def blocks(
        self,
        window: tuple[int, int] | None = None,
        *,
        trace: str | Path | None = None,
        title: str | None = None,
        ax: Axes | None = None,
    ) -> Figure:
        """Owners, cached blocks and the free queue after each step; window: first and last step, from 1.

        The run is simulated once more as far as needed. At most 200 steps and 128 blocks. trace: where the
        replayed trace lies, if not where the scenario says, counted from here.
        """
        if self._result.metrics.get("replicas"):
            raise KvsimError(
                "blocks: the run has several engines, and a picture shows the blocks of one; run one replica "
                "with --set 'cluster={replicas: 1}', or draw replicas"
            )
        history = block_history(self._scenario(trace), window, self._result.metrics.get("num_steps"))
        return draw_blocks(history, self._of(), title=title, ax=ax)

    def replicas(
        self,
        metric: str | Sequence[str] | None = None,
        *,
        title: str | None = None,
        ax: Axes | None = None,
    ) -> Figure:
        """Each replica of a cluster beside the others, and the cluster as a whole.

        metric: one or several of requests, hit_rate, kv_usage (these), running, ttft_p99, prompt_tokens,
        busy_time, preemptions.
        """
        panels = (metric,) if isinstance(metric, str) else tuple(metric or REPLICA_PANELS)
        return draw_replicas(self._result.metrics, self._of(), panels, title=title, ax=ax)

    # ---- what they are drawn from

    def _of(self) -> str:
        facts = self._result.metrics
        return f"{facts['name']}: {served(facts)}, vLLM {facts['vllm_version']}"

    def _without_trace(self, group: str | None = None) -> Scenario:
        """Model, card and flags, wherever the trace lies; of several groups those of one, else the first."""
        values = self._values(group)
        try:
            return Scenario.model_validate(values)
        except ValueError as error:  # as a config.json that has gone
            said = str(error).splitlines()
            raise KvsimError(f"the run's scenario: {' '.join(said[1:3])}") from None

    def _values(self, name: str | None = None) -> dict[str, Any]:
        """The run's scenario as if an engine of that group, or the first, were alone; a router's file may be
        gone.
        """
        values, _ = parse_mapping(self._result.scenario, "the run's scenario")
        cluster = values.pop("cluster", None) or {}
        groups: dict[str, Any] = cluster.get("groups") or {"": {}}
        group = groups[name] if name is not None else next(iter(groups.values()))
        own = ("model", "model_sha256", "gpu", "calibration", "calibration_sha256", "engine")
        return values | {key: group[key] for key in own if key in group}

    def _scenario(self, trace: str | Path | None = None) -> Scenario:
        """The run's scenario, read back from its resolved text."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "scenario.yaml"
            path.write_text(dump(self._values()), encoding="utf-8")
            try:
                return load_scenario(path, trace=trace)
            except KvsimError as error:
                text = str(error).replace(f"{folder}{os.sep}", "")
                hint = "; say where with trace= or --trace" if "workload.path" in text else ""
                raise KvsimError(f"the run's {text}{hint}") from None

    def _samples(self, kind: str, replica: int | None, trace: str | Path | None) -> list[Sample]:
        if kind in LATENCIES:
            requests = self._measured(replica)
            replicas, names = sorted(requests["instance"].unique().tolist()), names_of(self._result.metrics)
            if len(replicas) <= 1:
                return [Sample("all", _numbers(requests[kind]))]
            return [
                Sample(name_of(i, names), _numbers(requests.loc[requests["instance"] == i, kind]))
                for i in replicas
            ]
        events = self._result.events
        if replica is not None:
            events = events[events["instance"] == replica]
        if kind == "block_age":
            return [Sample("all", ages_at_eviction(events))]
        groups = self._result.metrics.get("groups", {}).values() or [self._result.metrics]
        sizes = sorted({group["capacity"]["block_size"] for group in groups})
        if len(sizes) > 1:
            raise KvsimError(f"cdf: reuse_gap wants blocks of one size; the groups have {sizes} tokens")
        (size,) = sizes
        scenario = self._scenario(trace)
        size *= scenario.engine.decode_context_parallel_size or 1
        return [Sample("all", reuse_gaps(events, scenario, size))]

    def _number_of(self, replica: int | str | None, kind: str) -> int | None:
        return None if replica is None else number_of(replica, names_of(self._result.metrics), kind)

    def _measured(self, replica: int | None) -> pd.DataFrame:
        requests = self._result.requests
        warm_up = self._result.metrics["warm_up"]["seconds"]
        kept = (requests["status"] == "finished") & (requests["arrival_time"] >= warm_up)
        if replica is not None:
            kept &= requests["instance"] == replica
        return requests[kept]

    def _of_sample(self, samples: Mapping[str, Sequence[Sample]], replica: int | None) -> str:
        words = {"block_age": "eviction", "reuse_gap": "block hit"}
        counts = {}
        for kind, group in samples.items():
            what = words.get(kind, "finished request")
            count = sum(len(each.values) for each in group)
            counts[what] = f"{count:,} {what}{'' if count == 1 else 's'}"
        seconds = self._result.metrics["warm_up"]["seconds"] if set(samples) & set(LATENCIES) else 0
        cut = f", warm-up of {seconds:g} s cut" if seconds else ""
        whose = "" if replica is None else f", {name_of(replica, names_of(self._result.metrics))}"
        return f"{self._of()}; {', '.join(counts.values())}{cut}{whose}"


def _numbers(column: pd.Series) -> np.ndarray:
    return column.to_numpy(np.float64)
