"""Writes made_trace.jsonl: made-up multi-turn chats in Mooncake's format, the same bytes every time."""

import json
import random
from itertools import count
from pathlib import Path

BLOCK = 512
NUM_CHATS, SPAN_MS = 60, 300_000
SYSTEM_TOKENS = 1_100  # shared by all chats: two full blocks

rng = random.Random(20260201)
new_id = count()
system_ids = [next(new_id) for _ in range(SYSTEM_TOKENS // BLOCK)]


def chat() -> list[dict[str, object]]:
    """The rows of one chat: each turn holds the whole context so far."""
    rows = []
    now, context, ids = rng.uniform(0, SPAN_MS), SYSTEM_TOKENS, list(system_ids)
    for _ in range(rng.choice([1, 2, 4, 5, 8])):
        context += rng.randint(40, 3_000)
        answer = rng.randint(20, 500)
        ids += [next(new_id) for _ in range(context // BLOCK - len(ids))]
        partial = [next(new_id)] if context % BLOCK else []
        row = {"timestamp": int(now), "input_length": context, "output_length": answer}
        rows.append({**row, "hash_ids": ids + partial})
        context += answer
        now += rng.uniform(5_000, 40_000)
    return rows


def main() -> None:
    rows = sorted((row for _ in range(NUM_CHATS) for row in chat()), key=lambda row: row["timestamp"])
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (Path(__file__).parent / "made_trace.jsonl").write_text(text, encoding="utf-8", newline="\n")
    print(len(rows), "rows")


if __name__ == "__main__":
    main()
