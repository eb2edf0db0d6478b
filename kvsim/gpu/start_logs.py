"""Rows of published start-up logs: checked by arithmetic, and compared with the prediction.

The prediction reads only engine, version, model, quant, kv_dtype, gpu, total_gib, tp, utilization, the
limits, enforce_eager and block_size.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.kv_cache_spec import cdiv
from kvsim.gpu.layout import CacheLayout, MambaMode, cache_layout
from kvsim.gpu.log_rows import PRINTED, LogRow
from kvsim.gpu.memory import KVCacheOptions
from kvsim.gpu.memory_setup import MemorySetup
from kvsim.gpu.model import ModelSpec
from kvsim.gpu.prediction import MemoryPrediction, predict_memory
from kvsim.gpu.releases import Release, batch_limits

GIB = 1 << 30
_CPU_SWAP_BYTES = 4 * GIB  # V0's default --swap-space
_QUANT = {"4bit": "int4"}


@dataclass(frozen=True)
class Arithmetic:
    """Whether all that a row prints fits together. outcome: exact, miss, nothing, no-shape; why: in words."""

    outcome: str
    why: str = ""


@dataclass(frozen=True)
class Scored:
    """Prediction of one row beside what was printed; bytes and tokens of one GPU."""

    prediction: MemoryPrediction
    available: int
    tokens: int
    printed_available: int
    printed_tokens: int

    @property
    def token_error(self) -> float:
        """Relative; positive means that too much was promised."""
        return self.tokens / self.printed_tokens - 1

    @property
    def gib_error(self) -> float:
        return (self.available - self.printed_available) / GIB


# ---- shapes ----


def row_model(row: LogRow) -> ModelSpec:
    """The row's model out of the catalog; raises KvsimError if it is not there."""
    name = row["model"]
    quant = _QUANT.get(row["quant"], row["quant"]) or None
    if quant is None and re.search(r"int4\W+fp8|fp8\W+int4", name):
        raise KvsimError("the format of the weights is not stated, int4 or fp8")
    try:
        model = catalog.model(name)
    except KvsimError:
        model = catalog.model(re.sub(r"\s*\(.*", "", name))
    if row["quant"] == "4bit" and model.quantization in ("nf4", "nvfp4", "mxfp4"):
        return model  # the name tells which kind of four bits
    if quant in ("fp8", "int4", "int8", "nvfp4", "mxfp4") and model.quantization != quant:
        model = catalog.in_format(model, model.name, quant)
    return model


def _options(row: LogRow, settled: MemorySetup | None, model: ModelSpec) -> KVCacheOptions:
    dtype = row["kv_dtype"]
    block = row.whole("block_size")
    return KVCacheOptions(
        block_size=block if block and "linear" not in model.layer_types else 16,
        max_model_len=None,
        max_num_batched_tokens=settled.max_num_batched_tokens if settled else _batched(row),
        tensor_parallel_size=row.tp,
        kv_cache_dtype="fp8" if dtype.startswith("fp8") else "auto",
    )


def _batched(row: LogRow) -> int:
    return row.whole("max_num_batched_tokens") or 2048


# ---- arithmetic ----

_MODES: tuple[MambaMode, ...] = ("align", "none", "all")
_HYBRIDS = {
    "35b": "Qwen/Qwen3.5-35B-A3B",
    "122b": "Qwen/Qwen3.5-122B-A10B",
    "397b": "Qwen/Qwen3.5-397B-A17B",
    "27b": "Qwen/Qwen3.5-27B",
    "0.8b": "Qwen/Qwen3.5-0.8B",
    "9b": "Qwen/Qwen3.5-9B",
    "next80b": "Qwen/Qwen3-Next-80B-A3B-Instruct",
}


def check_arithmetic(row: LogRow) -> Arithmetic:
    """Whether every number that the row prints follows from every other, to the last printed digit."""
    if _facts(row) < 2:
        return Arithmetic("nothing", "only one number printed")
    try:
        layouts = list(_layouts(row))
    except KvsimError as error:
        return Arithmetic("no-shape", str(error))
    whys = [_disagreement(row, layout) for layout in layouts]
    if None in whys:
        return Arithmetic("exact")
    if row["arch_class"] == "hybrid-linear" and not row["hybrid_layout"]:
        return Arithmetic("no-shape", "split, cache type and draft layers of this hybrid are not stated")
    return Arithmetic("miss", str(whys[0]))


def _facts(row: LogRow) -> int:
    length = row.number("max_model_len") is not None
    count = int(row.number("available_kv_gib") is not None or row.number("available_kv_bytes") is not None)
    count += sum(row.number(key) is not None for key in ("num_gpu_blocks", "num_cpu_blocks", "kv_tokens"))
    count += length * (row.number("max_concurrency") is not None) + length * (
        row.number("needed_gib") is not None
    )
    return count


