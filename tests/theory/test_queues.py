"""Waiting times against queueing theory: a replica that takes one request at a time is a server.

With max_num_seqs 1, no prefix cache, no batches in flight and steps of one price, a request of n output
tokens is served in n steps, first come first served. Poisson arrivals then make:

- one replica, one token: M/D/1. Its mean wait is that of Pollaczek and Khinchine, for service times S and
  rate l: l E[S^2] / (2 (1 - l E[S])) (Khinchine 1932; Kleinrock, "Queueing Systems" I, 1975, 5.7).
- lengths that are drawn: M/G/1, the same formula.
- `random` over n replicas: n independent M/D/1, as a Poisson stream that is split at random is Poisson again.
- `round_robin` over n: with constant service the requests of M/D/n begin in turn at its servers, so the waits
  are those of one queue in front of n servers, for each request (Crommelin, "Delay probability formulae when
  the holding times are constant", P.O. Elect. Engrs J. 25, 1932, whose mean is computed here).
- `least_request`: no less than one queue in front of all, which never lets a server idle while one waits.
- `power_of_two`: between `least_request` and `random` (Mitzenmacher, "The Power of Two Choices in Randomized
  Load Balancing", IEEE TPDS 12, 2001).

Means are compared within three standard errors, which are estimated from the means of batches (Law, Kelton,
"Simulation Modeling and Analysis", 9.5), and may not exceed a bound stated with each test. What is more, the
wait of each request is that of the recursions of Lindley (1952) and of Kiefer and Wolfowitz (1955).
"""

import heapq
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from one_price import STEP, serve
from scipy.stats import poisson

from kvsim.cluster.policies.plain import LeastRequest, PowerOfTwo, RandomChoice, RoundRobin
from kvsim.engine.config import EngineConfig
from kvsim.workload import SharedPrefixWorkload

SERVER = EngineConfig(
    num_gpu_blocks=100,
    max_model_len=64,
    max_num_seqs=1,
    enable_prefix_caching=False,
    async_scheduling=False,
)
LOADS = [0.3, 0.6, 0.8]
POLICIES = {
    "random": RandomChoice(),
    "round_robin": RoundRobin(),
    "least_request": LeastRequest(),
    "power_of_two": PowerOfTwo(),
}
SERVERS = 4
BATCHES = 40


@cache
def queue(load, policy=None, num_requests=160_000, longest=1):
    """Requests at `load` (0..1) per server, each of 1 .. longest steps; their rows, with waits in steps."""
    servers = 1 if policy is None else SERVERS
    workload = SharedPrefixWorkload(
        rate=load * servers / STEP / ((1 + longest) / 2),
        num_requests=num_requests,
        prefix_len=0,
        suffix_len=1,
        output_len={"distribution": "uniform", "min": 1, "max": longest},
    )
    policy = None if policy is None else POLICIES[policy]
    rows = serve(workload, SERVER, policy, servers).requests
    assert (rows["status"] == "finished").all()
    served = rows["finish_time"] - rows["first_scheduled_time"]
    assert np.allclose(served, STEP * rows["num_output_tokens"], rtol=0, atol=1e-9)
    rows["wait"] = (rows["first_scheduled_time"] - rows["arrival_time"]) / STEP
    return rows


def mean_and_error(waits):
    """The mean and its standard error, from the means of `BATCHES` batches in a row."""
    means = [batch.mean() for batch in np.array_split(np.asarray(waits), BATCHES)]
    return float(np.mean(waits)), float(np.std(means, ddof=1) / BATCHES**0.5)


def check_mean(waits, expected, largest_error, name):
    """Within three standard errors, none of which is above `largest_error` (relative)."""
    mean, error = mean_and_error(waits)
    print(f"{name}: theory {expected:.4f} steps, simulated {mean:.4f} +- {error:.4f}")
    assert error < largest_error * expected
    assert abs(mean - expected) < 3 * error


def pollaczek_khinchine(load, mean=1.0, square=1.0):
    """Mean wait of M/G/1; mean: of the service time, square: the mean of its square."""
    return load / mean * square / (2 * (1 - load))


def crommelin(load, servers):
    """Mean wait of M/D/n in service times."""
    k = np.arange(1, 2000)
    arrivals, room = k * servers * load, k * servers
    return float((poisson.sf(room - 1, arrivals) - poisson.sf(room, arrivals) / load).sum())


def lindley(arrivals, service):
    """Waits at one server, by its recursion w' = max(0, w + s - (a' - a)); all in one unit."""
    work_before = np.concatenate([[0.0], np.cumsum(service)[:-1]])
    begins = work_before + np.maximum.accumulate(arrivals - work_before)
    return begins - arrivals


def kiefer_wolfowitz(arrivals, servers):
    """Waits in one queue in front of servers of one step, in steps: the head takes whoever is free first."""
    free, waits = [0.0] * servers, []
    for arrival in arrivals.tolist():
        begin = max(arrival, free[0])
        heapq.heapreplace(free, begin + 1.0)
        waits.append(begin - arrival)
    return np.array(waits)


