"""What `kvsim capacity` prints: vLLM's lines, the bridge from memory to tokens, a memory bar, a range."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvsim.gpu.capacity import CapacityPlan, WayOut
from kvsim.gpu.evaluation import Evaluation
from kvsim.gpu.log_reader import LogFacts, adds_up, differences
from kvsim.gpu.refusals import GIB

_BAR = 64
_COLOURS = {
    "weights": "blue",
    "activation": "magenta",
    "CUDA graphs": "yellow",
    "non-torch": "cyan",
    "KV cache": "green",
    "left free": "bright_black",
}
_LETTERS = {
    "weights": "W",
    "activation": "A",
    "CUDA graphs": "C",
    "non-torch": "N",
    "KV cache": "K",
    "left free": ".",
}


def console() -> Console:
    """Standard output; a file or pipe gets lines long enough for every table."""
    plain = Console(highlight=False, markup=False, emoji=False)
    return plain if plain.is_terminal else Console(highlight=False, markup=False, emoji=False, width=160)


def print_capacity(plan: CapacityPlan, out: Console) -> None:
    """Lines, bridge, bar, range; or the refusal and the ways out."""
    out.print(
        f"{plan.model} on {plan.gpu}"
        + (f" x {plan.tensor_parallel_size}" if plan.tensor_parallel_size > 1 else "")
        + f", vLLM {plan.vllm_version}: max_model_len {plan.max_model_len:,}, max_num_seqs "
        f"{plan.max_num_seqs:,}, max_num_batched_tokens {plan.max_num_batched_tokens:,}",
        style="bold",
        soft_wrap=True,
    )
    for line in plan.lines:
        out.print(line, soft_wrap=True)
    if plan.refusal:
        out.print(f"vLLM refuses to start: {plan.refusal}", style="red", soft_wrap=True)
    out.print()
    out.print(bridge_table(plan))
    if plan.prediction is not None:
        out.print(memory_bar(plan))
    if plan.refusal:
        _print_refusal(plan, out)
    elif plan.prediction is not None:
        out.print(
            f"Honest range: {plan.tokens_low:,} to {plan.tokens_high:,} tokens (available memory "
            f"± {plan.prediction.error / GIB:.1f} GiB, the error measured on published start-up logs)",
            soft_wrap=True,
        )
    if plan.ignored:
        out.print(f"Ignored, no bearing on capacity: {', '.join(plan.ignored)}", style="dim", soft_wrap=True)


def _print_refusal(plan: CapacityPlan, out: Console) -> None:
    out.print(
        f"Need {plan.needed / GIB:.2f} GiB for one request of {plan.max_model_len:,} tokens, have "
        f"{plan.available / GIB:.2f} GiB. Largest max_model_len that fits: {plan.longest:,}",
        soft_wrap=True,
    )
    if plan.ways_out:
        out.print(_ways_table(plan.ways_out))


def _ways_table(ways: Sequence[WayOut]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("Way out", "Flag", "Fits", "Longest"):
        table.add_column(name, no_wrap=True, justify="right" if name == "Longest" else "left")
    table.add_column("Price")
    for way in ways:
        table.add_row(way.name, way.flags, "yes" if way.fits else "no", f"{way.longest:,}", way.price)
    return table


def bridge_table(plan: CapacityPlan) -> Table:
    """From the card's memory to tokens, a line each."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for name, size, why in bridge(plan):
        table.add_row(name, size, Text(why, style="dim"))
    return table


def bridge(plan: CapacityPlan) -> list[tuple[str, str, str]]:
    """(what, how much, why) of every line of the bridge."""
    rows = _memory_rows(plan)
    used = plan.num_gpu_blocks * plan.block_bytes
    rows.append(
        ("one block", f"{plan.block_bytes / 2**20:,.3f} MiB", f"{plan.block_size} tokens of {_groups(plan)}")
    )
    if plan.padding:
        rows.append(
            ("padding", f"{plan.padding:.2%}", "of every block: groups with fewer layers leave it unused")
        )
    if plan.num_gpu_blocks:
        rest = max(plan.available - used, 0)
        rows += [
            ("blocks", f"{plan.num_gpu_blocks:,}", f"{rest / 2**20:,.1f} MiB left over, less than a block"),
            (
                "a full request",
                f"{plan.blocks_per_request:,}",
                f"blocks for {plan.max_model_len:,} tokens, the last one padded",
            ),
            ("tokens", f"{plan.kv_cache_size_tokens:,}", "as vLLM prints them"),
        ]
    return rows


def _groups(plan: CapacityPlan) -> str:
    return "all layers" if plan.num_groups == 1 else f"one of {plan.num_groups} layer groups"


