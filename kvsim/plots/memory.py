"""The memory bar: where the bytes of one GPU go, and what of them is KV cache."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from kvsim.gpu import catalog
from kvsim.gpu.capacity import CapacityPlan, plan_capacity
from kvsim.gpu.prediction import MemoryPrediction
from kvsim.plots import style
from kvsim.scenario import Scenario

GIB = 2**30


@dataclass(frozen=True)
class Part:
    """A piece of the bar, in bytes; `remark` follows its size in the key."""

    name: str
    size: int
    remark: str = ""


@dataclass(frozen=True)
class MemoryBar:
    """Bytes of one GPU. budget: what gpu_memory_utilization lets vLLM take; None where not known."""

    title: str
    subtitle: str
    parts: tuple[Part, ...]
    total: int | None
    budget: int | None
    budget_label: str = ""

    @property
    def short_of(self) -> int:
        """Bytes by which the parts other than the KV cache exceed the budget."""
        taken = sum(part.size for part in self.parts if part.name not in (*_KV, "left free"))
        return max(taken - self.budget, 0) if self.budget is not None else 0


_KV = ("KV cache", "KV memory not used")
# Colour and hatch by the beginning of a part's name.
_LOOKS = {
    "weights": (style.BLUE, ""),
    "activation": (style.PURPLE, "///"),
    "encoder": (style.RED, "xx"),
    "CUDA graphs": (style.BLACK, ""),
    "non-torch": (style.SKY, "..."),
    "rest of the budget": (style.PURPLE, "///"),
    "KV cache": (style.GREEN, ""),
    "KV memory not used": ("#B7E0D3", "\\\\\\"),
    "left free": ("#F2F2F2", ""),
}


def bar_of_plan(plan: CapacityPlan) -> MemoryBar:
    """What `plan_capacity` says, one GPU of it."""
    gpus = f" x {plan.tensor_parallel_size}" if plan.tensor_parallel_size > 1 else ""
    where = f"{plan.model} on {plan.gpu}{gpus}, vLLM {plan.vllm_version}, one GPU's memory"
    pool = plan.num_gpu_blocks * plan.block_bytes
    kv = _kv_parts(max(plan.available, 0), pool, plan.kv_cache_size_tokens, plan.num_gpu_blocks)
    found = plan.prediction
    if found is None:
        return MemoryBar("KV cache memory was given, the rest is not predicted", where, kv, None, None)
    title = _title(kv[0].size, plan.kv_cache_size_tokens, found.total)
    if plan.refusal:
        title = f"vLLM would not start: the KV cache is too small for max_model_len {plan.max_model_len:,}"
    if plan.available <= 0:
        title = "vLLM would not start: weights and activations exceed the budget"
    free = Part("left free", max(found.total - found.requested, 0) if plan.available > 0 else 0)
    label = _budget_label(plan.gpu_memory_utilization, found.total)
    parts = (*parts_of(found), *kv, free)
    return MemoryBar(title, where, parts, found.total, found.requested, label)


def parts_of(found: MemoryPrediction) -> tuple[Part, ...]:
    """What a start takes before the KV cache. The larger of language model and encoder is the peak."""
    peak = Part("activation peak", found.activation, f"decided by the {found.cause}")
    parts = [Part("weights", found.weights), peak]
    rest = found.requested - found.available - found.weights - found.activation
    rest -= found.cuda_graphs + found.non_torch
    if rest > 0:
        parts.append(Part("encoder", rest))
    return (*parts, Part("CUDA graphs", found.cuda_graphs), Part("non-torch", found.non_torch))


def bar_of_run(scenario: Scenario, metrics: Mapping[str, Any]) -> MemoryBar:
    """The same for a run, and how much of its KV cache was in use."""
    facts = metrics["capacity"]
    available, pool = facts["available_kv_cache_bytes"], facts["kv_cache_bytes"]
    kv = _kv_parts(available, pool, facts["kv_cache_size_tokens"], facts["num_gpu_blocks"])
    usage = metrics["vllm:kv_cache_usage_perc"]
    peak = "" if usage["peak"] is None else f"; at most {usage['peak']:.1%} of the KV cache was in use"
    where = f"{metrics['name']}: {metrics['model']} on {metrics['gpu']}, one GPU's memory{peak}"
    plan = _plan_of(scenario)
    found = plan.prediction
    assert found is not None
    free = Part("left free", max(found.total - found.requested, 0))
    given = scenario.engine.kv_cache_memory_bytes or scenario.engine.available_kv_cache_bytes
    if given is None:
        others = parts_of(found)
    else:
        rest = found.requested - found.weights - available
        remark = "activation, CUDA graphs, non-torch: not split, the KV bytes were given"
        others = (Part("weights", found.weights), Part("rest of the budget", max(rest, 0), remark))
    label = _budget_label(plan.gpu_memory_utilization, found.total)
    title = _title(pool, facts["kv_cache_size_tokens"], found.total)
    return MemoryBar(title, where, (*others, *kv, free), found.total, found.requested, label)


def _title(pool: int, tokens: int, total: int) -> str:
    return f"{pool / GIB:.2f} of the GPU's {total / GIB:.2f} GiB are KV cache: {tokens:,} tokens"


def _plan_of(scenario: Scenario) -> CapacityPlan:
    engine = scenario.engine
    length = -1 if engine.max_model_len == "auto" else engine.max_model_len
    same = ("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "tensor_parallel_size")
    flags = {name: getattr(engine, name) for name in (*same, "pipeline_parallel_size", "kv_cache_dtype")}
    card = catalog.gpu(scenario.gpu).name
    return plan_capacity(
        scenario.model_spec, card, vllm_version=scenario.vllm_version, max_model_len=length, **flags
    )


def _kv_parts(available: int, pool: int, tokens: int, blocks: int) -> tuple[Part, ...]:
    """The pool, and memory that num_gpu_blocks_override leaves aside (less than a block is no part)."""
    used = min(pool, available) if pool else available
    named = Part("KV cache", used, f"{tokens:,} tokens in {blocks:,} blocks" if blocks else "")
    if available - used <= 0.01 * available:
        return (named,)
    return named, Part("KV memory not used", available - used, "num_gpu_blocks_override")


def _budget_label(utilization: float, total: int) -> str:
    return f"budget: {utilization:g} of {total / GIB:.2f} GiB"


def draw_memory(bar: MemoryBar, ax: Axes | None = None, title: str | None = None) -> Figure:
    """One stacked bar, with a key of every part; sizes in GiB (2^30)."""
    parts = [part for part in bar.parts if part.size > 0]
    with style.styled():
        rows = len(parts) + (bar.short_of > 0)
        figure, ax = style.picture_and_axes(ax, 1.75 + 0.16 * rows)
        whole = max(sum(part.size for part in parts), bar.total or 0) / GIB
        draw_parts(ax, parts, whole)
        ax.set_xlim(0, whole * 1.005 or 1)
        if bar.budget is not None:
            _mark_budget(ax, bar)
        ax.set_ylim(-0.5, 0.85)
        ax.set_yticks([])
        ax.spines["left"].set_visible(False)
        style.finish(ax, "memory of one GPU, GiB", "", grid=None)
        style.separate_thousands(ax, "x")
        _key(figure, ax, bar, parts)
        style.set_title(ax, title or bar.title, bar.subtitle)
    return figure


def draw_parts(ax: Axes, parts: Sequence[Part], across: float, at: float = 0, thick: float = 0.8) -> None:
    """The stacked bar. across: GiB of the axis; at, thick: where on the other axis, and how much of it."""
    left = 0.0
    for part in parts:
        width = part.size / GIB
        fill, hatch = _look(part.name)
        ax.barh(at, width, thick, left, color=fill, hatch=hatch, edgecolor="white", linewidth=0.8)
        _name_inside(ax, part.name, left, width, at, across, bool(hatch))
        left += width


def _name_inside(
    ax: Axes, name: str, left: float, width: float, at: float, across: float, hatched: bool
) -> None:
    """The part's name in it, where it is wide enough; a print without colours needs no key then."""
    if width / across * style.WIDTH * 72 < 4.4 * len(name) + 6:
        return
    dark = name in ("weights", "KV cache")
    box = {"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none"} if hatched else None
    shade = "white" if dark else style.BLACK
    ax.text(left + width / 2, at, name, ha="center", va="center", fontsize=style.SMALL, color=shade, bbox=box)


