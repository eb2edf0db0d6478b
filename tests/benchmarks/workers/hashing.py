"""Block hashing: million tokens per CPU second, of kvsim or of vLLM.

    python hashing.py '{"side": "kvsim" or "vllm", "tokens": N, "block_size": B, "prompt": TOKENS}'

kvsim's fast chain makes the token ids while it hashes them, 50 times as many as given; the others are
given token ids as lists, as vLLM is by its API server.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

CONFORMANCE = Path(__file__).resolve().parents[2] / "conformance"
ALGORITHMS = ("sha256", "sha256_cbor", "xxhash", "xxhash_cbor")


def rate(work: Callable[[], object], num_tokens: int) -> float:
    """Million tokens per CPU second."""
    begin = time.process_time()
    work()
    return num_tokens / (time.process_time() - begin) / 1e6


def kvsim_side(load: Any) -> dict[str, float]:
    import numpy as np

    from kvsim.cache.block_hasher import FastBlockHasher, VllmBlockHasher
    from kvsim.cache.hashing import BlockContent
    from kvsim.rules import rules_for
    from kvsim.tokens import expand, segments

    rules, content = rules_for("0.33"), BlockContent(load.prompt)
    count = 50 * load.tokens // load.prompt
    prompts = np.array([[1 + i, 0, load.prompt] for i in range(count)], np.uint64)
    bounds, sizes = np.arange(count + 1), np.full(count, load.prompt)

    def fast() -> Any:
        return FastBlockHasher(load.block_size, rules).hash_many(prompts, bounds, sizes, None)

    FastBlockHasher(load.block_size, rules)(segments((1, 0, 64)), content)  # load or compile the code
    FastBlockHasher(load.block_size, rules).hash_many(prompts[:1], bounds[:2], sizes[:1], None)
    rates = {"fast": rate(fast, count * load.prompt)}
    token_ids = [expand(segments((1 + i, 0, load.prompt))).tolist() for i in range(count // 50)]
    for name in ALGORITHMS:
        hasher = VllmBlockHasher(name, load.block_size, rules)
        work = [lambda h=hasher, ids=ids: h.hash_tokens(ids, content) for ids in token_ids]
        rates[name] = rate(lambda calls=work: [call() for call in calls], len(token_ids) * load.prompt)
    return rates


def vllm_side(load: Any) -> dict[str, float]:
    sys.path.insert(0, str(CONFORMANCE))
    import scenario
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    count = load.tokens // load.prompt
    requests = [
        Request(
            request_id=f"r{i}",
            prompt_token_ids=scenario.rand_tokens(1 + i, load.prompt),
            sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None,
            arrival_time=0.0,
            block_hasher=None,
        )
        for i in range(count)
    ]
    rates = {}
    for name in ALGORITHMS:
        function = get_hash_fn_by_name(name)
        init_none_hash(function)
        hasher = get_request_block_hasher(load.block_size, function)
        rates[name] = rate(lambda h=hasher: [h(request) for request in requests], count * load.prompt)
    return rates


if __name__ == "__main__":
    given = SimpleNamespace(**json.loads(sys.argv[1]))
    print(json.dumps({"kvsim": kvsim_side, "vllm": vllm_side}[given.side](given)))
