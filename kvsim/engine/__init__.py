"""One vLLM engine without a model: scheduler, encoder cache, batches in flight, step clock.

For people: `kvsim.engine.core.EngineCore` (with `step`), `Scheduler` (its halves), and
`kvsim.engine.config.EngineConfig`. Compiled, lowest first: `queues`, `encoder_cache`, `batch`,
`scheduler`, `output`, `step`.
"""
