"""Engines and windows of arrivals by address: how compiled code holds many of them (`kvsim.addresses`)."""

import numpy as np

from kvsim.addresses import array_at, words_at
from kvsim.cache.groups import GROUP_DTYPE
from kvsim.cache.state import (
    BLOCK_DTYPE,
    CACHE_DTYPE,
    ENTRY_DTYPE,
    LOG_DTYPE,
    REQUEST_DTYPE,
    ROW_DTYPE,
    KVState,
    PoolState,
)
from kvsim.compiled import compiled_once
from kvsim.engine.state import (
    BATCH_DTYPE,
    ENCODER_ENTRY_DTYPE,
    ENGINE_DTYPE,
    FEATURE_DTYPE,
    SCHEDULED_DTYPE,
    SEAT_DTYPE,
    STEP_DTYPE,
    EngineState,
)
from kvsim.gpu.cost import COST_DTYPE


def arrays_of(eng, cost):
    """An engine's arrays, in the order of its words."""
    kv, pool = eng.kv, eng.kv.pool
    return (
        *(pool.scalars, pool.blocks, pool.entries, pool.buckets, pool.log),
        *(kv.groups, kv.requests, kv.rows, kv.block_tables, kv.block_hashes),
        *(eng.scalars, eng.seats, eng.batches, eng.scheduled, eng.features, eng.encoder_cache, eng.steps),
        cost,
    )


@compiled_once
def engine_at(address):
    """The engine (EngineState) whose words begin at `address`."""
    words = words_at(address)
    pool = PoolState(
        array_at(words, 0, CACHE_DTYPE, 1),
        array_at(words, 1, BLOCK_DTYPE, 1),
        array_at(words, 2, ENTRY_DTYPE, 1),
        array_at(words, 3, np.int32, 1),
        array_at(words, 4, LOG_DTYPE, 1),
    )
    kv = KVState(
        pool,
        array_at(words, 5, GROUP_DTYPE, 1),
        array_at(words, 6, REQUEST_DTYPE, 1),
        array_at(words, 7, ROW_DTYPE, 2),
        array_at(words, 8, np.int32, 3),
        array_at(words, 9, np.uint64, 2),
    )
    return EngineState(
        kv,
        array_at(words, 10, ENGINE_DTYPE, 1),
        array_at(words, 11, SEAT_DTYPE, 1),
        array_at(words, 12, BATCH_DTYPE, 1),
        array_at(words, 13, SCHEDULED_DTYPE, 2),
        array_at(words, 14, FEATURE_DTYPE, 1),
        array_at(words, 15, ENCODER_ENTRY_DTYPE, 1),
        array_at(words, 16, STEP_DTYPE, 1),
    )


@compiled_once
def cost_at(address):
    """What its steps take (COST_DTYPE, one row)."""
    return array_at(words_at(address), 17, COST_DTYPE, 1)


@compiled_once
def log_at(address):
    """Log (LOG_DTYPE) and scalars of its block pool: what routers read."""
    words = words_at(address)
    return array_at(words, 4, LOG_DTYPE, 1), array_at(words, 0, CACHE_DTYPE, 1)


@compiled_once
def counters_at(address):
    """Its scalars (ENGINE_DTYPE) and its recorded steps."""
    words = words_at(address)
    return array_at(words, 10, ENGINE_DTYPE, 1), array_at(words, 16, STEP_DTYPE, 1)


@compiled_once
def requests_at(address):
    """Its table of requests."""
    return array_at(words_at(address), 6, REQUEST_DTYPE, 1)


@compiled_once
def window_at(address):
    """Rows, block hashes and features of the arrivals (`kvsim.engine.core.Arrivals`) at `address`."""
    words = words_at(address)
    return (
        array_at(words, 0, REQUEST_DTYPE, 1),
        array_at(words, 1, np.uint64, 2),
        array_at(words, 2, FEATURE_DTYPE, 1),
    )
