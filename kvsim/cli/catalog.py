"""``kvsim models`` and ``kvsim gpus``: the rows of the catalog, with sources."""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kvsim.cli import collector
from kvsim.gpu import catalog
from kvsim.gpu.catalog import GpuSpec
from kvsim.gpu.model import ModelSpec
from kvsim.gpu.model_names import key
from kvsim.report.tables import console, table

_Row = TypeVar("_Row")

_MODEL_COLUMNS = ("Model", ">Parameters", ">Layers", ">KV heads", ">Head", ">Longest", "Source")
_GPU_COLUMNS = (
    "GPU",
    ">Memory GiB",
    ">Bandwidth GB/s",
    ">BF16 Tflop/s",
    ">FP8 Tflop/s",
    ">Link GB/s",
    "Source",
)


def models_command(words: Sequence[str], *, as_json: bool) -> None:
    """List the models of the catalog, or those with all `words` in their name; raises KvsimError for none."""
    rows = _rows(catalog.model_names(), words, catalog.model)
    _list(rows, _MODEL_COLUMNS, _model_cells, _model_facts, as_json=as_json)


def gpus_command(words: Sequence[str], *, as_json: bool) -> None:
    """List the GPUs of the catalog, or those with all `words` in their name; raises KvsimError for none."""
    rows = _rows(catalog.gpu_names(), words, catalog.gpu)
    _list(rows, _GPU_COLUMNS, _gpu_cells, vars, as_json=as_json)


def _rows(names: list[str], words: Sequence[str], row: Callable[[str], _Row]) -> list[_Row]:
    """Where no name holds the words, the one row that they mean as `kvsim capacity` would read them."""
    wanted = [key(word) for word in words]
    found = [name for name in names if all(word in key(name) for word in wanted)]
    return [row(name) for name in found or [" ".join(words)]]


def _list(
    rows: Sequence[_Row],
    columns: Sequence[str],
    cells: Callable[[_Row], Sequence[str]],
    facts: Callable[[_Row], dict[str, Any]],
    *,
    as_json: bool,
) -> None:
    collector.resume()
    if as_json:
        print(json.dumps([facts(row) for row in rows], indent=1))
    else:
        console().print(table(columns, map(cells, rows)))


def _model_cells(model: ModelSpec) -> tuple[str, ...]:
    return (
        model.name,
        f"{model.num_parameters / 1e9:,.1f} B",
        str(model.num_hidden_layers),
        "latent" if model.is_mla else str(model.num_key_value_heads),
        str(model.kv_lora_rank + model.qk_rope_head_dim if model.is_mla else model.head_dim),
        f"{model.max_position_embeddings or 0:,}",
        model.source,
    )


def _model_facts(model: ModelSpec) -> dict[str, Any]:
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


def _gpu_cells(gpu: GpuSpec) -> tuple[str, ...]:
    return (
        gpu.name,
        f"{gpu.memory_gib:.2f}",
        f"{gpu.bandwidth / 1e9:,.0f}",
        f"{gpu.bf16_flops / 1e12:,.1f}",
        f"{gpu.fp8_flops / 1e12:,.1f}" if gpu.fp8_flops else "-",
        f"{gpu.link_bandwidth / 1e9:,.0f}",
        gpu.source,
    )
