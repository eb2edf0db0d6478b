"""Writes made_agents.jsonl: made-up agent sessions in kv-cache-tester's format, the same bytes every time."""

import json
import random
from pathlib import Path

BLOCK = 64
NUM_SESSIONS = 24
TOOLS, SYSTEM = 3_000, 1_000

rng = random.Random(20260401)


def session(number: int) -> dict[str, object]:
    """A task: each call has the whole context so far, and a tool's answer behind it."""
    requests: list[dict[str, object]] = []
    now, context, next_id = 0.0, TOOLS + SYSTEM + rng.randint(200, 2_000), 1
    ids: list[int] = []
    for _ in range(rng.randint(3, 14)):
        fresh = context // BLOCK - len(ids)
        ids = ids + list(range(next_id, next_id + fresh))
        next_id += fresh
        said, think = (
            rng.randint(30, 400),
            round(rng.choice([1.0, 2.0, 4.0, 15.0]) * rng.uniform(0.5, 2.0), 1),
        )
        took = round(1.0 + said / 50, 2)
        call = {"t": round(now, 2), "type": "n", "in": context, "out": said, "hash_ids": ids}
        requests.append(
            {**call, "stop": "tool_use", "api_time": took, "think_time": think if requests else 0.0}
        )
        now += took + think
        context += said + rng.randint(50, 1_500)
    head = {"id": f"task-{number}", "block_size": BLOCK, "hash_id_scope": "local"}
    return {**head, "tool_tokens": TOOLS, "system_tokens": SYSTEM, "requests": requests}


def main() -> None:
    sessions = [session(number) for number in range(NUM_SESSIONS)]
    text = "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in sessions)
    (Path(__file__).parent / "made_agents.jsonl").write_text(text, encoding="utf-8", newline="\n")
    print(len(sessions), "sessions of", sum(len(each["requests"]) for each in sessions), "requests")


if __name__ == "__main__":
    main()
