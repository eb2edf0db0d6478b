"""Write docs/scenario.md: every key of a scenario file, with default and range, from the schema itself.

python docs/scenario_page.py
"""

import dataclasses
import re
import typing
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from kvsim.scenario.engine import ClusterSection, EngineSection, Section, SpeculativeSection
from kvsim.scenario.measuring import RecordSection, SloSection
from kvsim.scenario.schema import Scenario
from kvsim.scenario.workload import TYPES
from kvsim.workload import lengths
from kvsim.workload.arrivals import PROCESSES
from kvsim.workload.checks import MAX_TOKENS
from kvsim.workload.generated import MAX_CHOICES, MAX_CONCURRENCY, MAX_REQUESTS, GeneratedWorkload
from kvsim.workload.image import POSITIONS
from kvsim.workload.image_tokens import PROCESSORS
from kvsim.workload.popularity import POPULARITIES

PAGE = Path(__file__).parent / "scenario.md"

HEAD = """\
# Scenario files

A scenario is one YAML file. Keys may be written with dashes or underscores, unknown keys are refused, and
text is never taken for a number (write `1000`, not `1e3`, for a count). `--set section.key=value` replaces a
value for one run. Times are in seconds, sizes in bytes, lengths in tokens, unless the key says otherwise.
The resolved scenario beside the results holds every default filled in.

This page is written by `python docs/scenario_page.py`; a test holds it to the code.
"""

SPECULATION = """\
What drafts would say is not simulated, so `acceptance` has no default: the chance that a draft token is
accepted once those before it were. A server shows it for the first token of its drafts:
`vllm:spec_decode_num_accepted_tokens_per_pos` at position 0 / `vllm:spec_decode_num_drafts`.

    engine:
      speculative_config: {method: eagle, num_speculative_tokens: 3, acceptance: 0.7}
"""

SLO = """\
At least one limit. Goodput is the finished requests per second that keep all of them, as in vLLM's benchmark;
`kvsim run --goodput ttft:2000` states a limit in milliseconds. See [results](results.md).
"""

RECORD = """\
What is recorded changes nothing else, so `record` is no part of the scenario's hash.
"""

LENGTHS = """\
## Lengths

A key described as "a length" takes a number, or a distribution; `min` and `max` bound what it draws:
"""

TRACES = """\
## Rows of a trace

One JSON object a line, plain or gzip: `timestamp` (ms; s where the row has `chat_id`), `input_length`,
`output_length`, `hash_ids` (one for each 512 tokens begun; 16 with `chat_id`; `trace_block_size` replaces
both). Rows are in order of time.

Id k stands for the same tokens in every row. A prefix cache shares beginnings only, so rows with `[1, 2]` and
`[3, 2]` share nothing, although the second ids are equal: such rows are valid. An `output_length` of 0 is
replayed as 1, since vLLM generates at least one token. Outputs carry no ids: each has tokens of its own.
"""

