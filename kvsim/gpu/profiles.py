"""Parts that a start-up log has shown, kept (`kvsim.gpu.profile_file`) and used by later predictions."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.capacity import CapacityPlan, plan_capacity
from kvsim.gpu.capacity_flags import OBSERVED_PARTS
from kvsim.gpu.log_comparison import activation_gib, non_torch_gib
from kvsim.gpu.log_facts import LogFacts
from kvsim.gpu.prediction import GIB
from kvsim.gpu.releases import release

FORM = 1
PARTS = OBSERVED_PARTS
_NAMES = {"cuda_graphs": "CUDA graphs", "non_torch": "non-torch"}
_ROUNDING = round(0.006 * GIB)  # of a printed size, and a little
_SAME_MEMORY = 0.02  # two cards that show about as much
_AROUND = ("activation", "cuda_graphs", "non_torch")
# What a part depends on; with another setting it is predicted anew.
_DEPENDENT: dict[str, tuple[str, ...]] = {
    "gpu": _AROUND,
    "vllm_version": _AROUND,
    "engine": _AROUND,
    "tensor_parallel_size": PARTS,
    "pipeline_parallel_size": PARTS,
    "max_num_batched_tokens": ("activation",),
    "max_num_seqs": ("activation", "cuda_graphs"),
    "enforce_eager": ("cuda_graphs",),
    "quantization": ("weights",),
    "dtype": ("weights",),
}


@dataclass(frozen=True)
class Reused:
    """What of a profile holds for a server. parts: bytes by part; sources: where each is from, in words.

    observed: parts that the log printed. notes: what does not hold, and why.
    """

    parts: dict[str, int]
    sources: dict[str, str]
    observed: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Profile:
    """parts: bytes on one GPU by part, as the log printed them. filled: those that it does not print.

    rest: bytes of the log's sum that no part accounts for; negative where the parts are more than it.
    server: settings of the server that was observed, as far as known. observed_with: what the log said.
    """

    parts: dict[str, int]
    filled: dict[str, int] = field(default_factory=dict)
    rest: int = 0
    server: dict[str, Any] = field(default_factory=dict)
    observed_with: dict[str, Any] = field(default_factory=dict)

    def reused(self, plan: CapacityPlan, flags: Mapping[str, Any]) -> Reused:
        """What holds for the server of a plan; raises KvsimError if it has another model."""
        there = server_of(plan, flags)
        then = self.server.get("model")
        notes = []
        if then is not None and then != plan.model:
            same = _same_model(then, plan.model)
            if same is False:
                raise KvsimError(f"--profile: observed with {then}, which says nothing about {plan.model}")
            if same is None:
                notes.append(f"profile: observed with {then}, taken to be the same as {plan.model}")
        changed = [name for name in _DEPENDENT if _differs(name, self.server, there)]
        lost = {part for name in changed for part in _DEPENDENT[name]}
        if plan.prediction is not None and not plan.prediction.cuda_graphs:
            lost.add("cuda_graphs")  # measured, but not taken off
        known = self.filled | self.parts
        parts = {name: known[name] for name in PARTS if name in known and name not in lost}
        sources = {name: self._source(name) for name in parts}
        if "non_torch" in parts and self.rest:
            _add_rest(parts, sources, self.rest, printed="non_torch" in self.parts)
        notes += [_change(name, self.server, there) for name in changed]
        if changed:
            kept = _listed(parts) or "nothing"
            anew = _listed(part for part in PARTS if part in lost and getattr(plan.prediction, part))
            notes.append(f"profile: {kept} used as kept; {anew or 'nothing'} predicted anew")
        return Reused(parts, sources, tuple(name for name in parts if name in self.parts), tuple(notes))

    def _source(self, part: str) -> str:
        if part in self.parts:
            return "observed, from the profile"
        return "predicted, the profile's log does not print it"


def plan_with_profile(profile: Profile | None, model: str, **facts: Any) -> CapacityPlan:
    """`plan_capacity`, with what a profile says of that server in place of the prediction."""
    plan = plan_capacity(model, **facts)
    if profile is None:
        return plan
    if plan.prediction is None:
        return replace(plan, notes=("profile: not used, the bytes are given", *plan.notes))
    found = profile.reused(plan, facts)
    plan = plan_capacity(model, **facts, observed=found.parts)
    notes = (*found.notes, *plan.notes)
    return replace(plan, observed=found.observed, sources=found.sources, notes=notes)


def server_of(plan: CapacityPlan, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a planned server on which the parts depend."""
    facts = {name: getattr(plan, name) for name in _DEPENDENT if hasattr(plan, name)}
    facts["model"] = plan.model
    if plan.prediction is not None:
        facts["gpu_memory_gib"] = round(plan.prediction.total / GIB, 2)
    facts["enforce_eager"] = bool(flags.get("enforce_eager"))
    return facts | {name: flags.get(name) or "" for name in ("quantization", "dtype")}


