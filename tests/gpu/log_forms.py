"""Start-up logs in the form of each vLLM release, made of its format strings and chosen sizes."""

from dataclasses import dataclass

GIB = 1 << 30
BLOCK = 16 * 131_072  # Llama-3.1-8B: 32 layers x 8 KV heads x 128 x 2 x 2 bytes


@dataclass(frozen=True)
class Server:
    """Sizes in bytes; Llama-3.1-8B on a card of 80 GB."""

    version: str
    engine: str = "V1"
    utilization: float = 0.9
    total: int = round(79.25 * GIB)
    weights: int = round(14.9889 * GIB)
    activation: int = round(1.212 * GIB)
    non_torch: int = round(0.263 * GIB)
    graphs: int = round(0.234 * GIB)
    length: int = 32_768

    @property
    def release(self) -> tuple[int, int]:
        _, minor, patch, *_ = self.version.split(".")
        return int(minor), int(patch)

    @property
    def minor(self) -> int:
        return self.release[0]

    @property
    def requested(self) -> int:
        return int(self.total * self.utilization)

    @property
    def available(self) -> int:
        counted = self.graphs if self.minor >= 20 else 0
        return self.requested - self.weights - self.activation - self.non_torch - counted

    @property
    def blocks(self) -> int:
        return self.available // BLOCK

    @property
    def concurrency(self) -> float:
        return self.blocks * 16 / self.length

    @property
    def tokens(self) -> int:
        return int(self.concurrency * self.length) if self.release >= (20, 2) else self.blocks * 16


def gib(size: int) -> str:
    return f"{round(size / GIB, 2)}"


def lines(server: Server) -> list[str]:
    """The lines that bear on memory, without prefixes."""
    name = "an LLM engine" if server.minor <= 6 else f"a {server.engine} LLM engine"
    config = (
        f"Initializing {name} (v{server.version}) with config: model='meta-llama/Llama-3.1-8B-Instruct', "
        f"speculative_config=None, max_seq_len={server.length}, tensor_parallel_size=1, "
        "pipeline_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=auto"
    )
    arguments = "non-default args: {'max_num_batched_tokens': 8192, 'max_num_seqs': 256}"
    banner = [f"vLLM API server version {server.version}"]
    return [*banner, arguments, config, *(_v0(server) if server.engine == "V0" else _v1(server))]


def _loading(server: Server) -> str:
    if server.minor <= 7:
        return f"Loading model weights took {server.weights / GIB:.4f} GB"
    if server.minor <= 10:
        return f"Model loading took {server.weights / GIB:.4f} GiB and 3.141593 seconds"
    size = f"{server.weights / GIB:.4f}" if server.minor < 14 else gib(server.weights)
    return f"Model loading took {size} GiB memory and 3.141593 seconds"


def _v0(server: Server) -> list[str]:
    kind = "GPU" if server.minor <= 6 else "cuda"
    return [
        _loading(server),
        "Memory profiling takes 1.23 seconds",
        f"the current vLLM instance can use total_gpu_memory ({server.total / GIB:.2f}GiB) x "
        f"gpu_memory_utilization ({server.utilization:.2f}) = {server.requested / GIB:.2f}GiB",
        f"model weights take {server.weights / GIB:.2f}GiB; non_torch_memory takes "
        f"{server.non_torch / GIB:.2f}GiB; PyTorch activation peak memory takes "
        f"{server.activation / GIB:.2f}GiB; the rest of the memory reserved for KV Cache is "
        f"{server.available / GIB:.2f}GiB.",
        f"# {kind} blocks: {server.blocks}, # CPU blocks: 2048",
        f"Maximum concurrency for {server.length} tokens per request: {server.concurrency:.2f}x",
        "Graph capturing finished in 14 secs, took 0.21 GiB",
    ]


