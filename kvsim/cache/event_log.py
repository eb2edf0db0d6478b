"""The log of a pool: what happened to blocks and requests, as numbers, in order."""

from kvsim.cache.state import LOG_OFF
from kvsim.compiled import compiled_inline, compiled_part


@compiled_inline
def log(pool, kind, group_id, request, first, last, hash_lo, hash_hi):
    """Append one record, if the log is on."""
    if pool.scalars["log_level"][0] != LOG_OFF:
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
