"""The log of a pool: what happened to blocks and requests, as numbers, in order."""

import numpy as np

from kvsim.compiled import compiled_inline, compiled_part


@compiled_inline
def log(pool, kind, group_id, request, first, last, hash_lo, hash_hi):
    """Append one record, if those of its kind are logged."""
    if (pool.scalars["logged_kinds"][0] >> kind) & np.int64(1):
        _append(pool, kind, group_id, request, first, last, hash_lo, hash_hi)


@compiled_part
def _append(pool, kind, group_id, request, first, last, hash_lo, hash_hi):
    """What does not fit is counted, and the owner of the log raises."""
    p = pool.scalars
    n = p["log_len"][0]
    if n == len(pool.log):
        p["log_lost"][0] += 1
        return
    pool.log["kind"][n] = kind
    pool.log["group_id"][n] = group_id
    pool.log["step"][n] = p["step"][0]
    pool.log["time"][n] = p["now"][0]
    pool.log["request"][n] = request
    pool.log["first"][n] = first
    pool.log["last"][n] = last
    pool.log["hash_lo"][n] = hash_lo
    pool.log["hash_hi"][n] = hash_hi
    p["log_len"][0] = n + 1
