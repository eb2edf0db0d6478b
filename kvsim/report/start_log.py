"""What `kvsim capacity --log` prints: the bridge of true parts, their sum, and the prediction."""

from typing import Any

from rich.console import Console

from kvsim.gpu.capacity import CapacityPlan
from kvsim.gpu.log_comparison import (
    Difference,
    adds_up,
    cache_differences,
    card_doubt,
    differences,
    logged_tokens,
    missing_parts,
    tokens_cause,
)
from kvsim.gpu.log_facts import LogFacts
from kvsim.report.tables import table

_GIB_ROWS = (
    ("the card", "total_gib"),
    ("free at start", "free_gib"),
    ("x utilization", "requested_gib"),
    ("- consumed (weights, non-torch)", "consumed_gib"),
    ("- weights", "weights_gib"),
    ("- activation peak", "activation_gib"),
    ("- non-torch", "non_torch_gib"),
    ("CUDA graphs, estimated", "cuda_graph_gib"),
    ("CUDA graphs, captured", "captured_graph_gib"),
    ("reserved by flag", "reserved_gib"),
    ("= KV cache", "available_gib"),
    ("needed for a request", "needed_gib"),
)
_COUNT_ROWS = (("blocks", "num_gpu_blocks"), ("tokens", "kv_tokens"), ("longest that fits", "longest"))


def print_log(seen: LogFacts, plan: CapacityPlan | None, why: str, out: Console) -> None:
    """The bridge with the true parts, whether they add up, and what the prediction misses."""
    title = seen.model or (plan.model if plan else "a model that the log does not name")
    engine = f", engine {seen.engine}" if seen.engine else ""
    version = seen.version or "of unknown version"
    out.print(f"{title}, vLLM {version}{engine}: as the log prints it", style="bold", soft_wrap=True)
    out.print(table(("", ">"), _printed(seen), header=False))
    if seen.refusal:
        out.print(f"vLLM refused to start: {seen.refusal}", style="red", soft_wrap=True)
    if seen.starts > 1:
        out.print(f"The file holds {seen.starts} start-ups; this is the last that printed a result.")
    if seen.doubted:
        out.print(f"Not believed, no server has this: {', '.join(seen.doubted)}", soft_wrap=True)
    if seen.ranks > 1:
        out.print(f"{seen.ranks} ranks printed their memory; these are the parts of the poorest.")
    out.print(_sum_sentence(seen), soft_wrap=True)
    if plan is None:
        out.print(f"No prediction: {why}", soft_wrap=True)
    elif plan.prediction is not None:
        _print_comparison(seen, plan, out)


def _printed(seen: LogFacts) -> list[tuple[str, str]]:
    rows = []
    for name, key in _GIB_ROWS:
        if getattr(seen, key) is not None and not (key == "weights_gib" and seen.consumed_gib is not None):
            rows.append((name, f"{getattr(seen, key):.2f} GiB"))
    for name, key in _COUNT_ROWS:
        if getattr(seen, key) is not None:
            rows.append((name, f"{getattr(seen, key):,}"))
    if seen.kv_tokens is None and logged_tokens(seen) is not None:
        rows.append(("tokens (blocks x their size)", f"{logged_tokens(seen):,}"))
    if seen.max_concurrency is not None:
        rows.append(("concurrency", f"{seen.max_concurrency:.2f}x"))
    return rows


def _print_comparison(seen: LogFacts, plan: CapacityPlan, out: Console) -> None:
    assert plan.prediction is not None
    out.print("\nBeside the prediction", style="bold")
    doubt = card_doubt(seen, plan.prediction, plan.gpu)
    if doubt:
        out.print(doubt, soft_wrap=True)
    rows = [
        (row.part, f"{row.printed_gib:.2f}", f"{row.predicted_gib:.2f}", row.cause)
        for row in differences(seen, plan.prediction)
    ]
    cache = cache_differences(seen, plan.prediction, plan.available)
    if cache is not None:
        rows.append(("= KV cache", f"{cache[0]:.2f}", f"{cache[1]:.2f}", cache[2]))
    tokens = logged_tokens(seen)
    if tokens is not None:
        cause = tokens_cause(seen, plan.available, plan.kv_cache_size_tokens)
        rows.append(("tokens", f"{tokens:,}", f"{plan.kv_cache_size_tokens:,}", cause))
    out.print(table(("Part", ">Printed", ">Predicted", "Likeliest cause of a difference"), rows))


def _sum_sentence(seen: LogFacts) -> str:
    found = adds_up(seen)
    if found is None:
        if seen.reserved_gib is not None:
            return "The cache was set by hand, so that the parts need not add up."
        return f"The parts cannot be added up: the log does not print {', '.join(missing_parts(seen))}."
    left, rounding = found
    if abs(left) <= rounding:
        return f"The parts add up: they leave {left:+.2f} GiB unexplained, within their rounding."
    what = "something that the log does not print took it" if left > 0 else "a part is printed within another"
    if left > 0 and seen.free_gib is not None and seen.total_gib is not None:
        others = seen.total_gib - seen.free_gib
        if abs(left - others) < 0.1 * max(left, others):
            what = f"about what other processes held at start, {others:.2f} GiB"
    return f"The parts leave {left:+.2f} GiB unexplained: {what}."


def log_facts(seen: LogFacts, plan: CapacityPlan | None, why: str) -> dict[str, Any]:
    """The same as plain JSON types."""
    found = adds_up(seen)
    facts: dict[str, Any] = {"printed": {k: v for k, v in vars(seen).items() if v is not None}}
    facts["unexplained_gib"] = round(found[0], 4) if found else None
    facts["rounding_gib"] = round(found[1], 4) if found else None
    if found is None and seen.reserved_gib is None:
        facts["missing_parts"] = missing_parts(seen)
    if plan is None:
        facts["no_prediction"] = why
    elif plan.prediction is not None:
        facts["differences"] = [vars(row) for row in differences(seen, plan.prediction)]
        cache = cache_differences(seen, plan.prediction, plan.available)
        if cache is not None:
            facts["differences"].append(vars(Difference("KV cache", *cache)))
        if logged_tokens(seen) is not None:
            cause = tokens_cause(seen, plan.available, plan.kv_cache_size_tokens)
            facts["tokens"] = {"printed": logged_tokens(seen), "cause": cause}
        facts["card_doubt"] = card_doubt(seen, plan.prediction, plan.gpu)
        facts["prediction"] = plan.to_dict()
    return facts