def _v1(server: Server) -> list[str]:
    most = f"tokens per request: {server.concurrency:.2f}x"
    if server.minor <= 7:
        sizes = [f"# GPU blocks: {server.blocks}", f"Maximum concurrency for {server.length} {most}"]
        return [_loading(server), *sizes]
    size = f"GPU KV cache size: {server.tokens:,} tokens"
    concurrency = f"Maximum concurrency for {server.length:,} {most}"
    sizes = [f"{size}, {concurrency}"] if server.minor >= 28 else [size, concurrency]
    if server.minor == 8:
        return [_loading(server), *sizes]
    room = gib(server.available) if server.minor >= 14 else f"{server.available / GIB:.2f}"
    graphs = (
        [f"Estimated CUDA graph memory: {server.graphs / GIB:.2f} GiB total"] if server.minor >= 18 else []
    )
    found = [_loading(server), *graphs, f"Available KV cache memory: {room} GiB", *sizes]
    found.append("Graph capturing finished in 14 secs, took 0.21 GiB")
    return found if server.minor == 9 else [*found, _usage(server)]


def _usage(server: Server) -> str:
    """`compile_or_warm_up_model`: the sentence after capture, from 0.10.2 on."""
    start = (
        f"Free memory on device ({gib(server.total - GIB)}/{gib(server.total)} GiB) on startup. Desired GPU "
        f"memory utilization is ({server.utilization}, {gib(server.requested)} GiB). Actual usage is "
    )
    if server.minor >= 27:
        used = (
            f"{gib(server.weights + server.non_torch)} GiB for consumed memory (weights + non-torch), "
            f"{gib(server.activation + server.graphs)} GiB for peak activation, and 0.21 GiB for CUDAGraph "
            "memory. "
        )
    else:
        used = (
            f"{gib(server.weights)} GiB for weight, {gib(server.activation)} GiB for peak activation, "
            f"{gib(server.non_torch)} GiB for non-torch memory, and 0.21 GiB for CUDAGraph memory. "
        )
    in_use = f"{server.available} bytes." if server.minor < 14 else f"{gib(server.available)} GiB."
    return (
        f"{start}{used}Replace gpu_memory_utilization config with `--kv-cache-memory=1234` to fit into "
        f"requested memory. Current kv cache memory in use is {in_use}"
    )


def refusal(minor: int, length: int = 131_072) -> str:
    """What the engine raises for a length that does not fit."""
    if minor <= 6:
        return (
            f"ValueError: The model's max seq len ({length}) is larger than the maximum number of tokens "
            "that can be stored in KV cache (23632). Try increasing `gpu_memory_utilization` or decreasing "
            "`max_model_len` when initializing the engine."
        )
    unit = "GB" if minor == 7 else "GiB"
    whose = "model's" if minor >= 22 else "models's"
    longest = (
        "" if minor == 7 else "Based on the available memory, the estimated maximum model length is 23632. "
    )
    return (
        f"ValueError: To serve at least one request with the {whose} max seq len ({length}), (16.00 {unit} "
        f"KV cache is needed, which is larger than the available KV cache memory (2.89 {unit}). {longest}"
        "Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
    )


PREFIXES = {
    "plain": "INFO 11-20 12:00:00 [gpu_worker.py:232] ",
    "process": "(EngineCore_DP0 pid=4711) INFO 11-20 12:00:00 [gpu_worker.py:232] ",
    "in format": "(EngineCore pid=4711) INFO 11-20 12:00:00 [v1/worker/gpu_worker.py:773] ",
    "colour": "\x1b[1;36m(EngineCore_0 pid=4711)\x1b[0;0m INFO 11-20 12:00:00 [gpu_worker.py:232] ",
    "compose": "vllm-1  | INFO 11-20 12:00:00 [gpu_worker.py:232] ",
    "kubernetes": "2026-11-20T12:00:00.123456789Z stderr F INFO 11-20 12:00:00 [gpu_worker.py:232] ",
    "pod": "[pod/llm-0/vllm] INFO 11-20 12:00:00 [gpu_worker.py:232] ",
    "json": "2026-11-20 12:00:00 INFO vllm.v1.worker.gpu_worker EngineCore 4711 ",
    "none": "",
}


def log(server: Server, prefix: str = "plain", end: str = "\n") -> str:
    return "".join(f"{PREFIXES[prefix]}{line}{end}" for line in lines(server))
