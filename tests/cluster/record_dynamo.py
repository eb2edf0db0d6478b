"""Asks Dynamo's own selection core in random situations and writes what it answers to recorded_dynamo.json.

    DYNAMO=/path/to/venv/lib/python3.11/site-packages python tests/cluster/record_dynamo.py

The venv needs ai-dynamo-runtime 1.6.1, this Python pyzmq and msgpack. KV events go to the core over ZMQ, as
from vLLM; costs are read from its log.
"""

import asyncio
import json
import os
import random
import re
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgpack
import zmq
from routing_requests import prompt_of

from kvsim.tokens import expand, stream_key

BLOCK, MODEL = 16, "m"
OUT = Path(__file__).with_name("recorded_dynamo.json")
SETTINGS = {
    "overlap_score_credit": "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT",
    "overlap_score_credit_decay": "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY",
    "prefill_load_scale": "DYN_ROUTER_PREFILL_LOAD_SCALE",
    "decode_active_request_weight": "DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT",
}
Pieces = list[tuple[str, int]]


def drawn_prompt(rng: random.Random) -> Pieces:
    """Often the beginning of another prompt, then something else."""
    pieces = [(rng.choice("ABC"), rng.choice([48, 160, 161, 330]))]
    if rng.random() < 0.6:
        pieces.append((rng.choice("XYZ"), rng.randint(1, 200)))
    return pieces


def drawn_situation(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    settings = {
        "overlap_score_credit": rng.choice([1.0, 1.0, 0.5, 2.0, 0.0]),
        "overlap_score_credit_decay": rng.choice([0.0, 0.0, 0.5, 3.0]),
        "prefill_load_scale": rng.choice([1.0, 1.0, 0.25, 2.0]),
        "decode_active_request_weight": rng.choice([0.0, 0.0, 1.5]),
    }
    workers = rng.randint(2, 5)
    index = [
        {"on": w, "prompt": drawn_prompt(rng), "removed": rng.sample(range(3), rng.choice([0, 0, 1]))}
        for w in range(workers)
        if rng.random() < 0.7
    ]
    phases = ["prefill", "decode", "ended"]
    booked = [
        {"on": rng.randrange(workers), "prompt": drawn_prompt(rng), "phase": rng.choice(phases)}
        for _ in range(rng.randint(0, 8))
    ]
    return {
        "settings": settings,
        "workers": workers,
        "index": index,
        "booked": booked,
        "prompt": drawn_prompt(rng),
    }


def tokens_of(pieces: Pieces) -> list[int]:
    return [int(token) for token in expand(prompt_of(*pieces))]


class Publisher:
    """A worker's event socket."""

    def __init__(self, context: zmq.Context) -> None:
        self.socket = context.socket(zmq.PUB)
        self.port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.sequence = 0

    def send(self, events: list[list[Any]]) -> None:
        payload = msgpack.packb([time.time(), events, 0])
        self.socket.send_multipart([b"", struct.pack(">Q", self.sequence), payload])
        self.sequence += 1


def events_of(entry: dict[str, Any]) -> list[list[Any]]:
    """What vLLM publishes when it stores a prompt's full blocks and then loses some."""
    tokens = tokens_of(entry["prompt"])
    full = len(tokens) // BLOCK
    # equal content, equal hash on every worker, as vLLM's digests are
    hashes = [stream_key("block", *tokens[: (i + 1) * BLOCK]) >> 1 for i in range(full)]
    events: list[list[Any]] = [["BlockStored", hashes, None, tokens[: full * BLOCK], BLOCK, None]]
    if entry["removed"]:
        events.append(["BlockRemoved", [hashes[i] for i in entry["removed"]]])
    return events


async def answer(situation: dict[str, Any], log: Path) -> dict[str, Any]:
    from dynamo.llm import SelectionService

    os.environ.update({SETTINGS[name]: str(value) for name, value in situation["settings"].items()})
    service, context = SelectionService(indexer_threads=1), zmq.Context()
    publishers = [Publisher(context) for _ in range(situation["workers"])]
    for worker, publisher in enumerate(publishers):
        endpoint = f"tcp://127.0.0.1:{publisher.port}"
        record = {
            "worker_id": worker,
            "model_name": MODEL,
            "endpoint": f"http://w{worker}",
            "block_size": BLOCK,
        }
        await service.upsert_worker(
            {**record, "kv_events_endpoint": endpoint, "max_num_batched_tokens": 8192}
        )
    time.sleep(0.5)
    for entry in situation["index"]:
        publishers[entry["on"]].send(events_of(entry))
    time.sleep(0.3)
    for k, booking in enumerate(situation["booked"]):
        request = {"model_name": MODEL, "selection_id": f"b{k}", "token_ids": tokens_of(booking["prompt"])}
        await service.select_and_reserve({**request, "allowed_worker_ids": [booking["on"]]})
        if booking["phase"] != "prefill":
            await service.prefill_complete(f"b{k}")
        if booking["phase"] == "ended":
            await service.free_reservation(f"b{k}")
    asked = {"model_name": MODEL, "token_ids": tokens_of(situation["prompt"])}
    overlaps = await service.overlap_scores(asked)
    loads = await service.potential_loads(asked)
    selected = await service.select({**asked, "selection_id": "asked"})
    service.shutdown()
    context.destroy(linger=0)
    text = re.sub(r"\x1b\[\d+m", "", log.read_text(errors="replace"))
    cost = re.findall(r'request_id="asked".*?logit=([-\d.e]+)', text)[-1]
    by_worker = sorted(loads, key=lambda load: load["worker_id"])
    return {
        "overlap_blocks": [
            row["device_blocks"] for row in sorted(overlaps["workers"], key=lambda row: row["worker_id"])
        ],
        **{
            name: [load[name] for load in by_worker]
            for name in ("potential_prefill_tokens", "potential_decode_blocks", "active_requests")
        },
        "chosen": selected["worker_id"],
        "cost": float(cost),
    }


def main() -> None:
    sys.path.append(os.environ["DYNAMO"])
    with tempfile.NamedTemporaryFile() as log:
        shown = os.dup(1)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        cases = []
        for seed in range(48):
            situation = drawn_situation(seed)
            cases.append({**situation, "answer": asyncio.run(answer(situation, Path(log.name)))})
        os.dup2(shown, 1)
    rows = ",\n".join(json.dumps(case) for case in cases)
    OUT.write_text(f'{{"source": "ai-dynamo-runtime 1.6.1, SelectionService", "cases": [\n{rows}\n]}}\n')
    print(f"{len(cases)} situations in {OUT}")


if __name__ == "__main__":
    main()
