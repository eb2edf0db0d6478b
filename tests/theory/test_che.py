"""Hit ratios of the prefix cache against the approximation of Che for LRU.

Requests draw one of N documents independently, by Zipf's law, and the pool holds C of them. A document is
found again if it was asked for within the characteristic time t, in requests, in which C different ones
are: sum(1 - exp(-p_i t)) = C. The hit ratio is sum p_i (1 - exp(-p_i t)) (Che, Tung, Wang, "Hierarchical Web
Caching Systems", IEEE JSAC 20, 2002; why it is so accurate: Fricker, Robert, Roberts, "A versatile and
accurate approximation for LRU cache performance", ITC 24, 2012).

A document here is a prefix of whole blocks, and a request has one token more, as vLLM always computes the
last one. That token takes a block which is never found again. Releases differ in what becomes of it:

- 0.33 puts blocks without a hash to the front of the free queue: the next request takes the same block, and
  C is one block less than the pool.
- 0.16 puts them to its tail, as all others: such blocks pass through the queue like documents that are asked
  for once. As one comes with each request, there are t of them: sum(b (1 - exp(-p_i t))) + t = blocks.

Blocks of one document are freed together, so that at most one document in a pool lacks some, its last ones.
"""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from one_price import STEP, serve
from scipy.optimize import brentq

from kvsim.cache.open_loop import open_loop
from kvsim.cluster.policies.plain import RandomChoice
from kvsim.cluster.policies.rings import ConsistentHashing, HashRing, Session, SglangRing
from kvsim.engine.config import EngineConfig
from kvsim.tokens import stream_key
from kvsim.workload import SharedPrefixWorkload
from kvsim.workload.streams import token_streams

SEED = 1
BLOCK = 16
DOCUMENTS = 1000
CACHED = [50, 150, 500]  # documents that a pool has room for
REPLICAS = 4
WARM = 6_000  # requests that fill the pools
COUNTED = 24_000
LARGEST_ERROR = 0.01  # of a hit ratio, absolute; of this 3 sqrt(0.25 / COUNTED) = 0.0097 is sampling at worst


def zipf(alpha, documents=DOCUMENTS):
    weights = np.arange(1, documents + 1, dtype=float) ** -alpha
    return weights / weights.sum()


def che(popularity, blocks, blocks_each=1, passing=0.0):
    """Hit ratio of documents; popularity sums to 1; passing: blocks per request that are never asked for."""

    def too_many(time):
        return blocks_each * (1 - np.exp(-popularity * time)).sum() + passing * time - blocks

    if too_many(1e12) <= 0:
        return 1.0  # all fit
    time = brentq(too_many, 0.0, 1e12)
    return float((popularity * (1 - np.exp(-popularity * time))).sum())


class Documents:
    """Requests for documents, each with a token of its own behind; a document is also a session."""

    num_requests, max_concurrency, has_follow_ups, has_sessions = WARM + COUNTED, None, False, True

    def __init__(self, alpha, blocks_each=1):
        self._spec = SharedPrefixWorkload(
            rate=0.5 / STEP,
            num_requests=self.num_requests,
            num_prefixes=DOCUMENTS,
            prefix_len=blocks_each * BLOCK,
            suffix_len=1,
            output_len=1,
            popularity="zipf",
            zipf_alpha=alpha,
        )
        self._ranks = {
            int(stream): rank
            for rank, stream in enumerate(token_streams(stream_key(SEED, "prefix"), 0, DOCUMENTS))
        }

    def requests(self, seed):
        return self._spec.requests(seed)

    def blocks(self, seed):
        for block in self._spec.blocks(seed):
            yield replace(block, sessions=[f"document-{rank}" for rank in self.ranks_of(block)])

    def ranks_of(self, block):
        """Number of each request's document, the most popular first."""
        return [self._ranks[stream] for stream in block.segments[block.bounds[:-1], 0].tolist()]


def engine(usable, version="0.33"):
    """One request at a time in so many blocks."""
    return EngineConfig(
        num_gpu_blocks=usable + 1,  # and the null block
        max_model_len=256,
        block_size=BLOCK,
        max_num_seqs=1,
        async_scheduling=False,
        vllm_version=version,
    )


