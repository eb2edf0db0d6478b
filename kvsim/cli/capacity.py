"""``kvsim capacity``, ``kvsim models`` and ``kvsim gpus``."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kvsim.cli import collector
from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.capacity import CapacityPlan, plan_capacity
from kvsim.gpu.evaluation import evaluate
from kvsim.gpu.log_reader import read_log, read_profile, save_profile
from kvsim.gpu.serve_flags import ServeFlags, read_command
from kvsim.gpu.sweep import swept
from kvsim.report.capacity import (
    console,
    evaluation_facts,
    log_facts,
    plot_sweep,
    print_capacity,
    print_evaluation,
    print_log,
    print_sweep,
)
from kvsim.sweep.axes import flag_axes

MOST_ROWS = 2000


def capacity_command(
    words: Sequence[str],
    gpu: str | None,
    gpu_memory_gib: float | None,
    used_by_others_gib: float,
    vllm_version: str,
    sweep: Sequence[str],
    plot: Path | None,
    profile: Path | None,
    *,
    as_json: bool,
) -> None:
    """Plan one server, or a table of them; raises `KvsimError` for bad input."""
    collector.resume()
    command = read_command(words)
    if command.model is None:
        raise KvsimError("MODEL is missing: kvsim capacity MODEL --gpu GPU (see kvsim capacity --help)")
    facts: dict[str, Any] = {
        "gpu": gpu,
        "gpu_memory_gib": gpu_memory_gib,
        "used_by_others_gib": used_by_others_gib,
        "vllm_version": vllm_version,
        "observed": read_profile(profile) if profile is not None else None,
    }
    out = console()
    if sweep:
        _sweep(command, facts, sweep, plot, out, as_json=as_json)
        return
    if plot is not None:
        raise KvsimError("--plot: wants a --sweep to draw")
    plan = plan_capacity(command.model, ignored=command.ignored, **facts, **command.values)
    if as_json:
        print(json.dumps(plan.to_dict(), indent=1))
    else:
        print_capacity(plan, out)


def _sweep(
    command: ServeFlags,
    facts: dict[str, Any],
    sweep: Sequence[str],
    plot: Path | None,
    out: Console,
    *,
    as_json: bool,
) -> None:
    axes = flag_axes(sweep, most=MOST_ROWS)
    assert command.model is not None
    rows = swept(command.model, {**facts, **command.values}, axes)
    names = list(axes)
    if as_json:
        print(json.dumps([_row_facts(names, values, plan) for values, plan in rows], indent=1))
    else:
        print_sweep(names, rows, out)
    if plot is not None:
        plot_sweep(names, rows, plot)


def _row_facts(names: Sequence[str], values: Sequence[Any], plan: CapacityPlan | str) -> dict[str, Any]:
    swept_values = dict(zip(names, values, strict=True))
    return swept_values | ({"error": plan} if isinstance(plan, str) else plan.to_dict())


def log_command(
    log: Path, words: Sequence[str], facts: dict[str, Any], save: Path | None, *, as_json: bool
) -> None:
    """Bridge of a start-up log beside the prediction; `facts` and `words` say what the log does not."""
    collector.resume()
    command = read_command(words)
    seen = read_log(log)
    model = command.model or seen.model
    plan, why = None, "the log does not name the model; give MODEL"
    if model is not None:
        flags = seen.flags() | command.values
        if facts["gpu"] is None and facts["gpu_memory_gib"] is None:
            facts["gpu_memory_gib"] = seen.total_gib
        facts["vllm_version"] = facts["vllm_version"] or seen.version or "0.33"
        try:
            plan = plan_capacity(model, **facts, **flags)
        except KvsimError as error:
            if command.model is not None:
                raise
            why = str(error)
    if as_json:
        print(json.dumps(log_facts(seen, plan), indent=1))
    else:
        print_log(seen, plan, why, console())
    if save is not None:
        save_profile(seen, save)


def evaluate_command(path: Path, *, every: bool, as_json: bool) -> None:
    """Compare with published start-up logs."""
    collector.resume()
    found = evaluate(path)
    if as_json:
        print(json.dumps(evaluation_facts(found), indent=1))
    else:
        print_evaluation(found, console(), every=every)


def models_command(*, as_json: bool) -> None:
    """List the models of the catalog."""
    models = [catalog.model(name) for name in catalog.model_names()]
    if as_json:
        print(json.dumps([_model_facts(model) for model in models], indent=1))
        return
    table = Table("Model", box=None, pad_edge=False)
    for name in ("Parameters", "Layers", "KV heads", "Head", "Longest"):
        table.add_column(name, justify="right")
    table.add_column("Source")
    for model in models:
        facts = _model_facts(model)
        table.add_row(
            model.name,
            f"{facts['parameters'] / 1e9:,.1f} B",
            str(model.num_hidden_layers),
            "latent" if model.is_mla else str(model.num_key_value_heads),
            str(model.kv_lora_rank + model.qk_rope_head_dim if model.is_mla else model.head_dim),
            f"{model.max_position_embeddings or 0:,}",
            model.source,
        )
    console().print(table)


def _model_facts(model: Any) -> dict[str, Any]:
    return {
        "name": model.name,
        "parameters": model.num_parameters,
        "layers": model.num_hidden_layers,
        "kv_heads": model.num_key_value_heads,
        "head_dim": model.head_dim,
        "kv_lora_rank": model.kv_lora_rank,
        "max_position_embeddings": model.max_position_embeddings,
        "quantization": model.quantization,
        "source": model.source,
    }


def gpus_command(*, as_json: bool) -> None:
    """List the GPUs of the catalog."""
    gpus = [catalog.gpu(name) for name in catalog.gpu_names()]
    if as_json:
        print(json.dumps([vars(gpu) for gpu in gpus], indent=1))
        return
    table = Table("GPU", box=None, pad_edge=False)
    for name in ("Memory GiB", "Bandwidth GB/s", "BF16 Tflop/s", "FP8 Tflop/s", "Link GB/s"):
        table.add_column(name, justify="right")
    table.add_column("Source")
    for gpu in gpus:
        table.add_row(
            gpu.name,
            f"{gpu.memory_gib:.2f}",
            f"{gpu.bandwidth / 1e9:,.0f}",
            f"{gpu.bf16_flops / 1e12:,.1f}",
            f"{gpu.fp8_flops / 1e12:,.1f}" if gpu.fp8_flops else "-",
            f"{gpu.link_bandwidth / 1e9:,.0f}",
            gpu.source,
        )
    console().print(table)
