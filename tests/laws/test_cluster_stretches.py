"""Stretches change nothing in a cluster: engines ahead of the clock, or an event for each of their steps."""

import pytest
from clusters import POLICIES, InBlocks, Run, clusters, workloads
from hypothesis import given
from hypothesis import strategies as st
from search import search
from test_stretches import in_order

from kvsim.cluster import policies
from kvsim.cluster.policies.user import UserPolicy

pytestmark = pytest.mark.usefixtures("small_tables")
NAMES = [f"{policy.names[0]}-{number}" for number, policy in enumerate(POLICIES)]


def test_every_policy_takes_part():
    assert {type(policy) for policy in POLICIES} == {*policies.POLICIES.values(), UserPolicy}


@pytest.mark.parametrize("policy", POLICIES, ids=NAMES)
def test_stretches_and_single_steps_give_the_same(policy):
    """step_rows: 0 records nothing; few force engines to stop in order to be read."""

    @search(25)
    @given(
        clusters(policy),
        workloads,
        st.sampled_from([None, None, 0.25, 0.3, 2.0]),
        st.sampled_from([1, 3, 7, 64]),
        st.sampled_from([0, 4, 8192]),
    )
    def check(cluster, workload, horizon, size, step_rows):
        arguments = cluster, InBlocks(workload, size), horizon
        ours, theirs = Run(*arguments, step_rows), Run(*arguments, step_rows, step_by_step=True)
        assert ours.requests.equals(theirs.requests)
        assert ours.stats == theirs.stats
        assert (ours.end, ours.first_refusal) == (theirs.end, theirs.first_refusal)
        assert ours.num_not_sent == theirs.num_not_sent
        assert ours.router_stats == theirs.router_stats
        if step_rows:
            assert in_order(ours.steps).equals(in_order(theirs.steps))
            assert in_order(ours.events).equals(in_order(theirs.events))

    check()
