"""The forms in which a case gives its requests, for any engine that can run a list of them.

Pure Python without kvsim, so that the same file of cases can be put to vLLM itself
(`check_with_vllm.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from case_prompts import Prompts

Case = dict[str, Any]

DEFAULTS = {
    "block_size": 16,
    "max_model_len": 8192,
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 128,
    "num_gpu_blocks": 10_000,
    "prefix_caching_hash_algo": "sha256",
}
WITHOUT_EFFECT = {
    "dtype",
    "enforce_eager",
    "gpu_memory_utilization",
    "kv_cache_dtype",
    "seed",
    "tensor_parallel_size",
}
REQUEST_KEYS = {"id", "prompt", "max_tokens", "cache_salt", "lora", "priority", "prompt_logprobs"}
MERGED = ("engine", "policy")  # key by key, where a variant has them, too
STUCK = 8  # steps in a row that schedule nothing: it will never go on


@dataclass
class CaseRequest:
    """A request: prompt tokens, then the tokens it will sample; pictures as (identity, offset, tokens)."""

    id: str
    tokens: list[int]
    num_prompt_tokens: int
    features: tuple[tuple[str, int, int], ...] = ()
    cache_salt: str | None = None
    lora: dict[str, Any] | None = None
    priority: int = 0
    prompt_logprobs: int | None = None

    @property
    def max_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens


def variants(case: Case) -> list[Case]:
    """The case's variants, complete; the case itself if it has none."""
    shared = {key: value for key, value in case.items() if key != "variants"}
    out = []
    for variant in case.get("variants", [{}]):
        both = [
            key for key in MERGED if isinstance(shared.get(key), dict) and isinstance(variant.get(key), dict)
        ]
        out.append({**shared, **variant, **{key: {**shared[key], **variant[key]} for key in both}})
    return out


def read_request(entry: Case, prompts: Prompts) -> CaseRequest:
    unknown = entry.keys() - REQUEST_KEYS
    assert not unknown, f"request {entry.get('id')}: unknown {sorted(unknown)}"
    tokens, features = prompts.prompt(entry["prompt"])
    output = prompts.output(str(entry["id"]), entry.get("max_tokens", 1))
    rest = {key: entry[key] for key in ("cache_salt", "lora", "priority", "prompt_logprobs") if key in entry}
    return CaseRequest(str(entry["id"]), tokens + output, len(tokens), features, **rest)


def is_together(case: Case) -> bool:
    send = case.get("send", "sequential")
    assert send in ("sequential", "together"), f"send: {send!r} is neither sequential nor together"
    return bool(send == "together")


Run = Callable[[Case, list[CaseRequest]], Case]


def observe_engine(case: Case, run: Run, metrics: Any) -> Case:
    """One variant of kind engine, in whichever of its forms.

    run: puts requests to an engine. metrics: what computes the hit rate of `lookups`.
    """
    if "lookups" in case:
        return observe_lookups(case["lookups"], metrics)
    if "prompts_sent_twice" in case:
        return {"second_cached_tokens": _second_hits(case, run)}
    if isinstance(case["requests"], dict):
        form = dict(case["requests"])
        case = {**case, "send": form.pop("send", case.get("send", "sequential"))}
        return _rounds(case, form, run) if "each" in form else _numbered(case, form, run)
    prompts = Prompts()
    return run(case, [read_request(entry, prompts) for entry in case["requests"]])


def _rounds(case: Case, form: Case, run: Run) -> Case:
    """`requests: {repeat, each}`: all prompts in turn, `repeat` rounds."""
    shared = {key: value for key, value in form.items() if key not in ("repeat", "each")}
    each = [entry if isinstance(entry, dict) else {"prompt": entry} for entry in form["each"]]
    prompts = Prompts()
    requests = [
        read_request({**shared, **entry, "id": f"{entry.get('id', i)}.{number}"}, prompts)
        for number in range(1, form["repeat"] + 1)
        for i, entry in enumerate(each)
    ]
    seen = run(case, requests)
    later = list(seen["cached_tokens"].values())[len(each) :]
    return {**seen, "cached_tokens_after_round_1": later}


def _numbered(case: Case, form: Case, run: Run) -> Case:
    """`requests: {count, prompt}`: `{i}` in the prompt is the number of the request, from 0."""
    prompts = Prompts()
    shared = {key: value for key, value in form.items() if key != "count"}
    requests = [
        read_request({**shared, "id": str(i), "prompt": form["prompt"].replace("{i}", str(i))}, prompts)
        for i in range(form["count"])
    ]
    return run(case, requests)


def _second_hits(case: Case, run: Run) -> dict[str, int]:
    """By prompt length: what the second sending of a fresh prompt hits, on a cold engine each."""
    hits = {}
    for length in case["prompts_sent_twice"]:
        prompts = Prompts()
        twice = [read_request({"id": name, "prompt": f"P:{length}"}, prompts) for name in ("first", "second")]
        hits[str(length)] = run({**case, "send": "sequential"}, twice)["cached_tokens"]["second"]
    return hits


def observe_lookups(lookups: list[Case], metrics: Any) -> Case:
    """The hit-rate metric alone, fed with `count` requests of the same size each."""
    queries = hits = 0
    for entry in lookups:
        unknown = entry.keys() - {"count", "query_tokens", "hit_tokens"}
        assert not unknown, f"lookups: unknown {sorted(unknown)}"
        for _ in range(entry.get("count", 1)):
            metrics.observe(1, entry["query_tokens"], entry["hit_tokens"])
            queries, hits = queries + entry["query_tokens"], hits + entry["hit_tokens"]
    return {
        "hit_rate_last_1000_requests": metrics.hit_rate,
        "hit_rate_cumulative": hits / queries if queries else 0.0,
        "prefix_cache_queries": queries,
        "prefix_cache_hits": hits,
    }