def _layouts(row: LogRow) -> Iterator[CacheLayout]:
    """The layouts that the row may stand for: what it does not state is tried."""
    stated = _HYBRIDS.get(row["hybrid_layout"])
    try:
        model = catalog.model(stated) if stated else row_model(row)
    except KvsimError:
        per_token = row.whole("bytes_per_token_per_gpu")
        block = row.whole("block_size") or 16
        if not per_token:
            raise
        for of in _releases(row):
            yield CacheLayout(block, block * per_token, 1, lambda n: cdiv(n, block), of)
        return
    linear = "linear" in model.layer_types
    stated_mode = row["mamba_mode"] if row["mamba_mode"] in _MODES else ""
    modes = [mode for mode in _MODES if stated_mode in ("", mode)] if linear else _MODES[:1]
    for of, mode, options, multiple in product(
        _releases(row), modes, _tried_options(row, model), (16, 64, 32) if linear else (16,)
    ):
        try:
            yield cache_layout(
                model,
                options,
                of,
                mtp_layers=row.whole("mtp_layers") or 0,
                spec_tokens=row.whole("spec_tokens") or 0,
                mamba_mode=mode,
                block_multiple=multiple,
            )
        except KvsimError:
            if row.release.stated or of == _releases(row)[-1]:
                raise  # else one of the tried releases did not know the model


def _tried_options(row: LogRow, model: ModelSpec) -> list[KVCacheOptions]:
    """As stated; what a window or linear model's row leaves open is tried: block, budget, cache type."""
    stated = _options(row, None, model)
    if "linear" in model.layer_types:
        return [stated] if row["kv_dtype"] else [stated, replace(stated, kv_cache_dtype="fp8")]
    if "sliding" not in model.layer_types and not model.compress_ratios:
        return [stated]
    sizes = [stated.block_size] if row["block_size"] else [16, 64]
    budgets: list[int | None] = [2048, 4096, 8192, 16384]
    if row["max_num_batched_tokens"]:
        budgets = [row.whole("max_num_batched_tokens")]
    return [
        replace(stated, block_size=size, max_num_batched_tokens=budget or 2048)
        for size in sizes
        for budget in budgets
    ]


def _releases(row: LogRow) -> list[Release]:
    """The release itself; where it is not stated, one of each way to print."""
    stated = row.release
    if stated.stated or stated.v0:
        return [stated, *([replace(stated, patch=2)] if stated.minor == 20 and not stated.patch else [])]
    return [replace(stated, minor=minor) for minor in (16, 8, 33, 24)]