def _logged_server(facts: LogFacts) -> dict[str, Any]:
    """The same as far as a log tells it."""
    found = {name: getattr(facts, name) for name in _DEPENDENT if hasattr(facts, name)}
    found |= {"model": facts.model, "gpu_memory_gib": facts.total_gib, "quantization": None}
    try:
        found["vllm_version"] = (
            release(facts.version or "", facts.engine or "").name if facts.version else None
        )
    except KvsimError:
        found["vllm_version"] = None
    return {name: value for name, value in found.items() if value is not None}


def _same_model(one: str, other: str) -> bool | None:
    """None where a name leads nowhere, such as a path that is gone."""
    try:
        first, second = (replace(catalog.model(name), name="", source="") for name in (one, other))
    except KvsimError:
        return None
    return first == second


def _differs(name: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    if name == "gpu":
        memory = [each["gpu_memory_gib"] for each in (then, now) if "gpu_memory_gib" in each]
        if len(memory) == 2 and abs(memory[0] - memory[1]) > _SAME_MEMORY * memory[1]:
            return True
        cards = [each.get("gpu", "") for each in (then, now)]
        return all(card in catalog.gpu_names() for card in cards) and cards[0] != cards[1]
    if name not in then:
        return False
    if name == "vllm_version":  # patches alike
        return then[name].split(".")[:2] != now[name].split(".")[:2]
    return bool(then[name] != now[name])


def _change(name: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    before, after = (each.get(name, f"{each.get('gpu_memory_gib')} GiB") for each in (then, now))
    return f"profile: observed with {name} {before or 'not given'}, this server has {after or 'none given'}"


def _add_rest(parts: dict[str, int], sources: dict[str, str], rest: int, *, printed: bool) -> None:
    """Make the parts meet the log's sum: in non-torch, and further where that would be less than nothing."""
    if not printed:
        sources["non_torch"] = "what is left of the log's sum; the profile's log does not print it"
    elif abs(rest) >= GIB / 200:
        sources["non_torch"] = f"observed, and {rest / GIB:+.2f} GiB that the log's parts leave of its sum"
    parts["non_torch"] += rest
    for name in ("activation", "weights"):
        lack = -min(parts["non_torch"], 0)
        if lack and name in parts:
            taken = min(lack, parts[name])
            parts[name] -= taken
            parts["non_torch"] += taken
            sources[name] += f", less {taken / GIB:.2f} GiB that the log's sum does not hold"
    parts["non_torch"] = max(parts["non_torch"], 0)


def _listed(parts: Any) -> str:
    return ", ".join(_NAMES.get(part, part) for part in parts)


# ---- keeping ----


def profile_of(
    facts: LogFacts,
    plan: CapacityPlan | None = None,
    tokens_at: Callable[[int], int] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The observed parts in GiB, and what they were observed with.

    plan: prediction for the same server, asked with `flags`; then what the log does not tell is filled in
    from it, and the rest is noted that brings the sum to the log's own KV cache memory.
    tokens_at: tokens that the same server prints for so many available bytes; with them the sum meets
    the log's tokens, not only its rounded GiB.
    Raises KvsimError if the log prints none of the parts.
    """
    printed = {
        "weights": facts.weights_gib,
        "activation": activation_gib(facts),
        "cuda_graphs": facts.cuda_graph_gib,
        "non_torch": non_torch_gib(facts),
    }
    parts = {name: gib for name, gib in printed.items() if gib is not None}
    if not parts:
        raise KvsimError("--save-profile: the log prints none of the parts that a profile holds")
    content: dict[str, Any] = {"kvsim_profile": FORM, "parts_gib": parts}
    available = _available(facts, tokens_at)
    if plan is not None and plan.prediction is not None:
        if available is not None:
            content |= _filled(parts, plan, available)
        content["server"] = server_of(plan, flags or {})
    else:
        content["server"] = _logged_server(facts)
    content["observed_with"] = {key: value for key, value in asdict(facts).items() if value is not None}
    return content


def _filled(parts: Mapping[str, float], plan: CapacityPlan, available: int) -> dict[str, Any]:
    """Predicted parts for those that are not printed, and what then is left of the log's sum."""
    found = plan.prediction
    assert found is not None
    filled = {name: round(getattr(found, name) / GIB, 7) for name in PARTS if name not in parts}
    full = filled | dict(parts)
    if not found.cuda_graphs:  # measured, but not taken off by this release
        full["cuda_graphs"] = 0.0
    used = (found.requested - available - sum(extra.size for extra in plan.extras)) / GIB
    return {"filled_gib": filled, "rest_gib": round(used - sum(full.values()), 7)}


def _available(facts: LogFacts, tokens_at: Callable[[int], int] | None) -> int | None:
    """Bytes of the log's KV cache: printed, or the fewest around the printed GiB that give its tokens."""
    if facts.available_bytes is not None:
        return facts.available_bytes
    if facts.available_gib is None:
        return None
    middle = round(facts.available_gib * GIB)
    if tokens_at is None or facts.kv_tokens is None:
        return middle
    low, high = max(middle - _ROUNDING, 0), middle + _ROUNDING
    while low < high:
        half = (low + high) // 2
        low, high = (low, half) if tokens_at(half) >= facts.kv_tokens else (half + 1, high)
    return low + 4096 if tokens_at(low + 4096) == facts.kv_tokens else middle
