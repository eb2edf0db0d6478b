"""A measured row as a scenario: its flags as far as they are stated, vLLM's defaults for the rest."""

import re
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from kvsim.errors import KvsimError
from kvsim.scenario import Scenario
from kvsim.scenario.problems import first_problem
from kvsim.validate.rows import ServingRow

# vLLM's own benchmark client and InferenceMAX's, which publishes its settings, send so many requests a place.
REQUESTS_PER_PLACE = 10
# InferenceMAX's client draws lengths evenly from this share of the nominal one up to it
# (`--random-range-ratio 0.8` in its public README).
RANDOM_RANGE = 0.8
_SECONDS = 600.0  # of an open loop whose number of requests is not stated
_FIRST_NEW_RULES = (0, 25)  # releases from here on run under the 0.33 rules
# Column -> flag of the scenario's engine section.
_FLAGS = {
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_model_len": "max_model_len",
    "gpu_mem_util": "gpu_memory_utilization",
    "num_gpu_blocks": "num_gpu_blocks_override",
    "prefix_caching": "enable_prefix_caching",
}
_PROFILE = re.compile(
    r"(?P<systems>\d+) system prompts x (?P<users>\d+) users, "
    r"system (?P<system>\d+) \+ question (?P<question>\d+) tok"
)


@dataclass(frozen=True)
class RowScenario:
    """filled: flag -> value of those that the row does not state. first_wave: requests to leave out."""

    row: ServingRow
    scenario: Scenario
    filled: dict[str, Any]
    first_wave: int


def rules_of(version: str | None) -> str:
    """ "0.33" for 0.25 and later; "0.16" for earlier ones and where none is stated."""
    found = re.match(r"v?(\d+)\.(\d+)", version or "")
    new = found is not None and (int(found[1]), int(found[2])) >= _FIRST_NEW_RULES
    return "0.33" if new else "0.16"


def row_scenario(row: ServingRow, seed: int = 0) -> RowScenario:
    """Raises KvsimError naming the row for a setting that cannot be."""
    engine = {flag: row.get(column) for column, flag in _FLAGS.items() if row.get(column) is not None}
    engine["tensor_parallel_size"] = row.values["tp"]
    assumed = {}
    if "num_gpu_blocks_override" in engine and len(set(row.spec.layer_types or ())) > 1:
        # Tables count blocks of 16 tokens in all layers: with a block for each kind of layer there
        # would be as many times more of them in the same memory.
        assumed["disable_hybrid_kv_cache_manager"] = True
    if row.get("kv_dtype"):
        engine["kv_cache_dtype"] = row.get("kv_dtype")
    values = {
        "name": f"row-{row.id}"[:100],
        "seed": seed,
        "vllm_version": rules_of(row.get("engine_version")),
        "model": row.model,
        "gpu": row.gpu,
        "engine": engine | assumed,
        "workload": _workload(row),
    }
    try:
        scenario = Scenario.model_validate(values)
    except ValidationError as error:
        where, problem, _ = first_problem(error, Scenario)
        raise KvsimError(f"row {row.line}: {'.'.join(map(str, where))}: {problem}") from None
    stated = {*engine, "tensor_parallel_size"}
    made = scenario.engine.model_dump(exclude_none=True)
    shown = ("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "async_scheduling")
    filled = {flag: made[flag] for flag in shown if flag not in stated and flag in made} | assumed
    return RowScenario(row, scenario, filled, row.concurrency or 0)


def _workload(row: ServingRow) -> dict[str, Any]:
    inputs, outputs = row.values["mean_input_len"], row.values["mean_output_len"]
    rate, places = row.get("request_rate_rps"), row.concurrency
    load: dict[str, Any] = {"type": "shared_prefix", "rate": float(rate) if rate else float("inf")}
    if places:
        load["max_concurrency"] = places
    count = row.get("num_requests")
    load["num_requests"] = count or (REQUESTS_PER_PLACE * places if places else round(rate * _SECONDS))
    if "constant" in row.get("load_mode", ""):
        load["arrival"] = "constant"
    if places and "random" in row.get("load_mode", ""):
        return load | {
            "num_prefixes": 1,
            "prefix_len": 0,
            "suffix_len": _spread(inputs),
            "output_len": _spread(outputs),
        }
    return load | _prompts(row, round(inputs)) | {"output_len": round(outputs)}


def _prompts(row: ServingRow, inputs: int) -> dict[str, Any]:
    """Prompts of the stated profile: each user of each system prompt sends one text again and again."""
    found = _PROFILE.search(row.get("shared_prefix", ""))
    if found is None:
        return {"num_prefixes": 1, "prefix_len": 0, "suffix_len": inputs}
    texts = int(found["systems"]) * int(found["users"])
    return {"num_prefixes": texts, "prefix_len": inputs, "suffix_len": 0, "popularity": "cycle"}


def _spread(nominal: float) -> dict[str, Any]:
    low, high = max(1, int(RANDOM_RANGE * nominal)), max(1, int(nominal))
    return {"distribution": "uniform", "min": low, "max": high}
