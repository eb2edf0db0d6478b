"""Stretches change nothing in a cluster: engines ahead of the clock, or an event for each of their steps."""

import numpy as np
import pyarrow as pa
from clusters import InBlocks, Run, clusters, workloads
from hypothesis import given, settings
from hypothesis import strategies as st


def in_order(table):
    """Rows of each instance in its own order: when instances take turns is not part of the result."""
    return table.take(pa.array(np.argsort(table["instance"].to_numpy(), kind="stable")))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    clusters(),
    workloads,
    st.sampled_from([None, None, 0.25, 0.3, 2.0]),
    st.sampled_from([1, 3, 7, 64]),
    st.booleans(),
)
def test_stretches_and_single_steps_give_the_same(cluster, workload, horizon, size, recorded):
    workload = InBlocks(workload, size)
    ours = Run(cluster, workload, horizon, recorded=recorded)
    theirs = Run(cluster, workload, horizon, step_by_step=True, recorded=recorded)
    assert ours.requests.to_pylist() == theirs.requests.to_pylist() or ours.requests.equals(theirs.requests)
    assert ours.stats == theirs.stats
    assert (ours.end, ours.first_refusal) == (theirs.end, theirs.first_refusal)
    if recorded:
        assert in_order(ours.steps).equals(in_order(theirs.steps))
        assert in_order(ours.events).equals(in_order(theirs.events))
    assert ours.router_stats == theirs.router_stats
