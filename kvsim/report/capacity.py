"""What `kvsim capacity` prints: vLLM's lines, the bridge from memory to tokens, a memory bar, a range."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from kvsim.gpu.capacity import CapacityPlan
from kvsim.gpu.prediction import MemoryPrediction
from kvsim.gpu.refusals import GIB
from kvsim.gpu.releases import release
from kvsim.gpu.ways_out import WayOut
from kvsim.report.tables import table

_BAR = 64
_COLOURS = {
    "weights": "blue",
    "activation": "magenta",
    "CUDA graphs": "yellow",
    "non-torch": "cyan",
    "extras": "red",
    "KV cache": "green",
    "left free": "bright_black",
}
_LETTERS = {
    "weights": "W",
    "activation": "A",
    "CUDA graphs": "C",
    "non-torch": "N",
    "extras": "X",
    "KV cache": "K",
    "left free": ".",
}


def print_capacity(plan: CapacityPlan, out: Console) -> None:
    """Lines, bridge, bar, range; or the refusal and the ways out."""
    out.print(_title(plan), style="bold", soft_wrap=True)
    if plan.tensor_parallel_size * plan.pipeline_parallel_size > 1:
        out.print(
            "Sizes and blocks are those of one GPU; tokens and requests those of the server", style="dim"
        )
    for line in plan.lines:
        out.print(line, soft_wrap=True)
    if plan.refusal:
        out.print(f"vLLM refuses to start: {plan.refusal}", style="red", soft_wrap=True)
    out.print()
    out.print(table(("", ">", ""), _styled(bridge(plan)), header=False))
    if plan.prediction is not None:
        out.print(memory_bar(plan, min(_BAR, out.width - 2)))
    if plan.refusal:
        _print_refusal(plan, out)
    elif plan.estimated:
        out.print(_range_sentence(plan), soft_wrap=True)
    for note in plan.notes:
        out.print(f"Note: {note}", soft_wrap=True)
    if plan.ignored:
        out.print(f"Ignored, no bearing on capacity: {', '.join(plan.ignored)}", style="dim", soft_wrap=True)


def _title(plan: CapacityPlan) -> str:
    ranks = plan.tensor_parallel_size * plan.pipeline_parallel_size
    engine = f", engine {plan.engine}" if plan.engine == "V0" else ""
    return (
        f"{plan.model} on {plan.gpu}{f' x {ranks}' if ranks > 1 else ''}, vLLM {plan.vllm_version}{engine}: "
        f"max_model_len {plan.max_model_len:,}, max_num_seqs {plan.max_num_seqs:,}, "
        f"max_num_batched_tokens {plan.max_num_batched_tokens:,}"
    )


def _range_sentence(plan: CapacityPlan) -> str:
    assert plan.prediction is not None
    return (
        f"Honest range: {plan.tokens_low:,} to {plan.tokens_high:,} tokens. An estimate, not a measurement: "
        f"available memory ± {plan.prediction.error / GIB:.1f} GiB, the error measured on published logs"
    )


def _styled(rows: Sequence[tuple[str, str, str]]) -> list[tuple[str, str, Text]]:
    return [(name, size, Text(why, style="dim")) for name, size, why in rows]


def _print_refusal(plan: CapacityPlan, out: Console) -> None:
    what = f"for one request of {plan.max_model_len:,} tokens"
    longest = f"Largest max_model_len that fits: {plan.longest:,}"
    if plan.refused == "free memory":
        what = "free on the card at start"
        longest += " at the lower utilization"
    out.print(
        f"Need {plan.needed / GIB:.2f} GiB {what}, have {max(plan.usable, 0) / GIB:.2f} GiB. {longest}",
        soft_wrap=True,
    )
    ways = [
        (way.name, "yes" if way.fits else "no", f"{way.longest:,}", _flags_and_price(way))
        for way in plan.ways_out
    ]
    if ways:
        out.print(table(("Way out", "Fits", ">Longest", "Flags and price"), ways))


def _flags_and_price(way: WayOut) -> Text:
    return Text(f"{way.flags}\n" if way.flags else "", style="bold").append(way.price, style="not bold")


def bridge(plan: CapacityPlan) -> list[tuple[str, str, str]]:
    """(what, how much, why) of every line of the bridge."""
    rows = _memory_rows(plan)
    groups = "all layers" if plan.num_groups == 1 else f"one of {plan.num_groups} layer groups"
    stage = " on the fullest pipeline stage" if plan.pipeline_parallel_size > 1 else ""
    mib = f"{plan.block_bytes / 2**20:,.3f} MiB"
    rows.append(("one block", mib, f"{plan.block_size} tokens of {groups}{stage}"))
    if plan.padding:
        why = "of every block: groups with fewer layers leave it unused"
        rows.append(("padding", f"{plan.padding:.2%}", why))
    if plan.num_gpu_blocks:
        rows += [
            ("blocks", f"{plan.num_gpu_blocks:,}", _blocks_reason(plan)),
            (
                "a full request",
                f"{plan.blocks_per_request:,}",
                f"blocks for {plan.max_model_len:,} tokens{_padded(plan)}",
            ),
            ("tokens", f"{plan.kv_cache_size_tokens:,}", _tokens_reason(plan)),
        ]
    return rows


def _blocks_reason(plan: CapacityPlan) -> str:
    if plan.num_gpu_blocks_override is not None:
        return "num_gpu_blocks_override, whatever the memory"
    rest = max(plan.available - plan.num_gpu_blocks * plan.block_bytes, 0)
    return f"{rest / 2**20:,.1f} MiB left over, less than a block"


def _tokens_reason(plan: CapacityPlan) -> str:
    of = release(plan.vllm_version, plan.engine)
    if of.v0 or of.minor < 8:
        return "blocks x tokens of a block; this release prints blocks alone"
    if plan.num_groups > 1 and of.prints_concurrency_times_length:
        return "as vLLM prints them: requests x max_model_len; they move with that length, the blocks do not"
    return "as vLLM prints them"


def _memory_rows(plan: CapacityPlan) -> list[tuple[str, str, str]]:
    found = plan.prediction
    if found is None:
        return [("available for KV", _gib(plan.available), "given, not predicted")]
    rows = [
        ("the card", _gib(found.total), "as the driver shows it"),
        ("x utilization", _gib(found.requested), f"gpu_memory_utilization {plan.gpu_memory_utilization:g}"),
    ]
    parts = [(name, size, plan.sources.get(key, why)) for key, name, size, why in _parts(found)] + [
        (extra.name, extra.size, extra.why) for extra in plan.extras
    ]
    others = found.available - sum(extra.size for extra in plan.extras) - plan.available
    if others:
        parts.append(("other processes", others, "this release counts what they hold as its own"))
    shown = rounded_to_sum([size for _, size, _ in parts], found.requested, plan.available)
    for (name, size, why), gib in zip(parts, shown, strict=True):
        rows.append((f"{'-' if size >= 0 else '+'} {name}", f"{abs(gib):.2f} GiB", why))
    rows.append(("= KV cache", _gib(plan.available), "available for KV"))
    return rows


def rounded_to_sum(sizes: Sequence[int], requested: int, available: int) -> list[float]:
    """GiB with two digits that lead from `requested` to `available`, both as they are shown.

    Those that lose or gain most by rounding give way by a hundredth.
    """
    exact = [size / GIB * 100 for size in sizes]
    shown = [round(value) for value in exact]
    left = round(round(requested / GIB, 2) * 100) - round(round(available / GIB, 2) * 100) - sum(shown)
    step = 1 if left > 0 else -1
    order = sorted(range(len(sizes)), key=lambda i: step * (shown[i] - exact[i]))
    for i in order[: abs(left)]:
        shown[i] += step
    return [value / 100 for value in shown]


def _parts(found: MemoryPrediction) -> list[tuple[str, str, int, str]]:
    others = ", ".join(f"{name} {_gib(size)}" for name, size in found.peaks.items() if name != found.cause)
    graphs = "counted by this release" if found.cuda_graphs else "none, or not counted by this release"
    return [
        ("weights", "weights", found.weights, "with rotary tables and buffers made at load"),
        (
            "activation",
            "activation peak",
            found.activation,
            f"the {found.cause} decides; {others}" if others else f"the {found.cause} decides",
        ),
        ("cuda_graphs", "CUDA graphs", found.cuda_graphs, graphs),
        ("non_torch", "non-torch", found.non_torch, "driver, libraries, communication"),
    ]


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"


def memory_bar(plan: CapacityPlan, width: int = _BAR) -> Text:
    """Where the card's memory goes: one letter a share of the card, coloured where a terminal can."""
    found = plan.prediction
    assert found is not None
    added = sum(extra.size for extra in plan.extras if extra.size > 0)
    freed = -sum(extra.size for extra in plan.extras if extra.size < 0)
    parts = {
        "weights": max(found.weights - freed, 0),
        "activation": found.activation,
        "CUDA graphs": found.cuda_graphs,
        "non-torch": found.non_torch,
        "extras": added,
        "KV cache": max(plan.available, 0),
        "left free": max(found.total - found.requested, 0),
    }
    parts = {name: size for name, size in parts.items() if size}
    whole = max(sum(parts.values()), 1)
    text = Text("[")
    done = drawn = 0
    for name, size in parts.items():
        done += size
        letters = round(width * done / whole) - drawn
        drawn += letters
        text.append(_LETTERS[name] * letters, style=_COLOURS[name])
    text.append("]\n ")
    text.append("  ".join(f"{_LETTERS[n]} {n} {size / whole:.0%}" for n, size in parts.items()), style="dim")
    if plan.available < 0:
        text.append(f"\n  {_gib(-plan.available)} more than the utilization allows", style="red")
    return text


