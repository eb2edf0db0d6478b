"""A start-up log beside its own sum and beside the prediction: what is left over, what differs and why."""

from dataclasses import dataclass

from kvsim.gpu.log_facts import LogFacts
from kvsim.gpu.prediction import GIB, MemoryPrediction

_HALF_DIGIT = 0.005  # GiB; every printed part is rounded to 0.01
_UTILIZATION_ROUNDING = 0.02  # GiB, where what was requested follows from a rounded total
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