def _look(name: str) -> tuple[str, str]:
    return next(look for start, look in _LOOKS.items() if name.startswith(start))


def handle(name: str) -> Patch:
    """A part's look, for a key."""
    fill, hatch = _look(name)
    return Patch(facecolor=fill, hatch=hatch, edgecolor="white")


def _mark_budget(ax: Axes, bar: MemoryBar) -> None:
    assert bar.budget is not None
    at = bar.budget / GIB
    ax.plot([at, at], [-0.5, 0.56], color=style.BLACK, linewidth=1.2, linestyle="--")
    left = bool(bar.total) and at > 0.5 * ax.get_xlim()[1]
    ax.annotate(
        f" {bar.budget_label} = {at:.2f} GiB ",
        (at, 0.56),
        ha="right" if left else "left",
        va="bottom",
        fontsize=style.SMALL,
    )


def _key(figure: Figure, ax: Axes, bar: MemoryBar, parts: list[Part]) -> None:
    handles, labels = [], []
    for part in parts:
        handles.append(handle(part.name))
        share = f" ({part.size / bar.total:.1%})" if bar.total and not bar.short_of else ""
        remark = f"  {part.remark}" if part.remark else ""
        labels.append(f"{part.name}  {part.size / GIB:,.2f} GiB{share}{remark}")
    if bar.short_of:
        handles.append(Patch(facecolor="none", edgecolor="none"))
        labels.append(f"{bar.short_of / GIB:,.2f} GiB over the budget: nothing is left for the KV cache")
    style.key_below(figure, ax, handles, labels)