MEANINGS = {
    "name": "names the results folder; a file without it lends its own name",
    "seed": "of everything drawn at random",
    "vllm_version": "whose rules apply: 0.33 or 0.16",
    "model": "a catalog name, or a config.json (or its folder), sought beside the scenario first",
    "calibration": "a file of `kvsim calibrate fit` for this GPU, sought as model is; else kvsim's own",
    "calibration_sha256": "pins that calibration; stands in for its path in the scenario's hash",
    "model_sha256": "pins that config.json; stands in for its path in the scenario's hash",
    "gpu": "a catalog name",
    "horizon": "stop after so many seconds; until all is done if absent",
    "warm_up": "seconds; requests that arrived before are left out of latencies, rates and goodput",
    "workload": "see below",
    "engine": "see below",
    "cluster": "see below",
    "slo": "limits for goodput, see below",
    "record": "tables beside that of the requests, see below",
    "block_size": "tokens of a KV block: 1, 2, 4, 8 or a multiple of 16",
    "num_gpu_blocks_override": "blocks of the pool, whatever the memory",
    "kv_cache_memory_bytes": "memory for the KV cache on one GPU; goes before all other ways",
    "available_kv_cache_bytes": "the same, as vLLM's log prints it; without either an estimate is made",
    "gpu_memory_utilization": "share of the card for the estimate; by release (0.92, 0.9)",
    "max_model_len": "tokens, or auto for the longest that fits; the model's own maximum if absent",
    "max_num_seqs": "requests in a step; by release and GPU",
    "max_num_batched_tokens": "tokens in a step; by release and GPU",
    "enable_prefix_caching": "reuse of cached prefixes",
    "prefix_caching_hash_algo": "vLLM's block hashes, or a faster chain that tells apart the same",
    "prefix_cache_retention_interval": "tokens between window blocks kept; 0: the last only, null: all tails",
    "enable_chunked_prefill": "long prompts may be split over steps",
    "long_prefill_token_threshold": "most tokens of one prompt in a step; 0 for no limit",
    "disable_chunked_mm_input": "a picture is computed in one step",
    "scheduling_policy": "first come first served, or by the requests' priority",
    "async_scheduling": "schedule a step ahead; on where the release can",
    "watermark": "share of the blocks kept free at admission (0.33)",
    "scheduler_reserve_full_isl": "admit a prompt only if all of it fits; on in 0.33, came with 0.19",
    "disable_hybrid_kv_cache_manager": "window layers are stored as full attention",
    "encoder_compute_budget": "picture tokens encoded in a step; by model and batch",
    "encoder_cache_size": "picture tokens kept encoded; by model and batch",
    "max_loras": "adapters in one step; 1 with a workload of adapters",
    "speculative_config": "see below",
    "tensor_parallel_size": "GPUs that share each layer; divides the attention heads",
    "pipeline_parallel_size": "GPUs that take layers in turn; at most the layers",
    "decode_context_parallel_size": "ranks that share a request's tokens; divides tensor_parallel_size",
    "dtype": "of weights, and of the KV cache for auto; float32 doubles both",
    "kv_cache_dtype": "of the KV cache; auto is the model's",
    "quantization": "a method of vLLM: sets the bytes of a weight; the model's own if absent",
    "method": "how drafts are made",
    "num_speculative_tokens": "drafts of a step",
    "acceptance": "chance that a draft is accepted",
    "disable_lookahead_block_hashes": "EAGLE hashes without the next token (0.33)",
    "replicas": "serving instances; only 1 so far",
    "router": "who gets a request",
    "ttft": "most seconds to the first token",
    "tpot": "most seconds for an output token after the first",
    "e2e": "most seconds from arrival to the last token",
    "steps": "a row for every engine step; as `--record steps`",
    "events": "a row for every event of a block or a request; as `--record events`",
}

WORKLOAD_MEANINGS = {
    "arrival": "gaps between requests",
    "burstiness": "of the gaps: 1 is Poisson traffic, less is burstier, more is steadier",
    "popularity": "how groups or pictures are picked; cycle takes them in turn",
    "zipf_alpha": "exponent for popularity zipf: number i has weight 1 / i^alpha",
    "processor": "how pixels become tokens; by the model's name",
    "image_position": "pictures and instruction, which is first",
    "text_before": "template tokens before everything",
    "tokens_between": "template tokens between two pictures",
    "text_after": "template tokens after everything",
    "num_requests": "how many; generated traffic needs it or a horizon, a trace is taken whole",
    "max_concurrency": "requests under way at most; the next goes out when one ends; absent for no limit",
    "max_tokens": "the client's limit; the output's own length if absent",
    "trace_block_size": "tokens an id; the format's own if absent (Mooncake 512, Bailian 16)",
    "images_per_request": "pictures of a request (a length)",
    "sha256": "of the rows: refuse any others",
    "path": "the file, sought beside the scenario first; `--trace` replaces it",
}
CHOICES = {
    "arrival": PROCESSES,
    "popularity": POPULARITIES,
    "processor": tuple(PROCESSORS),
    "image_position": POSITIONS,
}
# Whole numbers; a test tries what lies beyond.
RANGES = {
    "num_requests": (1, MAX_REQUESTS),
    "max_concurrency": (1, MAX_CONCURRENCY),
    "max_tokens": (1, MAX_TOKENS),
    "num_tenants": (0, MAX_CHOICES),
    "num_loras": (0, MAX_CHOICES),
    "num_prefixes": (1, MAX_CHOICES),
    "num_images": (0, MAX_CHOICES),
    "num_instructions": (0, MAX_CHOICES),
    "text_before": (0, MAX_TOKENS),
    "tokens_between": (0, MAX_TOKENS),
    "text_after": (0, MAX_TOKENS),
    "min_pixels": (1, 10**12),
    "max_pixels": (1, 10**12),
    "trace_block_size": (1, MAX_TOKENS),
}