def print_sweep(
    names: Sequence[str], rows: Sequence[tuple[Sequence[Any], CapacityPlan | str]], out: Console
) -> None:
    """A table of capacity against the swept flags; a refused row says why in short."""
    columns = (*names, ">KV GiB", ">Blocks", ">Tokens", ">Requests", ">Tail waste", "")
    out.print(table(columns, (_sweep_row(values, plan) for values, plan in rows)))


def _sweep_row(values: Sequence[Any], plan: CapacityPlan | str) -> list[str]:
    shown = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
    if isinstance(plan, str):
        return [*shown, "", "", "", "", "", plan.partition(";")[0]]
    gib = f"{plan.available / GIB:.2f}"
    if plan.refusal:
        return [*shown, gib, "", "", "", "", f"refused; {plan.longest:,} tokens would fit"]
    figures = f"{plan.num_gpu_blocks:,}", f"{plan.kv_cache_size_tokens:,}", f"{plan.max_concurrency:.2f}x"
    return [*shown, gib, *figures, f"{tail_waste(plan):.1%}", ""]


def tail_waste(plan: CapacityPlan) -> float:
    """Share of the cache that requests of 1,000 tokens on average leave empty: half a block each."""
    return plan.block_size / 2 / (1000 + plan.block_size / 2)


def plot_sweep(
    names: Sequence[str], rows: Sequence[tuple[Sequence[Any], CapacityPlan | str]], path: Path
) -> None:
    """Tokens against the first swept flag, a line for each setting of the second; a PNG, SVG or PDF.

    Three flags and more: what moves the tokens most, a bar for each.

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
    of = ""
    if plans:
        models = "several models" if "model" in names else plans[0].model
        of = f"{models} on {plans[0].gpu}, vLLM {plans[0].vllm_version}"
    plots = SweepPlots(pd.DataFrame(table), names, of)
    several = sum(len(set(values)) > 1 for values in zip(*(values for values, _ in rows), strict=True)) > 2
    save(plots.effects(TOKENS) if several else plots.lines(names[0], TOKENS), path)


TOKENS = "kv_cache_size_tokens"


def _tokens_of(plan: CapacityPlan | str) -> int | None:
    return None if isinstance(plan, str) or plan.refusal else plan.kv_cache_size_tokens


def _error_of(plan: CapacityPlan | str) -> str | None:
    return plan if isinstance(plan, str) else plan.refusal


def _padded(plan: CapacityPlan) -> str:
    return ", the last one padded" if plan.max_model_len % plan.block_size else ""