def in_flight_of_each(rows):
    """Requests in flight at each replica as each request arrives, (requests, SERVERS); times all differ."""
    counts = np.zeros((len(rows), SERVERS), np.int64)
    arrivals, instance = rows["arrival_time"].to_numpy(), rows["instance"].to_numpy()
    for replica in range(SERVERS):
        mine = instance == replica
        sent = np.searchsorted(arrivals[mine], arrivals, side="left")
        ended = np.searchsorted(np.sort(rows["finish_time"].to_numpy()[mine]), arrivals, side="right")
        counts[:, replica] = sent - ended
    return counts


def test_the_formulas_agree_for_one_server():
    for load in LOADS:
        assert crommelin(load, 1) == pytest.approx(pollaczek_khinchine(load), rel=1e-9)


@pytest.mark.parametrize("load", LOADS)
def test_one_replica_is_m_d_1(load):
    rows = queue(load)
    check_mean(rows["wait"], pollaczek_khinchine(load), 0.03, f"M/D/1 at {load}")
    expected = lindley(rows["arrival_time"] / STEP, np.ones(len(rows)))
    assert np.abs(rows["wait"] - expected).max() < 1e-6  # of a step; hours of simulated time in 64 bits


@pytest.mark.parametrize("load", LOADS)
def test_one_replica_with_lengths_is_m_g_1(load):
    longest = 9
    lengths = np.arange(1, longest + 1)
    rows = queue(load, longest=longest)
    expected = pollaczek_khinchine(load, lengths.mean(), (lengths**2).mean())
    check_mean(rows["wait"], expected, 0.03, f"M/G/1 at {load}")
    waits = lindley(rows["arrival_time"] / STEP, rows["num_output_tokens"].to_numpy())
    assert np.abs(rows["wait"] - waits).max() < 1e-6


@pytest.mark.parametrize("load", LOADS)
def test_random_routing_makes_independent_m_d_1(load):
    rows = queue(load, "random")
    for replica, mine in rows.groupby("instance"):
        check_mean(mine["wait"], pollaczek_khinchine(load), 0.06, f"random at {load}, replica {replica}")
    counts = in_flight_of_each(rows)
    correlation = np.corrcoef(counts.T)[~np.eye(SERVERS, dtype=bool)]
    assert np.abs(correlation).max() < 0.05


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("policy", POLICIES)
def test_each_replica_is_a_queue_of_its_own(policy, load):
    rows = queue(load, policy)
    for _, mine in rows.groupby("instance"):
        expected = lindley(mine["arrival_time"] / STEP, np.ones(len(mine)))
        assert np.abs(mine["wait"] - expected).max() < 1e-6


@pytest.mark.parametrize("load", LOADS)
def test_round_robin_is_one_queue_in_front_of_all(load):
    rows = queue(load, "round_robin")
    pooled = kiefer_wolfowitz(rows["arrival_time"] / STEP, SERVERS)
    assert np.abs(rows["wait"] - pooled).max() < 1e-6
    check_mean(rows["wait"], crommelin(load, SERVERS), 0.05, f"M/D/{SERVERS} at {load}")


@pytest.mark.parametrize("load", LOADS)
def test_fewer_requests_wait_longer_than_one_queue_and_shorter_than_at_random(load):
    waits = {policy: queue(load, policy)["wait"] for policy in POLICIES}
    means = {policy: mean_and_error(each) for policy, each in waits.items()}
    print(load, {policy: f"{mean:.4f} +- {error:.4f}" for policy, (mean, error) in means.items()})
    order = ["round_robin", "least_request", "power_of_two", "random"]  # the first is M/D/4, see above
    for less, more in pairwise(order):
        difference, error = mean_and_error(waits[more] - waits[less])  # the same arrivals
        assert difference > 3 * error, (less, more)


@pytest.mark.parametrize("load", LOADS)
def test_least_request_sends_where_the_fewest_are(load):
    rows = queue(load, "least_request")
    counts = in_flight_of_each(rows)
    chosen = counts[np.arange(len(rows)), rows["instance"]]
    assert (chosen == counts.min(axis=1)).all()


@pytest.mark.parametrize("load", LOADS)
def test_power_of_two_sends_to_the_only_least_as_often_as_it_draws_it(load):
    """One of four is among two that are drawn half of the time; the only fullest of all is never taken."""
    rows = queue(load, "power_of_two")
    counts = in_flight_of_each(rows)
    chosen = counts[np.arange(len(rows)), rows["instance"]]
    ordered = np.sort(counts, axis=1)
    only_least, only_most = ordered[:, 0] < ordered[:, 1], ordered[:, -1] > ordered[:, -2]
    share = (chosen == ordered[:, 0])[only_least].mean()
    assert abs(share - 0.5) < 4 * (0.25 / only_least.sum()) ** 0.5
    assert (chosen < ordered[:, -1])[only_most].all()
