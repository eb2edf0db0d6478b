"""vLLM's KV cache, re-implemented: hashing, block pool, cache groups, manager, events.

For people: `BlockPool` and `KVCacheManager`. The compiled functions behind them stand in modules
of their own, lowest first: `free_queue`, `block_map`, `block_pool`, `lookup`, `kv_cache_manager`.
Import from those modules; this page imports nothing, so that a command line starts at once.
"""