def page() -> str:
    parts = [HEAD, "## Top level\n", table(Scenario)]
    parts += ["## engine\n", "vLLM's flags under vLLM's names.\n", table(EngineSection)]
    parts += ["### engine.speculative_config\n", table(SpeculativeSection), SPECULATION]
    parts += ["## cluster\n", table(ClusterSection), "## slo\n", SLO, table(SloSection)]
    parts += ["## record\n", RECORD, table(RecordSection), "## workload\n"]
    for name, kind in TYPES.items():
        parts += [f"### type: {name}\n", workload_table(kind)]
    forms = re.sub(r"(?ms)^.*?:\n\n|\n\n^All.*", "", lengths.__doc__ or "")
    return "\n".join([*parts, LENGTHS, forms + "\n", TRACES])


def table(section: type[Section]) -> str:
    rows = [
        (key, default(field), allowed(field.annotation, field.metadata), MEANINGS[key])
        for key, field in section.model_fields.items()
    ]
    return markdown(rows)


def default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    return "" if field.default_factory else shown(field.default)


def shown(value: Any) -> str:
    if value is None:
        return ""
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def allowed(annotation: Any, metadata: list[Any]) -> str:
    """Names, or bounds; empty where the meaning says it."""
    if typing.get_origin(annotation) is typing.Literal:
        return ", ".join(typing.get_args(annotation))
    if annotation is bool:
        return "true, false"
    inner = next((part for part in typing.get_args(annotation) if part is not type(None)), None)
    if inner is None:
        return bounds(metadata)
    if typing.get_origin(annotation) is typing.Annotated:
        return allowed(inner, list(annotation.__metadata__))
    return allowed(inner, metadata)


def bounds(metadata: Any) -> str:
    words = {"ge": "from {}", "gt": "above {}", "le": "to {}", "lt": "below {}"}
    found = {}
    for part in metadata:
        for item in getattr(part, "metadata", [part]):
            found |= {key: getattr(item, key) for key in words if getattr(item, key, None) is not None}
    return " ".join(words[key].format(bound(found[key])) for key in words if key in found)


def bound(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value:,}"


def workload_table(kind: type) -> str:
    meanings = described(GeneratedWorkload) | described(kind) | WORKLOAD_MEANINGS
    rows = [("type", "needed", ", ".join(TYPES), "what kind of traffic")]
    for field in dataclasses.fields(kind):
        needed = field.default is dataclasses.MISSING
        rows.append(
            (field.name, "needed" if needed else shown(field.default), span(field.name), meanings[field.name])
        )
    return markdown(rows)


def span(key: str) -> str:
    if key in CHOICES:
        return ", ".join(CHOICES[key])
    low, high = RANGES.get(key, (None, None))
    return "" if low is None else f"from {low:,} to {high:,}"


def described(kind: type) -> dict[str, str]:
    """The "name, name: meaning" entries of a workload's docstring."""
    meanings: dict[str, str] = {}
    for names, meaning in re.findall(r"(?m)^    ([a-z_0-9, ]+): ((?:.|\n        )+)", kind.__doc__ or ""):
        meanings |= dict.fromkeys(
            names.split(", "), re.sub(r", see `.*?`", "", " ".join(meaning.split()).rstrip("."))
        )
    return meanings


def markdown(rows: list[tuple[str, str, str, str]]) -> str:
    lines = ["| key | default | range | meaning |", "| --- | --- | --- | --- |"]
    lines += [f"| `{key}` | {default} | {span} | {meaning} |" for key, default, span, meaning in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
