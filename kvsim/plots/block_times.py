"""From the event log: how old blocks are when evicted, and how long content waits for its next use."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kvsim.cache.block_hasher import make_block_hasher
from kvsim.cache.manager import content_of
from kvsim.errors import KvsimError
from kvsim.rules import rules_for
from kvsim.scenario import Scenario

Numbers = NDArray[np.float64]


def ages_at_eviction(events: pd.DataFrame) -> Numbers:
    """Seconds from when a block became reusable to when it lost its content; one value per eviction."""
    seen = events[events["kind"].isin(("stored", "stored_partial", "evicted", "cleared"))]
    stored: dict[tuple[int, int], float] = {}
    ages = []
    columns = ("instance", "kind", "block_id", "time")
    for instance, kind, block, time in zip(*(seen[name].tolist() for name in columns), strict=True):
        if kind == "cleared":
            stored = {key: when for key, when in stored.items() if key[0] != instance}
        elif kind == "evicted":
            ages.append(time - stored.pop((instance, block), np.nan))
        else:
            stored.setdefault((instance, block), time)
    return np.array(ages, np.float64)


def reuse_gaps(events: pd.DataFrame, scenario: Scenario, block_size: int) -> Numbers:
    """Seconds between a hit on a block and the use of the same content before it; a value per block hit.

    As vLLM's `kv_block_reuse_gap_seconds` (v1/core/kv_cache_metrics.py), of all blocks and not of a
    sample. The log tells how many tokens a request hit, not which blocks: their content comes from the
    scenario's requests, made once more. Raises KvsimError for models with several KV cache groups, and for
    sessions, whose next turns came when the run let them.
    """
    if scenario.build_workload().has_follow_ups:
        raise KvsimError("cdf: reuse_gap needs requests that do not wait for answers; this run had sessions")
    if events["group_id"].dropna().nunique() > 1:
        raise KvsimError("cdf: reuse_gap needs a model with one KV cache group; this one has several")
    uses = _uses(events, block_size)
    contents = _contents(scenario, block_size, int(uses["request"].max()) + 1 if len(uses) else 0)
    gaps = []
    latest: dict[tuple[int, bytes], float] = {}
    columns = ("instance", "request", "first", "end", "time", "hit")
    for instance, request, first, end, time, hit in zip(*(uses[n].tolist() for n in columns), strict=True):
        for key in contents[request][first:end]:
            before = latest.get((instance, key))
            if hit and before is not None:
                gaps.append(time - before)
            latest[instance, key] = time
    return np.array(gaps, np.float64)


def _uses(events: pd.DataFrame, block_size: int) -> pd.DataFrame:
    """In order: request, its blocks from `first` to before `end`, and whether they were hit or stored."""
    kept = events[events["kind"].isin(("lookup", "stored", "preempted", "finished"))].reset_index(drop=True)
    following = kept.groupby(["instance", "request"], sort=False)["kind"].shift(-1)
    looked = (kept["kind"] == "lookup") & (following != "lookup")  # earlier ones did not lead to admission
    hits = kept[looked]
    stored = kept[kept["kind"] == "stored"]
    rows = [
        _rows(hits, np.zeros(len(hits), np.int64), _whole(hits["num_tokens"]) // block_size, True),
        _rows(stored, _whole(stored["block_index"]), _whole(stored["block_index"]) + 1, False),
    ]
    return pd.concat(rows).sort_index(kind="stable")


def _rows(events: pd.DataFrame, first: NDArray[np.int64], end: NDArray[np.int64], hit: bool) -> pd.DataFrame:
    same = {
        "instance": events["instance"],
        "request": events["request"].astype("int64"),
        "time": events["time"],
    }
    return pd.DataFrame(same).assign(first=first, end=end, hit=hit)


def _whole(column: pd.Series) -> NDArray[np.int64]:
    return column.to_numpy(np.int64)


def _contents(scenario: Scenario, block_size: int, count: int) -> list[list[bytes]]:
    """For each of the first `count` requests the keys of its blocks, output included."""
    hasher = make_block_hasher("fast", block_size, rules_for(scenario.vllm_version))
    contents: list[list[bytes]] = []
    if not count:
        return contents
    for request in scenario.build_workload().requests(scenario.seed):
        whole = np.concatenate([request.prompt, request.output])
        words = hasher(whole, content_of(request))
        contents.append([row.tobytes() for row in words])
        if len(contents) == count:
            break
    return contents
