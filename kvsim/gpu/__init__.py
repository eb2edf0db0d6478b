"""Models, GPUs, KV cache memory and step time: arithmetic only, no simulation."""
