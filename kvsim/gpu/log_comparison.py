"""A start-up log beside its own sum and beside the prediction: what is left over, what differs and why."""

from dataclasses import dataclass

from kvsim.gpu.log_facts import LogFacts
from kvsim.gpu.prediction import GIB, MemoryPrediction

_HALF_DIGIT = 0.005  # GiB; every printed part is rounded to 0.01
_UTILIZATION_ROUNDING = 0.02  # GiB, where what was requested follows from a rounded total
_SAME_CARD = 0.03  # share; drivers and ECC take some
_BLOCK = 16  # tokens, where no flag says otherwise
_SAME_BYTES = 0.02  # share; bytes of a token that differ by more are another layout
_ALIKE = 0.02  # GiB; two figures this near need no cause


@dataclass(frozen=True)
class Difference:
    """One part, as printed and as predicted, in GiB, and the likeliest cause of what is between."""

    part: str
    printed_gib: float
    predicted_gib: float
    cause: str


def requested_gib(facts: LogFacts) -> float | None:
    """What vLLM asked of the card, as printed or from its parts."""
    if facts.requested_gib is not None:
        return facts.requested_gib
    if facts.total_gib is None or facts.gpu_memory_utilization is None:
        return None
    return facts.total_gib * facts.gpu_memory_utilization


def adds_up(facts: LogFacts) -> tuple[float, float] | None:
    """(GiB left over after all printed parts, what rounding allows); None if a part is not printed.

    Left over, positive: something else took it.
    """
    requested = requested_gib(facts)
    if requested is None or facts.available_gib is None or facts.activation_gib is None:
        return None
    if facts.reserved_gib is not None:  # set by hand, not what was left
        return None
    if facts.consumed_gib is not None:  # weights and non-torch, from 0.27 on
        parts = [facts.consumed_gib, facts.activation_gib]
    elif facts.weights_gib is not None and facts.non_torch_gib is not None:
        parts = [facts.weights_gib, facts.non_torch_gib, facts.activation_gib]
    else:
        return None
    rounding = _HALF_DIGIT * (len(parts) + 2) + (_UTILIZATION_ROUNDING if facts.requested_gib is None else 0)
    left = requested - sum(parts) - facts.available_gib
    if graphs_apart(facts) and abs(left - (facts.cuda_graph_gib or 0)) < abs(left):
        left -= facts.cuda_graph_gib or 0
        rounding += _HALF_DIGIT
    return left, rounding


def missing_parts(facts: LogFacts) -> list[str]:
    """What a log would have to print for `adds_up`, by name."""
    missing = [] if requested_gib(facts) is not None else ["the card's memory and utilization"]
    if facts.consumed_gib is None:
        named = {"weights": facts.weights_gib, "non-torch": facts.non_torch_gib}
        missing += [name for name, gib in named.items() if gib is None]
    named = {"activation peak": facts.activation_gib, "KV cache memory": facts.available_gib}
    return missing + [name for name, gib in named.items() if gib is None]


def logged_tokens(facts: LogFacts) -> int | None:
    """Tokens of the cache: printed, or those of the blocks, which are all that V0 and 0.7 print."""
    blocks = facts.num_gpu_blocks
    if facts.kv_tokens is not None or blocks is None:
        return facts.kv_tokens
    old = facts.engine == "V0" or (facts.minor is not None and facts.minor < 8)
    return blocks * (facts.block_size or _BLOCK) if old else None


def graphs_apart(facts: LogFacts) -> bool:
    """Whether the graph estimate is printed beside the activation peak (up to 0.26), not within it."""
    return facts.cuda_graph_gib is not None and facts.consumed_gib is None


def activation_gib(facts: LogFacts) -> float | None:
    """Without the graph estimate, which releases from 0.27 on print within it."""
    if facts.activation_gib is None or facts.cuda_graph_gib is None or graphs_apart(facts):
        return facts.activation_gib
    return round(facts.activation_gib - facts.cuda_graph_gib, 4)


def non_torch_gib(facts: LogFacts) -> float | None:
    if facts.non_torch_gib is None and facts.consumed_gib is not None and facts.weights_gib is not None:
        return round(facts.consumed_gib - facts.weights_gib, 4)
    return facts.non_torch_gib


def differences(facts: LogFacts, predicted: MemoryPrediction) -> list[Difference]:
    """Every printed part beside its prediction, the largest difference first."""
    printed = {
        "weights": (facts.weights_gib, predicted.weights),
        "activation": (activation_gib(facts), predicted.activation),
        "CUDA graphs": (facts.cuda_graph_gib, predicted.cuda_graphs),
        "non-torch": (non_torch_gib(facts), predicted.non_torch),
    }
    rows = [
        Difference(part, gib, size / GIB, likeliest_cause(part, gib - size / GIB, facts))
        for part, (gib, size) in printed.items()
        if gib is not None
    ]
    return sorted(rows, key=lambda row: -abs(row.printed_gib - row.predicted_gib))