def behind_warm_up(workload, config, policy=None, replicas=1):
    """Rows of the requests behind the warm-up, each with its document and its share of hit blocks."""
    rows = serve(workload, config, policy, replicas, seed=SEED).requests
    rows["document"] = [rank for block in workload.blocks(SEED) for rank in workload.ranks_of(block)]
    rows["hit"] = rows["num_cached_tokens"] / (rows["num_prompt_tokens"] - 1)
    return rows[WARM:]


def firsts(popularity):
    """Share of the counted requests that are the first ones for their document: they cannot hit."""
    return float(((1 - popularity) ** WARM - (1 - popularity) ** (WARM + COUNTED)).sum() / COUNTED)


def check(what, expected, simulated):
    print(f"{what}: Che {expected:.4f}, simulated {simulated:.4f}")
    assert abs(simulated - expected) < LARGEST_ERROR, what


@pytest.mark.parametrize(("alpha", "blocks_each"), [(0.8, 1), (1.2, 1), (1.0, 4)])
@pytest.mark.parametrize("documents", CACHED)
@pytest.mark.parametrize("version", ["0.33", "0.16"])
def test_a_pool_is_an_lru_cache(alpha, blocks_each, documents, version):
    usable = blocks_each * documents + 1
    simulated = behind_warm_up(Documents(alpha, blocks_each), engine(usable, version))["hit"].mean()
    if version == "0.33":
        expected = che(zipf(alpha), usable - 1, blocks_each)
    else:
        expected = che(zipf(alpha), usable, blocks_each, passing=1.0)
    check(f"{version}, zipf {alpha}, {documents} x {blocks_each}", expected, simulated)


@pytest.mark.parametrize("version", ["0.33", "0.16"])
def test_the_open_loop_is_such_a_pool(version):
    """Requests one at a time through a whole engine, and through `open_loop`: the same hits."""
    workload = Documents(1.0)
    first = 2000
    rows = serve(workload, engine(101, version), seed=SEED).requests[:first]
    (count,) = open_loop(islice(workload.requests(SEED), first), [102], vllm_version=version)
    assert BLOCK * count.hit_blocks == rows["num_cached_tokens"].sum()


@pytest.mark.parametrize("documents", CACHED)
def test_behind_random_routing_every_cache_holds_the_same(documents):
    """Each of n sees a thinned stream of the same references: n caches have the hits of one."""
    expected = che(zipf(1.0), documents)
    rows = behind_warm_up(Documents(1.0), engine(documents + 1), RandomChoice(), REPLICAS)
    check(f"random, {documents}", expected, rows["hit"].mean())
    for _, mine in rows.groupby("instance"):
        assert abs(mine["hit"].mean() - expected) < LARGEST_ERROR * REPLICAS**0.5


@pytest.mark.parametrize("documents", CACHED)
@pytest.mark.parametrize(
    ("policy", "ring"), [(Session(), HashRing), (ConsistentHashing(), SglangRing)], ids=["md5", "blake3"]
)
def test_behind_a_hash_ring_every_cache_has_its_part_of_the_catalogue(policy, ring, documents):
    """The replica of a document by the ring; each cache is one of Che over its documents alone.

    A part that fits is read once, which is not over with the warm-up.
    """
    ring = ring([f"replica-{n}" for n in range(REPLICAS)])
    home = np.array([ring.number_of(f"document-{rank}") for rank in range(DOCUMENTS)])
    rows = behind_warm_up(Documents(1.0), engine(documents + 1), policy, REPLICAS)
    assert (rows["instance"].to_numpy() == home[rows["document"]]).all()
    expected = 0.0
    for replica in range(REPLICAS):
        part = zipf(1.0)[home == replica]
        fits = len(part) <= documents
        expected += part.sum() - firsts(part) if fits else part.sum() * che(part / part.sum(), documents)
    check(f"{policy.names[0]}, {documents}", expected, rows["hit"].mean())
    assert expected > che(zipf(1.0), documents)
