"""What a model's step times rest on, in words, and where they leave the measured range."""

from collections.abc import Iterable, Iterator, Mapping

from kvsim.gpu.cost.calibration import ValueSet

_WORDS = {
    "attention_prefill": "attention prefill",
    "attention_decode": "attention decode",
    "attention_prefill_window": "window attention prefill",
    "attention_decode_window": "window attention decode",
    "attention_prefill_large": "large-head attention prefill",
    "attention_decode_large": "large-head attention decode",
    "attention_encoder": "vision attention",
    "gemm": "linear layers",
    "small": "small kernels",
    "sampler": "sampler",
    "engine": "host time",
    "moe": "experts",
    "all_reduce_custom": "all-reduce",
    "all_reduce_eager": "all-reduce (eager)",
    "all_reduce_nccl": "all-reduce (NCCL)",
    "send": "pipeline send",
}


def words(key: str) -> str:
    """An operation as people read it: "linear layers fp8"."""
    operation, dtype = key.split("/")
    return _WORDS.get(operation, operation) + ("" if dtype == "bfloat16" else f" {dtype}")


def described(gpu: str, used: Mapping[str, ValueSet], assumed: Iterable[str]) -> str:
    """One sentence: what was measured on the GPU itself, what is borrowed from which, what is assumed.

    Its sources stand in parentheses at the end.
    """
    own = [key for key, values in used.items() if not values.borrowed_from]
    taken: dict[str, list[str]] = {}
    for key, values in used.items():
        if values.borrowed_from:
            taken.setdefault(values.borrowed_from, []).append(words(key))
    if own:
        text = f"Step times: calibrated on measured kernels of {gpu}"
    else:
        text = f"Step times: no measured kernels of {gpu}, by specification"
    for relative, operations in taken.items():
        which = "all operations" if len(operations) == len(used) else ", ".join(operations)
        text += f"; borrowed from {relative}: {which}"
    foreign: dict[str, list[str]] = {}
    for key, values in used.items():
        if key.startswith("attention") and values.source.note:
            foreign.setdefault(f"{values.source.kernel}, {values.source.note}", []).append(words(key))
    for kernel, operations in foreign.items():
        text += f"; {', '.join(operations)} timed with {kernel}"
    for each in assumed:
        text += f"; {each}"
    return f"{text} ({'; '.join(_sources(used.values()))})"


def _sources(sets: Iterable[ValueSet]) -> list[str]:
    names = (f"{values.source.package} {values.source.version}".strip() for values in sets)
    return list(dict.fromkeys(names))


def beyond(used: Mapping[str, ValueSet], reached: Mapping[str, float]) -> Iterator[str]:
    """Sentences for what a run reached beyond the measured range: it goes on there by the closed form.

    reached: "context" (keys of the longest request), "requests" (of the largest batch), "tokens" (of a step).
    """
    limits = {
        "context": ("attention_decode", "single_context", "context of {:,.0f} tokens"),
        "requests": ("attention_decode", "singles", "batch of {:,.0f} requests"),
        "tokens": ("gemm", "m", "step of {:,.0f} tokens"),
    }
    for name, (operation, column, text) in limits.items():
        for key, values in used.items():
            if key.split("/")[0] == operation and column in values.measured:
                most = values.measured[column][1]
                if reached.get(name, 0.0) > most + 1:
                    yield (
                        f"Step times: a {text.format(reached[name])} is beyond the measured "
                        f"{most:,.0f} ({words(key)}); there they go on by the closed form"
                    )