def _disagreement(row: LogRow, layout: CacheLayout) -> str | None:
    """None if some whole number of blocks gives all that is printed; else what contradicts."""
    block = row.whole("block_size")
    if block is not None and block != layout.block_size:
        return f"blocks of {block} tokens printed, {layout.block_size} planned"
    cpu = row.whole("num_cpu_blocks")
    if (
        cpu is not None
        and cpu != _CPU_SWAP_BYTES // layout.block_bytes
        and cpu * 2 != (2 * _CPU_SWAP_BYTES // layout.block_bytes)
    ):
        swap = cpu * layout.block_bytes / GIB
        if abs(swap - round(swap)) > 0.01 * max(1, swap) or not round(swap):
            return f"{cpu} CPU blocks printed, {_CPU_SWAP_BYTES // layout.block_bytes} planned for 4 GiB"
    low, high = _block_range(row, layout)
    if low is None or high is None:
        return _refusal_disagreement(row, layout, None, None)
    tried = range(low, min(high, low + 200_000) + 1)
    good = [blocks for blocks in tried if _prints(row, layout, blocks)]
    if not good:
        return (
            f"{layout.block_bytes} bytes a block give {low} to {high} blocks, which do not print "
            f"{row['kv_tokens'] or row['num_gpu_blocks']} tokens or blocks"
            + (f" and {row['max_concurrency']}x" if row["max_concurrency"] else "")
        )
    return _refusal_disagreement(row, layout, good[0], good[-1])


def _block_range(row: LogRow, layout: CacheLayout) -> tuple[int | None, int | None]:
    """Least and most blocks that the printed memory stands for, or that the blocks or tokens name."""
    exact = row.whole("available_kv_bytes")
    if exact is not None:
        return layout.blocks(exact), layout.blocks(exact)
    gib = row.number("available_kv_gib")
    if gib is not None:
        return layout.blocks((gib - 0.005) * GIB), layout.blocks((gib + 0.005) * GIB)
    blocks = row.whole("num_gpu_blocks")
    if blocks is not None:
        return blocks, blocks
    tokens = row.whole("kv_tokens")
    if tokens is None:
        return None, None
    middle = tokens // layout.block_size * layout.num_groups
    spread = 4 * layout.num_groups + (middle if layout.release.prints_concurrency_times_length else 0)
    return max(0, middle - spread), middle + spread


def _prints(row: LogRow, layout: CacheLayout, blocks: int) -> bool:
    stated, tokens = row.whole("num_gpu_blocks"), row.whole("kv_tokens")
    length, most = row.whole("max_model_len"), row.number("max_concurrency")
    if stated is not None and stated != blocks:
        return False
    if tokens is not None:
        if length is None and layout.release.prints_concurrency_times_length:
            if layout.num_groups > 1:
                return False
            if blocks * layout.block_size < tokens or tokens < (blocks - 1) * layout.block_size:
                return False
        elif layout.printed_tokens(blocks, length or layout.block_size) != tokens:
            return False
    if most is not None and length is not None:
        digits = len(row["max_concurrency"].partition(".")[2])
        return abs(layout.concurrency(blocks, length) - most) <= 0.5 * 10**-digits + 1e-9
    return True


def _refusal_disagreement(row: LogRow, layout: CacheLayout, low: int | None, high: int | None) -> str | None:
    """What vLLM's refusal says: bytes needed for max_model_len, and the longest length that fits."""
    length, needed, longest = row.whole("max_model_len"), row.number("needed_gib"), row.whole("est_max_len")
    if length and needed is not None:
        planned = layout.needed_bytes(length) / GIB
        digits = len(row["needed_gib"].partition(".")[2])
        if abs(planned - needed) > 0.5 * 10**-digits + 1e-6:
            return f"{needed} GiB needed as printed, {planned:.2f} planned"
    if longest is not None and low is not None and high is not None:
        limit = length or 1 << 24
        least = layout.longest((low - 1) * layout.block_bytes, limit)
        most = layout.longest(high * layout.block_bytes, limit)
        if not least <= longest <= most:
            return f"{longest} tokens estimated as printed, {least} to {most} planned"
    return None


# ---- prediction ----


def score(row: LogRow) -> Scored | str:
    """The prediction beside what the row prints, or the reason why it is not scored."""
    if row["status"] != "ok":
        return "vLLM refused to start" if row["status"] == "failed" else "status is not ok"
    if row.number("gpu_memory_utilization") is None:
        return "utilization not stated"
    total = row_memory(row)
    if total is None:
        return "memory of the card not known"
    if not any(row.number(key) is not None for key in PRINTED):
        return "no result printed"
    try:
        model = row_model(row)
        setup = row_setup(row, model, total)
        layout = cache_layout(
            model, _options(row, setup, model), row.release, mamba_mode=_mamba_mode(row.release)
        )
        prediction = predict_memory(model, row.release, setup)
    except KvsimError as error:
        return f"shape not known: {error}"
    printed = _printed_bytes(row, layout, setup)
    if printed is None or printed <= 0:
        return "no result printed"
    available = max(prediction.available, 0)
    tokens = layout.printed_tokens(layout.blocks(available), setup.max_model_len)
    seen = row.whole("kv_tokens") or layout.printed_tokens(layout.blocks(printed), setup.max_model_len)
    if seen < 1:
        return "no result printed"
    return Scored(prediction, available, tokens, printed, seen)


def _mamba_mode(of: Release) -> MambaMode:
    return "align" if of.minor >= 17 else "none"


def row_memory(row: LogRow) -> int | None:
    """Bytes of the card: as printed, else the catalog's."""
    gib = row.number("total_gib")
    if gib is not None:
        return round(gib * GIB)
    try:
        return catalog.gpu(row["gpu"]).memory_bytes
    except KvsimError:
        return None


def row_setup(row: LogRow, model: ModelSpec, total: int) -> MemorySetup:
    """The flags of a row, with the release's defaults where it states none."""
    of, gpu = row.release, row["gpu"]
    length = row.whole("max_model_len") or model.usual_length(of.minor) or 4096
    batched, seqs = batch_limits(
        of,
        total,
        gpu,
        model,
        max_model_len=length,
        max_num_seqs=row.whole("max_num_seqs") or None,
        max_num_batched_tokens=row.whole("max_num_batched_tokens") or None,
    )
    return MemorySetup(
        total_bytes=total,
        gpu_name=gpu,
        gpu_memory_utilization=row.number("gpu_memory_utilization") or of.default_utilization,
        max_model_len=length,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        tensor_parallel_size=row.tp,
        enforce_eager=bool(row.whole("enforce_eager")),
    )


def _printed_bytes(row: LogRow, layout: CacheLayout, setup: MemorySetup) -> int | None:
    exact, gib = row.whole("available_kv_bytes"), row.number("available_kv_gib")
    if exact is not None or gib is not None:
        return exact if exact is not None else round((gib or 0) * GIB)
    blocks, tokens = row.whole("num_gpu_blocks"), row.whole("kv_tokens")
    if blocks is not None:
        return blocks * layout.block_bytes
    if tokens is None:
        return None
    per_token = layout.printed_tokens(1_000_000, setup.max_model_len) / 1_000_000
    return round(tokens / per_token * layout.block_bytes)