def likeliest_cause(part: str, more: float, facts: LogFacts) -> str:
    """Why a part is printed that many GiB larger than predicted (smaller if negative)."""
    if abs(more) <= _ALIKE:
        return "none, alike within rounding"
    if part == "weights":
        return _weights_cause(more, facts)
    if part == "activation":
        return _activation_cause(more, facts)
    if part == "CUDA graphs":
        if facts.minor is not None and facts.minor < 20:
            return "measured by this release but not taken off"
        return "capture sizes and kernels' workspaces, which the configuration does not tell"
    if (facts.tensor_parallel_size or 1) > 1:
        return "communication buffers between ranks, which depend on links and NCCL"
    if more > 0:
        return "another process on the card, the driver's own use (WSL), or kernels' workspaces"
    return "fewer workspaces than most servers have"


def _weights_cause(more: float, facts: LogFacts) -> str:
    if more > 0 and facts.quantization:
        return f"layers that {facts.quantization} leaves at 16 bits, or weights padded for its kernels"
    if more > 0:
        return "16-bit weights where the name says fewer, draft layers, or padded experts"
    return "a lighter weight format than the name tells, offloaded weights, or more ranks"


def _activation_cause(more: float, facts: LogFacts) -> str:
    missing = [name for name in ("max_num_batched_tokens", "max_num_seqs") if getattr(facts, name) is None]
    if missing:
        return f"{' and '.join(missing)} not in the log, the defaults were assumed; give what was set"
    if more > 0:
        return "image, audio or LoRA inputs in the profile run, or kernels' workspaces"
    return "a sampler or kernels that need less than assumed"


def cache_differences(
    facts: LogFacts, predicted: MemoryPrediction, available: int
) -> tuple[float, float, str] | None:
    """(printed GiB, predicted GiB, cause) of the KV cache; None where the log prints none."""
    if facts.available_gib is None:
        return None
    return facts.available_gib, available / GIB, _cache_cause(facts, predicted, available)


def _cache_cause(facts: LogFacts, predicted: MemoryPrediction, available: int) -> str:
    assert facts.available_gib is not None
    more = facts.available_gib - available / GIB
    if abs(more) <= _ALIKE:
        return "none, alike within rounding"
    if facts.reserved_gib is not None:
        return "--kv-cache-memory-bytes, set by hand"
    requested = requested_gib(facts)
    asked = 0.0 if requested is None else requested - predicted.requested / GIB
    if abs(asked) > 2 * _ALIKE:
        what = "card" if _other_card(facts, predicted) else "utilization or memory of the card"
        return f"another {what}: vLLM may use {abs(asked):.2f} GiB {'more' if asked > 0 else 'less'}"
    parts = differences(facts, predicted)
    told = -sum(row.printed_gib - row.predicted_gib for row in parts)
    if parts and abs(more - told) <= abs(more) / 2:
        return f"mostly {parts[0].part}, {parts[0].printed_gib - parts[0].predicted_gib:+.2f} GiB as printed"
    untold = [name for name in missing_parts(facts) if name in ("weights", "non-torch", "activation peak")]
    return f"{' or '.join(untold)}, which the log does not print" if untold else "what other processes held"


def tokens_cause(facts: LogFacts, available: int, tokens: int) -> str:
    """Why a log's tokens are not the predicted ones."""
    printed = logged_tokens(facts)
    if printed == tokens:
        return "none"
    if facts.available_gib is None or facts.available_gib <= 0 or available <= 0 or not (printed and tokens):
        return "the KV cache memory, which decides"
    each, planned = facts.available_gib * GIB / printed, available / tokens
    if abs(each / planned - 1) <= _SAME_BYTES:
        return "follows from the KV cache memory"
    what = "cache format, block size, draft layers or max_model_len"
    return f"{each:,.0f} bytes a token printed, {planned:,.0f} planned: {what}"


def card_doubt(facts: LogFacts, predicted: MemoryPrediction, gpu: str) -> str | None:
    """A sentence where the log's card is not the one that was planned for."""
    if not _other_card(facts, predicted):
        return None
    return f"The log is of a card of {facts.total_gib:.2f} GiB; {gpu} has {predicted.total / GIB:.2f} GiB"


def _other_card(facts: LogFacts, predicted: MemoryPrediction) -> bool:
    total = predicted.total / GIB
    return facts.total_gib is not None and abs(facts.total_gib - total) > _SAME_CARD * total
