"""vLLM's refusals to start for want of memory: its own words, and ours that name the scenario key.

Texts: `check_enough_kv_cache_memory` and its neighbours (vLLM 0.33.0 `v1/core/kv_cache_planning.py`, earlier
`v1/core/kv_cache_utils.py`; V0 and 0.6: `raise_if_cache_size_invalid` of `worker/worker.py`).
"""

from dataclasses import dataclass

from kvsim.errors import KvsimError
from kvsim.rules import VllmRules

GIB = 1 << 30
_HELP = "See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."


def format_gib(size: float) -> str:
    """GiB with up to two decimals, as vLLM prints it (28.0, 16.87)."""
    return f"{round(size / GIB, 2)}"


class KVCacheTooSmallError(KvsimError):
    """vLLM would refuse to start; the text names the scenario key that mends it.

    vllm_message: the release's own words. Bytes; estimated_max_model_len is None where vLLM names none.
    """

    def __init__(
        self,
        text: str,
        needed_bytes: int = 0,
        available_bytes: int = 0,
        estimated_max_model_len: int | None = None,
        vllm_message: str | None = None,
    ):
        super().__init__(text)
        self.vllm_message = vllm_message or text
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.estimated_max_model_len = estimated_max_model_len


def memory_keys(overridden: bool = False) -> str:
    """The scenario keys that set how much memory there is."""
    if overridden:
        return "engine.num_gpu_blocks_override"
    return "engine.available_kv_cache_bytes, engine.kv_cache_memory_bytes or engine.gpu_memory_utilization"


@dataclass(frozen=True)
class RefusalWords:
    """How a release words its refusals (`check_enough_kv_cache_memory`, releases 0.6.6 to 0.33.0).

    whose: "model's" or "models's". cpu_hint: names the CPU backend. help_link: ends with a web address.
    estimates: names the longest length that fits. counts_tokens: compares tokens instead of GiB (V0).
    device: the free check names the device.
    """

    whose: str = "models's"
    cpu_hint: bool = False
    help_link: bool = True
    estimates: bool = True
    counts_tokens: bool = False
    device: str = ""

    @classmethod
    def of_rules(cls, rules: VllmRules) -> "RefusalWords":
        """Of the two releases that `kvsim.rules` knows in full."""
        new = rules.null_block_held_back
        return cls("model's" if new else "models's", cpu_hint=new)

    @classmethod
    def of_release(cls, minor: int, *, v0: bool = False) -> "RefusalWords":
        return cls(
            whose="model's" if minor >= 22 else "models's",
            cpu_hint=minor >= 22,
            help_link=minor >= 14,
            estimates=minor >= 8,
            counts_tokens=v0 or minor <= 6,
            device=" cuda:0" if minor >= 14 else "",
        )


def check_available(
    available_bytes: int, rules: VllmRules, keys: str = memory_keys(), words: RefusalWords | None = None
) -> None:
    """Raise KVCacheTooSmallError unless some memory is left; `keys` are those that would give more."""
    if available_bytes <= 0:
        text = f"engine: No available memory for the cache blocks; raise {keys}"
        message = _no_memory_message(words or RefusalWords.of_rules(rules))
        raise KVCacheTooSmallError(text, available_bytes=available_bytes, vllm_message=message)


def _no_memory_message(words: RefusalWords) -> str:
    cpu = ""
    if words.cpu_hint:
        cpu = " (this flag also controls CPU memory reservation on the CPU backend, despite its name)"
    return (
        "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        f"initializing the engine{cpu}.{_help(words)}"
    )


def _help(words: RefusalWords) -> str:
    return f" {_HELP}" if words.help_link else ""


def cannot_fit(keys: str) -> KVCacheTooSmallError:
    """Not one token fits (automatic max_model_len)."""
    words = "Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token"
    message = f"{words}. Try increasing `gpu_memory_utilization`."
    return KVCacheTooSmallError(f"engine.max_model_len: {words}; raise {keys}", vllm_message=message)


def too_long(
    rules: VllmRules,
    wanted: int,
    needed: int,
    room: int,
    longest: int,
    keys: str,
    words: RefusalWords | None = None,
) -> KVCacheTooSmallError:
    """A request of `wanted` tokens needs more bytes than the room; `longest` tokens fit."""
    words = words or RefusalWords.of_rules(rules)
    estimate = f" Based on the available memory, the estimated maximum model length is {longest}."
    facts = (
        f"To serve at least one request with the {words.whose} max seq len ({wanted}), "
        f"({format_gib(needed)} GiB KV cache is needed, which is larger than the available KV cache memory "
        f"({format_gib(room)} GiB).{estimate if longest and words.estimates else ''}"
    )
    cpu = " (which also controls CPU memory on the CPU backend)" if words.cpu_hint else ""
    advice = (
        f"Try increasing `gpu_memory_utilization`{cpu} or decreasing `max_model_len` when initializing "
        f"the engine.{_help(words)}"
    )
    if words.counts_tokens:
        facts = (
            f"The model's max seq len ({wanted}) is larger than the maximum number of tokens that can be "
            f"stored in KV cache ({longest})."
        )
    mend = f"Give at most {longest}, or raise {keys}" if longest else f"Raise {keys}"
    return KVCacheTooSmallError(
        f"engine.max_model_len: {facts} {mend}", needed, room, longest or None, f"{facts} {advice}"
    )
