"""The flags that `kvsim.plan_capacity` takes, under vLLM's names, and the checks that need no model."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from kvsim.errors import KvsimError

_NUMBER = (int, "a whole number")
_REAL = (int | float, "a number")
_NAME = (str, "a name")
_SWITCH = (bool, "true or false")
_OBJECT = (Mapping, "an object with keys")

FLAGS: dict[str, tuple[Any, str]] = {
    # the engine's sizes; `KVCacheOptions` checks the ranges of those that it holds
    "block_size": _NUMBER,
    "max_model_len": _NUMBER,
    "max_num_batched_tokens": _NUMBER,
    "max_num_seqs": _NUMBER,
    "tensor_parallel_size": _NUMBER,
    "pipeline_parallel_size": _NUMBER,
    "decode_context_parallel_size": _NUMBER,
    "data_parallel_size": _NUMBER,
    "num_gpu_blocks_override": _NUMBER,
    "kv_cache_memory_bytes": _NUMBER,
    "gpu_memory_utilization": _REAL,
    "cpu_offload_gb": _REAL,
    "swap_space": _REAL,
    # formats
    "kv_cache_dtype": _NAME,
    "kv_cache_layout": _NAME,
    "quantization": _NAME,
    "load_format": _NAME,
    "dtype": _NAME,
    "mamba_cache_mode": _NAME,
    "mamba_ssm_cache_dtype": _NAME,
    # what is on
    "allow_long_max_model_len": _SWITCH,  # VLLM_ALLOW_LONG_MAX_MODEL_LEN
    "async_scheduling": _SWITCH,
    "disable_hybrid_kv_cache_manager": _SWITCH,
    "enable_chunked_prefill": _SWITCH,
    "enable_prefix_caching": _SWITCH,
    "enable_expert_parallel": _SWITCH,
    "enforce_eager": _SWITCH,
    "language_model_only": _SWITCH,
    "skip_mm_profiling": _SWITCH,
    "max_model_len_must_fit": _SWITCH,
    # images, drafts, adapters, the model's own configuration
    "limit_mm_per_prompt": _OBJECT,
    "mm_processor_kwargs": _OBJECT,
    "speculative_config": _OBJECT,
    "hf_overrides": _OBJECT,
    "rope_scaling": _OBJECT,
    "enable_lora": _SWITCH,
    "max_loras": _NUMBER,
    "max_lora_rank": _NUMBER,
    "fully_sharded_loras": _SWITCH,
}
OBSERVED_PARTS = ("weights", "activation", "cuda_graphs", "non_torch")
_ABOVE_ZERO = ("kv_cache_memory_bytes", "max_num_seqs", "max_num_batched_tokens")
_COUNTS = ("data_parallel_size", "max_loras", "max_lora_rank")
_INPUTS = ("image", "video", "audio", "vision_chunk")
# Ranks of adapters, with the release that brought them.
_LORA_RANKS = {1: 11, 8: 0, 16: 0, 32: 0, 64: 0, 128: 0, 256: 0, 320: 8, 512: 8}
_MOST = {"max_num_seqs": 1 << 20, "block_size": 1 << 20} | dict.fromkeys(_COUNTS, 1 << 16)
_MOST_TOKENS = 1 << 40  # beyond any model's length and any batch


def checked_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that are given, None left out. Raises KvsimError "<flag>: ..." for a name or value."""
    given = {key: value for key, value in flags.items() if value is not None}
    for key, value in given.items():
        if key not in FLAGS:
            raise KvsimError(f"{key}: not a flag that bears on capacity{_nearest(key)}")
        kind, wanted = FLAGS[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise KvsimError(f"{key}: {_short(value)} is not {wanted}")
        if isinstance(value, int) and abs(value) > _MOST_TOKENS * (1 << 20):
            raise KvsimError(f"{key}: {_short(value)} is beyond any machine")
    _check_ranges(given)
    return given


def check_card(gpu: Any, memory_gib: Any, used_by_others_gib: Any, given: Any, observed: Any) -> None:
    """The arguments of `kvsim.plan_capacity` that are no flags. Raises KvsimError "<argument>: ..."."""
    if gpu is not None and not isinstance(gpu, str):
        raise KvsimError(f"gpu: {_short(gpu)} is not a name of kvsim gpus")
    for key, value in (("gpu_memory_gib", memory_gib), ("used_by_others_gib", used_by_others_gib)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number or (value is None and key == "gpu_memory_gib")):
            raise KvsimError(f"{key}: {_short(value)} is not a number")
    if given is not None and not _whole(given):
        raise KvsimError(f"available_kv_cache_bytes: {_short(given)} is not a whole number from 0")
    if observed is not None and not isinstance(observed, Mapping):
        raise KvsimError(f"observed: {_short(observed)} is not an object of part -> bytes")
    for part, size in (observed or {}).items():
        if part not in OBSERVED_PARTS:
            raise KvsimError(f"observed: {_short(part)} is no part; known are {', '.join(OBSERVED_PARTS)}")
        rest = part == "non_torch" and isinstance(size, int) and _whole(abs(size))  # what a log left over
        if not (rest or _whole(size)):
            raise KvsimError(f"observed: {part} is {_short(size)}, wanted bytes, a whole number from 0")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS * (1 << 20)


def _check_ranges(given: Mapping[str, Any]) -> None:
    share = given.get("gpu_memory_utilization", 1)
    if not 0 < share <= 1:
        raise KvsimError(f"gpu_memory_utilization: {share!r} is not above 0 and at most 1")
    for key in ("cpu_offload_gb", "swap_space"):
        if not 0 <= given.get(key, 0) < 1e6:
            raise KvsimError(f"{key}: {given[key]!r} is not a number from 0")
    for key in (*_ABOVE_ZERO, *_COUNTS):
        if given.get(key, 1) < 1:
            raise KvsimError(f"{key}: {given[key]!r} is not a whole number above 0")
    length = given.get("max_model_len", 1)
    if length < 1 and length != -1:
        raise KvsimError(f"max_model_len: {length} is neither a whole number above 0 nor -1 (automatic)")
    for key, most in _MOST.items():
        if given.get(key, 1) > most:
            raise KvsimError(f"{key}: {given[key]} is more than {most:,}")
    for key in ("max_model_len", "max_num_batched_tokens"):
        if given.get(key, 1) > _MOST_TOKENS:
            raise KvsimError(f"{key}: {given[key]} is more than {_MOST_TOKENS:,}")
    block = given.get("block_size", 16)
    if block > 0 and block % 16:
        raise KvsimError(
            f"block_size: {block} is not a multiple of 16, which vLLM's CUDA attention backends need; "
            "give 16, 32, 64 or 128"
        )
    mode = given.get("mamba_cache_mode", "none")
    if mode not in ("none", "align", "all"):
        raise KvsimError(f"mamba_cache_mode: {mode!r} is not known; one of none, align, all")
    drafts = given.get("speculative_config")
    if drafts is not None and not drafts:
        raise KvsimError(
            "speculative_config: an empty object; give method or model, and num_speculative_tokens"
        )


def ineffective(flags: Mapping[str, Any]) -> tuple[str, ...]:
    """Flags without an effect beside the others, a sentence each."""
    notes = [
        f"{flag}: no effect without enable_lora"
        for flag in ("max_loras", "max_lora_rank", "fully_sharded_loras")
        if flag in flags and not flags.get("enable_lora")
    ]
    odd = sorted(set(flags.get("limit_mm_per_prompt") or {}) - set(_INPUTS))
    if odd:
        notes.append(
            f"limit_mm_per_prompt: {', '.join(odd)[:80]} is no input that vLLM has ({', '.join(_INPUTS)})"
        )
    return tuple(notes)


def check_lora_rank(rank: int, minor: int) -> None:
    """Raises KvsimError unless that release has room for adapters of that rank (`LoRAConfig`)."""
    known = [each for each, since in _LORA_RANKS.items() if minor >= since]
    if rank not in known:
        raise KvsimError(f"max_lora_rank: {rank} is not one of {', '.join(map(str, known))}")


def draft_tokens(flags: Mapping[str, Any]) -> int:
    """Drafts per step of --speculative-config; 0 without one."""
    count = (flags.get("speculative_config") or {}).get("num_speculative_tokens", 0)
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= 1000:
        raise KvsimError(f"speculative_config: num_speculative_tokens is {_short(count)}, wanted 0 to 1000")
    return count


def image_limits(flags: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Images per prompt (None: no limit) and the processor's limit of an image's area in pixels."""
    if flags.get("language_model_only") or flags.get("skip_mm_profiling"):
        return 0, None
    limit: Any = (flags.get("limit_mm_per_prompt") or {}).get("image")
    limit = limit.get("count") if isinstance(limit, Mapping) else limit
    kwargs: Any = flags.get("mm_processor_kwargs") or {}
    kwargs = kwargs.get("images_kwargs", kwargs)
    kwargs = kwargs if isinstance(kwargs, Mapping) else {}
    size = kwargs.get("size")
    pixels = kwargs.get("max_pixels") or (size.get("longest_edge") if isinstance(size, Mapping) else None)
    for key, value in (("limit_mm_per_prompt", limit), ("mm_processor_kwargs: max_pixels", pixels)):
        whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_TOKENS
        if value is not None and not whole:
            raise KvsimError(f"{key}: {_short(value)} is not a whole number")
    return limit, pixels or None


def _nearest(key: str) -> str:
    close = get_close_matches(key, FLAGS, n=1)
    return f"; nearest: {close[0]}" if close else f"; known are {', '.join(sorted(FLAGS))}"


def _short(value: Any) -> str:
    try:
        return repr(str(value)[:40])
    except ValueError:  # Python's own limit on digits
        return "a number of thousands of digits"
