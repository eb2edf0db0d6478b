"""What a vLLM start-up log prints about memory: the lines of every release from 0.6 to 0.33.

Texts, by the sources of the wheels: `worker/worker.py` and `executor/executor_base.py` (V0),
`v1/worker/gpu_worker.py`, `v1/worker/gpu_model_runner.py`, `v1/core/kv_cache_utils.py`, `utils/mem_utils.py`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

_N = r"(-?[\d,]*\.?\d+)"
_GIB = rf"{_N}\s?Gi?B"  # "GB" of the older releases is GiB as well
_DEVICE = r"on device(?: [\w:]+)?"
# The first pattern that is found counts, and of that its first match, unless `_LEAST` says otherwise.
_PATTERNS: dict[str, tuple[str, ...]] = {
    "version": (
        r"LLM engine \(v(\d[^)\s]*)\)",
        r"vLLM (?:API )?server version v?(\d[\w.+]*)",
        r"█\s+version v?(\d[\w.+]*)",
    ),
    "model": (
        r"\bmodel='([^']+)'",
        r"'model(?:_tag)?': '([^']+)'",
        r"\bmodel_tag='([^']+)'",
        r"█\s+model\s+(\S+)",
        r"serving model (\S+)",
        r"--model[= ](\S+)",
        r"vllm serve ([^\s-]\S*)",
    ),
    "max_model_len": (
        r"max_seq_len=(\d+)",
        rf"Maximum concurrency for {_N} tokens",
        r"max seq len \((\d+)\)",
        r"max_model_len'?[=:]\s*(\d+)",
    ),
    "tensor_parallel_size": (r"tensor_parallel_size'?[=:]\s*(\d+)",),
    "pipeline_parallel_size": (r"pipeline_parallel_size'?[=:]\s*(\d+)",),
    "quantization": (r"\bquantization'?[=:]\s*'?([\w-]+)",),
    "kv_cache_dtype": (r"kv_cache_dtype'?[=:]\s*'?(?:torch\.)?([\w.]+)",),
    "enforce_eager": (r"enforce_eager'?[=:]\s*(True|False)",),
    "max_num_batched_tokens": (r"max_num_batched_tokens'?[= :]\s*(\d+)",),
    "max_num_seqs": (r"max_num_seqs'?[=:]\s*(\d+)",),
    "weights_gib": (
        rf"Actual usage is {_GIB} for weight",
        rf"Model loading took {_GIB}",
        rf"model weights take {_GIB}",
        rf"Loading model weights took {_GIB}",
        rf"weights memory: {_GIB}",
    ),
    "peak_torch_gib": (rf"peak_torch_memory={_GIB}",),
    "total_gib": (
        rf"total_gpu_memory \({_GIB}\)",
        rf"total_gpu_memory={_GIB}",
        rf"{_DEVICE} \({_N}/{_N} GiB\)",
    ),
    "free_gib": (rf"{_DEVICE} \({_N}/[\d.]+ GiB\)", rf"Initial free memory:? {_GIB}"),
    "gpu_memory_utilization": (
        r"gpu_memory_utilization \(([\d.]+)\)",
        r"memory utilization (?:is )?\(([\d.]+),",
        r"gpu[-_]memory[-_]utilization'?[=:]\s*([\d.]*\d)",
    ),
    "requested_gib": (
        rf"memory utilization (?:is )?\([\d.]+, {_GIB}\)",
        rf"utilization \([\d.]+\) = {_GIB}",
    ),
    "consumed_gib": (rf"{_GIB} for consumed memory", rf"total consumed \(from mem_get_info\): {_GIB}"),
    "activation_gib": (
        rf"activation peak memory takes {_GIB}",
        rf"{_GIB} for peak activation",
        rf"torch peak memory increase: {_GIB}",
    ),
    "non_torch_gib": (
        rf"non_torch_memory takes {_GIB}",
        rf"{_GIB} for non-torch",
        rf"non_torch_memory={_GIB}",
        rf"non-torch forward increase memory: {_GIB}",
    ),
    "cuda_graph_gib": (rf"Estimated CUDA graph memory: {_GIB}",),
    "captured_graph_gib": (
        rf"Graph capturing finished in [\d.]+ secs?, took {_GIB}",
        rf"{_GIB} for CUDAGraph memory",
    ),
    "available_gib": (
        rf"Available KV cache memory: {_GIB}",
        rf"reserved for KV Cache is {_GIB}",
        rf"reserved {_GIB} memory for KV Cache",
        rf"kv_cache_size={_GIB}",
        rf"larger than the available KV cache memory \({_GIB}\)",
    ),
    "available_bytes": (r"Current kv cache memory in use is (\d+) bytes",),
    "reserved_gib": (rf"reserved {_GIB} memory for KV Cache as specified by kv_cache_memory_bytes",),
    "num_gpu_blocks": (rf"# (?:GPU|cuda|rocm) blocks: {_N}", r"num_gpu_blocks(?: is)?[=: ]+(\d+)"),
    "num_gpu_blocks_override": (r"num_gpu_blocks_override'?[=:]\s*(\d+)",),
    "block_size": (r"\bblock_size'?[=:]\s*(\d+)", r"attention block size to (\d+) tokens"),
    "kv_tokens": (rf"GPU KV cache size: {_N} tokens",),
    "max_concurrency": (rf"Maximum concurrency for [\d,]+ tokens per request: {_N}x",),
    "needed_gib": (rf"\({_GIB} KV cache is needed",),
    "longest": (
        r"estimated maximum model length is (\d+)",
        r"tokens that can be stored in KV cache \((\d+)\)",
    ),
    "refusal": (
        r"(To serve at least one request with the models?'s max seq len \(\d+\).{0,200}?memory \([^)]*\)\.)",
        r"(The model's max seq len \(\d+\) is larger than .{0,100}?\(\d+\)\.)",
        r"(Free memory on device.{0,80}?on startup is less than .{0,120}?GiB\)\.)",
        r"(No available memory for the cache blocks\.)",
        r"(Cannot auto-fit max_model_len: [^.]*\.)",
        r"(CUDA out of memory\.)",
    ),
}
# Every rank and every group of layers may print these; vLLM goes by the least.
_LEAST = {"available_gib", "available_bytes", "num_gpu_blocks", "kv_tokens", "max_concurrency"}
# Readings of the device's memory before and after: other processes may give some back meanwhile.
_DIFFERENCES = {"available_gib", "non_torch_gib", "consumed_gib", "cuda_graph_gib", "captured_graph_gib"}
_MOST_GIB, _MOST_COUNT = 1 << 14, 1 << 50
_TEXTS = {"version", "model", "quantization", "kv_cache_dtype", "refusal"}
_COMPILED = {name: tuple(map(re.compile, patterns)) for name, patterns in _PATTERNS.items()}


@dataclass(frozen=True)
class LogFacts:
    """What a log prints, None where it does not. GiB of one GPU, as rounded by vLLM.

    engine: "V0" or "V1". refusal: the sentence with which vLLM gave up. starts: how many start-ups the
    file holds (the last one that printed a result is read). ranks: workers that printed their memory.
    reserved_gib: --kv-cache-memory-bytes. doubted: figures that no server can have, with their names.
    """

    version: str | None = None
    engine: str | None = None
    model: str | None = None
    max_model_len: int | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    enforce_eager: bool | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    weights_gib: float | None = None
    peak_torch_gib: float | None = None
    total_gib: float | None = None
    free_gib: float | None = None
    gpu_memory_utilization: float | None = None
    requested_gib: float | None = None
    consumed_gib: float | None = None
    activation_gib: float | None = None
    non_torch_gib: float | None = None
    cuda_graph_gib: float | None = None
    captured_graph_gib: float | None = None
    available_gib: float | None = None
    available_bytes: int | None = None
    reserved_gib: float | None = None
    num_gpu_blocks: int | None = None
    num_gpu_blocks_override: int | None = None
    block_size: int | None = None
    kv_tokens: int | None = None
    max_concurrency: float | None = None
    needed_gib: float | None = None
    longest: int | None = None
    refusal: str | None = None
    starts: int = 1
    ranks: int = 1
    doubted: tuple[str, ...] = ()

    def flags(self) -> dict[str, Any]:
        """What `kvsim.plan_capacity` can be asked with."""
        names = ("max_model_len", "tensor_parallel_size", "pipeline_parallel_size", "max_num_seqs")
        more = ("max_num_batched_tokens", "gpu_memory_utilization", "enforce_eager", "kv_cache_dtype")
        found = {name: getattr(self, name) for name in (*names, *more) if getattr(self, name) is not None}
        if self.block_size is not None and self.block_size % 16 == 0 and self.block_size <= 256:
            found["block_size"] = self.block_size
        if self.num_gpu_blocks_override is not None:
            found["num_gpu_blocks_override"] = self.num_gpu_blocks_override
        return found | self._permissions()

    def _permissions(self) -> dict[str, bool]:
        """A server that started was allowed to, with whatever flag the log does not print."""
        if self.max_model_len is None:
            return {}
        chunks = (self.max_num_batched_tokens or self.max_model_len) < self.max_model_len
        return {"allow_long_max_model_len": True} | ({"enable_chunked_prefill": True} if chunks else {})

    @property
    def minor(self) -> int | None:
        """N of version 0.N; None if the log does not state one."""
        found = re.match(r"0\.(\d{1,3})", self.version or "")
        return int(found[1]) if found else None


_KINDS = {field.name: str(field.type) for field in fields(LogFacts)}


def facts_of(text: str) -> LogFacts:
    """Everything that the text of one start-up says; several ranks may have written it."""
    by_rank = _lines_by_rank(text.splitlines())
    found = _values(text)
    ranks = {
        key: values
        for key, values in ((k, _values(t)) for k, t in by_rank.items())
        if "weights_gib" in values
    }
    with_room = {key: values for key, values in ranks.items() if "available_gib" in values}
    if with_room:  # the parts of the rank that decides
        found |= min(with_room.values(), key=lambda values: values["available_gib"])
    if "activation_gib" not in found and {"peak_torch_gib", "weights_gib"} <= set(found):
        found["activation_gib"] = round(found["peak_torch_gib"] - found["weights_gib"], 4)
    if "num_gpu_blocks_override" in found:
        found["num_gpu_blocks"] = found["num_gpu_blocks_override"]
    engine = _engine(text, found.get("version"))
    doubted = [name for name, value in found.items() if not _believable(name, value)]
    shown = tuple(f"{name.removesuffix('_gib')} {found.pop(name):g}" for name in doubted)
    return LogFacts(**found | {"engine": engine, "ranks": max(len(ranks), 1), "doubted": shown})


def _believable(name: str, value: Any) -> bool:
    """Whether a server can have that figure; what is a difference of two readings may be below 0."""
    if name in _TEXTS or isinstance(value, bool):
        return True
    if name == "gpu_memory_utilization":
        return bool(0 < value <= 1)
    least = -_MOST_GIB if name in _DIFFERENCES else 0
    return bool(least <= value <= (_MOST_GIB if name.endswith("_gib") else _MOST_COUNT))


_RANK = re.compile(r"\((?:[\w. ]*(?:Worker|EngineCore)[^()]*?)\bpid=(\d+)[^()]*\)")


def _lines_by_rank(lines: Iterable[str]) -> dict[str, str]:
    """Text of each worker process, as far as a prefix like "(Worker_TP1 pid=123)" tells them apart."""
    found: dict[str, list[str]] = {}
    for line in lines:
        prefixes = _RANK.findall(line[:300])
        if prefixes:
            found.setdefault(prefixes[-1], []).append(line)
    return {key: "\n".join(own) for key, own in found.items()}


def _values(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, patterns in _COMPILED.items():
        for pattern in patterns:
            values = [_value(name, match[match.lastindex or 1]) for match in pattern.finditer(text)]
            values = [value for value in values if value is not None]
            if values:
                found[name] = min(values) if name in _LEAST else values[0]
                break
    return found


def _value(name: str, text: str) -> Any:
    if name in _TEXTS:
        return None if text in ("None", "auto") else text
    if name == "enforce_eager":
        return text == "True"
    if len(text) > 20:
        return None
    number = float(text.replace(",", ""))
    return int(number) if _KINDS[name].startswith("int") else number


def _engine(text: str, version: str | None) -> str | None:
    """0.6 called both engines "an LLM engine"; only V0 has CPU blocks, only V1 an engine core."""
    named = re.search(r"Initializing a (V[01]) LLM engine", text)
    if named:
        return named[1]
    if "# CPU blocks" in text or "the current vLLM instance can use" in text or "llm_engine.py" in text:
        return "V0"
    if re.search(r"EngineCore|Available KV cache memory|GPU KV cache size", text):
        return "V1"
    found = re.match(r"0\.(\d{1,3})", version or "")
    return ("V0" if int(found[1]) < 8 else "V1") if found else None