def _memory_rows(plan: CapacityPlan) -> list[tuple[str, str, str]]:
    found = plan.prediction
    if found is None:
        return [("available for KV", _gib(plan.available), "given, not predicted")]
    others = ", ".join(f"{name} {_gib(size)}" for name, size in found.peaks.items() if name != found.cause)
    graphs = (
        "counted by this release" if found.cuda_graphs else "not captured, or not counted by this release"
    )
    return [
        ("the card", _gib(found.total), "as the driver shows it"),
        ("x utilization", _gib(found.requested), f"gpu_memory_utilization {plan.gpu_memory_utilization:g}"),
        ("- weights", _gib(found.weights), "with rotary tables and buffers made at load"),
        ("- activation peak", _gib(found.activation), f"the {found.cause} decides ({others} below)"),
        ("- CUDA graphs", _gib(found.cuda_graphs), graphs),
        ("- non-torch", _gib(found.non_torch), "driver, libraries, communication"),
        ("= KV cache", _gib(plan.available), "available for KV"),
    ]


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"


def memory_bar(plan: CapacityPlan) -> Text:
    """Where the card's memory goes: one letter a share of the card, coloured where a terminal can."""
    found = plan.prediction
    assert found is not None
    parts = {
        "weights": found.weights,
        "activation": found.activation,
        "CUDA graphs": found.cuda_graphs,
        "non-torch": found.non_torch,
        "KV cache": max(plan.available, 0),
        "left free": max(found.total - found.requested, 0),
    }
    whole = max(sum(parts.values()), 1)
    text = Text("[")
    done = drawn = 0
    for name, size in parts.items():
        done += size
        width = round(_BAR * done / whole) - drawn
        drawn += width
        text.append(_LETTERS[name] * width, style=_COLOURS[name])
    text.append("]\n ")
    text.append("  ".join(f"{_LETTERS[n]} {n} {size / whole:.0%}" for n, size in parts.items()), style="dim")
    return text


def print_evaluation(found: Evaluation, out: Console, *, every: bool) -> None:
    """Misses by name, error by class, rows with a reason for having no score; last line the total."""
    out.print("Arithmetic: what a log prints, against kvsim's formulas", style="bold")
    out.print(f"{found.exact} of {len(found.checkable)} rows agree to the last printed digit")
    for row, check in found.misses:
        out.print(f"  miss {row['id']} {row['model']}: {check.why}", soft_wrap=True)
    out.print("\nPrediction, from model, card and flags alone (absolute errors)", style="bold")
    table = Table(box=None, pad_edge=False)
    for name in ("Class", "Rows", "Tokens median", "p90", "GiB median", "p90"):
        table.add_column(name, justify="left" if name == "Class" else "right")
    for each in found.figures():
        table.add_row(
            each.name,
            str(each.count),
            f"{each.tokens_median:.1%}",
            f"{each.tokens_p90:.1%}",
            f"{each.gib_median:.2f}",
            f"{each.gib_p90:.2f}",
        )
    out.print(table)
    if every:
        _print_rows(found, out)
    out.print("\nNot predicted", style="bold")
    reasons: dict[str, list[str]] = {}
    for row, why in found.unscored:
        reasons.setdefault(why, []).append(row["id"])
    for why, ids in reasons.items():
        out.print(f"  {why}: {', '.join(ids)}", soft_wrap=True)
    out.print()
    out.print(found.total_line(), soft_wrap=True)


