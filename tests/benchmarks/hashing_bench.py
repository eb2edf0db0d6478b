"""Block hashing: kvsim's fast chain beside vLLM's algorithms, in million tokens per CPU second.

    python tests/benchmarks/hashing_bench.py [--tokens N] [--block-size N]

The fast chain makes its tokens while it hashes; the others are given token ids, as in vLLM.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kvsim.cache.block_hasher import FastBlockHasher, VllmBlockHasher
from kvsim.cache.hashing import HASH_FUNCTIONS, BlockContent
from kvsim.rules import rules_for
from kvsim.tokens import Segments, expand, segments


def rate(work: Callable[[], object], num_tokens: int) -> float:
    """Million tokens per CPU second."""
    begin = time.process_time()
    work()
    return num_tokens / (time.process_time() - begin) / 1e6


def prompts(num_tokens: int, length: int, first_stream: int = 1) -> list[Segments]:
    return [segments((first_stream + i, 0, length)) for i in range(num_tokens // length)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=1_000_000, help="tokens that each algorithm hashes")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--prompt-len", type=int, default=2000)
    args = parser.parse_args()
    rules, content = rules_for("0.33"), BlockContent(args.prompt_len)
    fast = FastBlockHasher(args.block_size, rules)
    fast(segments((1, 0, args.prompt_len)), content)  # load or compile the code

    n = 50 * args.tokens
    parts = prompts(n, args.prompt_len)
    print(f"{'fast':12} {rate(lambda: [fast(p, content) for p in parts], n):8.1f} M tokens/s")
    shared = [segments((1, 0, args.prompt_len - 16), (9 + i, 0, 16)) for i in range(n // args.prompt_len)]
    print(f"{'fast, shared':12} {rate(lambda: [fast(p, content) for p in shared], n):8.1f} M tokens/s")
    token_ids = [expand(p).tolist() for p in prompts(args.tokens, args.prompt_len)]
    for name in HASH_FUNCTIONS:
        hasher = VllmBlockHasher(name, args.block_size, rules)
        figure = rate(lambda h=hasher: [h.hash_tokens(ids, content) for ids in token_ids], args.tokens)
        print(f"{name:12} {figure:8.1f} M tokens/s")


if __name__ == "__main__":
    main()
