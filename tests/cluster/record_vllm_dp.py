"""Asks vLLM's own data-parallel picker in random situations and writes its answers to recorded_vllm_dp.json.

    python tests/cluster/record_vllm_dp.py          # in an environment with vLLM 0.33.0 (CPU)

The client object is made without its processes: only what the picker reads is set.
"""

import json
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm import __version__
from vllm.v1.engine.core_client import DPLBAsyncMPClient

OUT = Path(__file__).with_name("recorded_vllm_dp.json")


def client_of(ranks: int, client_count: int, client_index: int) -> Any:
    client = DPLBAsyncMPClient.__new__(DPLBAsyncMPClient)
    client.core_engines = [rank.to_bytes(2, "little") for rank in range(ranks)]
    client.lb_engines = [[0, 0, 0.0] for _ in range(ranks)]
    client.engine_inflight, client.reqs_in_flight, client.streaming_reqs = Counter(), {}, set()
    client.client_count, client.client_index = client_count, client_index
    client.eng_start_index = ranks * client_index // client_count
    return client


def situation(seed: int) -> dict[str, Any]:
    """Steps in random order: ["send", rank chosen], ["end", uid] and ["counts", rows]."""
    rng = random.Random(seed)
    ranks, client_count = rng.randint(2, 8), rng.randint(1, 3)
    client_index = rng.randrange(client_count)
    client = client_of(ranks, client_count, client_index)
    steps: list[list[Any]] = []
    in_flight: list[int] = []
    for uid in range(1, 60):
        drawn = rng.random()
        if drawn < 0.15:
            rows = [
                [rng.choice([0, 0, 1, 5]), rng.randint(0, 12), round(rng.random(), 3)] for _ in range(ranks)
            ]
            client.lb_engines = [list(row) for row in rows]
            steps.append(["counts", rows])
        elif drawn < 0.35 and in_flight:
            ended = in_flight.pop(rng.randrange(len(in_flight)))
            client.engine_inflight[client.reqs_in_flight.pop(str(ended))] -= 1
            steps.append(["end", ended])
        request = SimpleNamespace(
            request_id=str(uid), resumable=False, data_parallel_rank=None, pooling_params=None
        )
        engine = client.get_core_engine_for_request(request)
        in_flight.append(uid)
        steps.append(["send", client.core_engines.index(engine)])
    return {"ranks": ranks, "client_count": client_count, "client_index": client_index, "steps": steps}


def main() -> None:
    rows = ",\n".join(json.dumps(situation(seed)) for seed in range(24))
    OUT.write_text(f'{{"source": "vLLM {__version__}, DPLBAsyncMPClient", "cases": [\n{rows}\n]}}\n')
    print(f"{OUT}: vLLM {__version__}")


if __name__ == "__main__":
    main()