def _print_rows(found: Evaluation, out: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("Row", "Model", "GPU", "TP", "Tokens", "GiB", "Predicted", "Printed"):
        table.add_column(name, justify="left" if name in ("Row", "Model", "GPU") else "right")
    for row, each in found.scored:
        table.add_row(
            row["id"],
            row["model"],
            row["gpu"],
            str(row.tp),
            f"{each.token_error:+.1%}",
            f"{each.gib_error:+.2f}",
            f"{each.available / GIB:.2f}",
            f"{each.printed_available / GIB:.2f}",
        )
    out.print()
    out.print(table)


_PRINTED = (
    ("the card", "total_gib"),
    ("x utilization", "requested_gib"),
    ("- consumed (weights, non-torch)", "consumed_gib"),
    ("weights", "weights_gib"),
    ("- activation peak", "activation_gib"),
    ("- non-torch", "non_torch_gib"),
    ("CUDA graphs, estimated", "cuda_graph_gib"),
    ("CUDA graphs, captured", "captured_graph_gib"),
    ("= KV cache", "available_gib"),
)


def print_log(seen: LogFacts, plan: CapacityPlan | None, why: str, out: Console) -> None:
    """The bridge with the true parts, whether they add up, and what the prediction misses."""
    title = f"{seen.model or (plan.model if plan else 'a model that the log does not name')}"
    out.print(f"{title}, vLLM {seen.version or 'of unknown version'}: as the log prints it", style="bold")
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name, key in _PRINTED:
        if getattr(seen, key) is not None:
            table.add_row(name, f"{getattr(seen, key):.2f} GiB")
    for name, key in (("blocks", "num_gpu_blocks"), ("tokens", "kv_tokens"), ("longest", "longest")):
        if getattr(seen, key) is not None:
            table.add_row(name, f"{getattr(seen, key):,}")
    if seen.max_concurrency is not None:
        table.add_row("concurrency", f"{seen.max_concurrency:.2f}x")
    out.print(table)
    out.print(_sum_sentence(seen), soft_wrap=True)
    if plan is None:
        out.print(f"No prediction: {why}", soft_wrap=True)
        return
    if plan.prediction is None:
        return
    out.print("\nBeside the prediction", style="bold")
    compared = Table(box=None, pad_edge=False)
    for name in ("Part", "Printed GiB", "Predicted GiB", "Likeliest cause of a difference"):
        compared.add_column(name, justify="right" if "GiB" in name else "left")
    for row in differences(seen, plan.prediction):
        compared.add_row(row.part, f"{row.printed_gib:.2f}", f"{row.predicted_gib:.2f}", row.cause)
    if seen.available_gib is not None:
        compared.add_row("= KV cache", f"{seen.available_gib:.2f}", f"{plan.available / GIB:.2f}", "")
    out.print(compared)


def _sum_sentence(seen: LogFacts) -> str:
    found = adds_up(seen)
    if found is None:
        return "The log does not print all parts, so that they cannot be added up."
    left, rounding = found
    if abs(left) <= rounding:
        return f"The parts add up to {left:+.2f} GiB, within their rounding."
    what = "something that the log does not print took it" if left > 0 else "a part is printed within another"
    return f"The parts leave {left:+.2f} GiB unexplained: {what}."


def log_facts(seen: LogFacts, plan: CapacityPlan | None) -> dict[str, Any]:
    """The same as plain JSON types."""
    found = adds_up(seen)
    facts: dict[str, Any] = {"printed": {k: v for k, v in vars(seen).items() if v is not None}}
    facts["unexplained_gib"] = found[0] if found else None
    if plan is not None and plan.prediction is not None:
        facts["differences"] = [vars(row) for row in differences(seen, plan.prediction)]
        facts["prediction"] = plan.to_dict()
    return facts


def evaluation_facts(found: Evaluation) -> dict[str, Any]:
    """The same as plain JSON types."""
    return {
        "arithmetic": {
            "exact": found.exact,
            "checkable": len(found.checkable),
            "misses": {row["id"]: check.why for row, check in found.misses},
        },
        "prediction": {
            each.name: {
                "rows": each.count,
                "tokens_median": each.tokens_median,
                "tokens_p90": each.tokens_p90,
                "gib_median": each.gib_median,
                "gib_p90": each.gib_p90,
            }
            for each in found.figures()
        },
        "rows": {
            row["id"]: {"token_error": each.token_error, "gib_error": each.gib_error}
            for row, each in found.scored
        },
        "not_predicted": {row["id"]: why for row, why in found.unscored},
        "total": found.total_line(),
    }


def print_sweep(
    names: Sequence[str], rows: Sequence[tuple[Sequence[Any], CapacityPlan | str]], out: Console
) -> None:
    """A table of capacity against the swept flags; a refused row says why in short."""
    table = Table(*names, box=None, pad_edge=False)
    for name in ("KV GiB", "Blocks", "Tokens", "Requests", "Tail waste"):
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    table.add_column("")
    for values, plan in rows:
        shown = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
        if isinstance(plan, str):
            table.add_row(*shown, "", "", "", "", "", plan.partition(";")[0])
        elif plan.refusal:
            gib = f"{plan.available / GIB:.2f}"
            table.add_row(*shown, gib, "", "", "", "", f"refused; {plan.longest:,} tokens would fit")
        else:
            table.add_row(
                *shown,
                f"{plan.available / GIB:.2f}",
                f"{plan.num_gpu_blocks:,}",
                f"{plan.kv_cache_size_tokens:,}",
                f"{plan.max_concurrency:.2f}x",
                f"{tail_waste(plan):.1%}",
                "",
            )
    out.print(table)


def tail_waste(plan: CapacityPlan) -> float:
    """Share of the cache that requests of 1,000 tokens on average leave empty: half a block each."""
    return plan.block_size / 2 / (1000 + plan.block_size / 2)


def plot_sweep(
    names: Sequence[str], rows: Sequence[tuple[Sequence[Any], CapacityPlan | str]], path: Path
) -> None:
    """Tokens against the first swept flag, a line for each setting of the others; a PNG, SVG or PDF.

    Settings that vLLM refuses are marked. Raises KvsimError for a path that no picture can be written to,
    and where every setting is refused.
    """
    import pandas as pd

    from kvsim.plots import SweepPlots, save

    table = [
        dict(zip(names, values, strict=True)) | {TOKENS: _tokens_of(plan), "error": _error_of(plan)}
        for values, plan in rows
    ]
    plans = [plan for _, plan in rows if not isinstance(plan, str)]
    of = f"{plans[0].model} on {plans[0].gpu}, vLLM {plans[0].vllm_version}" if plans else ""
    save(SweepPlots(pd.DataFrame(table), names, of).lines(names[0], TOKENS), path)


TOKENS = "kv_cache_size_tokens"


def _tokens_of(plan: CapacityPlan | str) -> int | None:
    return None if isinstance(plan, str) or plan.refusal else plan.kv_cache_size_tokens


def _error_of(plan: CapacityPlan | str) -> str | None:
    return plan if isinstance(plan, str) else plan.refusal
